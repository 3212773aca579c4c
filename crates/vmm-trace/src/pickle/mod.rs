//! A pickle reader for plain values: protocols 2 to 5, no imports, no calls.
//!
//! We do not use `serde-pickle` (1.2): it clones what a memo reference stands for and walks it anew each
//! time, so that forty nested lists of two references each become 2^40 values, and it recurses without a
//! bound on depth. It also builds the whole tree of values first, where a trace of a million entries
//! wants fifty bytes per entry.
//!
//! Here a value is 16 bytes, containers are indices into a [`Heap`], a memo reference copies an index,
//! and a dict that has an `action` becomes a [`RawEntry`] as soon as its items arrive. So the work is
//! linear in the length of the file whatever it holds, and no step recurses.

mod entry;
mod heap;
mod input;
mod machine;
mod opcode;

pub(crate) use entry::{Field, RawEntry};
pub(crate) use heap::{Heap, Value};
pub(crate) use input::Input;
pub(crate) use machine::read_pickle;

#[cfg(test)]
mod tests;

//! Placements: policies that decide where in given ranges of addresses a request lies.
//!
//! A placement is given *chunks*, ranges of addresses, and places *blocks* in them. It knows neither
//! streams nor a device and touches no memory: all it keeps, it keeps on the host, as memory of a GPU
//! demands. So it serves for any addresses or offsets. A [`Heap`](crate::Heap) uses one for each stream, over
//! chunks that are leases of a pool.
//!
//! | placement | for what | lost to rounding, at most | allocate | release |
//! |---|---|---|---|---|
//! | [`Bump`] | what ends together: a step, a request, a phase | nothing | O(1) | O(1) |
//! | [`Fit`], first | few blocks at a time, low addresses preferred | nothing | O(log f) | O(log f) |
//! | [`Fit`], next | to compare with: it spreads blocks over all chunks | nothing | O(log f) | O(log f) |
//! | [`Fit`], best | the least memory, where lengths repeat | nothing | O(log f) | O(log f) |
//! | [`Buddy`] | lengths near powers of two, quick merging | below half of a block | O(log f) | O(log f) |
//! | [`Slab`] | many short blocks of few lengths | by the classes: below a fifth | O(log s) | O(log s) |
//! | [`Fixed`] | one length, as the pages of a KV cache | all but the request | O(log c) | O(log c) |
//! | [`Tiers`] | lengths that live differently | as its tiers | as its tiers | as its tiers |
//! | [`Tlsf`] | a bound on the time of each call | nothing | O(1) | O(1) |
//! | [`Segregated`] | all of these; what the pool itself does | nothing | O(1) | O(1) |
//!
//! f is the number of free ranges, s that of slabs, c that of chunks. All costs are expected ones
//! that leave out what is common: a table of blocks by address, O(1), and the search for the chunk of
//! an address, O(log c). With alignments above 512 a search may look at candidates that are long enough
//! and lie wrongly, one by one; not so in [`Bump`], [`Tlsf`] and [`Segregated`].
//!
//! All lengths are multiples of 512 bytes, as those of the pool: rounding up to that is not counted
//! above. The same calls lead to the same addresses on every run.

mod buddy;
mod bump;
mod fit;
mod fixed;
mod free_tree;
mod kind;
mod ledger;
mod segregated;
mod slab;
mod slots;
mod tiers;
mod tlsf;

pub use buddy::Buddy;
pub use bump::Bump;
pub use fit::{Fit, FitRule};
pub use fixed::Fixed;
pub use kind::{PlacementKind, UnknownPlacement};
pub use segregated::Segregated;
pub use slab::Slab;
pub use tiers::{Tier, Tiers};
pub use tlsf::Tlsf;

use crate::bins::UNIT;
use crate::units::round_up;
use std::fmt;
use std::ops::Range;

/// Where blocks lie in chunks.
///
/// No two blocks overlap, each lies in one chunk, and none is given out again before it was released.
/// Chunks that touch are not joined: each can be taken back alone.
pub trait Placement: fmt::Debug + Send {
    /// Adds a range to place blocks in.
    ///
    /// # Errors
    /// [`ChunkError`], with nothing changed.
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError>;

    /// Takes back the chunk that begins at `base`. `false`, with nothing changed, if there is none or a
    /// block lies in it.
    fn remove(&mut self, base: u64) -> bool;

    /// A block of at least `len` bytes at a multiple of `alignment`, a power of two; below 512 it
    /// means 512. `None`, with nothing changed, if no place for it is found, or for a length of zero or
    /// beyond 2^62 or another alignment.
    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block>;

    /// Ends the block that begins at `addr`, and says what it was. `None`, with nothing changed, if none
    /// begins there.
    fn release(&mut self, addr: u64) -> Option<Block>;

    /// A chunk that would serve such a request if it were added now; `None` if none would, however
    /// long: then no such request is ever served.
    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape>;

    /// The figures of this moment. May look at all that there is.
    fn figures(&self) -> Figures;
}

/// A piece of a chunk that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// Where it begins.
    pub addr: u64,
    /// Bytes that nobody else can have, rounding included.
    pub len: u64,
    /// Bytes asked for.
    pub requested: u64,
}

impl Block {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.addr + self.len
    }
}

/// What a chunk must at least be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkShape {
    /// Its length in bytes.
    pub len: u64,
    /// Its base is a multiple of this power of two.
    pub alignment: u64,
}

impl ChunkShape {
    /// Whether a chunk is of this shape.
    #[must_use]
    pub fn fits(&self, chunk: &Range<u64>) -> bool {
        chunk.start.is_multiple_of(self.alignment)
            && chunk.end.saturating_sub(chunk.start) >= self.len
    }
}

/// What a placement has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// How many chunks.
    pub chunks: usize,
    /// Their bytes.
    pub chunk_bytes: u64,
    /// How many blocks.
    pub blocks: usize,
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes of blocks: the difference to `requested` is lost to rounding, inside of blocks.
    pub placed: u64,
    /// The longest request, at the least alignment, that would be served now, in bytes. Shorter ones
    /// may fail where each length has places of its own.
    pub largest: u64,
}

impl Figures {
    /// Bytes that are in no block.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.chunk_bytes - self.placed
    }
}

/// A range that cannot be a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{:#x}..{:#x} cannot be a chunk: {why}", chunk.start, chunk.end)]
pub struct ChunkError {
    /// The range.
    pub chunk: Range<u64>,
    /// What to change.
    pub why: &'static str,
}

/// The longest request, and the end of all chunks as a power of two: sums of two stay below 2^64.
const LONGEST: u64 = 1 << 62;

/// A request in units, each at least one; `None` if it can never be served.
fn in_units(len: u64, alignment: u64) -> Option<(u64, u64)> {
    let alignment = alignment.max(UNIT);
    let served = 0 < len && len <= LONGEST && alignment <= LONGEST && alignment.is_power_of_two();
    served.then(|| round_up(len, UNIT).map(|len| (len, alignment))).flatten()
}

/// Bytes from `addr` to the next multiple of `alignment`, a power of two.
fn front(addr: u64, alignment: u64) -> u64 {
    addr.wrapping_neg() & (alignment - 1)
}

//! Says where the memory of a recorded program went, and why.
//!
//! In reading order: `heap` is the memory of the recorded allocator at one moment, `recorded` leads
//! it through a trace, `fragmentation` names what keeps free memory from a request, `timeline` has
//! the curves, `moment` what was where and who held it, `owners` and `growth` who asked, `policies`
//! what others would need, `advice` what to do, and [`Inspection`] all of it.
#![forbid(unsafe_code)]

mod advice;
mod fragmentation;
mod growth;
mod heap;
mod inspection;
mod moment;
mod owners;
mod policies;
mod recorded;
pub mod text;
mod timeline;

pub use fragmentation::{Cause, Causes, Level};
pub use growth::{Growth, growths};
pub use heap::{Block, Kind, Totals};
pub use inspection::{Inspection, OutOfMemory};
pub use moment::{Moment, Wanted};
pub use owners::{Names, Owner, size_class};
pub use policies::PolicyRow;
pub use recorded::{Allocator, Recorded, Request, with_failures_served};
pub use timeline::{Sample, Span, Stretch, Timeline};

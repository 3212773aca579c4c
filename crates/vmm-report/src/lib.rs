//! Says where the memory of a recorded program went, and why.
//!
//! In reading order: `lengths` says how long blocks are, `memory` is the memory of the recorded
//! allocator at one moment, `recorded` leads it through a trace, `fragmentation` names what keeps free
//! memory from a request, `timeline` has the curves, `moment` what was where and who held it, `owners`
//! and `growth` who asked, `policies` what others would need, `advice` what to do, [`Inspection`]
//! all of it, and `sentences` how that is said.
#![forbid(unsafe_code)]

mod address_map;
mod advice;
mod figures;
mod fragmentation;
mod growth;
mod html;
mod inspection;
mod lengths;
mod memory;
mod moment;
mod owners;
mod png;
mod policies;
mod recorded;
mod sentences;
mod state;
mod svg;
pub mod text;
mod timeline;

pub use address_map::{AddressMap, FULL, ROWS};
pub use figures::{Figure, Picture, figures};
pub use fragmentation::{Cause, Causes, Level};
pub use growth::{Growth, growths};
pub use html::html;
pub use inspection::{Inspection, OutOfMemory};
pub use memory::{Block, Kind, Totals};
pub use moment::{Moment, Wanted};
pub use owners::{Names, Owner, size_class};
pub use png::{PngError, png};
pub use policies::PolicyRow;
pub use recorded::{Allocator, Recorded, Request, with_failures_served};
pub use state::{Content, Piece, State};
pub use timeline::{Sample, Span, Stretch, Timeline};

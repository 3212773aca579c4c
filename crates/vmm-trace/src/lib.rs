//! Reads recorded traces of GPU memory into one event form.
//!
//! [`read_file`] takes a pickled snapshot of `PyTorch` or a CSV log of RAPIDS RMM, gzipped or not,
//! told apart by content. Whatever recorded it, the result is a [`Trace`]: for each device the
//! tensors that were live before it began, and then [`Event`]s in order. Files come from elsewhere
//! and may be damaged or hostile: nothing in them is executed, memory stays in proportion to their
//! length, and each fault is a [`TraceError`] of one line. [`write`](mod@write) makes snapshots that
//! the viewer of `PyTorch` opens.
//!
//! ```no_run
//! let trace = vmm_trace::read_file("run.pickle.gz".as_ref(), &mut |_| {})?;
//! for device in &trace.devices {
//!     println!("{}: at most {} bytes live", device.device, device.peak_requested_bytes());
//! }
//! # Ok::<(), vmm_trace::TraceError>(())
//! ```

mod census;
mod curve;
mod details;
mod error;
mod lives;
mod model;
mod pickle;
pub mod pytorch;
mod read;
mod rmm;
mod snapshot;
pub mod write;

pub use census::{Action, Census};
pub use details::{DetailedTrace, Details, OomPlace, SegmentPlace, Stacks};
pub use error::{Place, TraceError};
pub use model::{
    Block, BlockState, DeviceTrace, Event, EventKind, Segment, Source, StartTensor, Trace,
};
pub use read::{Progress, inspect_file, read_file};

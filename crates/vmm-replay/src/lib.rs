//! Drives a pool with a recorded memory trace and reports what it took.
//!
//! In reading order: [`settings`] says what to do, [`amount`] how limits are written, [`timeline`]
//! what a device must offer beside its calls, [`worker`] how the maintenance thread is modelled,
//! [`result`] what comes out, [`budget`] how the smallest limit is searched, and [`worst`] makes traces
//! that are hard for any pool.
#![forbid(unsafe_code)]

pub mod amount;
pub mod budget;
#[cfg(test)]
#[path = "../tests/support/mock_timeline.rs"]
mod mock_timeline;
mod replay;
pub mod result;
mod schedule;
pub mod settings;
mod stopwatch;
pub mod timeline;
pub mod worker;
pub mod worst;

pub use amount::{Amount, AmountError};
pub use budget::smallest_multiple;
pub use replay::{ReplayError, replay};
pub use result::{ReplayResult, Sample};
pub use settings::{Policy, ReplaySettings, Upkeep};
pub use timeline::Timeline;

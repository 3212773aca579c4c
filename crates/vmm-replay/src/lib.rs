//! Drives a pool with a recorded memory trace and reports what it took.
//!
//! In reading order: [`settings`] says what to do, [`amount`] how limits are written, [`timeline`]
//! what a device must offer beside its calls, [`calls`] how those are counted, [`metered`] and
//! [`paced`] how a real device comes to offer that, [`contents`] how the bytes of leases are checked,
//! `source` which leases or blocks tensors lie in, [`worker`] how the maintenance thread is modelled,
//! [`tail`] what dear allocations cost, [`result`] what comes out, [`budget`] how the smallest limit is
//! searched, and [`worst`] makes traces that are hard for any pool.
#![forbid(unsafe_code)]

pub mod amount;
pub mod budget;
pub mod calls;
pub mod contents;
pub mod metered;
#[cfg(test)]
#[path = "../tests/support/mock_timeline.rs"]
mod mock_timeline;
pub mod paced;
mod pool_clock;
mod replay;
pub mod result;
mod schedule;
pub mod settings;
mod source;
mod stopwatch;
pub mod tail;
pub mod timeline;
pub mod worker;
pub mod worst;

pub use amount::{Amount, AmountError};
pub use budget::{if_it_works, smallest_multiple};
pub use calls::{CallAccount, OpCalls};
pub use contents::{CheckResult, Contents, Faults, SHOWN_LEASES, WrongLease};
pub use metered::Metered;
pub use paced::{Ground, Paced};
pub use replay::{ReplayError, replay, replay_checked};
pub use result::{ReplayResult, Sample, recorded_failures};
pub use settings::{Placed, PlacedError, ReplaySettings, Upkeep};
pub use tail::Tail;
pub use timeline::Timeline;

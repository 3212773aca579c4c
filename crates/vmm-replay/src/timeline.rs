//! The clock and the cost of the device that a replay runs on.

use crate::calls::CallAccount;
use vmm_core::{DeviceResult, StreamId};

/// What a replay needs of a device beside the calls that the pool makes.
///
/// It is kept apart from the device's own interface so that the same driver runs a host-only device
/// and a real one ([`crate::Paced`]), both with a logical clock. All times are nanoseconds since an
/// arbitrary start; they never fall.
pub trait Timeline: Send + Sync {
    /// The device's stream that stands for the trace's stream of that index; the same each time.
    ///
    /// # Errors
    /// If the device cannot make one more stream.
    fn stream(&self, index: usize) -> DeviceResult<StreamId>;

    /// The time of the allocating thread.
    fn now_ns(&self) -> u64;

    /// Lets the clock reach `at_ns`; earlier times change nothing.
    fn advance_to(&self, at_ns: u64);

    /// Queues work on `stream` that ends at `end_ns`, or at once if that has passed.
    fn work_until(&self, stream: StreamId, end_ns: u64);

    /// The time that device calls have taken so far, over all threads, in nanoseconds.
    fn driver_time_ns(&self) -> u64;

    /// The number of device calls so far, over all threads.
    fn driver_calls(&self) -> u64;

    /// The same by operation. The sums are [`Self::driver_calls`] and [`Self::driver_time_ns`].
    fn calls(&self) -> CallAccount;
}

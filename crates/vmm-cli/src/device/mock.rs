//! The mock device as a place for replays.

use super::mock_contents::MockContents;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use vmm_core::{DeviceResult, StreamId};
use vmm_mock::{CostModel, MockDevice, MockOptions};
use vmm_replay::{
    CallAccount, OpCalls, ReplayError, ReplayResult, ReplaySettings, Timeline, replay,
    replay_checked,
};
use vmm_trace::DeviceTrace;

/// The memory of an NVIDIA H200, whose costs the mock has unless others are given.
pub(super) const MEMORY: u64 = 141 << 30;

/// How much slower calls were measured on an H200 while a kernel ran on another stream.
const BUSY_FACTOR: f64 = 3.0;

/// The clock and the account of a mock device.
#[derive(Debug)]
pub struct MockTimeline {
    device: Arc<MockDevice>,
    /// When the work queued here ends, by stream.
    ends_ns: Mutex<HashMap<StreamId, u64>>,
}

impl MockTimeline {
    /// The timeline of a device. Whatever else advances its clock or queues work is seen as well.
    #[must_use]
    pub fn new(device: Arc<MockDevice>) -> Self {
        Self { device, ends_ns: Mutex::default() }
    }
}

impl Timeline for MockTimeline {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        Ok(StreamId(index as u64))
    }

    fn now_ns(&self) -> u64 {
        self.device.now()
    }

    fn advance_to(&self, at_ns: u64) {
        self.device.advance_to(at_ns);
    }

    fn work_until(&self, stream: StreamId, end_ns: u64) {
        let mut ends_ns = self.ends_ns.lock().unwrap_or_else(PoisonError::into_inner);
        let tail_ns = ends_ns.entry(stream).or_default();
        let start_ns = self.device.now().max(*tail_ns);
        *tail_ns = end_ns.max(*tail_ns);
        // The work has no memory of its own, so it can only be refused on a stream that is destroyed
        // or capturing, and a replay does neither.
        let queued = self.device.launch(stream, end_ns.saturating_sub(start_ns), &[]);
        queued.expect("the stream belongs to the replay");
    }

    fn driver_time_ns(&self) -> u64 {
        self.device.total_cost_ns()
    }

    fn driver_calls(&self) -> u64 {
        self.device.total_calls()
    }

    fn calls(&self) -> CallAccount {
        let cost = self.device.cost();
        CallAccount::new(|op| OpCalls { count: cost.of(op).calls, time_ns: cost.of(op).nanos })
    }
}

/// A fresh mock as replays use it.
pub(crate) fn probed_mock() -> MockDevice {
    MockDevice::new(MockOptions::with_memory(MEMORY))
}

/// Replays a trace on a fresh mock device whose calls have these costs, and checks the bytes of its
/// leases if `checked` says so. A trace that needs more memory than the device has gets a larger one.
///
/// # Errors
/// As [`replay`].
pub fn replay_on_mock(
    trace: &DeviceTrace,
    settings: &ReplaySettings,
    cost: &CostModel,
    checked: bool,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ReplayResult, ReplayError> {
    let memory =
        MEMORY.max(trace.peak_requested_bytes().saturating_mul(4).next_multiple_of(1 << 30));
    let lag = u64::try_from(settings.lag.as_nanos()).unwrap_or(u64::MAX);
    let mut options = MockOptions { memory, lag, cost: cost.clone(), ..MockOptions::default() };
    if settings.busy {
        options.cost.busy_factor = BUSY_FACTOR;
    }
    let device = Arc::new(MockDevice::new(options));
    let timeline = Arc::new(MockTimeline::new(Arc::clone(&device)));
    if checked {
        let contents = MockContents::new(Arc::clone(&device));
        replay_checked(trace, settings, device, &timeline, &contents, progress)
    } else {
        replay(trace, settings, device, &timeline, progress)
    }
}

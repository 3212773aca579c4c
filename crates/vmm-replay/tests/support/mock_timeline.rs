//! The mock device's clock and account, for the tests and benchmarks of this crate, which names no
//! backend itself.

use super::{CallAccount, OpCalls, Timeline};
use std::sync::Arc;
use vmm_core::{DeviceResult, StreamId};
use vmm_mock::MockDevice;

pub(crate) struct MockTimeline(pub(crate) Arc<MockDevice>);

impl Timeline for MockTimeline {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        Ok(StreamId(index as u64))
    }

    fn now_ns(&self) -> u64 {
        self.0.now()
    }

    fn advance_to(&self, at_ns: u64) {
        self.0.advance_to(at_ns);
    }

    fn work_until(&self, stream: StreamId, end_ns: u64) {
        let duration = end_ns.saturating_sub(self.0.now());
        self.0.launch(stream, duration, &[]).expect("a stream of the replay");
    }

    fn driver_time_ns(&self) -> u64 {
        self.0.total_cost_ns()
    }

    fn driver_calls(&self) -> u64 {
        self.0.total_calls()
    }

    fn calls(&self) -> CallAccount {
        calls_of(&self.0)
    }
}

/// A mock's account, in the form of this crate.
pub(crate) fn calls_of(device: &MockDevice) -> CallAccount {
    let cost = device.cost();
    CallAccount::new(|op| OpCalls { count: cost.of(op).calls, time_ns: cost.of(op).nanos })
}

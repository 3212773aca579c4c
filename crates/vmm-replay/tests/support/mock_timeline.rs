//! The mock device's clock and account, for the tests and benchmarks of this crate, which names no
//! backend itself.

use super::Timeline;
use std::sync::Arc;
use vmm_core::StreamId;
use vmm_mock::MockDevice;

pub(crate) struct MockTimeline(pub(crate) Arc<MockDevice>);

impl Timeline for MockTimeline {
    fn stream(&self, index: usize) -> StreamId {
        StreamId(index as u64)
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
}

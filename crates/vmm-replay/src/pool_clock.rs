//! The clock that the pool of a replay reads.

use crate::timeline::Timeline;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::Clock;

const OUTSIDE: u64 = u64::MAX;

/// The time of the trace. Within an allocation that calls the device the time of these calls is added, so
/// that the pool sees how long it takes; afterwards the timeline has caught up.
pub(crate) struct PoolClock<T> {
    timeline: Arc<T>,
    /// The driver's time when the allocation began, or [`OUTSIDE`].
    began_ns: AtomicU64,
}

impl<T: Timeline + 'static> PoolClock<T> {
    pub(crate) fn new(timeline: Arc<T>) -> Arc<Self> {
        Arc::new(Self { timeline, began_ns: AtomicU64::new(OUTSIDE) })
    }

    /// What the pool gets.
    pub(crate) fn hand(self: &Arc<Self>) -> Clock {
        let own = Arc::clone(self);
        Clock::new(move || Duration::from_nanos(own.now_ns()))
    }

    pub(crate) fn begin_allocation(&self) {
        self.began_ns.store(self.timeline.driver_time_ns(), Ordering::Relaxed);
    }

    /// Ends the allocation; the timeline moves by the driver's time that it took, which is returned.
    pub(crate) fn end_allocation(&self) -> u64 {
        let took_ns = self.took_ns();
        self.timeline.advance_to(self.timeline.now_ns() + took_ns);
        self.began_ns.store(OUTSIDE, Ordering::Relaxed);
        took_ns
    }

    fn now_ns(&self) -> u64 {
        self.timeline.now_ns() + self.took_ns()
    }

    /// The driver's time since the allocation began.
    fn took_ns(&self) -> u64 {
        match self.began_ns.load(Ordering::Relaxed) {
            OUTSIDE => 0,
            began_ns => self.timeline.driver_time_ns() - began_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock_timeline::MockTimeline;
    use vmm_core::{DeviceResult, FrameKind, VirtualMemoryDevice};
    use vmm_mock::{MockDevice, MockOptions};

    #[test]
    fn device_calls_take_time_within_an_allocation_only() -> DeviceResult<()> {
        let device = Arc::new(MockDevice::new(MockOptions::default()));
        let clock = PoolClock::new(Arc::new(MockTimeline(Arc::clone(&device))));
        device.advance_to(100);
        device.make_frame(2 << 20, FrameKind::Device)?;
        assert_eq!(clock.now_ns(), 100);

        clock.begin_allocation();
        let before = device.cost().total().nanos;
        device.make_frame(2 << 20, FrameKind::Device)?;
        let cost = device.cost().total().nanos - before;
        assert!(cost > 0);
        assert_eq!(clock.now_ns(), 100 + cost);
        assert_eq!(clock.end_allocation(), cost);
        assert_eq!((clock.now_ns(), device.now()), (100 + cost, 100 + cost));
        Ok(())
    }
}

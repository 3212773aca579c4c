//! The maintenance worker as a replay models it.
//!
//! A real worker is a second thread. Here it is a clock of its own, so that a replay gives the same
//! figures every time and costs no more than the pool's own work:
//!
//! - a step begins when the worker is free and has been woken, and lasts as long as its device calls;
//! - until it ends, the pool knows it as under way, and its results are not visible;
//! - a driver makes one call at a time, so an allocation that needs the driver first waits for the
//!   step under way. That wait counts as driver time of the allocating thread.

use crate::calls::CallAccount;
use crate::timeline::Timeline;
use vmm_core::{Pool, StepOutcome, VirtualMemoryDevice};

/// Time from an allocation that had to call the device, which wakes the worker, to the worker's
/// look: what waking a sleeping thread takes.
const WAKE_NS: u64 = 50_000;

/// How often an idle worker looks by itself, as the pool's own worker does: nobody tells it when
/// fences pass.
const TICK_NS: u64 = 2_000_000;

/// A step that has begun; its device calls are made, but the pool does not know yet.
struct UnderWay {
    outcome: StepOutcome,
    end_ns: u64,
}

/// The worker's clock and account.
pub(crate) struct Worker {
    /// When it next looks for work, unless a step is under way.
    next_look_ns: u64,
    under_way: Option<UnderWay>,
    /// The device calls that it made.
    pub(crate) calls: CallAccount,
}

impl Worker {
    pub(crate) fn new() -> Self {
        Self { next_look_ns: 0, under_way: None, calls: CallAccount::default() }
    }

    /// Lets the worker work until `until_ns`, and moves the clock along with it.
    pub(crate) fn run_until<D, T>(&mut self, pool: &Pool<D>, timeline: &T, until_ns: u64)
    where
        D: VirtualMemoryDevice + 'static,
        T: Timeline,
    {
        loop {
            if let Some(step) = self.under_way.take_if(|step| step.end_ns <= until_ns) {
                self.finish(pool, timeline, step);
            }
            if self.under_way.is_some() || self.next_look_ns >= until_ns {
                return;
            }
            timeline.advance_to(self.next_look_ns);
            self.look(pool, timeline);
        }
    }

    /// An allocation at `at_ns` found nothing at hand: an idle worker is woken.
    pub(crate) fn wake(&mut self, at_ns: u64) {
        self.next_look_ns = self.next_look_ns.min(at_ns.saturating_add(WAKE_NS));
    }

    /// Waits for the step under way and returns how long that took, in nanoseconds.
    pub(crate) fn wait<D, T>(&mut self, pool: &Pool<D>, timeline: &T) -> u64
    where
        D: VirtualMemoryDevice + 'static,
        T: Timeline,
    {
        let Some(step) = self.under_way.take() else {
            return 0;
        };
        let waited_ns = step.end_ns.saturating_sub(timeline.now_ns());
        self.finish(pool, timeline, step);
        waited_ns
    }

    fn look<D, T>(&mut self, pool: &Pool<D>, timeline: &T)
    where
        D: VirtualMemoryDevice + 'static,
        T: Timeline,
    {
        let start_ns = timeline.now_ns().max(self.next_look_ns);
        // Looking may ask the device which fences have passed; that is the worker's time too.
        let before = timeline.calls();
        let outcome = pool.begin_step().map(|step| step.run(pool.device().as_ref()));
        let made = timeline.calls().since(&before);
        self.calls = self.calls.plus(&made);
        let took_ns = made.total().time_ns;
        // A step without a device call still ends later than it began, so that the clock moves on.
        let end_ns = start_ns.saturating_add(took_ns.max(1));
        match outcome {
            Some(outcome) => self.under_way = Some(UnderWay { outcome, end_ns }),
            None => self.next_look_ns = end_ns.saturating_add(TICK_NS),
        }
    }

    fn finish<D, T>(&mut self, pool: &Pool<D>, timeline: &T, step: UnderWay)
    where
        D: VirtualMemoryDevice + 'static,
        T: Timeline,
    {
        timeline.advance_to(step.end_ns);
        pool.finish_step(step.outcome);
        self.next_look_ns = step.end_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock_timeline::MockTimeline;
    use std::sync::Arc;
    use vmm_core::{Maintenance, PoolOptions};
    use vmm_mock::{MockDevice, MockOptions};

    /// A pool that wants frames made ahead, since it has a limit and none yet.
    fn pool() -> (Pool<MockDevice>, MockTimeline) {
        let device = Arc::new(MockDevice::new(MockOptions::with_memory(1 << 30)));
        let options = PoolOptions {
            limit: Some(64 << 20),
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        let pool = Pool::new(Arc::clone(&device), options).expect("a pool");
        (pool, MockTimeline(device))
    }

    #[test]
    fn a_step_is_under_way_for_as_long_as_its_calls_take() {
        let (pool, clock) = pool();
        let mut worker = Worker::new();
        worker.run_until(&pool, &clock, 1);
        let end_ns = worker.under_way.as_ref().expect("frames to make").end_ns;
        assert_eq!((clock.now_ns(), worker.calls.total().time_ns), (0, end_ns));

        clock.advance_to(end_ns - 10);
        assert_eq!(worker.wait(&pool, &clock), 10);
        assert_eq!(clock.now_ns(), end_ns, "the wait moves the clock");
        assert_eq!(worker.wait(&pool, &clock), 0, "nothing is under way any more");
    }

    #[test]
    fn an_idle_worker_looks_again_after_a_while_and_sooner_when_woken() {
        let (pool, clock) = pool();
        let mut worker = Worker::new();
        // Far more time than making 64 MiB takes.
        worker.run_until(&pool, &clock, 1_000_000_000);
        assert!(worker.under_way.is_none());
        assert!(pool.stats().reserved_bytes > 0);
        let (idle_ns, calls) = (worker.next_look_ns, worker.calls.total().count);
        assert!(idle_ns >= 1_000_000_000);

        worker.wake(1_000_000_000 - WAKE_NS - 1);
        assert_eq!(worker.next_look_ns, 1_000_000_000 - 1);
        assert!(calls > 0);
    }
}

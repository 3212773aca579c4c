//! Real time inside the pool.

use std::time::{Duration, Instant};

/// What two readings of the clock take with nothing between them.
pub(crate) fn reading_time() -> Duration {
    let pause = || Instant::now().elapsed();
    let mut pauses: Vec<Duration> = (0..1001).map(|_| pause()).collect();
    pauses.sort_unstable();
    pauses[pauses.len() / 2]
}

/// Adds up the time of many short calls.
pub(crate) struct Stopwatch {
    /// See [`reading_time`].
    overhead: Duration,
    total: Duration,
}

impl Stopwatch {
    /// A stopwatch that knows what its own readings cost on this machine.
    pub(crate) fn calibrated() -> Self {
        Self { overhead: reading_time(), total: Duration::ZERO }
    }

    /// Runs `call` and adds its time.
    #[inline]
    pub(crate) fn measure<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = call();
        self.total += start.elapsed().saturating_sub(self.overhead);
        result
    }

    /// The time for each of `operations` in nanoseconds; zero for none.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^53 operations")]
    pub(crate) fn ns_per(&self, operations: u64) -> f64 {
        match operations {
            0 => 0.0,
            count => self.total.as_secs_f64() * 1e9 / count as f64,
        }
    }
}

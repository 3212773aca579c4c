//! When to give up memory for speed: the level of a pool that was given none.
//!
//! A program that replaces leases of ever other lengths without pause finds no hole that fits, and
//! has memory moved for every thirtieth lease, for ever. With a level a twentieth to a fifth above its peak
//! it finds one nearly always. Programs that compute between their allocations do not feel the moves, so
//! they keep the tight memory.

use std::time::Duration;

/// Moves per second that no program feels: at about 100 µs each, a twentieth of its time.
const CALM_PER_SECOND: u128 = 500;

/// Moves beyond those that the pool bears before it takes slack, or more of it: a phase of a program
/// may be hectic.
const PATIENCE: u128 = 150;

/// Slack is taken in steps of a twentieth of the peak, up to a fifth.
const STEP_PERMILLE: u64 = 50;
const MOST_PERMILLE: u64 = 200;

/// How hectic a program is.
#[derive(Debug, Default)]
pub(crate) struct Churn {
    /// Moves that were too many, in billionths, at `last`.
    excess: u128,
    last: Duration,
    permille: u64,
}

/// [`Churn::excess`] is counted in these: what a nanosecond of calm makes good is a whole number.
const MOVE: u128 = 1_000_000_000;

impl Churn {
    /// Notes that frames had to move so that a request could be served.
    pub(crate) fn moved(&mut self, now: Duration) {
        let calm = now.saturating_sub(self.last).as_nanos() * CALM_PER_SECOND;
        self.last = now;
        self.excess = self.excess.saturating_sub(calm) + MOVE;
        if self.excess > PATIENCE * MOVE {
            self.excess = PATIENCE / 2 * MOVE;
            self.permille = (self.permille + STEP_PERMILLE).min(MOST_PERMILLE);
        }
    }

    /// Slack in thousandths of the peak, if the program needs any.
    pub(crate) fn slack(&self) -> Option<u64> {
        (self.permille > 0).then_some(self.permille)
    }

    /// Gives a step back: time has passed, and the program may have changed. It is taken again
    /// soon if it has not.
    pub(crate) fn relax(&mut self) {
        self.permille = self.permille.saturating_sub(STEP_PERMILLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slack after so many moves at this distance.
    fn after(moves: u32, distance: Duration) -> Option<u64> {
        let mut churn = Churn::default();
        (1..=moves).for_each(|n| churn.moved(distance * n));
        churn.slack()
    }

    #[test]
    fn a_calm_program_has_none_however_long_it_runs() {
        assert_eq!(after(1_000_000, Duration::from_millis(2)), None);
    }

    #[test]
    fn a_short_burst_has_none() {
        assert_eq!(after(150, Duration::from_micros(1)), None);
    }

    #[test]
    fn what_goes_on_gets_more_and_more_up_to_a_bound() {
        assert_eq!(after(160, Duration::from_micros(10)), Some(STEP_PERMILLE));
        assert_eq!(after(240, Duration::from_micros(10)), Some(2 * STEP_PERMILLE));
        assert_eq!(after(100_000, Duration::from_micros(10)), Some(MOST_PERMILLE));
    }

    #[test]
    fn it_goes_when_time_passes() {
        let mut churn = Churn { permille: MOST_PERMILLE, ..Churn::default() };
        churn.relax();
        assert_eq!(churn.slack(), Some(MOST_PERMILLE - STEP_PERMILLE));
        (1..MOST_PERMILLE / STEP_PERMILLE).for_each(|_| churn.relax());
        assert_eq!(churn.slack(), None);
    }
}

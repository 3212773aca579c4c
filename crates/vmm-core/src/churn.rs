//! When to give up memory for speed, in a pool that was given no level.
//!
//! A program of ever other lengths has memory moved for its leases for ever. Two things help it:
//!
//! - *Longer frames*, where moves take many of them: a long lease of a small program may need thirty. Frames
//!   four times as long strand more memory at their ends, and move with a quarter of the calls.
//! - *A level* above its peak, where moves are many or take much of its time: one that replaces leases without
//!   pause, and had to move for every thirtieth, finds a hole nearly always.
//!
//! Programs that compute between their allocations do not feel the moves, so they keep the tight memory.

use std::time::Duration;

/// Moves per second that no program feels, at about 100 µs each, and how many beyond those the pool bears
/// before it takes slack: a phase of a program may be hectic.
const CALM_MOVES: Rate = Rate { per_second: 100, patience: 75 };

/// The same of the time of the thread that waits for moves, in microseconds: a fiftieth of it for long. A
/// program of short steps, such as inference at ever other lengths, feels moves that are too few to count.
const CALM_TIME: Rate = Rate { per_second: 20_000, patience: 60_000 };

/// One move alone, however long it took, says little about what follows, and the thread may have been kept
/// from its processor meanwhile. About what [`MOST_OF_ONE_MOVE`] frames take on an H200.
const LONGEST_MOVE: Duration = Duration::from_millis(2);

/// Slack in thousandths of the peak, and the steps in which it is given back when time has passed. Less would
/// be in vain: with a tenth such programs move for ever.
const SLACK_PERMILLE: u64 = 150;
const STEP_PERMILLE: u64 = 50;

/// How often the time between two steps of giving slack back may be doubled: by then ten minutes, with a
/// time to live of ten seconds.
const MOST_RETAKEN: u32 = 6;

/// The same of frames moved before they become longer. The first few of a move do not count: where a move
/// takes no more, longer frames are no help.
const CALM_FRAMES: Rate = Rate { per_second: 400, patience: 200 };
const FEW_FRAMES: usize = 8;

/// One move alone, however large, says little about what follows.
const MOST_OF_ONE_MOVE: usize = 50;

/// How often frames may be made twice as long.
const MOST_DOUBLINGS: u32 = 2;

/// How hectic a program is.
#[derive(Debug, Default)]
pub(crate) struct Churn {
    last: Duration,
    moves: Excess,
    time: Excess,
    frames: Excess,
    permille: u64,
    /// Whether slack was given back since it was taken.
    gave_back: bool,
    /// How often it was taken again after that.
    retaken: u32,
    /// Times to live since a step was taken or given back.
    passed: u32,
    doublings: u32,
}

impl Churn {
    /// Notes that `frames` frames had to move so that a request could be served, from `begin` to `now`.
    pub(crate) fn moved(&mut self, begin: Duration, now: Duration, frames: usize) {
        let since = now.saturating_sub(self.last);
        // Several threads may come out of order.
        self.last = now.max(self.last);
        let took = now.saturating_sub(begin).min(LONGEST_MOVE);
        let many = self.moves.passes(CALM_MOVES, 1, since);
        let long = self.time.passes(CALM_TIME, took.as_micros(), since);
        if many || long {
            self.take_slack();
        }
        let frames = frames.saturating_sub(FEW_FRAMES).min(MOST_OF_ONE_MOVE);
        if self.frames.passes(CALM_FRAMES, frames as u128, since) {
            self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
        }
    }

    /// Slack in thousandths of the peak, if the program needs any.
    pub(crate) fn slack(&self) -> Option<u64> {
        (self.permille > 0).then_some(self.permille)
    }

    /// How often the length of frames is doubled. That stays: to make them short again would cost as much.
    pub(crate) fn doublings(&self) -> u32 {
        self.doublings
    }

    fn take_slack(&mut self) {
        self.permille = SLACK_PERMILLE;
        self.retaken += u32::from(std::mem::take(&mut self.gave_back));
        self.passed = 0;
    }

    /// Notes that a time to live has passed. After some of them a step of slack is given back, for the program
    /// may have changed. If it has not it moves again, and a server would feel that over and over: so each
    /// time that slack had to be taken again it stays twice as long.
    pub(crate) fn relax(&mut self) {
        self.passed = self.passed.saturating_add(1);
        if self.permille > 0 && self.passed >= 1 << self.retaken.min(MOST_RETAKEN) {
            self.permille = self.permille.saturating_sub(STEP_PERMILLE);
            self.gave_back = true;
            self.passed = 0;
        }
    }
}

/// Events that are borne.
#[derive(Clone, Copy)]
struct Rate {
    per_second: u128,
    /// Beyond those.
    patience: u128,
}

/// Events that were too many, in billionths: so what a nanosecond makes good is a whole number.
#[derive(Debug, Default)]
struct Excess(u128);

impl Excess {
    const EVENT: u128 = 1_000_000_000;

    /// Adds events that come `since` the last; says whether patience is at an end, and then half of it is
    /// there again.
    fn passes(&mut self, rate: Rate, events: u128, since: Duration) -> bool {
        let calm = since.as_nanos() * rate.per_second;
        self.0 = self.0.saturating_sub(calm) + events * Self::EVENT;
        let passes = self.0 > rate.patience * Self::EVENT;
        if passes {
            self.0 = rate.patience / 2 * Self::EVENT;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What so many moves lead to that end at this distance, of so many frames each; a frame takes 50 µs, as
    /// on an H200.
    fn after(moves: u32, distance: Duration, frames: u32) -> Churn {
        taking(Duration::from_micros(50) * frames, moves, distance, frames)
    }

    /// The same with moves that take so long.
    fn taking(took: Duration, moves: u32, distance: Duration, frames: u32) -> Churn {
        let mut churn = Churn::default();
        for n in 1..=moves {
            let end = took + distance * n;
            churn.moved(end - took, end, frames as usize);
        }
        churn
    }

    #[test]
    fn a_calm_program_has_neither_however_long_it_runs() {
        let churn = after(1_000_000, Duration::from_millis(11), 2);
        assert_eq!((churn.slack(), churn.doublings()), (None, 0));
    }

    #[test]
    fn a_short_burst_has_neither() {
        let churn = after(75, Duration::from_micros(1), 2);
        assert_eq!((churn.slack(), churn.doublings()), (None, 0));
    }

    #[test]
    fn many_moves_get_slack() {
        let slack = |moves| after(moves, Duration::from_micros(10), 1).slack();
        assert_eq!(slack(70), None);
        assert_eq!(slack(80), Some(SLACK_PERMILLE));
        assert_eq!(slack(100_000), Some(SLACK_PERMILLE));
    }

    #[test]
    fn few_moves_that_take_a_tenth_of_the_time_get_slack() {
        let moves = |moves| after(moves, Duration::from_millis(11), 24).slack();
        assert_eq!(moves(60), None);
        assert_eq!(moves(80), Some(SLACK_PERMILLE));
    }

    #[test]
    fn few_moves_that_take_a_hundredth_of_the_time_get_none() {
        assert_eq!(after(100_000, Duration::from_millis(110), 24).slack(), None);
    }

    #[test]
    fn what_moves_really_take_counts() {
        let slack = |took| taking(took, 80, Duration::from_millis(11), 24).slack();
        assert_eq!(slack(Duration::from_micros(200)), None, "a fast device");
        assert_eq!(slack(Duration::from_micros(1200)), Some(SLACK_PERMILLE));
        let once = taking(Duration::from_secs(60), 1, Duration::from_secs(1), 24);
        assert_eq!(once.slack(), None, "a thread that got no processor for long");
    }

    #[test]
    fn few_moves_of_many_frames_get_longer_ones() {
        let far = Duration::from_millis(50);
        assert_eq!(after(1000, far, 28).doublings(), 0);
        let churn = after(10, far, 48);
        assert_eq!((churn.slack(), churn.doublings()), (None, 1));
        assert_eq!(after(100_000, far, 48).doublings(), MOST_DOUBLINGS);
    }

    #[test]
    fn one_large_move_gets_neither() {
        let churn = after(1, Duration::ZERO, 10_000);
        assert_eq!((churn.slack(), churn.doublings()), (None, 0));
    }

    #[test]
    fn many_moves_of_few_frames_get_no_longer_ones() {
        assert_eq!(after(100_000, Duration::from_micros(10), 8).doublings(), 0);
    }

    const STEPS: u32 = 3;
    const _: () = assert!(SLACK_PERMILLE == STEPS as u64 * STEP_PERMILLE);

    /// How many times to live pass before no slack is left.
    fn until_none(churn: &mut Churn) -> u32 {
        let mut passed = 0;
        while churn.slack().is_some() {
            churn.relax();
            passed += 1;
        }
        passed
    }

    #[test]
    fn slack_goes_when_time_passes_and_later_if_it_had_to_be_taken_again() {
        let mut churn = Churn::default();
        churn.relax();
        churn.take_slack();
        assert_eq!(until_none(&mut churn), STEPS);
        for retaken in 1..=2 * MOST_RETAKEN {
            churn.take_slack();
            churn.take_slack();
            assert_eq!(churn.slack(), Some(SLACK_PERMILLE));
            assert_eq!(until_none(&mut churn), STEPS << retaken.min(MOST_RETAKEN));
        }
    }
}

//! The fences of a stream: which value of the device interface is which point of its timeline.
//!
//! Every submission to a stream signals the next *point* of the stream's timeline semaphore. A fence
//! that is recorded while nothing new was submitted names the same point as the one before, so
//! recording costs no call of the driver.

use std::collections::VecDeque;

/// The fences of one stream.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    /// The value of the last fence.
    last: u64,
    reached: u64,
    /// Fences that were not seen to be reached: points, and the last value recorded at each.
    ///
    /// Invariant: both rise.
    unreached: VecDeque<(u64, u64)>,
}

/// What is known of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Reached,
    /// Reached with this point of the timeline.
    At(u64),
    /// Never recorded.
    Never,
}

impl Fences {
    /// Records a fence at a point; returns its value.
    pub(crate) fn record(&mut self, point: u64) -> u64 {
        self.last += 1;
        match self.unreached.back_mut() {
            Some((last, value)) if *last == point => *value = self.last,
            _ => self.unreached.push_back((point, self.last)),
        }
        self.last
    }

    /// Takes note of what the timeline has reached; returns the highest value that has.
    pub(crate) fn settle(&mut self, point: u64) -> u64 {
        while let Some((at, value)) = self.unreached.front().copied() {
            if at > point {
                break;
            }
            self.reached = value;
            self.unreached.pop_front();
        }
        self.reached
    }

    pub(crate) fn find(&self, value: u64) -> Known {
        if value <= self.reached {
            return Known::Reached;
        }
        let at = self.unreached.partition_point(|(_, last)| *last < value);
        self.unreached.get(at).map_or(Known::Never, |(point, _)| Known::At(*point))
    }

    /// How many points are not seen to be reached.
    pub(crate) fn len(&self) -> usize {
        self.unreached.len()
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_rise_and_points_are_shared() {
        let mut fences = Fences::default();
        assert_eq!(fences.settle(9), 0);
        assert_eq!([fences.record(0), fences.record(0), fences.record(2)], [1, 2, 3]);
        assert_eq!(fences.len(), 2);
        assert_eq!(fences.find(1), Known::At(0));
        assert_eq!(fences.find(3), Known::At(2));
        assert_eq!(fences.find(4), Known::Never);
        assert_eq!(fences.settle(1), 2);
        assert_eq!(fences.find(2), Known::Reached);
        assert_eq!(fences.find(3), Known::At(2));
        assert_eq!(fences.settle(2), 3);
        assert_eq!(fences.settle(0), 3, "never falls");
        assert_eq!(fences.record(2), 4);
        assert_eq!(fences.find(4), Known::At(2));
    }

    #[test]
    fn a_million_fences_at_one_point_take_no_memory() {
        let mut fences = Fences::default();
        let last = (0..1_000_000).map(|_| fences.record(7)).last();
        assert_eq!(last, Some(1_000_000));
        assert_eq!(fences.len(), 1);
        assert_eq!(fences.settle(7), 1_000_000);
    }
}

//! The dear end of a distribution of which most values are zero.

/// What allocations cost, in nanoseconds. Only those that cost something are kept.
#[derive(Clone, Debug, Default)]
pub struct Tail {
    dear: Vec<u64>,
    count: usize,
}

impl Tail {
    /// Takes note of one that costs nothing.
    #[inline]
    pub fn note_free(&mut self) {
        self.count += 1;
    }

    /// Takes note of one.
    pub fn note(&mut self, ns: u64) {
        self.count += 1;
        if ns > 0 {
            self.dear.push(ns);
        }
    }

    /// The most that one cost; 0 if there is none.
    #[must_use]
    pub fn worst(&self) -> u64 {
        self.dear.iter().copied().max().unwrap_or(0)
    }

    /// What 999 of 1000 did not exceed; 0 if there is none. Of fewer than 1000 it is the most.
    #[must_use]
    pub fn of_thousand(&self) -> u64 {
        // One of each full thousand may be dearer.
        let dearer = self.count / 1000;
        let Some(at) = self.dear.len().checked_sub(dearer + 1) else { return 0 };
        *self.dear.clone().select_nth_unstable(at).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thousand_may_be_dearer() {
        let of = |free: usize, dear: &[u64]| {
            let mut tail = Tail::default();
            (0..free).for_each(|_| tail.note_free());
            dear.iter().for_each(|&ns| tail.note(ns));
            (tail.of_thousand(), tail.worst())
        };
        assert_eq!(of(0, &[]), (0, 0));
        assert_eq!(of(5, &[]), (0, 0));
        assert_eq!(of(997, &[7, 9]), (9, 9), "fewer than a thousand");
        assert_eq!(of(998, &[9, 7]), (7, 9));
        assert_eq!(of(999, &[9]), (0, 9));
        assert_eq!(of(2997, &[5, 0, 9, 8, 7]), (5, 9), "0 costs nothing");
        assert_eq!(of(0, &(1..=2000).collect::<Vec<_>>()), (1998, 2000));
    }
}

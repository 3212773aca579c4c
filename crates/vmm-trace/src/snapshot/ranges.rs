//! A set of addresses, kept as disjoint ranges.

use std::collections::BTreeMap;

/// Disjoint half-open ranges, as start to end.
#[derive(Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `[start, end)`.
    pub(super) fn add(&mut self, mut start: u64, mut end: u64) {
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            start = start.min(from);
            end = end.max(to);
            self.0.remove(&from);
        }
        if start < end {
            self.0.insert(start, end);
        }
    }

    /// Takes `[start, end)` out.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        while let Some((&from, &to)) = self.0.range(..end).next_back() {
            if to <= start {
                break;
            }
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
        }
    }

    pub(super) fn contains(&self, addr: u64) -> bool {
        self.0.range(..=addr).next_back().is_some_and(|(_, &to)| addr < to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_set() {
        let mut ranges = Ranges::default();
        let mut plain = [false; 70];
        let mut seed = 7u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for step in 0..5000 {
            let (start, len, add) = (next(60), next(6), next(2) == 0);
            let end = start + len;
            if add {
                ranges.add(start, end);
            } else {
                ranges.remove(start, end);
            }
            for (addr, held) in (0..).zip(&mut plain) {
                if (start..end).contains(&addr) {
                    *held = add;
                }
                assert_eq!(ranges.contains(addr), *held, "step {step}, {addr}");
            }
        }
    }
}

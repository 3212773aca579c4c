//! Sets of page numbers that know the next lower member.

use crate::words::{Words, below, highest};

/// Levels of words: the one of the lowest has a bit for each page, those above one for each word
/// below. Ten times six bits cover all page numbers.
const LEVELS: u64 = 10;

/// A set of numbers below 2^60.
#[derive(Debug, Default)]
pub(crate) struct PageSet(Words);

/// The key of the word that holds `number` at a level, and its bit there.
fn place(number: u64, level: u64) -> (u64, u64) {
    let shifted = number.checked_shr(6 * u32::try_from(level).unwrap_or(u32::MAX)).unwrap_or(0);
    ((shifted >> 6) * LEVELS + level, shifted & 63)
}

impl PageSet {
    pub(crate) fn insert(&mut self, page: u64) {
        for level in 0..LEVELS {
            let (key, bit) = place(page, level);
            let word = self.0.get_mut(key);
            let was_empty = *word == 0;
            *word |= 1 << bit;
            if !was_empty {
                return;
            }
        }
    }

    pub(crate) fn remove(&mut self, page: u64) {
        for level in 0..LEVELS {
            let (key, bit) = place(page, level);
            let word = self.0.get_mut(key);
            *word &= !(1 << bit);
            if *word != 0 {
                return;
            }
        }
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        let (key, bit) = place(page, 0);
        self.0.get(key) >> bit & 1 == 1
    }

    /// The highest member below `page`.
    pub(crate) fn before(&self, page: u64) -> Option<u64> {
        for level in 0..LEVELS {
            let (key, bit) = place(page, level);
            if let Some(bit) = highest(below(self.0.get(key), bit)) {
                let mut found = (key / LEVELS) << 6 | bit;
                for level in (0..level).rev() {
                    let word = self.0.get(found * LEVELS + level);
                    found = found << 6 | highest(word).expect("a word that is marked has a bit");
                }
                return Some(found);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn finds_what_an_ordered_set_finds() {
        let (mut pages, mut model) = (PageSet::default(), BTreeSet::new());
        let mut state = 1_u64;
        for _ in 0..30_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Members near each other and far apart: 43 bits at most, as of addresses of 64.
            let page = (state >> 21) >> (state % 43);
            if state >> 60 < 7 {
                pages.insert(page);
                model.insert(page);
            } else {
                pages.remove(page);
                model.remove(&page);
            }
            let asked = page.wrapping_add(state % 3);
            assert_eq!(pages.before(asked), model.range(..asked).next_back().copied(), "{asked}");
            assert_eq!(pages.contains(asked), model.contains(&asked));
        }
        assert!(model.len() > 100);
    }
}

//! Where leases begin: the last beginning before an address, for the pages of one shard.
//!
//! Each page of 2 MiB has 64 words with a bit for each unit of 512 bytes, set where a lease begins,
//! and one word that says which of the 64 may have a bit. The end of a lease clears its bit and
//! looks no further; what became empty is noticed by a search, or when the table is full. So both
//! cost one word, mostly, and a page that is empty for a moment is not forgotten and added again
//! all the time.

use crate::pages::PageSet;
use crate::words::{Words, below, highest};
use parking_lot::Mutex;

/// Addresses of leases are multiples of this, as a power of two.
const UNIT_SHIFT: u32 = 9;

/// Bytes that one word is for, as a power of two.
const WORD_SHIFT: u32 = UNIT_SHIFT + 6;

/// Bytes of a page, as a power of two.
const PAGE_SHIFT: u32 = WORD_SHIFT + 6;

/// The number of the page that an address lies in.
#[inline]
pub(crate) fn page_of(addr: u64) -> u64 {
    addr >> PAGE_SHIFT
}

/// The last address of a page.
pub(crate) fn page_end(page: u64) -> u64 {
    (page << PAGE_SHIFT) + ((1 << PAGE_SHIFT) - 1)
}

/// The beginnings in the pages of one shard.
#[derive(Debug, Default)]
pub(crate) struct Begins {
    /// By address over [`WORD_SHIFT`]: where leases begin.
    units: Words,
    /// By page: which words of `units` may not be zero. The page is in the set of all pages as long
    /// as this is not zero.
    pages: Words,
}

#[inline]
fn unit(addr: u64) -> u64 {
    addr >> UNIT_SHIFT & 63
}

#[inline]
fn word(addr: u64) -> u64 {
    addr >> WORD_SHIFT & 63
}

impl Begins {
    /// A lease begins at `addr`.
    #[inline]
    pub(crate) fn insert(&mut self, addr: u64, in_use: &Mutex<PageSet>) {
        let units = self.units.get_mut(addr >> WORD_SHIFT);
        let was_empty = *units == 0;
        *units |= 1 << unit(addr);
        if was_empty {
            self.mark(addr, in_use);
        }
    }

    /// Notes that a word of units is not zero any more.
    fn mark(&mut self, addr: u64, in_use: &Mutex<PageSet>) {
        if self.pages.is_full() && self.pages.get(page_of(addr)) == 0 {
            self.tidy(in_use);
        }
        let words = self.pages.get_mut(page_of(addr));
        if *words == 0 {
            in_use.lock().insert(page_of(addr));
        }
        *words |= 1 << word(addr);
    }

    /// The lease at `addr` has ended.
    #[inline]
    pub(crate) fn remove(&mut self, addr: u64) {
        *self.units.get_mut(addr >> WORD_SHIFT) &= !(1 << unit(addr));
    }

    /// The last address up to `addr`, in its page, where a lease begins.
    pub(crate) fn last(&mut self, addr: u64, in_use: &Mutex<PageSet>) -> Option<u64> {
        let key = addr >> WORD_SHIFT;
        let up_to = self.units.get(key) & (u64::MAX >> (63 - unit(addr)));
        if let Some(unit) = highest(up_to) {
            return Some((key << 6 | unit) << UNIT_SHIFT);
        }
        let page = page_of(addr);
        while let Some(word) = highest(below(self.pages.get(page), word(addr))) {
            let key = page << 6 | word;
            if let Some(unit) = highest(self.units.get(key)) {
                return Some((key << 6 | unit) << UNIT_SHIFT);
            }
            self.unmark(page, word, in_use);
        }
        None
    }

    /// Forgets that a word of units may have a bit.
    fn unmark(&mut self, page: u64, word: u64, in_use: &Mutex<PageSet>) {
        let words = self.pages.get_mut(page);
        *words &= !(1 << word);
        if *words == 0 {
            in_use.lock().remove(page);
        }
    }

    /// Forgets all pages that no lease begins in.
    #[cold]
    fn tidy(&mut self, in_use: &Mutex<PageSet>) {
        let pages: Vec<(u64, u64)> = self.pages.iter().collect();
        for (page, words) in pages {
            let mut left = words;
            while let Some(word) = highest(left) {
                left = below(left, word);
                if self.units.get(page << 6 | word) == 0 {
                    self.unmark(page, word, in_use);
                }
            }
        }
        self.pages.rebuild();
    }

    pub(crate) fn clear(&mut self, in_use: &Mutex<PageSet>) {
        let mut in_use = in_use.lock();
        self.pages.iter().for_each(|(page, _)| in_use.remove(page));
        *self = Self::default();
    }

    /// Checks that no beginning is out of sight, and returns how many there are.
    ///
    /// # Panics
    /// If one is.
    pub(crate) fn validate(&self, in_use: &PageSet) -> usize {
        for (key, _) in self.units.iter() {
            assert!(self.pages.get(key >> 6) >> (key & 63) & 1 == 1, "a word with bits is marked");
            assert!(in_use.contains(key >> 6), "its page is known to be in use");
        }
        self.units.iter().map(|(_, word)| word.count_ones() as usize).sum()
    }

    /// Whether a lease begins at `addr`.
    pub(crate) fn contains(&self, addr: u64) -> bool {
        self.units.get(addr >> WORD_SHIFT) >> unit(addr) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_begin_in_a_page_is_found() {
        let in_use = Mutex::default();
        let mut begins = Begins::default();
        let base = 7 << PAGE_SHIFT;
        let check = |begins: &mut Begins, addr: u64, expected: Option<u64>| {
            let found = begins.last(base + addr, &in_use);
            assert_eq!(found, expected.map(|begin| base + begin), "{addr}");
        };
        for begin in [512, 63 * 512, 64 * 512, 4095 * 512] {
            begins.insert(base + begin, &in_use);
        }
        check(&mut begins, 0, None);
        check(&mut begins, 511, None);
        check(&mut begins, 512, Some(512));
        check(&mut begins, 63 * 512 - 1, Some(512));
        check(&mut begins, 63 * 512, Some(63 * 512));
        check(&mut begins, 1 << 20, Some(64 * 512));
        check(&mut begins, (2 << 20) - 1, Some(4095 * 512));
        begins.remove(base + 64 * 512);
        check(&mut begins, 1 << 20, Some(63 * 512));
        assert_eq!(begins.validate(&in_use.lock()), 3);
    }

    #[test]
    fn pages_that_are_empty_are_forgotten() {
        let in_use = Mutex::default();
        let mut begins = Begins::default();
        for page in 0..10_000 {
            begins.insert(page << PAGE_SHIFT, &in_use);
            begins.remove(page << PAGE_SHIFT);
        }
        assert!(begins.pages.iter().count() < 100, "{} pages", begins.pages.iter().count());
        assert_eq!(begins.last(page_end(9_999), &in_use), None);
        assert!(!in_use.lock().contains(9_999), "a search forgets what it finds empty");
    }
}

//! Bitmaps in words of 64 bits, by a key each: a hash table with linear probing in which a word
//! that is missing is zero.

use std::mem::replace;

/// Words at first, as a power of two.
const FIRST_BITS: u32 = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// One above the key; zero where there is none.
    tag: u64,
    word: u64,
}

#[derive(Debug)]
pub(crate) struct Words {
    /// At most three quarters are in use, so that every search ends at an empty one.
    entries: Vec<Entry>,
    /// 64 minus the power of two that their number is.
    shift: u32,
    used: usize,
}

impl Default for Words {
    fn default() -> Self {
        Self::with_bits(FIRST_BITS)
    }
}

impl Words {
    fn with_bits(bits: u32) -> Self {
        Self { entries: vec![Entry::default(); 1 << bits], shift: 64 - bits, used: 0 }
    }

    /// The entry of a key, or the empty one where it would be put. Fibonacci hashing (Knuth, volume
    /// 3, section 6.4).
    #[inline]
    fn search(&self, key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift;
        // It is below the number of entries.
        let mut at = usize::try_from(mixed).unwrap_or(0);
        while self.entries[at].tag != 0 && self.entries[at].tag != key + 1 {
            at = (at + 1) & (self.entries.len() - 1);
        }
        at
    }

    #[inline]
    pub(crate) fn get(&self, key: u64) -> u64 {
        self.entries[self.search(key)].word
    }

    /// The word of a key, to be changed. Keys are below `u64::MAX`.
    #[inline]
    pub(crate) fn get_mut(&mut self, key: u64) -> &mut u64 {
        let mut at = self.search(key);
        if self.entries[at].tag == 0 {
            at = self.add(key);
        }
        &mut self.entries[at].word
    }

    #[inline(never)]
    fn add(&mut self, key: u64) -> usize {
        if self.is_full() {
            self.rebuild();
        }
        let at = self.search(key);
        self.entries[at].tag = key + 1;
        self.used += 1;
        at
    }

    /// Whether the next key that is new makes the table look for words that are zero, or grow.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used >= self.entries.len() / 4 * 3
    }

    /// Leaves out words that are zero, and makes room for as many as are left.
    pub(crate) fn rebuild(&mut self) {
        let kept = self.iter().count();
        // At least half of the usable entries are free afterwards: as many keys are added before
        // the next time.
        let bits = (kept * 8 / 3 + 1).next_power_of_two().trailing_zeros().max(FIRST_BITS);
        let old = replace(self, Self::with_bits(bits));
        for (key, word) in old.iter() {
            *self.get_mut(key) = word;
        }
    }

    /// Keys whose word is not zero, and the words.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.entries.iter().filter(|entry| entry.word != 0).map(|e| (e.tag - 1, e.word))
    }
}

/// The highest bit of a word that is set.
#[inline]
pub(crate) fn highest(word: u64) -> Option<u64> {
    (word != 0).then(|| u64::from(63 - word.leading_zeros()))
}

/// The bits of a word below one of them.
#[inline]
pub(crate) fn below(word: u64, bit: u64) -> u64 {
    word & ((1 << bit) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_became_zero_make_room() {
        let mut words = Words::default();
        for key in 0..100_000 {
            *words.get_mut(key) = 7;
            assert_eq!(words.get(key), 7);
            *words.get_mut(key) = 0;
        }
        assert!(words.entries.len() <= 64, "{} entries for one word", words.entries.len());
    }

    #[test]
    fn all_words_are_found() {
        let mut words = Words::default();
        (1..5_000).for_each(|key| *words.get_mut(key * 64) = key);
        assert!((1..5_000).all(|key| words.get(key * 64) == key && words.get(key * 64 + 1) == 0));
        assert_eq!(words.iter().count(), 4_999);
    }
}

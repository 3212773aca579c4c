//! Free extents of one stream by length: the shortest that fits, in constant time.
//!
//! Lengths up to 1 MiB have a bin each per 512 bytes, longer ones 64 bins per power of two, so that a
//! hit wastes at most 1/64 more than the best fit would. Two levels of bitmaps find the next
//! bin in use, as in the two-level segregated fit of Masmano and others (ECRTS 2004); the exact
//! bins and the look at a few members of a bin bring it near best fit, which wastes less.

use crate::extent::{ExtentId, Extents, NONE};

/// Every length is a multiple of this many bytes.
pub(crate) const UNIT: u64 = 512;

const EXACT: u64 = 2048;
/// Bins below this hold one length each.
const EXACT_BINS: usize = 2048;
const PER_OCTAVE: u64 = 64;
/// 32 octaves above the 11 of the exact bins: 2^43 units, or 4 PiB. What is longer, as no memory is,
/// shares the last bin. One word has a bit for each word of bits.
const BINS: usize = 64 * 64;
const WORDS: usize = BINS / 64;
/// Members of a bin that a search looks at. More would find a slightly better fit, and cost time.
const LOOKS: usize = 12;

/// Heads of the lists of one stream. The links are in the extents themselves.
#[derive(Debug)]
pub(crate) struct Bins {
    heads: [ExtentId; BINS],
    words: [u64; WORDS],
    /// Which words are not zero.
    summary: u64,
}

/// The bin of a length, below [`BINS`].
#[inline]
fn bin_of(len: u64) -> usize {
    let units = len / UNIT;
    let bin = if units < EXACT {
        units
    } else {
        // The leading seven bits are 64 to 127 in each octave, and the shift of the first is 5.
        let shift = units.ilog2() - 6;
        EXACT - 6 * PER_OCTAVE + u64::from(shift) * PER_OCTAVE + (units >> shift)
    };
    usize::try_from(bin).unwrap_or(BINS).min(BINS - 1)
}

impl Bins {
    pub(crate) fn new() -> Self {
        Self { heads: [NONE; BINS], words: [0; WORDS], summary: 0 }
    }

    #[inline]
    pub(crate) fn insert(&mut self, extents: &mut Extents, id: ExtentId) {
        self.link(extents, id, bin_of(extents[id].len));
    }

    #[inline]
    pub(crate) fn remove(&mut self, extents: &mut Extents, id: ExtentId) {
        self.unlink(extents, id, bin_of(extents[id].len));
    }

    /// Notes that a member had `old_len` bytes before. One that is long often stays in its bin.
    #[inline]
    pub(crate) fn resized(&mut self, extents: &mut Extents, id: ExtentId, old_len: u64) {
        let (old, new) = (bin_of(old_len), bin_of(extents[id].len));
        if old != new {
            self.unlink(extents, id, old);
            self.link(extents, id, new);
        }
    }

    #[inline]
    fn link(&mut self, extents: &mut Extents, id: ExtentId, bin: usize) {
        let head = std::mem::replace(&mut self.heads[bin], id);
        let extent = &mut extents[id];
        extent.bin_prev = NONE;
        extent.bin_next = head;
        if head == NONE {
            self.words[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            extents[head].bin_prev = id;
        }
    }

    #[inline]
    fn unlink(&mut self, extents: &mut Extents, id: ExtentId, bin: usize) {
        let extent = &extents[id];
        let (prev, next) = (extent.bin_prev, extent.bin_next);
        if next != NONE {
            extents[next].bin_prev = prev;
        }
        if prev != NONE {
            extents[prev].bin_next = next;
            return;
        }
        self.heads[bin] = next;
        if next == NONE {
            let word = &mut self.words[bin / 64];
            *word &= !(1 << (bin % 64));
            if *word == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The first bin in use at or above `from`.
    #[inline]
    fn next_bin(&self, from: usize) -> Option<usize> {
        if from >= BINS {
            return None;
        }
        let word = from / 64;
        let rest = self.words[word] & (!0 << (from % 64));
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let above = self.summary & (!0 << word << 1);
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// A shortest extent of at least `len` bytes that holds `len` bytes at `alignment`; the lowest
    /// address among equals of 1 MiB and more. Looks at a bounded number of extents.
    #[inline]
    pub(crate) fn find(&self, extents: &Extents, len: u64, alignment: u64) -> Option<ExtentId> {
        let bin = self.next_bin(bin_of(len))?;
        if bin < EXACT_BINS && alignment <= UNIT {
            // All members are of one length, and begin at a unit: the last one freed is as good as
            // any, and the host's caches still have it.
            return Some(self.heads[bin]);
        }
        // A member that is alone needs no search.
        let first = &extents[self.heads[bin]];
        if first.bin_next == NONE && first.fits(len, alignment) {
            return Some(self.heads[bin]);
        }
        self.search(extents, bin, len, alignment)
    }

    /// As [`Self::find`], in the bins from `bin` on.
    fn search(
        &self,
        extents: &Extents,
        mut bin: usize,
        len: u64,
        alignment: u64,
    ) -> Option<ExtentId> {
        let mut looks = LOOKS;
        loop {
            let mut best = NONE;
            let mut best_key = (u64::MAX, u64::MAX);
            let mut id = self.heads[bin];
            while id != NONE && looks > 0 {
                let extent = &extents[id];
                if extent.fits(len, alignment) && (extent.len, extent.addr) < best_key {
                    best = id;
                    best_key = (extent.len, extent.addr);
                }
                id = extent.bin_next;
                looks -= 1;
            }
            if best != NONE {
                return Some(best);
            }
            if looks == 0 {
                break;
            }
            bin = self.next_bin(bin + 1)?;
        }
        // Nothing among those looked at. From here on every extent is long enough by its bin alone.
        let certain = len.checked_add(alignment - UNIT)?;
        let bin = self.next_bin(bin_of(certain) + 1)?;
        Some(self.heads[bin])
    }

    /// The shortest bins first, all extents of at least `len` bytes.
    pub(crate) fn at_least<'a>(
        &'a self,
        extents: &'a Extents,
        len: u64,
    ) -> impl Iterator<Item = ExtentId> + 'a {
        let mut bin = self.next_bin(bin_of(len));
        let mut id = bin.map_or(NONE, |bin| self.heads[bin]);
        std::iter::from_fn(move || {
            loop {
                if id == NONE {
                    bin = self.next_bin(bin? + 1);
                    id = self.heads[bin?];
                    continue;
                }
                let found = id;
                id = extents[id].bin_next;
                if extents[found].len >= len {
                    return Some(found);
                }
            }
        })
    }

    /// The longest request at the least alignment that [`Self::find`] serves; zero if there is nothing.
    pub(crate) fn longest(&self, extents: &Extents) -> u64 {
        let Some(word) = self.summary.checked_ilog2() else { return 0 };
        let word = word as usize;
        let mut id = self.heads[word * 64 + self.words[word].ilog2() as usize];
        let members = std::iter::from_fn(|| {
            let extent = (id != NONE).then(|| &extents[id])?;
            id = extent.bin_next;
            Some(extent.len)
        });
        members.take(LOOKS).max().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.summary == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Extent;

    #[test]
    fn bins_rise_with_length_and_stay_in_range() {
        let mut last = 0;
        for shift in 9..64 {
            for step in 0..128_u64 {
                let base = 1_u64 << shift;
                let len = base.saturating_add((base / 128).saturating_mul(step)) / UNIT * UNIT;
                let bin = bin_of(len);
                assert!(bin >= last || bin_of(len) == last, "bin of {len} fell");
                assert!(bin < BINS);
                last = bin;
            }
        }
        assert_eq!(bin_of(512), 1);
        assert_eq!(bin_of((1 << 20) - 512), 2047);
        assert_eq!(bin_of(1 << 20), 2048);
        assert!(bin_of(u64::MAX / UNIT * UNIT) < BINS);
    }

    #[test]
    fn a_long_bin_spans_a_64th_of_its_octave() {
        for shift in 20..52 {
            for step in 0..64 {
                let (base, span) = (1_u64 << shift, 1_u64 << (shift - 6));
                let bin = bin_of(base + step * span);
                assert_eq!(bin_of(base + (step + 1) * span - UNIT), bin);
                let next = bin_of(base + (step + 1) * span);
                assert_eq!(next, (bin + 1).min(BINS - 1), "the bin behind {step} of 2^{shift}");
            }
        }
    }

    /// Inserts the lengths, then checks that a request finds the shortest that fits.
    fn check(lens: &[u64], request: u64, expect: Option<u64>) {
        let mut extents = Extents::default();
        let mut bins = Bins::new();
        for (i, len) in lens.iter().enumerate() {
            let id = extents.add(Extent { addr: (i as u64) << 40, len: *len, ..Extent::default() });
            bins.insert(&mut extents, id);
        }
        let found = bins.find(&extents, request, UNIT).map(|id| extents[id].len);
        assert_eq!(found, expect, "{lens:?} asked for {request}");
    }

    #[test]
    fn finds_the_shortest_that_fits() {
        check(&[], 512, None);
        check(&[512], 512, Some(512));
        check(&[512], 1024, None);
        check(&[4096, 1024, 2048], 1024, Some(1024));
        check(&[8 << 20, 9 << 20, 64 << 20], (8 << 20) + 512, Some(9 << 20));
        check(&[1 << 40, 3 << 20], 2 << 20, Some(3 << 20));
        check(&[(64 << 20) + 512, (64 << 20) + 1024], (64 << 20) + 1024, Some((64 << 20) + 1024));
    }

    #[test]
    fn a_crowded_bin_hides_no_longer_extent() {
        let mut lens = vec![(1 << 30) + 512; 100];
        lens.insert(0, 2 << 30);
        check(&lens, (1 << 30) + 1024, Some(2 << 30));
    }
}

//! First, next and best fit.

use super::free_tree::FreeTree;
use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, front, in_units};
use std::collections::BTreeSet;
use std::ops::Range;

/// Which of the free ranges that hold a request serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FitRule {
    /// The one with the lowest address.
    First,
    /// The next one behind the block that was placed last, and from the lowest address on if there is
    /// none.
    Next,
    /// The shortest one; the lowest among equals.
    Best,
}

/// A sequential fit: free ranges of any length, joined with their neighbours at once.
///
/// - Guarantees: nothing is lost inside of blocks, and a request fails only if no free range holds it.
///   With at most M bytes in use and lengths of 1 to n units no strategy is safe below about
///   ½ M log2 n; first fit needs at most about M log2 n, best fit about M n in the worst case (Robson).
///   In recorded programs best fit and first fit by address are the two that waste least, and next fit
///   clearly more (Wilson and others).
/// - Cost: O(log f) for f free ranges. A tree by address, in which each node knows the longest range below
///   it, finds the first or next fit, and the neighbours to join; best fit has a set by length too.
/// - Source: Knuth, *The art of computer programming* 1, section 2.5; Robson, *Bounds for some functions
///   concerning dynamic storage allocation*, Journal of the ACM 21(3), 1974, and *Worst case fragmentation
///   of first fit and best fit storage allocation strategies*, Computer Journal 20(3), 1977; Wilson,
///   Johnstone, Neely and Boles, *Dynamic storage allocation: a survey and critical review*, 1995.
#[derive(Debug)]
pub struct Fit {
    rule: FitRule,
    ledger: Ledger<()>,
    free: FreeTree,
    /// Length and address of all free ranges, for best fit only.
    by_len: BTreeSet<(u64, u64)>,
    /// The end of the block that was placed last.
    last_end: u64,
}

impl Fit {
    /// One without chunks.
    #[must_use]
    pub fn new(rule: FitRule) -> Self {
        Self {
            rule,
            ledger: Ledger::default(),
            free: FreeTree::default(),
            by_len: BTreeSet::new(),
            last_end: 0,
        }
    }

    fn find(&self, len: u64, alignment: u64) -> Option<(u64, u64)> {
        match self.rule {
            FitRule::First => self.free.first(0, len, alignment),
            FitRule::Next => {
                let next = self.free.first(self.last_end, len, alignment);
                next.or_else(|| self.free.first(0, len, alignment))
            }
            FitRule::Best => {
                let mut long_enough = self.by_len.range((len, 0)..);
                let found = long_enough.find(|(own, addr)| front(*addr, alignment) <= own - len);
                found.map(|(len, addr)| (*addr, *len))
            }
        }
    }

    fn insert(&mut self, addr: u64, len: u64) {
        self.free.insert(addr, len);
        if self.rule == FitRule::Best {
            self.by_len.insert((len, addr));
        }
    }

    fn take_out(&mut self, addr: u64) -> u64 {
        let len = self.free.remove(addr);
        if self.rule == FitRule::Best {
            self.by_len.remove(&(len, addr));
        }
        len
    }

    /// Makes one free range of another that overlaps or touches it.
    fn change(&mut self, (addr, len): (u64, u64), (new_addr, new_len): (u64, u64)) {
        self.free.change(addr, new_addr, new_len);
        if self.rule == FitRule::Best {
            self.by_len.remove(&(len, addr));
            self.by_len.insert((new_len, new_addr));
        }
    }
}

impl Placement for Fit {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        self.insert(chunk.start, chunk.end - chunk.start);
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        let removed = self.ledger.remove(base).is_some();
        if removed {
            self.take_out(base);
        }
        removed
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let (begin, free) = self.find(len, alignment)?;
        let addr = begin + front(begin, alignment);
        let (before, behind) = (addr - begin, begin + free - (addr + len));
        match (before, behind) {
            (0, 0) => {
                self.take_out(begin);
            }
            (0, _) => self.change((begin, free), (addr + len, behind)),
            _ => self.change((begin, free), (begin, before)),
        }
        if before > 0 && behind > 0 {
            self.insert(addr + len, behind);
        }
        self.last_end = addr + len;
        Some(self.ledger.place(Block { addr, len, requested }, ()))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, ()) = self.ledger.take(addr)?;
        let chunk = self.ledger.chunk_of(addr);
        let end = block.end();
        let before = self.free.before(addr);
        let before = before.filter(|(own, len)| own + len == addr && *own >= chunk.start);
        let behind = (end < chunk.end).then(|| self.free.at(end)).flatten();
        match (before, behind) {
            (None, None) => self.insert(addr, block.len),
            (None, Some(len)) => self.change((end, len), (addr, block.len + len)),
            (Some(range), None) => self.change(range, (range.0, range.1 + block.len)),
            (Some(range), Some(len)) => {
                self.take_out(end);
                self.change(range, (range.0, range.1 + block.len + len));
            }
        }
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        in_units(len, alignment).map(|(len, alignment)| ChunkShape { len, alignment })
    }

    fn figures(&self) -> Figures {
        self.ledger.figures(self.free.longest())
    }
}

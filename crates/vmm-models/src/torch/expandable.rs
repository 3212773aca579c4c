//! Expandable segments: pages are mapped where a block can grow.

use super::blocks::{Block, Id, State};
use super::options::{LARGE_SEGMENT, SMALL_SEGMENT};
use super::{CachingAllocator, index};
use crate::driver::Driver;

/// Addresses of one segment, in bytes: whole pages of either length. `PyTorch` reserves an eighth more
/// than the card has; here none is ever full.
const SEGMENT_SPAN: u64 = LARGE_SEGMENT << 20;

impl CachingAllocator {
    /// A free block of at least `len` bytes, taken out of its pool, after pages were mapped at the
    /// lowest address where they make one. `None` beyond the limit or the longest segment; pages mapped
    /// until then stay.
    pub(super) fn expand(
        &mut self,
        driver: &mut Driver,
        pool: usize,
        stream: u16,
        len: u64,
    ) -> Option<Id> {
        if len > SEGMENT_SPAN {
            return None;
        }
        let mut block = self.growable(pool, stream, len);
        if self.blocks.get(block).state == State::Unmapped {
            let wanted = self.blocks.get(block).len.min(len);
            block = self.map(driver, block, wanted)?;
        }
        while self.blocks.get(block).len < len {
            let next = self.blocks.get(block).next.expect("memory was found to reach that far");
            let missing = len - self.blocks.get(block).len;
            let wanted = self.blocks.get(next).len.min(missing);
            block = self.map(driver, next, wanted)?;
        }
        self.blocks.leave(block);
        Some(block)
    }

    /// The lowest block, free or unmapped, from which `len` bytes can be had by mapping.
    fn growable(&mut self, pool: usize, stream: u16, len: u64) -> Id {
        let unmapped = self.blocks.pools[pool]
            .unmapped
            .range((stream, 0, 0)..)
            .take_while(|&&(of, ..)| of == stream);
        for &(_, _, id) in unmapped {
            let prev = self.blocks.get(id).prev;
            let start = prev.filter(|&prev| self.blocks.get(prev).state == State::Free);
            let start = start.unwrap_or(id);
            if self.reaches(start, len) {
                return start;
            }
        }
        self.segments += 1;
        let segment = self.blocks.insert(Block {
            addr: self.segments * SEGMENT_SPAN,
            len: SEGMENT_SPAN,
            stream,
            pool: index(pool),
            state: State::Unmapped,
            is_expandable: true,
            prev: None,
            next: None,
            since: 0,
        });
        self.blocks.enter(segment, State::Unmapped);
        segment
    }

    /// Whether there are `len` bytes from the start of a block on that nobody holds.
    fn reaches(&self, start: Id, len: u64) -> bool {
        let mut found = 0;
        let mut at = Some(start);
        while let Some(id) = at {
            let block = self.blocks.get(id);
            if block.state == State::Live {
                return false;
            }
            found += block.len;
            if found >= len {
                return true;
            }
            at = block.next;
        }
        false
    }

    /// Maps whole pages for the first `len` bytes of an unmapped block, and joins them with free
    /// neighbours. The block that comes of it is in its pool.
    fn map(&mut self, driver: &mut Driver, block: Id, len: u64) -> Option<Id> {
        let page = self.page(block);
        let pages = len.div_ceil(page);
        if !driver.map(page, pages) {
            return None;
        }
        self.blocks.leave(block);
        if pages * page < self.blocks.get(block).len {
            let rest = self.blocks.cut(block, pages * page);
            self.blocks.enter(rest, State::Unmapped);
        }
        self.blocks.merge(block, State::Free);
        self.blocks.enter(block, State::Free);
        Some(block)
    }

    /// Unmaps the whole pages of a free block.
    pub(super) fn unmap(&mut self, driver: &mut Driver, block: Id) {
        let page = self.page(block);
        let (addr, end) =
            (self.blocks.get(block).addr, self.blocks.get(block).addr + self.blocks.get(block).len);
        let (first, last) = (addr.next_multiple_of(page), end / page * page);
        if first >= last {
            return;
        }
        driver.wait();
        driver.unmap(page, (last - first) / page);
        self.blocks.leave(block);
        let mut middle = block;
        if first > addr {
            middle = self.blocks.cut(block, first - addr);
            self.blocks.enter(block, State::Free);
        }
        if last < end {
            let after = self.blocks.cut(middle, last - first);
            self.blocks.enter(after, State::Free);
        }
        self.blocks.merge(middle, State::Unmapped);
        self.blocks.enter(middle, State::Unmapped);
    }

    fn page(&self, block: Id) -> u64 {
        let pool = &self.blocks.pools[self.blocks.get(block).pool as usize];
        if pool.is_small { SMALL_SEGMENT } else { LARGE_SEGMENT }
    }
}

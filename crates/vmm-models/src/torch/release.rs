//! What happens when memory is short: segments go back to the driver.

use super::CachingAllocator;
use super::blocks::{Id, State};
use crate::driver::Driver;

impl CachingAllocator {
    /// The ladder after a first failure: give back unused blocks that were too long to split, then all
    /// that is cached.
    pub(super) fn grow_by_releasing(
        &mut self,
        driver: &mut Driver,
        pool: usize,
        stream: u16,
        len: u64,
    ) -> Option<Id> {
        if self.release_oversize(driver, pool, stream, len)
            && let Some(block) = self.grow(driver, pool, stream, len)
        {
            return Some(block);
        }
        self.release_all(driver);
        self.grow(driver, pool, stream, len)
    }

    /// Gives back blocks that are never split until `len` bytes have gone; says whether they did.
    fn release_oversize(
        &mut self,
        driver: &mut Driver,
        pool: usize,
        stream: u16,
        len: u64,
    ) -> bool {
        let Some(max_split) = self.options.max_split_size else { return false };
        let wanted = len.max(max_split);
        let free = &self.blocks.pools[pool].free;
        let fitting = free.range((stream, wanted, 0, 0)..).next();
        if let Some(&(of, _, _, block)) = fitting
            && of == stream
            && !self.blocks.get(block).is_expandable
        {
            self.release_segment(driver, block);
            return true;
        }
        let longest_first: Vec<(u64, Id)> = free
            .range((stream, max_split, 0, 0)..(stream, wanted, 0, 0))
            .rev()
            .map(|&(_, len, _, block)| (len, block))
            .collect();
        let mut released = 0;
        for (len, block) in longest_first {
            if released >= wanted {
                break;
            }
            if !self.blocks.get(block).is_expandable {
                released += len;
                self.release_segment(driver, block);
            }
        }
        released >= wanted
    }

    /// Gives back all that is cached, of graphs' pools only those whose graphs are gone: others may run.
    pub(super) fn release_all(&mut self, driver: &mut Driver) {
        for pool in 0..self.blocks.pools.len() {
            if self.blocks.pools[pool].is_private && !self.blocks.pools[pool].is_ended {
                continue;
            }
            let cached: Vec<Id> =
                self.blocks.pools[pool].free.iter().map(|&(.., block)| block).collect();
            for block in cached {
                if self.blocks.get(block).is_expandable {
                    self.unmap(driver, block);
                } else if !self.blocks.get(block).is_split() {
                    self.release_segment(driver, block);
                }
            }
        }
    }

    /// Under a limit and above a share of it, gives back segments that were not used for long. Only
    /// those of large requests count.
    pub(super) fn collect_garbage(&mut self, driver: &mut Driver) {
        let share = self.options.garbage_collection_threshold;
        let Some(limit) = driver.limit().filter(|_| share > 0.0) else { return };
        let threshold = threshold(limit, share);
        let Some(surplus) = driver.reserved.checked_sub(threshold).filter(|&s| s > 0) else {
            return;
        };
        let Some(large) = self.blocks.pools.get(1) else { return };
        let searches = large.searches;
        let whole = large.free.iter().map(|&(.., block)| block);
        let mut ages: Vec<(Id, u64)> = whole
            .filter(|&block| !self.blocks.get(block).is_split())
            .filter(|&block| !self.blocks.get(block).is_expandable)
            .map(|block| (block, searches - self.blocks.get(block).since))
            .collect();
        let mut released = 0;
        while released < surplus && !ages.is_empty() {
            // All that are older than the average go, even if fewer would do, so that the next time
            // is far away.
            let total: u64 = ages.iter().map(|&(_, age)| age).sum();
            let count = ages.len() as u64;
            let (old, young): (Vec<_>, Vec<_>) =
                ages.into_iter().partition(|&(_, age)| age * count >= total);
            for (block, _) in old {
                released += self.blocks.get(block).len;
                self.release_segment(driver, block);
            }
            ages = young;
        }
    }

    /// Gives a segment back that is one free block.
    fn release_segment(&mut self, driver: &mut Driver, block: Id) {
        debug_assert!(!self.blocks.get(block).is_split());
        debug_assert_eq!(self.blocks.get(block).state, State::Free);
        self.blocks.leave(block);
        driver.free(self.blocks.get(block).addr, self.blocks.get(block).len);
        self.blocks.remove(block);
    }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a limit, as PyTorch computes it"
)]
fn threshold(limit: u64, share: f64) -> u64 {
    (limit as f64 * share) as u64
}

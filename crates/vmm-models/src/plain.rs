//! Plain `cudaMalloc` and `cudaFree` for every tensor.
//!
//! *Guarantees*: a freed tensor's memory goes back to the device at once. *Cost*: a call for every
//! tensor, and every `cudaFree` waits for the whole device, as was measured; so a tensor that another
//! stream still uses needs no deferral.
//!
//! *Not checked*: how the driver lays out small allocations is not documented. The model takes memory
//! in pages of 2 MiB, which requests up to 1 MiB share by best fit in steps of 512 bytes.

use crate::driver::{Call, Driver};
use crate::model::{BlockId, Model, Release, Request};
use crate::pieces::Pieces;
use std::collections::BTreeMap;

/// Bytes of a page.
const PAGE: u64 = 2 << 20;

/// The longest request that shares a page.
const SMALL: u64 = 1 << 20;

/// What small requests are rounded up to.
const ROUND: u64 = 512;

/// All memory is one stream's: a free waits for all of them.
const STREAM: u16 = 0;

/// The model.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    small: Pieces,
    /// Length of each tensor that has pages of its own, by address.
    large: BTreeMap<u64, u64>,
}

impl Plain {
    fn small(&mut self, driver: &mut Driver, len: u64) -> Option<u64> {
        let addr = match self.small.best_fit(STREAM, len) {
            Some(addr) => addr,
            None => {
                let page = driver.take_memory(PAGE)?;
                self.small.add(page, PAGE, STREAM, false);
                page
            }
        };
        self.small.take(addr, len, STREAM);
        Some(addr)
    }
}

impl Model for Plain {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        driver.charge(Call::Malloc, request.len);
        if request.len <= SMALL {
            return self.small(driver, request.len.next_multiple_of(ROUND));
        }
        let len = request.len.next_multiple_of(PAGE);
        let addr = driver.take_memory(len)?;
        self.large.insert(addr, len);
        Some(addr)
    }

    fn release(&mut self, driver: &mut Driver, Release { block, .. }: Release) {
        driver.wait();
        driver.charge(Call::Free, self.range(block).1);
        if let Some(len) = self.large.remove(&block) {
            driver.give_memory(block, len);
            return;
        }
        let (free, len) = self.small.release(block, STREAM, 0);
        if len == PAGE {
            self.small.remove(free, free, PAGE);
            driver.give_memory(free, PAGE);
        }
    }

    /// Nothing is cached.
    fn release_cached(&mut self, _driver: &mut Driver) {}

    fn defers_frees(&self) -> bool {
        false
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        (block, self.large.get(&block).copied().unwrap_or_else(|| self.small.len(block)))
    }
}

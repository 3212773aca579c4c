//! RMM's `pool_memory_resource`: best fit in memory that grows and is never given back.
//!
//! A request is rounded up to 256 bytes and takes the shortest free block of its stream that holds it;
//! then one of another stream, behind an event; then all streams' free blocks become the stream's own
//! and merge; then the pool grows: without a limit to twice its length, with one by half of what is
//! left, and always by as much as the request needs.
//!
//! *Guarantees*: free neighbours of one stream merge, within what came from the driver in one call.
//! *Cost*: an event at every release, a call of the driver only to grow. *Not checked*: there are no
//! recordings of it here. *Left out*: the program's own choice of a first length other than `initial`,
//! and that a growth which fails is tried again with half the length: here nothing but the limit fails.

use crate::driver::{Call, Driver};
use crate::model::{BlockId, Model, Release, Request};
use crate::pieces::Pieces;
use crate::run::GRANULE;

/// What lengths are rounded up to.
const ROUND: u64 = 256;

/// The model.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pieces: Pieces,
    /// The length to begin with, until it was taken.
    initial: u64,
}

impl Pool {
    /// A pool that begins with so many bytes.
    pub(crate) fn new(initial: u64) -> Self {
        Self { pieces: Pieces::default(), initial }
    }

    /// A block of another stream that fits: of each stream the best fit, the first stream that has one.
    fn of_others(&self, stream: u16, len: u64) -> Option<u64> {
        let mut others = self.pieces.streams().filter(|&other| other != stream);
        others.find_map(|other| self.pieces.best_fit(other, len))
    }

    /// Makes other streams' free blocks this stream's own, one stream after the other, until one fits.
    fn merge_others(&mut self, driver: &mut Driver, stream: u16, len: u64) -> Option<u64> {
        let others: Vec<u16> = self.pieces.streams().filter(|&other| other != stream).collect();
        for other in others {
            driver.charge(Call::StreamWait, 0);
            self.pieces.hand_over(other, stream);
            if let Some(addr) = self.pieces.best_fit(stream, len) {
                return Some(addr);
            }
        }
        None
    }

    fn grow(&mut self, driver: &mut Driver, stream: u16, len: u64) -> Option<u64> {
        let step = match driver.limit() {
            Some(limit) => limit.saturating_sub(driver.reserved) / 2,
            None => driver.reserved,
        };
        let step = (step / GRANULE * GRANULE).max(len.next_multiple_of(GRANULE));
        let addr = driver.malloc(step)?;
        self.pieces.add(addr, step, stream, false);
        self.pieces.best_fit(stream, len)
    }
}

impl Model for Pool {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        let (len, stream) = (request.len.next_multiple_of(ROUND), request.stream);
        if self.initial > 0 {
            let initial = self.initial.next_multiple_of(GRANULE);
            let addr = driver.malloc(initial)?;
            self.pieces.add(addr, initial, stream, false);
            self.initial = 0;
        }
        let addr = if let Some(addr) = self.pieces.best_fit(stream, len) {
            addr
        } else if let Some(addr) = self.of_others(stream, len) {
            driver.charge(Call::StreamWait, 0);
            addr
        } else if let Some(addr) = self.merge_others(driver, stream, len) {
            addr
        } else {
            self.grow(driver, stream, len)?
        };
        self.pieces.take(addr, len, stream);
        Some(addr)
    }

    fn release(&mut self, driver: &mut Driver, Release { block, .. }: Release) {
        driver.charge(Call::Record, 0);
        let stream = self.pieces.stream(block);
        self.pieces.release(block, stream, 0);
    }

    /// The pool has no such call.
    fn release_cached(&mut self, _driver: &mut Driver) {}

    fn defers_frees(&self) -> bool {
        false
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        (block, self.pieces.len(block))
    }
}

//! Blocks of one length.

use super::ledger::Ledger;
use super::slots::Slots;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, in_units};
use crate::bins::UNIT;
use crate::units::round_up;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Blocks of one length, whatever is asked for up to that.
///
/// - Guarantees: memory never falls to pieces: while a block is free, a request succeeds. A request
///   for less loses the rest of its block, one for more is never served. What is left over at the end
///   of a chunk serves nobody.
/// - Cost: O(log c) for c chunks that have free blocks: the lowest of them serves.
/// - Source: the list of available space in Knuth, *The art of computer programming* 1, section 2.2.3.
#[derive(Debug)]
pub struct Fixed {
    block_len: u64,
    ledger: Ledger<()>,
    chunks: BTreeMap<u64, Slots>,
    /// Bases of chunks that have a free block.
    open: BTreeSet<u64>,
}

impl Fixed {
    /// Blocks of `block_len` bytes, rounded up to a multiple of 512; without chunks.
    ///
    /// # Panics
    /// For no bytes, and for more than 2^62.
    #[must_use]
    pub fn new(block_len: u64) -> Self {
        assert!(block_len > 0 && block_len <= super::LONGEST, "a length for blocks");
        let block_len = round_up(block_len, UNIT).expect("below 2^63");
        Self {
            block_len,
            ledger: Ledger::default(),
            chunks: BTreeMap::new(),
            open: BTreeSet::new(),
        }
    }

    /// Bytes of each block.
    #[must_use]
    pub fn block_len(&self) -> u64 {
        self.block_len
    }
}

impl Placement for Fixed {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        let slots = Slots::new(chunk.start, chunk.end - chunk.start, self.block_len);
        if !slots.is_full() {
            self.open.insert(chunk.start);
        }
        self.chunks.insert(chunk.start, slots);
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        let removed = self.ledger.remove(base).is_some();
        if removed {
            self.chunks.remove(&base);
            self.open.remove(&base);
        }
        removed
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let shape = self.chunk_for(len, alignment)?;
        let base = *self.open.iter().find(|base| base.is_multiple_of(shape.alignment))?;
        let slots = self.chunks.get_mut(&base)?;
        let addr = slots.take()?;
        if slots.is_full() {
            self.open.remove(&base);
        }
        Some(self.ledger.place(Block { addr, len: self.block_len, requested: len }, ()))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, ()) = self.ledger.take(addr)?;
        let base = self.ledger.chunk_of(addr).start;
        self.chunks.get_mut(&base).expect("slots for each chunk").give_back(addr);
        self.open.insert(base);
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        let (len, alignment) = in_units(len, alignment)?;
        let served = len <= self.block_len && self.block_len.is_multiple_of(alignment);
        served.then_some(ChunkShape { len: self.block_len, alignment })
    }

    fn figures(&self) -> Figures {
        self.ledger.figures(if self.open.is_empty() { 0 } else { self.block_len })
    }
}

//! What every placement keeps: its chunks, and its blocks by address.

use super::{Block, ChunkError, Figures, LONGEST};
use crate::bins::UNIT;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

#[derive(Debug)]
struct Chunk {
    end: u64,
    blocks: usize,
}

/// Chunks and blocks, these with a note of type `T` each.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    chunks: BTreeMap<u64, Chunk>,
    blocks: HashMap<u64, (Block, T)>,
    chunk_bytes: u64,
    requested: u64,
    placed: u64,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            chunks: BTreeMap::new(),
            blocks: HashMap::new(),
            chunk_bytes: 0,
            requested: 0,
            placed: 0,
        }
    }
}

impl<T> Ledger<T> {
    pub(super) fn add(&mut self, chunk: &Range<u64>) -> Result<(), ChunkError> {
        let wrong = |why| Err(ChunkError { chunk: chunk.clone(), why });
        if chunk.start >= chunk.end {
            return wrong("it is empty");
        }
        if !chunk.start.is_multiple_of(UNIT) || !chunk.end.is_multiple_of(UNIT) {
            return wrong("it must begin and end at multiples of 512");
        }
        if chunk.end > LONGEST {
            return wrong("it must end at or below 2^62");
        }
        let below = self.chunks.range(..chunk.end).next_back();
        if below.is_some_and(|(_, other)| other.end > chunk.start) {
            return wrong("it overlaps another one");
        }
        self.chunks.insert(chunk.start, Chunk { end: chunk.end, blocks: 0 });
        self.chunk_bytes += chunk.end - chunk.start;
        Ok(())
    }

    /// Takes out the chunk at `base` if it has no blocks.
    pub(super) fn remove(&mut self, base: u64) -> Option<Range<u64>> {
        self.chunks.get(&base).filter(|chunk| chunk.blocks == 0)?;
        let chunk = self.chunks.remove(&base)?;
        self.chunk_bytes -= chunk.end - base;
        Some(base..chunk.end)
    }

    /// The chunk that an address lies in.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn chunk_of(&self, addr: u64) -> Range<u64> {
        let (base, chunk) = self.chunks.range(..=addr).next_back().expect("a chunk at the address");
        debug_assert!(addr < chunk.end);
        *base..chunk.end
    }

    /// Whether no block lies in the chunk of an address.
    pub(super) fn is_empty_at(&self, addr: u64) -> bool {
        self.chunks.range(..=addr).next_back().is_some_and(|(_, chunk)| chunk.blocks == 0)
    }

    fn chunk_mut(&mut self, addr: u64) -> &mut Chunk {
        self.chunks.range_mut(..=addr).next_back().expect("a chunk at the address").1
    }

    /// Notes a block that was placed.
    pub(super) fn place(&mut self, block: Block, note: T) -> Block {
        self.chunk_mut(block.addr).blocks += 1;
        self.requested += block.requested;
        self.placed += block.len;
        let before = self.blocks.insert(block.addr, (block, note));
        debug_assert!(before.is_none(), "two blocks at {:#x}", block.addr);
        block
    }

    /// Takes out the block at an address.
    pub(super) fn take(&mut self, addr: u64) -> Option<(Block, T)> {
        let (block, note) = self.blocks.remove(&addr)?;
        self.chunk_mut(addr).blocks -= 1;
        self.requested -= block.requested;
        self.placed -= block.len;
        Some((block, note))
    }

    pub(super) fn figures(&self, largest: u64) -> Figures {
        Figures {
            chunks: self.chunks.len(),
            chunk_bytes: self.chunk_bytes,
            blocks: self.blocks.len(),
            requested: self.requested,
            placed: self.placed,
            largest,
        }
    }
}

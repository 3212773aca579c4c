//! Bump: one block behind the other.

use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, front, in_units};
use std::collections::BTreeMap;
use std::ops::Range;

/// A bump arena: each block lies behind the one before, and a chunk starts anew when its last block
/// is released.
///
/// - Guarantees: blocks that follow each other lie side by side; nothing is lost but what alignment
///   skips. Memory of a block that was released comes back with the whole chunk, or at once if it was
///   the chunk's last: one block that stays keeps a chunk. So it is for blocks that end together, or in
///   the reverse order.
/// - Cost: O(1); when a chunk is full, a look at each of the others.
/// - Source: Hanson, *Fast allocation and deallocation of memory based on object lifetimes*, Software:
///   Practice and Experience 20(1), 1990.
#[derive(Debug, Default)]
pub struct Bump {
    ledger: Ledger<()>,
    /// By base of the chunk, where its next block would lie.
    cursors: BTreeMap<u64, Cursor>,
    /// The base of the chunk that served last.
    current: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    next: u64,
    end: u64,
}

impl Cursor {
    /// Where a block would begin, if there is room for it.
    fn place(&self, len: u64, alignment: u64) -> Option<u64> {
        let addr = self.next + front(self.next, alignment);
        (addr + len <= self.end).then_some(addr)
    }
}

impl Bump {
    /// One without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn find(&self, len: u64, alignment: u64) -> Option<(u64, u64)> {
        let place = |base: u64, cursor: &Cursor| Some((base, cursor.place(len, alignment)?));
        let current = self.cursors.get(&self.current);
        current
            .and_then(|cursor| place(self.current, cursor))
            .or_else(|| self.cursors.iter().find_map(|(base, cursor)| place(*base, cursor)))
    }
}

impl Placement for Bump {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        self.cursors.insert(chunk.start, Cursor { next: chunk.start, end: chunk.end });
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        let removed = self.ledger.remove(base).is_some();
        if removed {
            self.cursors.remove(&base);
        }
        removed
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let (base, addr) = self.find(len, alignment)?;
        self.current = base;
        self.cursors.get_mut(&base)?.next = addr + len;
        Some(self.ledger.place(Block { addr, len, requested }, ()))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, ()) = self.ledger.take(addr)?;
        let base = self.ledger.chunk_of(addr).start;
        let empty = self.ledger.is_empty_at(addr);
        let cursor = self.cursors.get_mut(&base).expect("a cursor for each chunk");
        if empty {
            cursor.next = base;
        } else if block.end() == cursor.next {
            cursor.next = addr;
        }
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        in_units(len, alignment).map(|(len, alignment)| ChunkShape { len, alignment })
    }

    fn figures(&self) -> Figures {
        let largest = self.cursors.values().map(|cursor| cursor.end - cursor.next).max();
        self.ledger.figures(largest.unwrap_or(0))
    }
}

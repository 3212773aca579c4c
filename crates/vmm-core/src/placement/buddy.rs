//! The binary buddy system.

use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, in_units};
use crate::bins::UNIT;
use std::collections::BTreeSet;
use std::ops::Range;

/// Lengths of blocks: 512 bytes times two to the power of less than this.
const ORDERS: usize = 54;

/// A binary buddy system: blocks are powers of two long and lie at multiples of their length from the
/// beginning of their chunk; a block that is released joins its buddy, the other half of the block that
/// both came from.
///
/// - Guarantees: a block is less than twice as long as what was asked for. Free memory joins only with
///   its buddy, so two free neighbours may be of no use to a request that both together hold. Chunks
///   may have any length, and are cut into powers of two, the longest first.
/// - Cost: O(log f) for f free blocks, and a step for each halving or joining: at most 53.
/// - Source: Knowlton, *A fast storage allocator*, Communications of the ACM 8(10), 1965; Knuth, *The art
///   of computer programming* 1, section 2.5, algorithms R and S.
#[derive(Debug)]
pub struct Buddy {
    ledger: Ledger<()>,
    /// Addresses of free blocks by order.
    free: Vec<BTreeSet<u64>>,
}

impl Default for Buddy {
    fn default() -> Self {
        Self::new()
    }
}

fn len_of(order: usize) -> u64 {
    UNIT << order
}

/// The order of a power of two.
fn order_of(len: u64) -> usize {
    (len / UNIT).ilog2() as usize
}

/// The powers of two that a chunk is cut into, with their addresses.
fn pieces(chunk: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let mut at = chunk.start;
    std::iter::from_fn(move || {
        let order = ((chunk.end - at) / UNIT).checked_ilog2()? as usize;
        let piece = (at, order);
        at += len_of(order);
        Some(piece)
    })
}

impl Buddy {
    /// One without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self { ledger: Ledger::default(), free: vec![BTreeSet::new(); ORDERS] }
    }

    /// The shortest free block of at least this order at a multiple of `alignment`; the lowest of equals.
    fn find(&self, order: usize, alignment: u64) -> Option<(u64, usize)> {
        let candidates = self.free.iter().enumerate().skip(order.max(order_of(alignment)));
        candidates.into_iter().find_map(|(order, free)| {
            let aligned = free.iter().find(|addr| addr.is_multiple_of(alignment));
            aligned.map(|addr| (*addr, order))
        })
    }
}

impl Placement for Buddy {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        for (addr, order) in pieces(chunk) {
            self.free[order].insert(addr);
        }
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        // All is joined again where nothing is in use.
        let Some(chunk) = self.ledger.remove(base) else { return false };
        for (addr, order) in pieces(chunk) {
            let was_free = self.free[order].remove(&addr);
            debug_assert!(was_free, "a chunk without blocks is free");
        }
        true
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let order = order_of(len.next_power_of_two());
        let (addr, found) = self.find(order, alignment)?;
        self.free[found].remove(&addr);
        for half in order..found {
            self.free[half].insert(addr + len_of(half));
        }
        Some(self.ledger.place(Block { addr, len: len_of(order), requested }, ()))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, ()) = self.ledger.take(addr)?;
        let chunk = self.ledger.chunk_of(addr);
        let (mut addr, mut order) = (addr, order_of(block.len));
        loop {
            let len = len_of(order);
            let buddy = chunk.start + ((addr - chunk.start) ^ len);
            // A buddy that would reach beyond the chunk is another chunk's, if any.
            if buddy + len > chunk.end || !self.free[order].remove(&buddy) {
                break;
            }
            addr = addr.min(buddy);
            order += 1;
        }
        self.free[order].insert(addr);
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        let (len, alignment) = in_units(len, alignment)?;
        Some(ChunkShape { len: len.max(alignment).next_power_of_two(), alignment })
    }

    fn figures(&self) -> Figures {
        let largest = self.free.iter().rposition(|free| !free.is_empty()).map_or(0, len_of);
        self.ledger.figures(largest)
    }
}

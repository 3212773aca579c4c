//! Two-level segregated fit.

use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, front, in_units};
use crate::bins::UNIT;
use crate::extent::{Extent, ExtentId, Extents, Kind, NONE};
use std::collections::HashMap;
use std::ops::Range;

/// Lists of one power of two.
const LISTS: usize = 32;
const LISTS_LOG2: u32 = 5;
/// Powers of two: up to 2^63 bytes, rounding up included.
const LEVELS: usize = 52;

/// Two-level segregated fit: free ranges in lists by length, 32 to a power of two, and bitmaps that find the
/// next list in use.
///
/// - Guarantees: each call takes bounded time, whatever there is. To that end a search looks only into
///   lists of which every member is long enough: up to 1/32 of the request's length it may overlook a
///   range that would do. Neighbours are joined at once, and nothing is lost inside of blocks.
/// - Cost: O(1): two looks at bitmaps, and at most two joins.
/// - Source: Masmano, Ripoll, Crespo and Real, *TLSF: a new dynamic memory allocator for real-time systems*,
///   ECRTS 2004. The ends of blocks are found through a table, as headers would lie in the GPU's memory.
#[derive(Debug)]
pub struct Tlsf {
    ledger: Ledger<ExtentId>,
    extents: Extents,
    /// By base of the chunk, the extent that begins it.
    firsts: HashMap<u64, ExtentId>,
    heads: [[ExtentId; LISTS]; LEVELS],
    /// A bit for each level that has a free range.
    levels: u64,
    /// By level, a bit for each list that has one.
    lists: [u32; LEVELS],
}

impl Default for Tlsf {
    fn default() -> Self {
        Self::new()
    }
}

/// A list, by level and place in the level.
type List = (usize, usize);

/// The list of ranges of this length.
fn list_of(len: u64) -> List {
    let units = len / UNIT;
    let log2 = units.ilog2();
    // Ranges below 32 units have a list for each length.
    let level = log2.saturating_sub(LISTS_LOG2 - 1);
    let place = (units >> level.saturating_sub(1)) % (1 << LISTS_LOG2);
    (level as usize, usize::try_from(place).expect("below 32"))
}

/// The length of the shortest ranges in a list.
fn shortest_in((level, place): List) -> u64 {
    let place = place as u64;
    let units = if level == 0 { place } else { (place + (1 << LISTS_LOG2)) << (level - 1) };
    units * UNIT
}

/// The first list of which all members have at least `len` bytes, and are that long by the list alone.
fn list_for(len: u64) -> List {
    let list = list_of(len);
    if shortest_in(list) >= len {
        return list;
    }
    let (level, place) = list;
    if place + 1 < LISTS { (level, place + 1) } else { (level + 1, 0) }
}

/// What is searched for, so that an aligned block of `len` bytes lies in whatever is found.
fn searched(len: u64, alignment: u64) -> u64 {
    len + (alignment - UNIT)
}

impl Tlsf {
    /// One without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ledger: Ledger::default(),
            extents: Extents::default(),
            firsts: HashMap::new(),
            heads: [[NONE; LISTS]; LEVELS],
            levels: 0,
            lists: [0; LEVELS],
        }
    }

    /// The first list in use at or above one.
    fn next_list(&self, (level, place): List) -> Option<List> {
        let here = self.lists[level] & (!0 << place);
        if here != 0 {
            return Some((level, here.trailing_zeros() as usize));
        }
        let above = self.levels & (!0 << level << 1);
        let level = (above != 0).then(|| above.trailing_zeros() as usize)?;
        Some((level, self.lists[level].trailing_zeros() as usize))
    }

    /// Makes an extent free and puts it into its list.
    fn insert(&mut self, id: ExtentId) {
        let (level, place) = list_of(self.extents[id].len);
        let head = std::mem::replace(&mut self.heads[level][place], id);
        let extent = &mut self.extents[id];
        extent.kind = Kind::Free;
        extent.bin_prev = NONE;
        extent.bin_next = head;
        if head != NONE {
            self.extents[head].bin_prev = id;
        }
        self.lists[level] |= 1 << place;
        self.levels |= 1 << level;
    }

    /// Takes a free extent out of its list.
    fn unlink(&mut self, id: ExtentId) {
        let extent = &self.extents[id];
        let (prev, next) = (extent.bin_prev, extent.bin_next);
        let (level, place) = list_of(extent.len);
        if next != NONE {
            self.extents[next].bin_prev = prev;
        }
        if prev != NONE {
            self.extents[prev].bin_next = next;
            return;
        }
        self.heads[level][place] = next;
        if next == NONE {
            self.lists[level] &= !(1 << place);
            if self.lists[level] == 0 {
                self.levels &= !(1 << level);
            }
        }
    }

    fn is_free(&self, id: ExtentId) -> bool {
        id != NONE && self.extents[id].kind == Kind::Free
    }
}

impl Placement for Tlsf {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        let len = chunk.end - chunk.start;
        let id = self.extents.add(Extent { addr: chunk.start, len, ..Extent::default() });
        self.firsts.insert(chunk.start, id);
        self.insert(id);
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        if self.ledger.remove(base).is_none() {
            return false;
        }
        // One extent, since all is joined, and the first one of a chunk keeps its id.
        let id = self.firsts.remove(&base).expect("a first extent for each chunk");
        self.unlink(id);
        self.extents.remove(id);
        true
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let (level, place) = self.next_list(list_for(searched(len, alignment)))?;
        let mut id = self.heads[level][place];
        self.unlink(id);
        let front = front(self.extents[id].addr, alignment);
        if front > 0 {
            let behind = self.extents.split(id, front);
            self.insert(id);
            id = behind;
        }
        if self.extents[id].len > len {
            let rest = self.extents.split(id, len);
            self.insert(rest);
        }
        let extent = &mut self.extents[id];
        extent.kind = Kind::Live;
        let addr = extent.addr;
        Some(self.ledger.place(Block { addr, len, requested }, id))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, mut id) = self.ledger.take(addr)?;
        let (prev, next) = (self.extents[id].prev, self.extents[id].next);
        if self.is_free(next) {
            self.unlink(next);
            self.extents.join_next(id);
        }
        if self.is_free(prev) {
            self.unlink(prev);
            self.extents.join_next(prev);
            id = prev;
        }
        self.insert(id);
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        let (len, alignment) = in_units(len, alignment)?;
        let len = shortest_in(list_for(searched(len, alignment)));
        Some(ChunkShape { len, alignment: UNIT })
    }

    fn figures(&self) -> Figures {
        let level = self.levels.checked_ilog2().map(|level| level as usize);
        let list = level.map(|level| (level, self.lists[level].ilog2() as usize));
        self.ledger.figures(list.map_or(0, shortest_in))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_rise_with_length_and_hold_what_they_say() {
        let mut last = (0, 0);
        for shift in 9..63 {
            for step in 0..64 {
                let len = (1_u64 << shift) + ((1 << shift) >> 6) * step / UNIT * UNIT;
                let list = list_of(len);
                assert!(list >= last, "the list of {len} fell");
                assert!(shortest_in(list) <= len);
                assert!(list_of(shortest_in(list)) == list, "{list:?}");
                let served = list_for(len);
                assert!(served.0 < LEVELS && shortest_in(served) >= len);
                let most = len + len.div_ceil(32);
                assert!(shortest_in(served) <= most, "overlooks more than a 32nd of {len}");
                last = list;
            }
        }
    }
}

//! The pool's own way.

use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, in_units};
use crate::arena::Arena;
use crate::bins::UNIT;
use crate::extent::{Extent, ExtentId, Extents, Kind};
use crate::holdings::Holdings;
use crate::region::{Region, RegionId};
use crate::timeline::{Point, StreamSlot};
use std::collections::HashMap;
use std::ops::Range;

/// All blocks are of one stream. Not that of memory for all, which a taker looks at as well.
const STREAM: StreamSlot = 1;
const POINT: Point = Point { stream: STREAM, epoch: 0 };

/// What the pool itself does with the memory of one stream, by the same code: bins of free ranges, one for
/// each length up to 1 MiB and 64 to a power of two above, of which the shortest that fits serves.
///
/// - Guarantees: where the best fit is a range below 1 MiB, it serves. Above, the range that serves is at
///   most 1/64 longer, unless more than twelve of one bin are in the way. Neighbours are joined at once,
///   and nothing is lost inside of blocks.
/// - Cost: O(1): two looks at bitmaps, a bounded one at members, at most two joins.
/// - Source: the bitmaps of Masmano, Ripoll, Crespo and Real, *TLSF: a new dynamic memory allocator for
///   real-time systems*, ECRTS 2004; the exact bins of Lea's malloc; the rest is this project's.
///
/// The pool has two of these for each stream, for leases up to 1 MiB and above: [`Tiers`](super::Tiers).
#[derive(Debug)]
pub struct Segregated {
    ledger: Ledger<ExtentId>,
    arena: Arena,
    extents: Extents,
    /// By base of the chunk.
    regions: HashMap<u64, RegionId>,
}

impl Default for Segregated {
    fn default() -> Self {
        Self::new()
    }
}

impl Segregated {
    /// One without chunks.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ledger: Ledger::default(),
            arena: Arena::new(),
            extents: Extents::default(),
            regions: HashMap::new(),
        }
    }
}

impl Segregated {
    fn free(&mut self, id: ExtentId) {
        // It has one arena: nobody asks in which there is memory.
        self.arena.set_free(&mut self.extents, &mut Holdings::default(), id, POINT);
    }
}

impl Placement for Segregated {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        if self.regions.len() >= usize::from(RegionId::MAX) {
            let why = "there are 65,535 already: add longer ones";
            return Err(ChunkError { chunk, why });
        }
        self.ledger.add(&chunk)?;
        let (base, len) = (chunk.start, chunk.end - chunk.start);
        let id = self.extents.add(Extent { addr: base, len, ..Extent::default() });
        let region = Region::new(base, len, UNIT, id);
        let region = self.arena.add_region(&mut self.extents, region);
        self.regions.insert(base, region);
        self.free(id);
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        if self.ledger.remove(base).is_none() {
            return false;
        }
        let region = self.regions.remove(&base).expect("a region for each chunk");
        // One extent, since all is joined.
        let id = self.arena.region(region).first;
        self.arena.remove(&mut self.extents, id);
        self.arena.regions.remove(u32::from(region));
        self.extents.remove(id);
        true
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let free = self.arena.find(&self.extents, STREAM, len, alignment)?;
        let addr = self.extents[free].aligned(alignment)?;
        let id = self.arena.cut(&mut self.extents, free, addr, len);
        self.extents[id].kind = Kind::Live;
        Some(self.ledger.place(Block { addr, len, requested }, id))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, id) = self.ledger.take(addr)?;
        self.free(id);
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        let (len, alignment) = in_units(len, alignment)?;
        // So long that it is in a bin of which every member serves, however crowded others are.
        let certain = len + (alignment - UNIT);
        let len = (certain + certain / 64) / UNIT * UNIT + UNIT;
        Some(ChunkShape { len, alignment: UNIT })
    }

    fn figures(&self) -> Figures {
        self.ledger.figures(self.arena.longest(&self.extents, STREAM))
    }
}

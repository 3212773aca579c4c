//! Tiers by length, each with a placement of its own.

use super::ledger::Ledger;
use super::{Block, ChunkError, ChunkShape, Figures, LONGEST, Placement, in_units};
use crate::bins::UNIT;
use std::collections::BTreeMap;
use std::ops::Range;

/// One of the [`Tiers`].
#[derive(Debug)]
pub struct Tier {
    /// The longest request that it serves, in bytes.
    pub longest: u64,
    /// How.
    pub placement: Box<dyn Placement>,
}

/// Tiers by length: a request goes to the first one that serves its length, and to no other. A chunk
/// belongs to the tier that needed it, and to none when no block lies in it any more.
///
/// - Guarantees: those of the tier, within its chunks. Short blocks never stand in the way of long ones; a
///   chunk with one short block serves no long one.
/// - Cost: that of the tier, and O(t) for t tiers. Where the tier has no room, a look at all chunks that
///   belong to none.
/// - Source: the segregated storage of Wilson, Johnstone, Neely and Boles, *Dynamic storage allocation: a
///   survey and critical review*, 1995; the small and large pools of `PyTorch`'s CUDA allocator.
#[derive(Debug)]
pub struct Tiers {
    tiers: Vec<Tier>,
    /// Each block with its tier.
    ledger: Ledger<usize>,
    /// Chunks of no tier: base and end.
    unused: BTreeMap<u64, u64>,
}

impl Tiers {
    /// These tiers, none of which has chunks yet; without chunks.
    ///
    /// # Panics
    /// If their lengths do not rise, or one has chunks.
    #[must_use]
    pub fn new(tiers: Vec<Tier>) -> Self {
        assert!(tiers.is_sorted_by(|a, b| a.longest < b.longest), "the lengths of tiers rise");
        let fresh = |tier: &Tier| tier.placement.figures().chunks == 0;
        assert!(tiers.iter().all(fresh), "tiers begin without chunks");
        Self { tiers, ledger: Ledger::default(), unused: BTreeMap::new() }
    }

    fn tier_of(&self, len: u64) -> Option<usize> {
        self.tiers.iter().position(|tier| len <= tier.longest)
    }

    /// The shortest unused chunk of this shape.
    fn unused_chunk(&self, shape: ChunkShape) -> Option<Range<u64>> {
        let chunks = self.unused.iter().map(|(base, end)| *base..*end);
        chunks.filter(|chunk| shape.fits(chunk)).min_by_key(|chunk| chunk.end - chunk.start)
    }

    /// Gives a tier an unused chunk for a request, which it serves.
    fn allocate_anew(&mut self, tier: usize, len: u64, alignment: u64) -> Option<Block> {
        let shape = self.tiers[tier].placement.chunk_for(len, alignment)?;
        let chunk = self.unused_chunk(shape)?;
        let base = chunk.start;
        self.tiers[tier].placement.add(chunk).ok()?;
        let block = self.tiers[tier].placement.allocate(len, alignment);
        // It may have found another place, or none: then the chunk is still unused.
        if !self.tiers[tier].placement.remove(base) {
            self.unused.remove(&base);
        }
        block
    }

    /// The longest request of a tier that an unused chunk would serve.
    fn largest_anew(&self, tier: &Tier) -> u64 {
        let serves = |units: u64| {
            let shape = tier.placement.chunk_for(units * UNIT, UNIT);
            shape.and_then(|shape| self.unused_chunk(shape)).is_some()
        };
        let (mut served, mut not) = (0, tier.longest.min(LONGEST) / UNIT + 1);
        while not - served > 1 {
            let middle = served.midpoint(not);
            if serves(middle) { served = middle } else { not = middle }
        }
        served * UNIT
    }
}

impl Placement for Tiers {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        self.unused.insert(chunk.start, chunk.end);
        Ok(())
    }

    fn remove(&mut self, base: u64) -> bool {
        let removed = self.ledger.remove(base).is_some();
        if removed {
            self.unused.remove(&base);
        }
        removed
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        in_units(len, alignment)?;
        let tier = self.tier_of(len)?;
        let at_hand = self.tiers[tier].placement.allocate(len, alignment);
        let block = at_hand.or_else(|| self.allocate_anew(tier, len, alignment))?;
        Some(self.ledger.place(block, tier))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, tier) = self.ledger.take(addr)?;
        let tier = &mut self.tiers[tier].placement;
        tier.release(addr);
        if self.ledger.is_empty_at(addr) {
            let chunk = self.ledger.chunk_of(addr);
            if tier.remove(chunk.start) {
                self.unused.insert(chunk.start, chunk.end);
            }
        }
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        in_units(len, alignment)?;
        self.tiers[self.tier_of(len)?].placement.chunk_for(len, alignment)
    }

    fn figures(&self) -> Figures {
        let mut above = 0;
        let mut largest = 0;
        for tier in &self.tiers {
            let at_hand = tier.placement.figures().largest.min(tier.longest);
            let of_tier = at_hand.max(self.largest_anew(tier));
            if of_tier > above {
                largest = of_tier;
            }
            above = tier.longest;
        }
        self.ledger.figures(largest)
    }
}

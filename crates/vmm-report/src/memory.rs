//! The memory of a recorded allocator at one moment: segments, the tensors in them, and the holes
//! between.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::lengths::Lengths;

/// Whom memory serves. A hole serves requests of its own kind only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// Index of the stream.
    pub stream: u16,
    /// Index of the pool.
    pub pool: u16,
    /// Whether it serves small requests only.
    pub is_small: bool,
}

/// A tensor's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes, the allocator's rounding included.
    pub size: u64,
    /// Bytes that were asked for.
    pub len: u64,
    /// Whether the program has let go of it while another stream still used it.
    pub is_fenced: bool,
    /// Whether it lies where the file shows no free memory: only the oldest files have such, and
    /// logs that say nothing of segments.
    pub is_outside: bool,
}

/// Free memory between blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hole {
    end: u64,
    pub(crate) kind: Kind,
}

/// A range that the allocator holds from the device. Holes join inside one, never across two.
#[derive(Debug, Clone, Copy)]
struct Area {
    end: u64,
    kind: Kind,
    /// Whether it grows by mapping: neighbours of the same kind are one area.
    grows: bool,
}

/// Sums over all of the memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Held from the device.
    pub reserved: u64,
    /// Asked for by tensors that the program holds.
    pub requested: u64,
    /// Rounding of these tensors' blocks.
    pub rounding: u64,
    /// Blocks that the program has let go of while another stream still used them.
    pub fenced: u64,
    /// Asked for by tensors whose memory is not free again: what the program holds, and what other
    /// streams still use.
    pub held: u64,
    /// The part of `held` that lies outside of all reserved memory.
    pub outside: u64,
}

/// The memory at one moment.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    areas: BTreeMap<u64, Area>,
    holes: BTreeMap<u64, Hole>,
    blocks: HashMap<u32, Block>,
    totals: Totals,
    lengths: Lengths,
}

impl Memory {
    /// No memory, of an allocator with this rule.
    pub(crate) fn new(lengths: Lengths) -> Self {
        Self { lengths, ..Self::default() }
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    /// Tensors by id, in no order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u32, &Block)> {
        self.blocks.iter().map(|(&id, block)| (id, block))
    }

    /// Free ranges by ascending address.
    pub(crate) fn holes(&self) -> impl Iterator<Item = (Range<u64>, Kind)> + '_ {
        self.holes.iter().map(|(&start, hole)| (start..hole.end, hole.kind))
    }

    /// The length of the longest free range of those kinds that serve, in bytes; 0 if there is none.
    pub(crate) fn longest_hole(&self, serves: impl Fn(Kind) -> bool) -> u64 {
        let lens = self.holes().filter(|&(_, kind)| serves(kind));
        lens.map(|(range, _)| range.end - range.start).max().unwrap_or(0)
    }

    /// Reserved ranges by ascending address.
    pub(crate) fn areas(&self) -> impl Iterator<Item = (Range<u64>, Kind)> + '_ {
        self.areas.iter().map(|(&start, area)| (start..area.end, area.kind))
    }

    /// Adds reserved memory. What of it is there already stays as it is.
    pub(crate) fn grow(&mut self, range: Range<u64>, kind: Kind, grows: bool) {
        let taken: Vec<Range<u64>> = self.areas_within(&range);
        let mut start = range.start;
        for other in taken.into_iter().chain(std::iter::once(range.end..range.end)) {
            if start < other.start {
                self.add_area(start..other.start, kind, grows);
            }
            start = start.max(other.end);
        }
    }

    fn add_area(&mut self, range: Range<u64>, kind: Kind, grows: bool) {
        self.totals.reserved += range.end - range.start;
        let (mut start, mut end) = (range.start, range.end);
        if grows {
            let joins = |area: &Area| area.grows && area.kind == kind;
            if let Some((&left, area)) = self.areas.range(..start).next_back()
                && area.end == start
                && joins(area)
            {
                start = left;
            }
            if let Some(right) = self.areas.get(&end).copied().filter(joins) {
                self.areas.remove(&end);
                end = right.end;
            }
        }
        self.areas.insert(start, Area { end, kind, grows });
        self.add_hole(range);
    }

    /// Takes reserved memory away.
    pub(crate) fn shrink(&mut self, range: Range<u64>) {
        for part in self.areas_within(&range) {
            let Some((&start, &area)) = self.areas.range(..=part.start).next_back() else {
                continue;
            };
            self.totals.reserved -= part.end - part.start;
            self.areas.remove(&start);
            if start < part.start {
                self.areas.insert(start, Area { end: part.start, ..area });
            }
            if part.end < area.end {
                self.areas.insert(part.end, area);
            }
        }
        while let Some((&start, &hole)) = self.holes.range(..range.end).next_back() {
            if hole.end <= range.start {
                break;
            }
            self.holes.remove(&start);
            if start < range.start {
                self.holes.insert(start, Hole { end: range.start, ..hole });
            }
            if range.end < hole.end {
                self.holes.insert(range.end, hole);
            }
        }
    }

    /// The parts of areas that lie in a range, by ascending address.
    fn areas_within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.areas.range(..range.start).next_back();
        let inside = self.areas.range(range.clone());
        before
            .into_iter()
            .chain(inside)
            .map(|(&start, area)| start.max(range.start)..area.end.min(range.end))
            .filter(|part| part.start < part.end)
            .collect()
    }

    /// Puts a tensor into a hole. `size` is that of its block, where it is known.
    pub(crate) fn place(&mut self, id: u32, address: u64, len: u64, size: Option<u64>) {
        let hole = self.holes.range(..=address).next_back();
        let hole = hole.map(|(&start, &hole)| (start, hole));
        let fits = hole.filter(|(_, hole)| address.saturating_add(len) <= hole.end);
        let mut block = Block { address, size: len, len, is_fenced: false, is_outside: true };
        if let Some((start, hole)) = fits {
            let room = hole.end - address;
            let (_, area) = self.areas.range(..=address).next_back().expect("holes lie in areas");
            let keeps_little = area.kind.is_small || area.grows;
            let block_len = || self.lengths.block(len, room, keeps_little);
            block.size = size.unwrap_or_else(block_len).min(room);
            block.is_outside = false;
            self.holes.remove(&start);
            if start < address {
                self.holes.insert(start, Hole { end: address, ..hole });
            }
            if block.size < room {
                self.holes.insert(address + block.size, hole);
            }
        } else {
            self.totals.outside += len;
        }
        self.totals.requested += len;
        self.totals.held += len;
        self.totals.rounding += block.size - len;
        self.blocks.insert(id, block);
    }

    /// The program lets go of a tensor.
    pub(crate) fn request_free(&mut self, id: u32) {
        let Some(block) = self.blocks.get_mut(&id) else { return };
        if std::mem::replace(&mut block.is_fenced, true) {
            return;
        }
        self.totals.requested -= block.len;
        self.totals.rounding -= block.size - block.len;
        self.totals.fenced += block.size;
    }

    /// The memory of a tensor is free again.
    pub(crate) fn complete_free(&mut self, id: u32) {
        self.request_free(id);
        let Some(block) = self.blocks.remove(&id) else { return };
        self.totals.fenced -= block.size;
        self.totals.held -= block.len;
        if block.is_outside {
            self.totals.outside -= block.size;
            return;
        }
        // Memory may have been given back under a tensor, where entries were lost.
        for part in self.areas_within(&(block.address..block.address + block.size)) {
            self.add_hole(part);
        }
    }

    /// Makes a range of one area free, and joins it with the holes beside it. Where entries contradict
    /// each other a part of it may be free already.
    fn add_hole(&mut self, range: Range<u64>) {
        let Some((&area_start, &area)) = self.areas.range(..=range.start).next_back() else {
            return;
        };
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&other, &hole)) =
            self.holes.range(area_start..=end.min(area.end - 1)).next_back()
            && hole.end >= start
        {
            self.holes.remove(&other);
            start = start.min(other);
            end = end.max(hole.end);
        }
        self.holes.insert(start, Hole { end, kind: area.kind });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LARGE: Kind = Kind { stream: 0, pool: 0, is_small: false };

    /// The identity that everything else rests on.
    fn check(memory: &Memory, holes: &[(u64, u64)]) {
        let found: Vec<_> = memory.holes().map(|(range, _)| (range.start, range.end)).collect();
        assert_eq!(found, holes);
        let free: u64 = holes.iter().map(|(start, end)| end - start).sum();
        let totals = memory.totals();
        assert_eq!(
            totals.reserved + totals.outside,
            totals.requested + totals.rounding + totals.fenced + free
        );
    }

    #[test]
    fn blocks_are_as_long_as_those_of_pytorch() {
        let mut memory = Memory::default();
        memory.grow(0..20 * MIB, LARGE, false);
        memory.place(0, 0, 3 * MIB - 5, None);
        check(&memory, &[(3 * MIB, 20 * MIB)]);
        memory.place(1, 3 * MIB, 16 * MIB + 7, None);
        assert_eq!(memory.totals().rounding, 5 + MIB - 7, "less than a MiB is not split off");
        check(&memory, &[]);
        memory.request_free(0);
        assert_eq!(memory.totals().fenced, 3 * MIB);
        memory.complete_free(0);
        memory.complete_free(1);
        check(&memory, &[(0, 20 * MIB)]);
        memory.shrink(0..20 * MIB);
        check(&memory, &[]);
        assert_eq!(memory.totals(), Totals::default());
    }

    #[test]
    fn only_mapped_neighbours_join() {
        let mut memory = Memory::default();
        memory.grow(0..2 * MIB, LARGE, false);
        memory.grow(2 * MIB..4 * MIB, LARGE, false);
        check(&memory, &[(0, 2 * MIB), (2 * MIB, 4 * MIB)]);
        memory.grow(8 * MIB..10 * MIB, LARGE, true);
        memory.grow(12 * MIB..14 * MIB, LARGE, true);
        memory.grow(10 * MIB..12 * MIB, LARGE, true);
        memory.shrink(0..4 * MIB);
        check(&memory, &[(8 * MIB, 14 * MIB)]);
        memory.place(0, 9 * MIB, MIB, None);
        memory.shrink(12 * MIB..13 * MIB);
        check(&memory, &[(8 * MIB, 9 * MIB), (10 * MIB, 12 * MIB), (13 * MIB, 14 * MIB)]);
        memory.complete_free(0);
        check(&memory, &[(8 * MIB, 12 * MIB), (13 * MIB, 14 * MIB)]);
        assert_eq!(memory.totals().reserved, 5 * MIB);
    }

    #[test]
    fn what_lies_outside_is_counted_apart() {
        let mut memory = Memory::default();
        memory.place(7, 64, 100, None);
        assert_eq!(memory.totals().outside, 100);
        check(&memory, &[]);
        memory.complete_free(7);
        assert_eq!(memory.totals(), Totals::default());
    }

    #[test]
    fn entries_that_contradict_each_other_break_nothing() {
        let mut seed = 1u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut memory = Memory::default();
        for step in 0..20_000 {
            let (start, len, id) = (next(64) * 512, (1 + next(20)) * 512, next(40));
            let id = u32::try_from(id).expect("below 40");
            let kind = Kind { stream: 0, pool: u16::from(next(2) == 0), is_small: next(2) == 0 };
            match next(5) {
                0 => memory.grow(start..start + len, kind, next(2) == 0),
                1 => memory.shrink(start..start + len),
                2 if !memory.blocks.contains_key(&id) => memory.place(id, start, len - 100, None),
                3 => memory.request_free(id),
                _ => memory.complete_free(id),
            }
            let areas: Vec<_> = memory.areas().collect();
            assert!(areas.windows(2).all(|two| two[0].0.end <= two[1].0.start), "step {step}");
            let reserved: u64 = areas.iter().map(|(range, _)| range.end - range.start).sum();
            assert_eq!(memory.totals().reserved, reserved, "step {step}");
            let holes: Vec<_> = memory.holes().collect();
            assert!(holes.windows(2).all(|two| two[0].0.end <= two[1].0.start), "step {step}");
            for (hole, kind) in holes {
                let inside = areas.iter().any(|(area, of)| {
                    area.start <= hole.start && hole.end <= area.end && *of == kind
                });
                assert!(inside && hole.start < hole.end, "step {step}: {hole:?}");
            }
        }
    }
}

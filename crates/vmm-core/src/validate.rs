//! The invariants, checked structure by structure.

use crate::arena::{GENERAL, domain_of};
use crate::extent::{Kind, NONE};
use crate::frame::MappingState;
use crate::region::Region;
use crate::state::State;
use crate::timeline::READY;
use std::collections::{HashMap, HashSet};

/// Up to this many extents, debug builds check after every operation; beyond it as often as keeps
/// the cost of an operation bounded.
const EXTENTS_PER_CHECK: usize = 256;

/// What an arena adds to the cost of a check, as so many extents: its bins are looked at one by one.
const EXTENTS_PER_ARENA: usize = 64;

impl State {
    #[inline]
    pub(crate) fn validate_in_debug(&mut self) {
        if cfg!(debug_assertions) {
            self.unchecked_operations += 1;
            let private_arenas = self.arenas.all().len() - self.arenas.of(GENERAL).len();
            let cost = self.extents.count() + EXTENTS_PER_ARENA * private_arenas;
            if self.unchecked_operations * EXTENTS_PER_CHECK >= cost {
                self.unchecked_operations = 0;
                self.validate();
            }
        }
    }

    /// Panics if the structures contradict each other.
    pub(crate) fn validate(&self) {
        let mut seen = 0;
        for arena in self.arenas.all() {
            for (_, region) in arena.regions.iter() {
                seen += self.validate_region(region);
            }
        }
        assert_eq!(seen, self.extents.count(), "every extent lies in a region");
        if self.budget.plain {
            assert_eq!(self.regions().count(), self.frames.frames.len(), "a frame is a region");
        }
        self.validate_bins();
        self.validate_frames();
        self.validate_private();
        self.validate_counters();
    }

    /// Extents cover a region without gap or overlap, and free neighbours are joined.
    fn validate_region(&self, region: &Region) -> usize {
        let (mut at, mut prev, mut addr, mut count) = (region.first, NONE, region.base, 0);
        while at != NONE {
            let extent = &self.extents[at];
            assert_eq!(extent.addr, addr, "extents leave no gap");
            assert_eq!(extent.prev, prev, "links agree");
            assert!(extent.len > 0, "no extent is empty");
            if prev != NONE {
                let before = &self.extents[prev];
                let same = before.kind == extent.kind;
                assert!(!(same && extent.kind == Kind::Void), "voids are joined");
                assert!(
                    !(same && extent.kind == Kind::Free && before.stream == extent.stream),
                    "free neighbours of one stream are joined"
                );
            }
            self.validate_backing(region, extent.addr, extent.end(), extent.kind);
            (addr, prev, at) = (extent.end(), at, extent.next);
            count += 1;
        }
        assert_eq!(addr, region.base + region.len, "extents reach the end of the region");
        count
    }

    /// What is free, live or retired is mapped and current; what is void is not mapped.
    fn validate_backing(&self, region: &Region, from: u64, to: u64, kind: Kind) {
        let mut at = from;
        while at < to {
            let mapping = region.mapping_at(at);
            let end = mapping.map_or(to, |id| self.frames.mappings[id].end());
            match (kind, mapping) {
                (Kind::Void, None) | (Kind::Pending, _) => {}
                (Kind::Dead, Some(id)) => {
                    assert!(
                        !self.frames.mappings[id].dead.is_empty(),
                        "a mapping knows its dead extents"
                    );
                }
                (Kind::Free | Kind::Live | Kind::Retired, Some(id)) => {
                    let entry = &self.frames.mappings[id];
                    assert_eq!(entry.state, MappingState::Current, "memory in use is mapped");
                    assert!(!self.frames.frames[entry.frame].leaving, "memory in use stays");
                    assert!(self.peers.has_members(entry), "peers of the pool have access");
                }
                (kind, mapping) => panic!("{kind:?} memory over mapping {mapping:?}"),
            }
            if kind == Kind::Void || kind == Kind::Pending {
                break;
            }
            at = end;
        }
    }

    /// Every free extent is in the bins of its stream, and nothing else is.
    fn validate_bins(&self) {
        for (number, arena) in self.arenas.all().iter().enumerate() {
            let mut binned = HashSet::new();
            for slot in self.timelines.slots().chain([READY]) {
                let mut listed = self.arenas.of_stream(slot).map(|(id, _)| usize::from(id));
                if arena.free(&self.extents, slot, 0).next().is_some() && slot != READY {
                    assert!(listed.any(|id| id == number), "free memory of a stream is listed");
                }
                for id in arena.free(&self.extents, slot, 0) {
                    let extent = &self.extents[id];
                    assert_eq!(
                        (extent.kind, extent.stream),
                        (Kind::Free, slot),
                        "bins hold free extents"
                    );
                    assert!(binned.insert(id), "an extent is in one bin");
                }
            }
            let free = self
                .extents
                .iter()
                .filter(|(_, e)| e.kind == Kind::Free && usize::from(e.arena) == number);
            assert_eq!(free.count(), binned.len(), "every free extent is in a bin");
            let voids = self
                .extents
                .iter()
                .filter(|(_, e)| e.kind == Kind::Void && usize::from(e.arena) == number);
            assert_eq!(voids.count(), arena.voids(&self.extents).count(), "every void is listed");
        }
    }

    /// Frames and mappings name each other, and no byte of a frame has two addresses.
    fn validate_frames(&self) {
        let mut current: HashMap<u32, u64> = HashMap::new();
        for (id, entry) in self.frames.mappings.iter() {
            let frame = &self.frames.frames[entry.frame];
            assert_eq!(entry.len, frame.len, "a frame is mapped whole");
            assert!(frame.mappings.contains(&id), "a frame knows its mappings");
            let dead: u64 = entry.dead.iter().map(|id| self.extents[*id].len).sum();
            assert_eq!(dead, entry.dead_bytes, "dead bytes");
            *current.entry(entry.frame).or_default() += entry.len - dead;
            if entry.state == MappingState::Current {
                assert!(dead < entry.len, "a mapping without bytes is stale");
            } else {
                assert_eq!(dead, entry.len, "a stale mapping has no bytes");
                assert!(self.frames.stale.contains(&id), "a stale mapping is listed");
            }
        }
        for (id, frame) in self.frames.frames.iter() {
            let bytes = current.get(&id).copied().unwrap_or(0);
            let expect = if frame.leaving { 0 } else { frame.len };
            // A frame that was leaving has no address before the step that brings it back is over.
            let comes_back = bytes == 0 && self.steps_under_way > 0;
            assert!(bytes == expect || comes_back, "every byte of a frame has one address");
        }
    }

    /// What serves a private pool is nobody else's, and a domain without one has no memory.
    fn validate_private(&self) {
        let mut mapped = vec![0; self.arenas.all().len()];
        for (_, entry) in self.frames.mappings.iter() {
            if entry.state != MappingState::Current {
                continue;
            }
            mapped[usize::from(entry.at.arena)] += entry.len;
            if self.tenancies.is_private(domain_of(entry.at.arena)) {
                assert_eq!(entry.dead_bytes, 0, "no byte of a private frame has moved");
                let mappings = self.frames.frames[entry.frame].mappings.iter();
                let current =
                    mappings.filter(|id| self.frames.mappings[**id].state == MappingState::Current);
                assert_eq!(current.count(), 1, "a private frame serves in one place");
            }
        }
        for (arena, mapped) in self.arenas.all().iter().zip(mapped) {
            assert_eq!(arena.mapped, mapped, "bytes mapped in an arena");
        }
        for (_, extent) in self.extents.iter() {
            let has_memory = !matches!(extent.kind, Kind::Void | Kind::Dead);
            let vacant = has_memory && self.tenancies.is_vacant(domain_of(extent.arena));
            assert!(!vacant, "a vacant domain of arenas has no memory");
        }
    }

    /// Counters are the sums they stand for.
    fn validate_counters(&self) {
        let sum = |kind: Kind| -> u64 {
            self.extents.iter().filter(|(_, e)| e.kind == kind).map(|(_, e)| e.len).sum()
        };
        let counters = &self.counters;
        assert_eq!(counters.live_bytes, sum(Kind::Live), "live bytes");
        assert_eq!(counters.retired_bytes, sum(Kind::Retired), "retired bytes");
        let made: u64 = self.frames.frames.iter().map(|(_, frame)| frame.len).sum();
        assert_eq!(self.frames.bytes, made, "bytes of frames");
        assert!(counters.reserved_bytes >= made, "reserved bytes");
        if self.steps_under_way == 0 {
            assert_eq!(counters.reserved_bytes, made, "reserved bytes");
        }
        let stale: u64 = self.frames.stale.iter().map(|id| self.frames.mappings[*id].len).sum();
        assert_eq!(counters.stale_bytes, stale, "stale bytes");
    }
}

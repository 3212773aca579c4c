//! An arena: regions of addresses for leases of one range of lengths, and where they are free.
//!
//! The general memory has two, which keep short leases from pinning the frames of long ones. Each private
//! pool ([`crate::tenancy`]) has one of its own, where frames stay and nothing is gained by that.

use crate::bins::Bins;
use crate::extent::{ExtentId, Extents, Kind, NONE};
use crate::holdings::Holdings;
use crate::region::{Region, RegionId};
use crate::table::Table;
use crate::timeline::{Point, READY, StreamSlot};
use std::ops::{Index, IndexMut};

pub(crate) type ArenaId = u16;
/// Whose memory it is: [`GENERAL`], or that of a private pool, by its arena.
pub(crate) type DomainId = ArenaId;
/// The domain of all memory that belongs to no private pool.
pub(crate) const GENERAL: DomainId = 0;
/// Leases up to [`SMALL_MAX`], of the general domain.
pub(crate) const SMALL: ArenaId = 0;
/// All longer ones.
pub(crate) const LARGE: ArenaId = 1;
/// The longest lease of the small arena, in bytes.
pub(crate) const SMALL_MAX: u64 = 1 << 20;

/// A bound that no program meets which means to. Each costs some memory.
pub(crate) const MOST_ARENAS: usize = 4096;

/// The domain that an arena belongs to.
pub(crate) fn domain_of(arena: ArenaId) -> DomainId {
    if arena <= LARGE { GENERAL } else { arena }
}

/// Whether an arena is for short leases.
pub(crate) fn is_short(arena: ArenaId) -> bool {
    arena == SMALL
}

#[derive(Debug)]
pub(crate) struct Arena {
    /// Boxed, so that an arena is short: the hot path picks one of them, and looks at no region.
    pub(crate) regions: Box<Table<Region>>,
    /// Free extents by who may take them; `None` for streams that have none, by [`Holdings`].
    bins: Vec<Option<Box<Bins>>>,
    voids: ExtentId,
    /// Bytes of the mappings here that are current.
    pub(crate) mapped: u64,
}

/// All arenas of a pool.
#[derive(Debug)]
pub(crate) struct Arenas {
    table: Vec<Arena>,
    holdings: Holdings,
}

impl Arenas {
    /// Those of the general domain.
    pub(crate) fn new() -> Self {
        Self { table: vec![Arena::new(), Arena::new()], holdings: Holdings::default() }
    }

    /// Adds one for private pools; `None` if there are as many as there may be.
    pub(crate) fn add_private(&mut self) -> Option<DomainId> {
        let domain = self.table.len();
        if domain >= MOST_ARENAS {
            return None;
        }
        self.table.push(Arena::new());
        DomainId::try_from(domain).ok()
    }

    /// All that were added, by id.
    pub(crate) fn all(&self) -> &[Arena] {
        &self.table
    }

    /// Those of a domain.
    pub(crate) fn of(&self, domain: DomainId) -> &[Arena] {
        let count = if domain == GENERAL { 2 } else { 1 };
        &self.table[usize::from(domain)..][..count]
    }

    /// Makes an extent `Free`, joined with neighbours that the same stream may take.
    #[inline]
    pub(crate) fn set_free(
        &mut self,
        extents: &mut Extents,
        id: ExtentId,
        point: Point,
    ) -> ExtentId {
        let arena = &mut self.table[usize::from(extents[id].arena)];
        arena.set_free(extents, &mut self.holdings, id, point)
    }

    /// The arenas in which a stream has free memory, and perhaps some more; `READY` is no stream.
    pub(crate) fn of_stream(&self, slot: StreamSlot) -> impl Iterator<Item = (ArenaId, &Arena)> {
        self.holdings.of(slot).iter().map(|id| (*id, &self[*id]))
    }

    /// Whether a stream has free memory anywhere. Strikes out where it has none any more.
    pub(crate) fn has_free(&mut self, slot: StreamSlot) -> bool {
        let table = &mut self.table;
        self.holdings.review(slot, |arena| {
            table[usize::from(arena)].bins[slot as usize].take_if(|bins| bins.is_empty())
        })
    }
}

impl Index<ArenaId> for Arenas {
    type Output = Arena;
    #[inline]
    fn index(&self, id: ArenaId) -> &Arena {
        &self.table[usize::from(id)]
    }
}

impl IndexMut<ArenaId> for Arenas {
    #[inline]
    fn index_mut(&mut self, id: ArenaId) -> &mut Arena {
        &mut self.table[usize::from(id)]
    }
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self { regions: Box::default(), bins: Vec::new(), voids: NONE, mapped: 0 }
    }

    /// Bytes of its regions.
    pub(crate) fn address_bytes(&self) -> u64 {
        self.regions.iter().map(|(_, region)| region.len).sum()
    }

    pub(crate) fn region(&self, id: RegionId) -> &Region {
        &self.regions[u32::from(id)]
    }

    #[inline]
    pub(crate) fn region_mut(&mut self, id: RegionId) -> &mut Region {
        &mut self.regions[u32::from(id)]
    }

    /// Adds a region that its one extent fills, and that no frame is mapped in yet.
    pub(crate) fn add_region(&mut self, extents: &mut Extents, region: Region) -> RegionId {
        let first = region.first;
        let id = RegionId::try_from(self.regions.add(region)).expect("a bounded number of regions");
        extents[first].region = id;
        id
    }

    /// Puts a `Free` extent into the bins of its stream.
    #[inline]
    fn insert(&mut self, extents: &mut Extents, holdings: &mut Holdings, id: ExtentId) {
        let slot = extents[id].stream as usize;
        if let Some(Some(bins)) = self.bins.get_mut(slot) {
            bins.insert(extents, id);
        } else {
            self.insert_first(extents, holdings, id);
        }
    }

    #[cold]
    fn insert_first(&mut self, extents: &mut Extents, holdings: &mut Holdings, id: ExtentId) {
        let (slot, arena) = (extents[id].stream, extents[id].arena);
        let index = slot as usize;
        if self.bins.len() <= index {
            self.bins.resize_with(index + 1, || None);
        }
        self.bins[index].insert(holdings.begin(slot, arena)).insert(extents, id);
    }

    /// Takes a `Free` extent out of its bins.
    #[inline]
    pub(crate) fn remove(&mut self, extents: &mut Extents, id: ExtentId) {
        self.bins_holding(extents, id).remove(extents, id);
    }

    #[inline]
    fn bins_holding(&mut self, extents: &Extents, id: ExtentId) -> &mut Bins {
        self.bins[extents[id].stream as usize].as_mut().expect("bins of a free extent")
    }

    /// Takes `len` bytes at `addr` out of a `Free` extent. What is behind them keeps the id of the
    /// extent, unless something is before them: then that keeps it.
    #[inline]
    pub(crate) fn cut(
        &mut self,
        extents: &mut Extents,
        id: ExtentId,
        addr: u64,
        len: u64,
    ) -> ExtentId {
        let free = &extents[id];
        let old_len = free.len;
        if free.addr != addr {
            return self.cut_behind(extents, id, addr, len);
        }
        if old_len == len {
            self.remove(extents, id);
            return id;
        }
        let cut = extents.split_front(id, len);
        self.note_first(extents, cut);
        self.bins_holding(extents, id).resized(extents, id, old_len);
        cut
    }

    #[cold]
    fn cut_behind(&mut self, extents: &mut Extents, id: ExtentId, addr: u64, len: u64) -> ExtentId {
        let (start, old_len) = (extents[id].addr, extents[id].len);
        let cut = extents.split(id, addr - start);
        self.bins_holding(extents, id).resized(extents, id, old_len);
        if extents[cut].len > len {
            let rest = extents.split(cut, len);
            self.bins_holding(extents, rest).insert(extents, rest);
        }
        cut
    }

    /// Makes an extent `Free`, joined with neighbours that the same stream may take. Where there is
    /// one, it grows over the extent: it is in a bin already, and often stays there.
    #[inline]
    pub(crate) fn set_free(
        &mut self,
        extents: &mut Extents,
        holdings: &mut Holdings,
        id: ExtentId,
        mut point: Point,
    ) -> ExtentId {
        let (prev, next) = (extents[id].prev, extents[id].next);
        let joins = |other: ExtentId| {
            other != NONE && {
                let other = &extents[other];
                other.kind == Kind::Free && other.stream == point.stream
            }
        };
        match (joins(prev), joins(next)) {
            (false, false) => {
                let extent = &mut extents[id];
                extent.kind = Kind::Free;
                extent.stream = point.stream;
                extent.epoch = point.epoch;
                self.insert(extents, holdings, id);
                id
            }
            (false, true) => {
                let old_len = extents[next].len;
                extents.join_prev(next);
                self.note_first(extents, next);
                self.grown(extents, next, old_len, point)
            }
            (true, behind) => {
                if behind {
                    point.epoch = point.epoch.max(extents[next].epoch);
                    self.remove(extents, next);
                    extents.join_next(id);
                }
                let old_len = extents[prev].len;
                extents.join_next(prev);
                self.grown(extents, prev, old_len, point)
            }
        }
    }

    /// Notes that a `Free` extent had `old_len` bytes before, and that `point` is a use of the others.
    #[inline]
    fn grown(
        &mut self,
        extents: &mut Extents,
        id: ExtentId,
        old_len: u64,
        point: Point,
    ) -> ExtentId {
        let extent = &mut extents[id];
        extent.epoch = extent.epoch.max(point.epoch);
        self.bins_holding(extents, id).resized(extents, id, old_len);
        id
    }

    /// Notes an extent that may be the first of its region now.
    #[inline]
    fn note_first(&mut self, extents: &Extents, id: ExtentId) {
        let extent = &extents[id];
        if extent.prev == NONE {
            self.region_mut(extent.region).first = id;
        }
    }

    fn bins_of(&self, slot: StreamSlot) -> Option<&Bins> {
        self.bins.get(slot as usize)?.as_deref()
    }

    /// The shortest extent for a lease of `slot`: its own or ready memory.
    #[inline]
    pub(crate) fn find(
        &self,
        extents: &Extents,
        slot: StreamSlot,
        len: u64,
        alignment: u64,
    ) -> Option<ExtentId> {
        let find = |slot| self.bins_of(slot).and_then(|bins| bins.find(extents, len, alignment));
        let Some(own) = find(slot) else { return find(READY) };
        let own_len = extents[own].len;
        if own_len == len {
            return Some(own);
        }
        find(READY).filter(|ready| extents[*ready].len < own_len).or(Some(own))
    }

    /// Free extents of a stream of at least `len` bytes, shortest bins first.
    pub(crate) fn free<'a>(
        &'a self,
        extents: &'a Extents,
        slot: StreamSlot,
        len: u64,
    ) -> impl Iterator<Item = ExtentId> + 'a {
        self.bins_of(slot).into_iter().flat_map(move |bins| bins.at_least(extents, len))
    }

    /// The longest request at the least alignment that memory of a stream serves.
    pub(crate) fn longest(&self, extents: &Extents, slot: StreamSlot) -> u64 {
        self.bins_of(slot).map_or(0, |bins| bins.longest(extents))
    }

    /// Makes an extent a `Void`, joined with void neighbours.
    pub(crate) fn set_void(&mut self, extents: &mut Extents, mut id: ExtentId) {
        let (prev, next) = (extents[id].prev, extents[id].next);
        if next != NONE && extents[next].kind == Kind::Void {
            self.unlink_void(extents, next);
            extents.join_next(id);
        }
        if prev != NONE && extents[prev].kind == Kind::Void {
            self.unlink_void(extents, prev);
            extents.join_next(prev);
            id = prev;
        }
        let head = self.voids;
        let extent = &mut extents[id];
        extent.kind = Kind::Void;
        extent.stream = READY;
        extent.epoch = 0;
        extent.bin_prev = NONE;
        extent.bin_next = head;
        if head != NONE {
            extents[head].bin_prev = id;
        }
        self.voids = id;
    }

    /// Takes a `Void` out of the list.
    pub(crate) fn unlink_void(&mut self, extents: &mut Extents, id: ExtentId) {
        let (prev, next) = (extents[id].bin_prev, extents[id].bin_next);
        if next != NONE {
            extents[next].bin_prev = prev;
        }
        if prev == NONE {
            self.voids = next;
        } else {
            extents[prev].bin_next = next;
        }
    }

    pub(crate) fn voids<'a>(&self, extents: &'a Extents) -> impl Iterator<Item = ExtentId> + 'a {
        let mut at = self.voids;
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            at = extents[id].bin_next;
            Some(id)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bins::UNIT;
    use crate::extent::Extent;

    const STREAM: StreamSlot = 1;
    const LEN: u64 = 8 << 20;

    /// One region whose memory is all free for `STREAM`.
    fn whole() -> (Arena, Extents, ExtentId) {
        let (mut arena, mut extents) = (Arena::new(), Extents::default());
        let id = extents.add(Extent { addr: UNIT, len: LEN, ..Extent::default() });
        arena.add_region(&mut extents, Region::new(UNIT, LEN, LEN, id));
        let mut holdings = Holdings::default();
        arena.set_free(&mut extents, &mut holdings, id, Point { stream: STREAM, epoch: 1 });
        assert_eq!(holdings.of(STREAM), [0], "the stream has memory in the arena");
        (arena, extents, id)
    }

    /// Cuts two pieces of 1 MiB off the front, and frees them in this order at epochs 2 and 3.
    fn check(order: [usize; 2]) {
        let (mut arena, mut extents, id) = whole();
        let cuts = [0, 1].map(|index| {
            let cut = arena.cut(&mut extents, id, UNIT + (index << 20), 1 << 20);
            extents[cut].kind = Kind::Live;
            cut
        });
        assert_eq!(arena.region(0).first, cuts[0], "the first cut begins the region");
        assert_eq!(arena.find(&extents, STREAM, LEN - (2 << 20), UNIT), Some(id));
        assert_eq!(arena.find(&extents, STREAM, LEN - (1 << 20), UNIT), None);
        for (epoch, index) in (2..).zip(order) {
            let point = Point { stream: STREAM, epoch };
            arena.set_free(&mut extents, &mut Holdings::default(), cuts[index], point);
        }
        let found = arena.find(&extents, STREAM, LEN, UNIT).expect("all is one extent again");
        assert_eq!((arena.region(0).first, extents.count()), (found, 1));
        assert_eq!((extents[found].addr, extents[found].epoch), (UNIT, 3));
        assert_eq!(arena.free(&extents, STREAM, 0).count(), 1, "it is in one bin");
    }

    #[test]
    fn a_free_neighbour_grows_over_what_is_freed() {
        check([0, 1]);
        check([1, 0]);
    }

    #[test]
    fn what_lies_before_a_cut_keeps_the_id() {
        let (mut arena, mut extents, id) = whole();
        let cut = arena.cut(&mut extents, id, 1 << 20, 1 << 20);
        assert_eq!((extents[cut].addr, extents[cut].len), (1 << 20, 1 << 20));
        assert_eq!(extents[id].end(), 1 << 20);
        let lens = arena.free(&extents, STREAM, 0).map(|free| extents[free].len).sum::<u64>();
        assert_eq!(lens, LEN - (1 << 20), "the rest stays free");
    }
}

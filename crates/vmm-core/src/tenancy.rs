//! Tenancies: which pair of arenas belongs to which private pool.
//!
//! A private pool has a pair of arenas to itself. So its addresses are its own, and what is mapped
//! there stays: whoever looks for idle frames looks into the general pair. Frames come in as new
//! ones or as idle ones of the general pair, and go out together, when the private pool is
//! released.
//!
//! | pair | memory in it | becomes |
//! |---|---|---|
//! | vacant | none, but perhaps stale mappings | living, for the next private pool |
//! | living | that of a private pool | released |
//! | released | frames that its last leases hold | vacant, when these have ended |
//!
//! Frames that go out are *leaving*: they serve the next request that wants them, of whatever pool,
//! and if nobody does they are released. A private pool that comes next, in the same pair, takes
//! them back by [recall](crate::recall) where they were, without a device call.
//!
//! A captured graph may have been launched on any stream. So when a private pool is released, its
//! memory counts as in use by all that is queued on every stream by then.

use crate::arena::{ArenaId, PairId, SMALL, pair_of};
use crate::bins::UNIT;
use crate::device::VirtualMemoryDevice;
use crate::extent::{Kind, NONE};
use crate::idle::Part;
use crate::region::{RegionId, RegionRef};
use crate::state::State;
use crate::timeline::{Point, READY, StreamSlot};
use std::fmt;
use std::num::NonZeroU64;

/// Private pools that may have memory at once: a pair of arenas each, of the 256 that there can be,
/// and one pair is the general one.
pub(crate) const MOST_PRIVATE_POOLS: usize = 127;

/// Names a private pool. Ids begin at 1 and are never used twice in one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrivateId(NonZeroU64);

impl PrivateId {
    /// The number of the private pool: how many have been made up to this one.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for PrivateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[derive(Debug)]
enum Tenancy {
    Vacant,
    Living(PrivateId),
    /// What its memory may be in use by, besides the leases that have not ended.
    Released(Vec<Point>),
}

/// The tenancies of all pairs but the general one.
#[derive(Debug, Default)]
pub(crate) struct Tenancies {
    /// By pair, from the one behind the general one on.
    pairs: Vec<Tenancy>,
    made: u64,
    /// Where work ends that may use memory of private pools released lately: fences are recorded
    /// there as soon as the device may be called, for idle streams have passed them at once.
    unfenced: Vec<Point>,
}

impl Tenancies {
    /// The private pool that an arena belongs to, if it lives.
    pub(crate) fn tenant(&self, arena: ArenaId) -> Option<PrivateId> {
        match self.get(pair_of(arena))? {
            Tenancy::Living(id) => Some(*id),
            Tenancy::Vacant | Tenancy::Released(_) => None,
        }
    }

    /// Whether the memory of a pair is a living private pool's.
    pub(crate) fn is_private(&self, pair: PairId) -> bool {
        self.tenant(pair).is_some()
    }

    /// Private pools that live, each with its pair.
    pub(crate) fn living(&self) -> impl Iterator<Item = (PrivateId, PairId)> + '_ {
        self.numbered().filter_map(|(pair, tenancy)| match tenancy {
            Tenancy::Living(id) => Some((*id, pair)),
            Tenancy::Vacant | Tenancy::Released(_) => None,
        })
    }

    /// Whether a pair has neither a private pool nor memory.
    pub(crate) fn is_vacant(&self, pair: PairId) -> bool {
        matches!(self.get(pair), Some(Tenancy::Vacant))
    }

    /// What memory of released private pools may be in use by.
    pub(crate) fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let released = self.pairs.iter().flat_map(|tenancy| match tenancy {
            Tenancy::Released(points) => points.as_slice(),
            Tenancy::Vacant | Tenancy::Living(_) => &[],
        });
        released.chain(&self.unfenced).copied()
    }

    fn vacant(&self) -> Option<PairId> {
        let mut pairs = self.numbered();
        pairs.find(|(_, tenancy)| matches!(tenancy, Tenancy::Vacant)).map(|(pair, _)| pair)
    }

    fn numbered(&self) -> impl Iterator<Item = (PairId, &Tenancy)> {
        (2..PairId::MAX).step_by(2).zip(&self.pairs)
    }

    fn get(&self, pair: PairId) -> Option<&Tenancy> {
        self.pairs.get(usize::from(pair / 2).checked_sub(1)?)
    }

    fn at(&mut self, pair: PairId) -> &mut Tenancy {
        &mut self.pairs[usize::from(pair / 2) - 1]
    }
}

impl State {
    /// Makes a private pool; `None` if too many have memory.
    pub(crate) fn begin_tenancy(&mut self) -> Option<(PrivateId, PairId)> {
        self.sweep_released();
        let vacant = self.tenancies.vacant();
        let pair = match vacant {
            Some(pair) => pair,
            None => {
                let pair = self.arenas.add_pair()?;
                self.tenancies.pairs.push(Tenancy::Vacant);
                pair
            }
        };
        self.tenancies.made += 1;
        let id = PrivateId(NonZeroU64::new(self.tenancies.made).expect("counted from 1"));
        *self.tenancies.at(pair) = Tenancy::Living(id);
        Some((id, pair))
    }

    /// Releases a private pool: nobody can allocate from it any more.
    pub(crate) fn end_tenancy(&mut self, pair: PairId) {
        let mut points = self.timelines.all_now();
        points.retain(|point| !self.timelines.is_reached(*point));
        points.iter().for_each(|point| raise(&mut self.tenancies.unfenced, *point));
        *self.tenancies.at(pair) = Tenancy::Released(points);
        self.sweep_released();
    }

    /// Records the fences that released private pools have left to be recorded.
    pub(crate) fn fence_released<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) {
        for point in std::mem::take(&mut self.tenancies.unfenced) {
            // One that fails is recorded by whoever needs it.
            let _ = self.timelines.fence(device, point);
        }
    }

    /// Lets go of what nobody holds any more in released private pools. Makes no device call.
    pub(crate) fn sweep_released(&mut self) {
        for index in 0..self.tenancies.pairs.len() {
            if let Tenancy::Released(points) = &mut self.tenancies.pairs[index] {
                let points = std::mem::take(points);
                let pair = PairId::try_from(2 * (index + 1)).expect("no more than 256 arenas");
                self.sweep(pair, points);
            }
        }
    }

    fn sweep(&mut self, pair: PairId, mut points: Vec<Point>) {
        let slots: Vec<StreamSlot> = self.timelines.slots().collect();
        for slot in slots {
            for id in self.free_of(slot, |other| other == pair) {
                raise(&mut points, self.last_use(id));
                self.reassign(id, Point::REACHED);
            }
        }
        points.retain(|point| !self.timelines.is_reached(*point));
        for arena in [pair, pair + 1] {
            if self.plain {
                self.hand_over(arena, &points);
            } else {
                self.send_away_all(arena, &points);
            }
        }
        let mapped = self.arenas.pair(pair).iter().any(|arena| arena.mapped > 0);
        *self.tenancies.at(pair) = if mapped { Tenancy::Released(points) } else { Tenancy::Vacant };
    }

    /// Lets go of the frames of an arena that lie in free memory, which is ready but for `points`.
    fn send_away_all(&mut self, arena: ArenaId, points: &[Point]) {
        let mut parts = Vec::new();
        for extent in self.arenas[arena].free(&self.extents, READY, UNIT) {
            for mapping in self.whole_mappings(extent) {
                let entry = &self.frames.mappings[mapping];
                parts.push(Part { extent, mapping, addr: entry.addr, len: entry.len });
            }
        }
        let cuts = self.cut_all(parts.iter().map(std::slice::from_ref));
        for (mapping, extent) in cuts.into_iter().flatten() {
            self.move_on(mapping, extent, Point::REACHED);
            let entry = &mut self.frames.mappings[mapping];
            entry.uses = points.to_vec();
            let frame = entry.frame;
            self.frames.send_away(frame);
        }
    }

    /// Where nothing can be mapped: the frames of an arena that nobody holds become general memory
    /// as they are, once `points` are reached.
    fn hand_over(&mut self, arena: ArenaId, points: &[Point]) {
        let to = SMALL + (arena - pair_of(arena));
        let free: Vec<_> = self.arenas[arena]
            .free(&self.extents, READY, UNIT)
            .filter(|id| (self.extents[*id].prev, self.extents[*id].next) == (NONE, NONE))
            .collect();
        for id in free {
            if self.arenas[to].regions.len() >= usize::from(RegionId::MAX) {
                return;
            }
            let from = &mut self.arenas[arena];
            from.remove(&mut self.extents, id);
            let region = from.regions.remove(u32::from(self.extents[id].region));
            from.mapped -= region.len;
            let mapping = region.mapping_at(region.base).expect("the region is a frame");
            let arena = &mut self.arenas[to];
            arena.mapped += region.len;
            let region = arena.add_region(&mut self.extents, region);
            self.frames.mappings[mapping].at = RegionRef { arena: to, region };
            let extent = &mut self.extents[id];
            extent.arena = to;
            extent.kind = Kind::Retired;
            extent.requested = 0;
            for point in points {
                self.uses.note(&mut extent.uses, *point);
            }
            self.counters.retired_bytes += extent.len;
            if !self.settle(id) {
                self.retired.push(id);
            }
        }
    }

    /// Bytes of frames that serve private pools only.
    pub(crate) fn private_bytes(&self) -> u64 {
        self.arenas.all()[2..].iter().map(|arena| arena.mapped).sum()
    }
}

/// Notes that memory may be in use up to `point`, too.
fn raise(points: &mut Vec<Point>, point: Point) {
    match points.iter_mut().find(|known| known.stream == point.stream) {
        Some(known) => known.epoch = known.epoch.max(point.epoch),
        None => points.push(point),
    }
}

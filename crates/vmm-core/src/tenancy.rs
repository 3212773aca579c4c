//! Tenancies: which arena belongs to which private pool.
//!
//! A private pool has an arena to itself. So its addresses are its own, and what is mapped
//! there stays: whoever looks for idle frames looks into the general arenas. Frames come in as new
//! ones or as idle ones of the general arenas, and go out together, when the private pool is
//! released.
//!
//! | arena | memory in it | becomes |
//! |---|---|---|
//! | vacant | none, but perhaps stale mappings | living, for the next private pool |
//! | living | that of a private pool | released |
//! | released | frames that its last leases hold | vacant, when these have ended |
//!
//! Frames that go out are *leaving*: they serve the next request that wants them, of whatever pool,
//! and if nobody does they are released. A private pool that comes next, in the same arena, takes
//! them back by [recall](crate::recall) where they were, without a device call.
//!
//! A captured graph may have been launched on any stream. So when a private pool is released, its
//! memory counts as in use by all that is queued on every stream by then.

use crate::arena::{ArenaId, DomainId, LARGE, MOST_ARENAS};
use crate::bins::UNIT;
use crate::device::VirtualMemoryDevice;
use crate::extent::{Kind, NONE};
use crate::idle::Part;
use crate::region::{RegionId, RegionRef};
use crate::state::State;
use crate::timeline::{Point, READY, StreamSlot, raise};
use std::fmt;
use std::num::NonZeroU64;

/// Private pools that may have memory at once: one for each arena but the two general ones.
pub(crate) const MOST_PRIVATE_POOLS: usize = MOST_ARENAS - 2;

/// The first arena that is not general.
const FIRST: ArenaId = LARGE + 1;

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

/// The tenancies of all arenas but the general ones.
#[derive(Debug, Default)]
pub(crate) struct Tenancies {
    /// By arena, from the one behind the general ones on.
    all: Vec<Tenancy>,
    /// How many are released.
    released: usize,
    made: u64,
    /// Where work ends that may use memory of private pools released lately: fences are recorded
    /// there as soon as the device may be called, for idle streams have passed them at once.
    unfenced: Vec<Point>,
}

impl Tenancies {
    /// The private pool that an arena belongs to, if it lives.
    pub(crate) fn tenant(&self, arena: ArenaId) -> Option<PrivateId> {
        match self.get(arena)? {
            Tenancy::Living(id) => Some(*id),
            Tenancy::Vacant | Tenancy::Released(_) => None,
        }
    }

    /// Whether the memory of a domain is a living private pool's.
    pub(crate) fn is_private(&self, domain: DomainId) -> bool {
        self.tenant(domain).is_some()
    }

    /// Private pools that live, each with its domain.
    pub(crate) fn living(&self) -> impl Iterator<Item = (PrivateId, DomainId)> + '_ {
        self.numbered().filter_map(|(domain, tenancy)| match tenancy {
            Tenancy::Living(id) => Some((*id, domain)),
            Tenancy::Vacant | Tenancy::Released(_) => None,
        })
    }

    /// Whether a domain has neither a private pool nor memory.
    pub(crate) fn is_vacant(&self, domain: DomainId) -> bool {
        matches!(self.get(domain), Some(Tenancy::Vacant))
    }

    /// What memory of released private pools may be in use by.
    pub(crate) fn points(&self) -> impl Iterator<Item = Point> + '_ {
        let released = self.all.iter().flat_map(|tenancy| match tenancy {
            Tenancy::Released(points) => points.as_slice(),
            Tenancy::Vacant | Tenancy::Living(_) => &[],
        });
        released.chain(&self.unfenced).copied()
    }

    fn vacant(&self) -> Option<DomainId> {
        let mut domains = self.numbered();
        domains.find(|(_, tenancy)| matches!(tenancy, Tenancy::Vacant)).map(|(domain, _)| domain)
    }

    fn numbered(&self) -> impl Iterator<Item = (DomainId, &Tenancy)> {
        (FIRST..=DomainId::MAX).zip(&self.all)
    }

    fn get(&self, domain: DomainId) -> Option<&Tenancy> {
        self.all.get(usize::from(domain.checked_sub(FIRST)?))
    }

    fn at(&mut self, domain: DomainId) -> &mut Tenancy {
        &mut self.all[usize::from(domain - FIRST)]
    }
}

impl State {
    /// Makes a private pool; `None` if too many have memory.
    pub(crate) fn begin_tenancy(&mut self) -> Option<(PrivateId, DomainId)> {
        self.sweep_released();
        let vacant = self.tenancies.vacant();
        let domain = match vacant {
            Some(domain) => domain,
            None => {
                let domain = self.arenas.add_private()?;
                self.tenancies.all.push(Tenancy::Vacant);
                domain
            }
        };
        self.tenancies.made += 1;
        let id = PrivateId(NonZeroU64::new(self.tenancies.made).expect("counted from 1"));
        *self.tenancies.at(domain) = Tenancy::Living(id);
        Some((id, domain))
    }

    /// Releases a private pool: nobody can allocate from it any more.
    pub(crate) fn end_tenancy(&mut self, domain: DomainId) {
        let mut points = self.timelines.all_now();
        points.retain(|point| !self.timelines.is_reached(*point));
        points.iter().for_each(|point| raise(&mut self.tenancies.unfenced, *point));
        *self.tenancies.at(domain) = Tenancy::Released(points);
        self.tenancies.released += 1;
        self.sweep_released();
    }

    /// Records the fences that released private pools have left to be recorded.
    pub(crate) fn fence_released<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) {
        for point in std::mem::take(&mut self.tenancies.unfenced) {
            // One that fails is recorded by whoever needs it.
            let _ = self.timelines.ask(device, point);
        }
    }

    /// Lets go of what nobody holds any more in released private pools. Makes no device call.
    pub(crate) fn sweep_released(&mut self) {
        if self.tenancies.released == 0 {
            return;
        }
        for index in 0..self.tenancies.all.len() {
            if let Tenancy::Released(points) = &mut self.tenancies.all[index] {
                let points = std::mem::take(points);
                let domain = FIRST + DomainId::try_from(index).expect("a bounded number of arenas");
                self.sweep(domain, points);
            }
        }
    }

    fn sweep(&mut self, domain: DomainId, mut points: Vec<Point>) {
        let slots: Vec<StreamSlot> = self.timelines.slots().collect();
        for slot in slots {
            let free: Vec<_> = self.arenas[domain].free(&self.extents, slot, UNIT).collect();
            for id in free {
                raise(&mut points, self.last_use(id));
                self.reassign(id, Point::REACHED);
            }
        }
        points.retain(|point| !self.timelines.is_reached(*point));
        if self.budget.plain {
            self.hand_over(domain, &points);
        } else {
            self.send_away_all(domain, &points);
        }
        let mapped = self.arenas[domain].mapped > 0;
        self.tenancies.released -= usize::from(!mapped);
        *self.tenancies.at(domain) =
            if mapped { Tenancy::Released(points) } else { Tenancy::Vacant };
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
        let free: Vec<_> = self.arenas[arena]
            .free(&self.extents, READY, UNIT)
            .filter(|id| (self.extents[*id].prev, self.extents[*id].next) == (NONE, NONE))
            .collect();
        for id in free {
            if self.arenas[LARGE].regions.len() >= usize::from(RegionId::MAX) {
                return;
            }
            let from = &mut self.arenas[arena];
            from.remove(&mut self.extents, id);
            let region = from.regions.remove(u32::from(self.extents[id].region));
            from.mapped -= region.len;
            let mapping = region.mapping_at(region.base).expect("the region is a frame");
            let arena = &mut self.arenas[LARGE];
            arena.mapped += region.len;
            let region = arena.add_region(&mut self.extents, region);
            self.frames.mappings[mapping].at = RegionRef { arena: LARGE, region };
            let extent = &mut self.extents[id];
            extent.arena = LARGE;
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
        self.arenas.all()[usize::from(FIRST)..].iter().map(|arena| arena.mapped).sum()
    }
}

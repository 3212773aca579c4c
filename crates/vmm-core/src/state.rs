//! All that the lock protects, and the hot path: taking and giving back memory that is at hand.
//!
//! Nothing here calls the device.

use crate::arena::{ArenaId, Arenas, DomainId, GENERAL, LARGE, SMALL, SMALL_MAX};
use crate::bins::UNIT;
use crate::budget::Budget;
use crate::directory::Directory;
use crate::extent::{ExtentId, Extents, Kind, NONE};
use crate::frame::{Frames, MappingId};
use crate::owner::Owners;
use crate::peers::Peers;
use crate::report::Counters;
use crate::tenancy::Tenancies;
use crate::timeline::{Point, READY, StreamSlot, Timelines};
use crate::units::Fence;
use crate::uses::Uses;
use std::time::Duration;

/// A request after its checks: a length in whole units and a power-of-two alignment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) requested: u64,
    pub(crate) len: u64,
    pub(crate) alignment: u64,
    pub(crate) slot: StreamSlot,
    pub(crate) owner: u32,
    /// Whose memory it is to be: the general one's, or that of a private pool.
    pub(crate) domain: DomainId,
}

impl Want {
    #[inline]
    pub(crate) fn arena(&self) -> ArenaId {
        match self.domain {
            GENERAL if self.len <= SMALL_MAX => SMALL,
            GENERAL => LARGE,
            private => private,
        }
    }
}

/// A lease as the pool knows it: a place, and the generation that tells it from earlier leases there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseId {
    pub(crate) extent: ExtentId,
    pub(crate) generation: u32,
}

/// What an allocation came to: a live extent and its address; `None` for no bytes.
pub(crate) type Memory = Option<(LeaseId, u64)>;

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) extents: Extents,
    pub(crate) arenas: Arenas,
    /// Which private pool each further arena belongs to.
    pub(crate) tenancies: Tenancies,
    pub(crate) frames: Frames,
    pub(crate) timelines: Timelines,
    pub(crate) uses: Uses,
    pub(crate) owners: Owners,
    pub(crate) budget: Budget,
    pub(crate) counters: Counters,
    /// Leases that were released with uses on several streams, until these are over.
    pub(crate) retired: Vec<ExtentId>,
    /// Maintenance rests until then.
    pub(crate) paused_until: Duration,
    /// Bytes of long frames that were exchanged for shorter ones.
    pub(crate) exchanged_bytes: u64,
    /// Operations since the last check of all structures, in debug builds.
    pub(crate) unchecked_operations: usize,
    /// Mappings whose removal is queued on the device, by when they are gone.
    pub(crate) unbinding: Vec<(Fence, Vec<MappingId>)>,
    /// Steps that were decided and have not come back.
    pub(crate) steps_under_way: u32,
    pub(crate) peers: Peers,
    pub(crate) directory: Directory,
}

impl State {
    pub(crate) fn new(budget: Budget, peers: Peers) -> Self {
        Self {
            extents: Extents::default(),
            arenas: Arenas::new(),
            tenancies: Tenancies::default(),
            frames: Frames::default(),
            timelines: Timelines::new(),
            uses: Uses::default(),
            owners: Owners::new(),
            budget,
            counters: Counters::default(),
            retired: Vec::new(),
            unbinding: Vec::new(),
            paused_until: Duration::ZERO,
            exchanged_bytes: 0,
            unchecked_operations: 0,
            steps_under_way: 0,
            peers,
            directory: Directory::default(),
        }
    }

    /// Takes memory that is at hand for the stream of the request.
    #[inline]
    pub(crate) fn take(&mut self, want: &Want) -> Option<LeaseId> {
        let arena = &self.arenas[want.arena()];
        let found = arena.find(&self.extents, want.slot, want.len, want.alignment)?;
        Some(self.carve(found, want))
    }

    /// Memory for a request without a device call.
    #[inline]
    pub(crate) fn take_at_hand(&mut self, want: &Want) -> Option<LeaseId> {
        if self.is_tight(want) {
            return self.take_packed(want);
        }
        self.take(want).or_else(|| self.take_hole_at_hand(want))
    }

    /// A hole in the memory of long leases, once the pool has all the memory that it is meant to
    /// have. Not under a limit: there it is worth while to look first at what has become ready.
    #[cold]
    fn take_hole_at_hand(&mut self, want: &Want) -> Option<LeaseId> {
        let level = self.budget.known_level().filter(|_| self.budget.limit.is_none())?;
        let full = self.counters.reserved_bytes + self.budget.frame_len(SMALL) > level;
        if full && !self.budget.plain { self.take_hole(want) } else { None }
    }

    /// Makes a lease of a `Free` extent that fits: its front, or the first aligned place.
    #[inline]
    pub(crate) fn carve(&mut self, free: ExtentId, want: &Want) -> LeaseId {
        let extent = &self.extents[free];
        self.carve_at(free, extent.addr + extent.front(want.alignment), want)
    }

    /// Makes a lease of a part of a `Free` extent, at this address.
    #[inline]
    pub(crate) fn carve_at(&mut self, free: ExtentId, addr: u64, want: &Want) -> LeaseId {
        let arena = &mut self.arenas[self.extents[free].arena];
        let id = arena.cut(&mut self.extents, free, addr, want.len);
        let extent = &mut self.extents[id];
        extent.kind = Kind::Live;
        extent.stream = want.slot;
        extent.count = 1;
        extent.owner = want.owner;
        extent.requested = want.requested;
        extent.uses = NONE;
        extent.generation = extent.generation.wrapping_add(1);
        let id = LeaseId { extent: id, generation: extent.generation };
        self.counters.allocated(want.len, want.requested);
        self.budget.begin_lease(want.len);
        self.budget.note(self.counters.live_bytes);
        id
    }

    /// The extent of a lease that somebody still holds.
    ///
    /// # Panics
    /// If the lease has ended: the holder released more often than it shared.
    #[inline]
    pub(crate) fn live(&self, id: LeaseId) -> ExtentId {
        let extent = self.extents.get(id.extent);
        assert!(
            extent.is_some_and(|e| e.kind == Kind::Live && e.generation == id.generation),
            "a lease was used after its last release"
        );
        id.extent
    }

    /// Notes work on a further stream, up to the end of the lease.
    pub(crate) fn note_use(&mut self, id: LeaseId, slot: StreamSlot) {
        let at = self.live(id);
        if self.extents[at].stream != slot {
            self.uses.note_open(&mut self.extents[at].uses, slot);
        }
    }

    /// One user of a lease lets go; its work ends at the present point of `slot`, or of the stream
    /// that the lease was allocated on.
    #[inline]
    pub(crate) fn release(&mut self, id: LeaseId, slot: Option<StreamSlot>) {
        let at = self.live(id);
        let extent = &mut self.extents[at];
        extent.count -= 1;
        if let Some(slot) = slot.filter(|slot| *slot != extent.stream) {
            self.uses.note(&mut extent.uses, self.timelines.now(slot));
        }
        if extent.count == 0 {
            self.retire(at);
        }
    }

    /// The last user let go.
    #[inline]
    fn retire(&mut self, id: ExtentId) {
        let extent = &self.extents[id];
        let home = self.timelines.now(extent.stream);
        self.counters.released(extent.len, extent.requested);
        self.budget.end_lease(extent.len);
        if extent.uses == NONE {
            self.set_free(id, home);
        } else {
            self.retire_shared(id, home);
        }
    }

    #[cold]
    fn retire_shared(&mut self, id: ExtentId, home: Point) {
        let extent = &mut self.extents[id];
        let timelines = &self.timelines;
        self.uses.close(extent.uses, |slot| timelines.now(slot));
        self.uses.note(&mut extent.uses, home);
        extent.kind = Kind::Retired;
        self.counters.retired_bytes += extent.len;
        if !self.settle(id) {
            self.retired.push(id);
        }
    }

    /// Frees a retired extent if at most one stream may still use it. Asks no device.
    pub(crate) fn settle(&mut self, id: ExtentId) -> bool {
        let mut open =
            self.uses.iter(self.extents[id].uses).filter(|p| !self.timelines.is_reached(*p));
        let last = open.next();
        if open.next().is_some() {
            return false;
        }
        drop(open);
        self.end_retirement(id, last.unwrap_or(Point::REACHED));
        true
    }

    /// Frees a retired extent; everything that still uses it is ordered before `point`.
    pub(crate) fn end_retirement(&mut self, id: ExtentId, point: Point) {
        let extent = &mut self.extents[id];
        self.uses.clear(&mut extent.uses);
        self.counters.retired_bytes -= extent.len;
        self.set_free(id, point);
    }

    /// Makes an extent `Free`, joined with neighbours that the same stream may take.
    #[inline]
    pub(crate) fn set_free(&mut self, id: ExtentId, point: Point) -> ExtentId {
        self.arenas.set_free(&mut self.extents, id, point)
    }

    /// Hands free memory over to another stream, or to all, and joins it with its new neighbours.
    pub(crate) fn reassign(&mut self, id: ExtentId, point: Point) -> ExtentId {
        let arena = &mut self.arenas[self.extents[id].arena];
        arena.remove(&mut self.extents, id);
        self.set_free(id, point)
    }

    /// Joins ready memory of a domain to neighbours that `slot` may take. Done on a miss only: the hot
    /// path keeps ready memory apart, or one stream would take it from all others bit by bit.
    pub(crate) fn join_ready(&mut self, domain: DomainId, slot: StreamSlot) {
        let ready: Vec<ExtentId> = self
            .arenas
            .of(domain)
            .iter()
            .flat_map(|arena| arena.free(&self.extents, READY, UNIT))
            .collect();
        for id in ready {
            let extent = &self.extents[id];
            let own = |other: ExtentId| {
                other != NONE
                    && self.extents[other].kind == Kind::Free
                    && self.extents[other].stream == slot
            };
            let Some(neighbour) = [extent.prev, extent.next].into_iter().find(|other| own(*other))
            else {
                continue;
            };
            let epoch = self.extents[neighbour].epoch;
            self.reassign(id, Point { stream: slot, epoch });
        }
    }

    /// What an allocation may use: own memory, or memory that nobody uses.
    pub(crate) fn usable(&self, id: ExtentId, slot: StreamSlot) -> bool {
        let extent = &self.extents[id];
        extent.kind == Kind::Free && (extent.stream == slot || extent.stream == READY)
    }

    pub(crate) fn pause(&mut self, until: Duration) {
        self.paused_until = self.paused_until.max(until);
    }
}

//! Devices that cannot map: plain frames.
//!
//! A frame has one address there, from when it is made until it is released, and so is a region of
//! its own. Leases share it as they share any region, short ones and long ones apart. But nothing
//! moves: a request is served within one frame, and frames that nobody uses make room for others
//! only by being released.
//!
//! Nothing is made ahead of need, because no length would suit what comes. A release may wait for all
//! work of the device, as `cuMemFree` does, so that it comes late and maintenance does it seldom. The
//! ladder of a miss:
//!
//! 1. Poll and search again, as everywhere.
//! 2. A free extent of another stream that fits, in the setting that lets this stream wait for that
//!    one on the device.
//! 3. A new frame, up to the target.
//! 4. All free memory of other streams, in the same setting.
//! 5. A free extent among those for leases of other lengths.
//! 6. A new frame beyond the target, up to the limit.
//! 7. Steps of other threads that are under way.
//! 8. Idle frames released, if a new one fits then.
//! 9. A wait on the host for as little as helps; then, as everywhere, callbacks and the error.

use crate::arena::{ArenaId, DomainId, LARGE, SMALL, domain_of};
use crate::device::{DeviceResult, FrameKind, VirtualMemoryDevice};
use crate::extent::{Extent, ExtentId, Kind, NONE};
use crate::frame::{FrameId, Held};
use crate::ladder::{Next, Reach};
use crate::options::CrossStream;
use crate::region::{Region, RegionId};
use crate::state::{LeaseId, State, Want};
use crate::step::{Step, Work, range};
use crate::timeline::{Point, READY, StreamSlot};
use crate::units::{DeviceAddr, FrameHandle, round_down, round_up};
use std::time::Duration;

/// No frame is shorter, in bytes, where the limit allows it: drivers take memory from the device in
/// pieces of this length in any case, and a frame of it serves many short leases.
const LEAST_FRAME: u64 = 2 << 20;

/// A frame that is to be made.
#[derive(Debug)]
pub(crate) struct NewRegion {
    arena: ArenaId,
    pub(crate) len: u64,
    /// What the pool holds once it is made, if none go meanwhile.
    planned: Held,
    pub(crate) kind: FrameKind,
    /// Whose memory it will be.
    slot: StreamSlot,
}

/// A frame of which nobody holds or uses a byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdleRegion {
    arena: ArenaId,
    region: RegionId,
    frame: FrameId,
    pub(crate) handle: FrameHandle,
    len: u64,
}

impl State {
    /// The first rung that helps, once memory at hand does not.
    pub(crate) fn climb_plain<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        reach: Reach,
    ) -> DeviceResult<Next> {
        let waits_on_device = reach.cross_stream == CrossStream::WaitOnDevice && !reach.capturing;
        if waits_on_device && let Some(id) = self.take_fitting(device, want)? {
            return Ok(Next::Taken(id));
        }
        if let Some(step) = self.make_region(want, reach, self.budget.level()) {
            return Ok(Next::Grow(step));
        }
        if waits_on_device && let Some(next) = self.take_from_others(device, want, reach.means)? {
            return Ok(next);
        }
        if let Some(id) = self.take_anywhere(want) {
            return Ok(Next::Taken(id));
        }
        if let Some(step) = self.make_region(want, reach, u64::MAX) {
            return Ok(Next::Grow(step));
        }
        if self.steps_under_way > 0 && !reach.impatient {
            return Ok(Next::AwaitStep);
        }
        if reach.capturing {
            return Ok(Next::Exhausted);
        }
        if !reach.removal_failed
            && let Some(step) = self.make_room(want)
        {
            return Ok(Next::Remove(step));
        }
        self.wait_for_work(device, want, reach)
    }

    /// A frame that holds the request whole, if `ceiling` allows it.
    fn make_region(&mut self, want: &Want, reach: Reach, ceiling: u64) -> Option<Step> {
        let room = self.room(ceiling);
        let need = self.frame_need(want).filter(|need| *need <= room && !reach.device_full)?;
        let arena = want.arena();
        let regions = self.arenas[arena].regions.len();
        // Those that others are making count too.
        if regions + self.steps_under_way as usize >= usize::from(RegionId::MAX) {
            return None;
        }
        let len = if reach.means.exact {
            need
        } else {
            self.growth_len(arena, need).max(LEAST_FRAME).max(need).min(room)
        };
        let len = round_down(len, self.budget.granule);
        let planned =
            Held { frames: self.frames.frames.len() + 1, bytes: self.counters.reserve(len) };
        self.steps_under_way += 1;
        let (kind, slot) = (reach.means.kind, want.slot);
        Some(Step(Work::MakeRegion(NewRegion { arena, len, planned, kind, slot })))
    }

    /// The length of the shortest frame that is sure to hold a request: it begins at a granule.
    fn frame_need(&self, want: &Want) -> Option<u64> {
        let granule = self.budget.granule;
        round_up(want.len.checked_add(want.alignment.saturating_sub(granule))?, granule)
    }

    fn take_anywhere(&mut self, want: &Want) -> Option<LeaseId> {
        let found = self
            .arenas
            .of(want.domain)
            .iter()
            .find_map(|arena| arena.find(&self.extents, want.slot, want.len, want.alignment))?;
        Some(self.carve(found, want))
    }

    /// Lets go of an idle frame, if with all of them gone there is room for the request: the
    /// shortest that suffices alone, or the longest.
    fn make_room(&mut self, want: &Want) -> Option<Step> {
        let need = self.frame_need(want)?;
        let room = self.room(u64::MAX);
        let idle = self.idle_regions();
        let all: u64 = idle.iter().map(|idle| idle.len).sum();
        if room.saturating_add(all) < need {
            return None;
        }
        // Where there is room by the limit, it is the device that has none.
        let lacking = if room < need { need - room } else { need };
        let suffices = idle.iter().filter(|idle| idle.len >= lacking).min_by_key(|idle| idle.len);
        let found = suffices.or(idle.iter().max_by_key(|idle| idle.len)).copied()?;
        Some(self.release_region(found))
    }

    /// The next step of maintenance: what was not needed for a while goes.
    pub(crate) fn next_plain_step<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        now: Duration,
        cross_stream: CrossStream,
        capturing: bool,
    ) -> DeviceResult<Option<Step>> {
        if capturing {
            return Ok(None);
        }
        if self.budget.may_exceed(self.counters.reserved_bytes) {
            self.poll(device, READY, cross_stream)?;
        }
        let (live, reserved) = (self.counters.live_bytes, self.counters.reserved_bytes);
        let excess = self.budget.excess(now, live, reserved);
        Ok(if excess == 0 { None } else { self.release_idle_region(reserved - excess) })
    }

    /// Lets go of an idle frame while more than `keep` bytes stay: the longest that leaves as many, or
    /// the shortest.
    pub(crate) fn release_idle_region(&mut self, keep: u64) -> Option<Step> {
        let leaving = self.regions().filter(|region| self.is_leaving(region));
        let staying = self.counters.reserved_bytes - leaving.map(|region| region.len).sum::<u64>();
        if staying <= keep {
            return None;
        }
        let idle = self.idle_regions();
        let within = idle.iter().filter(|idle| idle.len <= staying - keep);
        let found = within.max_by_key(|idle| idle.len);
        let found = found.or(idle.iter().min_by_key(|idle| idle.len)).copied()?;
        Some(self.release_region(found))
    }

    /// Whether a step is under way that releases the frame.
    fn is_leaving(&self, region: &Region) -> bool {
        self.extents[region.first].kind == Kind::Pending
    }

    fn idle_regions(&self) -> Vec<IdleRegion> {
        self.free_regions(|at| self.is_over(at))
    }

    /// Frames of which nobody holds a byte, where all extents suit.
    fn free_regions(&self, suits: impl Fn(ExtentId) -> bool) -> Vec<IdleRegion> {
        let mut found = Vec::new();
        for arena in [SMALL, LARGE] {
            for (id, region) in self.arenas[arena].regions.iter() {
                let free = |at: ExtentId| self.extents[at].kind == Kind::Free && suits(at);
                if self.extents_of(region).all(free) {
                    let mapping = region.mapping_at(region.base).expect("the region is a frame");
                    let frame = self.frames.mappings[mapping].frame;
                    let handle = self.frames.frames[frame].handle;
                    let region_id = RegionId::try_from(id).expect("a bounded number of regions");
                    let len = region.len;
                    found.push(IdleRegion { arena, region: region_id, frame, handle, len });
                }
            }
        }
        found
    }

    fn extents_of<'a>(&'a self, region: &Region) -> impl Iterator<Item = ExtentId> + 'a {
        let mut at = region.first;
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            at = self.extents[id].next;
            Some(id)
        })
    }

    /// Takes an idle frame out of everybody's reach. Its region is one `Pending` extent then.
    fn release_region(&mut self, idle: IdleRegion) -> Step {
        let arena = &mut self.arenas[idle.arena];
        let first = arena.region(idle.region).first;
        arena.remove(&mut self.extents, first);
        loop {
            let next = self.extents[first].next;
            if next == NONE {
                break;
            }
            arena.remove(&mut self.extents, next);
            self.extents.join_next(first);
        }
        self.extents[first].kind = Kind::Pending;
        self.steps_under_way += 1;
        Step(Work::ReleaseRegion(idle))
    }

    /// Records that a frame was made at `addr`, and makes the lease it was for.
    pub(crate) fn finish_region(
        &mut self,
        new: &NewRegion,
        handle: FrameHandle,
        addr: DeviceAddr,
        want: Option<&Want>,
    ) -> Option<LeaseId> {
        self.steps_under_way -= 1;
        self.counters.frames_made += 1;
        let (base, len, arena) = (addr.0, new.len, new.arena);
        let extent = Extent { addr: base, len, arena, ..Extent::default() };
        let extent = self.extents.add(extent);
        // One page: no mapping is shorter than the frame.
        let region = Region::new(base, len, len, extent);
        self.arenas[arena].add_region(&mut self.extents, region);
        let frame = self.frames.add(handle, len);
        self.counters.made(new.planned);
        self.add_mapping(frame, extent, range(base, len), Some(Vec::new()));
        let whole = self.set_free(extent, Point { stream: new.slot, epoch: 0 });
        want.map(|want| self.carve(whole, want))
    }

    pub(crate) fn fail_region(&mut self, new: &NewRegion) {
        self.steps_under_way -= 1;
        self.counters.unreserve(new.len);
    }

    /// Records that a frame is gone.
    pub(crate) fn finish_release(&mut self, idle: &IdleRegion) {
        let arena = &mut self.arenas[idle.arena];
        arena.mapped -= idle.len;
        let region = arena.regions.remove(u32::from(idle.region));
        self.extents.remove(region.first);
        let frame = self.frames.remove(idle.frame);
        for mapping in frame.mappings {
            self.frames.mappings.remove(mapping);
        }
        self.counters.frames_released += 1;
        self.counters.frames_released_bytes += idle.len;
        self.counters.unreserve(idle.len);
    }

    /// A frame that could not be released serves again.
    pub(crate) fn fail_release(&mut self, idle: &IdleRegion) {
        let first = self.arenas[idle.arena].region(idle.region).first;
        self.set_free(first, Point::REACHED);
    }

    /// The largest request that could be served: in a free extent, or in a new frame once all idle ones
    /// are gone, which may have to be waited for.
    pub(crate) fn largest_plain(&self, device_full: bool, domain: DomainId) -> u64 {
        let own = |extent: &Extent| extent.kind == Kind::Free && domain_of(extent.arena) == domain;
        let free = self.extents.iter().filter(|(_, extent)| own(extent));
        let longest = free.map(|(_, extent)| extent.len).max().unwrap_or(0);
        let idle: u64 = self.free_regions(|_| true).iter().map(|idle| idle.len).sum();
        let room = match self.budget.limit {
            Some(_) if !device_full => self.room(u64::MAX),
            _ => 0,
        };
        longest.max(round_down(idle + room, self.budget.granule))
    }
}

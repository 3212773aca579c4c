//! What an allocation does when no memory is at hand: one rung after the other, the cheapest first.
//!
//! 1. Poll: memory whose last use is over becomes usable by all; search again. Where a limit is near that
//!    looks for what leaves the most frames idle: [`crate::packing`].
//! 2. Places that cost nothing: holes between long leases for a short one, if the pool has all the
//!    memory it is meant to have; stale mappings taken back.
//! 3. A free extent of another stream that fits, in the setting that lets this stream wait for that
//!    one on the device.
//! 4. Frames: idle ones move, new ones are made up to the target.
//! 5. All free memory of other streams, in the same setting.
//! 6. Free ends of frames in use; then new frames beyond the target, up to the limit.
//! 7. For a short lease, a hole or a frame of long ones.
//! 8. Steps of other threads that are under way, and frames that are on their way out.
//! 9. A wait on the host for as little as helps, and all rungs again; where only a stream that cannot be
//!    recorded on has memory, a wait for the whole device.
//! 10. Pressure callbacks, and all rungs again.
//! 11. The error.
//!
//! A stream that fails when it is asked, because it was destroyed and not forgotten before, say, is
//! nobody else's failure: rungs go on without its memory.
//!
//! Each rung only decides, under the lock; [`crate::miss`] acts, without it. A device that cannot
//! map has fewer rungs: [`crate::plain`].

use crate::arena::{ArenaId, DomainId, GENERAL, LARGE, domain_of, is_short};
use crate::bins::UNIT;
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::extent::ExtentId;
use crate::growth::Means;
use crate::idle::{IdleFrame, Reserve};
use crate::options::CrossStream;
use crate::state::{LeaseId, State, Want};
use crate::step::{Growth, Step, Work};
use crate::timeline::{Point, READY, Standing, StreamSlot, unless_lost};
use crate::wait::Awaited;

/// What to do next about a miss.
#[derive(Debug)]
pub(crate) enum Next {
    /// The search succeeded.
    Taken(LeaseId),
    /// Run this step, which makes memory for the request.
    Grow(Step),
    /// Wait until a step of another thread has come back.
    AwaitStep,
    /// Wait on the host until some of this work is over.
    Wait(Awaited),
    /// Run this step, which removes what is on its way out.
    Remove(Step),
    /// Reserve at least so many bytes of addresses for this arena.
    Reserve(ArenaId, u64),
    /// Nothing is left to do within the pool.
    Exhausted,
}

impl Want {
    /// Whether the request may use memory of this domain: of its own, and idle memory of the general one.
    fn may_draw_on(&self, domain: DomainId) -> bool {
        domain == self.domain || domain == GENERAL
    }
}

impl Next {
    pub(crate) fn grow(growth: Growth) -> Self {
        Self::Grow(Step(Work::Grow(growth)))
    }
}

/// How far up the ladder a request may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) cross_stream: CrossStream,
    /// A stream is capturing: no fence may be recorded, asked for or waited for.
    pub(crate) capturing: bool,
    /// The device has refused new frames during this request.
    pub(crate) device_full: bool,
    /// A frame on its way out could not be removed.
    pub(crate) removal_failed: bool,
    /// Steps of others have been waited for long enough.
    pub(crate) impatient: bool,
    /// The device as a whole cannot be waited for.
    pub(crate) never_idle: bool,
    /// No more addresses can be reserved.
    pub(crate) address_full: bool,
    pub(crate) means: Means,
}

impl State {
    /// The first rung that helps.
    pub(crate) fn climb<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        reach: Reach,
    ) -> DeviceResult<Next> {
        if !self.is_tight(want)
            && let Some(id) = self.take(want)
        {
            return Ok(Next::Taken(id));
        }
        if !reach.capturing {
            self.poll(device, want.slot, reach.cross_stream)?;
        }
        self.sweep_released();
        self.join_ready(want.domain, want.slot);
        self.budget.wish(self.counters.live_bytes.saturating_add(want.len));
        let means = self.first_means(want, reach);
        if let Some(next) = self.take_best(want, means) {
            return Ok(next);
        }
        if self.budget.plain {
            return self.climb_plain(device, want, reach);
        }
        let waits_on_device = reach.cross_stream == CrossStream::WaitOnDevice && !reach.capturing;
        // A pool that has all the memory it is meant to have fills its holes first.
        if self.budget.known_level().is_some()
            && let Some(id) = self.take_hole(want)
        {
            return Ok(Next::Taken(id));
        }
        let idle = self.idle_for(want, means);
        if let Some(id) = self.recall(want, &idle) {
            return Ok(Next::Taken(id));
        }
        if waits_on_device && let Some(id) = self.take_fitting(device, want)? {
            return Ok(Next::Taken(id));
        }
        // The general arenas have had addresses from the start.
        if want.domain != GENERAL && self.lacks_addresses(want, reach) {
            return Ok(Next::Reserve(want.arena(), self.address_need(want)));
        }
        if let Some(growth) = self.plan_growth(want, means, &idle) {
            return Ok(Next::grow(growth));
        }
        if waits_on_device && let Some(next) = self.take_from_others(device, want, means)? {
            return Ok(next);
        }
        // Ends of frames are no gain for a short lease, which fits into any hole, and in use by others,
        // so not for a private pool.
        let ends = Means { ends: reach.means.ends && want.arena() == LARGE, ..means };
        let beyond = Means { ceiling: if reach.device_full { 0 } else { u64::MAX }, ..ends };
        // What came from other streams counts too.
        let alone = !waits_on_device || self.timelines.slots().count() == 1;
        let idle = if alone { idle } else { self.idle_for(want, means) };
        for means in [ends, beyond] {
            if let Some(growth) = self.plan_growth(want, means, &idle) {
                return Ok(Next::grow(growth));
            }
        }
        if let Some(id) = self.take_hole(want) {
            return Ok(Next::Taken(id));
        }
        let last = Means { borrow: true, ..beyond };
        let idle = self.idle_for(want, last);
        if let Some(growth) = self.plan_growth(want, last, &idle) {
            return Ok(Next::grow(growth));
        }
        self.climb_with_patience(device, want, reach)
    }

    /// Memory at hand. Where it is tight a long lease goes where it leaves the most frames idle, which
    /// may take a step.
    fn take_best(&mut self, want: &Want, means: Means) -> Option<Next> {
        let packed = if self.is_tight(want) { self.pack(want, means) } else { None };
        packed.or_else(|| self.take(want).map(Next::Taken))
    }

    /// Notes that a request is over, while it is known which work is.
    pub(crate) fn end_climb(&mut self) {
        self.budget.wish(0);
        self.counters.note_active();
    }

    /// What the first growth of a request may use: frames up to the target.
    fn first_means(&self, want: &Want, reach: Reach) -> Means {
        let target = if reach.device_full { 0 } else { self.budget.level() };
        let borrow = !is_short(want.arena()) || self.budget.known_level().is_some();
        let ready_only = reach.capturing && want.domain != GENERAL;
        Means { target, ceiling: target, borrow, ends: false, ready_only, ..reach.means }
    }

    /// Idle frames that a request may have.
    pub(crate) fn idle_for(&self, want: &Want, means: Means) -> Vec<IdleFrame> {
        if means.ready_only && means.unmap_first {
            return Vec::new();
        }
        let slot = if means.ready_only { READY } else { want.slot };
        self.idle_frames(Reserve { arena: want.arena(), slot, except: None }, means)
    }

    fn lacks_addresses(&self, want: &Want, reach: Reach) -> bool {
        !reach.address_full && !self.has_addresses(want.arena(), self.address_need(want))
    }

    /// The rungs that take time.
    fn climb_with_patience<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        reach: Reach,
    ) -> DeviceResult<Next> {
        if self.steps_under_way > 0 && !reach.impatient {
            return Ok(Next::AwaitStep);
        }
        if self.lacks_addresses(want, reach) {
            return Ok(Next::Reserve(want.arena(), self.address_need(want)));
        }
        if reach.capturing {
            return Ok(Next::Exhausted);
        }
        // Frames on their way out make room for new ones when they are gone.
        if !self.frames.leaving.is_empty()
            && !reach.removal_failed
            && let Some(step) = self.step_removing(device)?
        {
            return Ok(Next::Remove(step));
        }
        self.wait_for_work(device, want, reach)
    }

    /// The rung of waits on the host.
    pub(crate) fn wait_for_work<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        reach: Reach,
    ) -> DeviceResult<Next> {
        // What is live stays so: where all the rest does not suffice, the end of no work helps.
        let rest = self.counters.reserved_bytes.saturating_sub(self.counters.live_bytes);
        if rest.saturating_add(self.room(u64::MAX)) < want.len {
            return Ok(Next::Exhausted);
        }
        let mut awaited = self.work_to_wait_for(device, want, reach)?;
        awaited.unanswered &= !reach.never_idle;
        Ok(if awaited.is_empty() { Next::Exhausted } else { Next::Wait(awaited) })
    }

    /// Learns how far all streams have come, and frees what that allows.
    pub(crate) fn poll<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        cross_stream: CrossStream,
    ) -> DeviceResult<()> {
        self.timelines.ask_anew();
        self.timelines.note_alive(device, taker)?;
        self.fence_released(device);
        for slot in self.timelines.slots() {
            // A fence is recorded only where an answer would help, and so that a later poll has one.
            if slot != taker && self.arenas.has_free(slot) && self.timelines.is_named(slot) {
                let now = self.timelines.now(slot);
                self.timelines.ask(device, now)?;
            }
        }
        for index in 0..self.retired.len() {
            let uses: Vec<Point> = self.uses.iter(self.extents[self.retired[index]].uses).collect();
            for point in uses {
                self.timelines.ask(device, point)?;
            }
        }
        for slot in self.timelines.slots() {
            self.timelines.poll(device, slot)?;
        }
        self.settle_retired();
        if cross_stream != CrossStream::Never {
            self.free_reached(taker);
        }
        Ok(())
    }

    fn settle_retired(&mut self) {
        let mut index = 0;
        while index < self.retired.len() {
            if self.settle(self.retired[index]) {
                self.retired.swap_remove(index);
            } else {
                index += 1;
            }
        }
    }

    /// Hands free memory of other streams whose work is over to all.
    pub(crate) fn free_reached(&mut self, taker: StreamSlot) {
        for slot in self.timelines.slots() {
            if slot == taker || !self.arenas.has_free(slot) {
                continue;
            }
            for id in self.free_of(slot, |_| true) {
                let extent = &self.extents[id];
                let point = Point { stream: slot, epoch: extent.epoch };
                if self.timelines.is_reached(point) {
                    self.reassign(id, Point::REACHED);
                }
            }
        }
    }

    /// Free memory of a stream in some domains.
    pub(crate) fn free_of(&self, slot: StreamSlot, of: impl Fn(DomainId) -> bool) -> Vec<ExtentId> {
        self.arenas
            .of_stream(slot)
            .filter(|(arena, _)| of(domain_of(*arena)))
            .flat_map(|(_, arena)| arena.free(&self.extents, slot, UNIT))
            .collect()
    }

    /// A hole between long leases for a short one: one that holds no whole frame, so that no frame
    /// that could serve a long lease is broken for it.
    pub(crate) fn take_hole(&mut self, want: &Want) -> Option<LeaseId> {
        if !is_short(want.arena()) {
            return None;
        }
        let found = self.arenas[LARGE].find(&self.extents, want.slot, want.len, want.alignment)?;
        self.whole_mappings(found).is_empty().then(|| self.carve(found, want))
    }

    /// Takes the shortest extent of another stream that fits, and makes the taker's stream wait for
    /// its last use on the device.
    pub(crate) fn take_fitting<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
    ) -> DeviceResult<Option<LeaseId>> {
        let arena = &self.arenas[want.arena()];
        let mut fitting: Vec<ExtentId> = self
            .timelines
            .slots()
            .filter(|slot| *slot != want.slot)
            .filter_map(|slot| arena.find(&self.extents, slot, want.len, want.alignment))
            .filter(|id| self.extents[*id].stream != READY)
            .collect();
        fitting.sort_by_key(|id| self.extents[*id].len);
        for id in fitting {
            if self.order_after(device, want.slot, self.last_use(id))? {
                self.reassign(id, self.timelines.now(want.slot));
                return Ok(self.take(want));
            }
        }
        Ok(None)
    }

    /// Makes the taker's stream wait on the device for others, one at a time, and takes over all
    /// that they have free, until it suffices.
    pub(crate) fn take_from_others<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        means: Means,
    ) -> DeviceResult<Option<Next>> {
        let others: Vec<StreamSlot> =
            self.timelines.slots().filter(|slot| *slot != want.slot).collect();
        for other in others {
            let free = self.free_of(other, |domain| want.may_draw_on(domain));
            if free.is_empty() {
                continue;
            }
            if !self.order_after(device, want.slot, self.timelines.now(other))? {
                continue;
            }
            for id in free {
                self.reassign(id, self.timelines.now(want.slot));
            }
            if let Some(next) = self.search_again(want, means) {
                return Ok(Some(next));
            }
        }
        // Newest first: an index stays valid while those behind it go.
        for index in (0..self.retired.len()).rev() {
            let id = self.retired[index];
            if want.may_draw_on(domain_of(self.extents[id].arena))
                && self.order_after_retired(device, want.slot, id)?
            {
                self.retired.swap_remove(index);
                self.end_retirement(id, self.timelines.now(want.slot));
                if let Some(next) = self.search_again(want, means) {
                    return Ok(Some(next));
                }
            }
        }
        if means.unmap_first || self.frames.leaving.is_empty() {
            return Ok(None);
        }
        self.order_after_leaving(device, want.slot)?;
        Ok(self.search_again(want, means))
    }

    /// Orders later work of `taker` behind all uses of a retired extent; says whether that could be done.
    pub(crate) fn order_after_retired<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        id: ExtentId,
    ) -> DeviceResult<bool> {
        let points: Vec<Point> = self.uses.iter(self.extents[id].uses).collect();
        for point in points {
            if !self.order_after(device, taker, point)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Orders later work of `taker` behind all uses of frames on their way out, which then count as uses of
    /// the taker's. Does nothing for frames that a stream that fails has used. Each stream is waited for once:
    /// the frames of a private pool may all be in use by every stream.
    fn order_after_leaving<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
    ) -> DeviceResult<()> {
        let uses = self.frames.leaving.iter().flat_map(|frame| self.uses_of(*frame));
        let latest = self.timelines.newest(uses.filter(|point| point.stream != taker));
        let mut failed = Vec::new();
        for point in latest {
            if !self.order_after(device, taker, point)? {
                failed.push(point.stream);
            }
        }
        let now = self.timelines.now(taker);
        for frame in self.frames.leaving.clone() {
            // Uses that the taker's stream is behind already stay what they are: a request that looks again
            // after a wait for them would else never see them end.
            let open = |point: &Point| point.stream != taker && !self.timelines.is_reached(*point);
            let others: Vec<Point> = self.uses_of(frame).filter(open).collect();
            if others.is_empty() || others.iter().any(|point| failed.contains(&point.stream)) {
                continue;
            }
            for mapping in &self.frames.frames[frame].mappings {
                self.frames.mappings[*mapping].uses = vec![now];
            }
        }
        Ok(())
    }

    fn search_again(&mut self, want: &Want, means: Means) -> Option<Next> {
        self.join_ready(want.domain, want.slot);
        if let Some(next) = self.take_best(want, means) {
            return Some(next);
        }
        let idle = self.idle_for(want, means);
        self.plan_growth(want, means, &idle).map(Next::grow)
    }

    /// Orders later work of `taker` behind `point`, on the device. `false` where a stream fails, and
    /// nothing is ordered.
    pub(crate) fn order_after<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        point: Point,
    ) -> DeviceResult<bool> {
        if point.stream == taker {
            return Ok(true);
        }
        let fence = match self.timelines.ask(device, point)? {
            Standing::Reached => return Ok(true),
            Standing::Unknown => return Ok(false),
            Standing::Before(fence) => fence,
        };
        let waits = unless_lost(device.stream_wait(self.timelines.id(taker), fence))?;
        self.counters.device_waits += u64::from(waits.is_some());
        Ok(waits.is_some())
    }

    fn has_addresses(&self, arena: ArenaId, need: u64) -> bool {
        let mut voids = self.arenas[arena].voids(&self.extents);
        voids.any(|void| self.extents[void].len >= need)
    }

    /// Free addresses that suffice for a request, whatever frames go there.
    fn address_need(&self, want: &Want) -> u64 {
        let frame = self.frames.longest.max(self.budget.frame_len(want.arena()));
        want.len.saturating_add(want.alignment).saturating_add(frame)
    }

    /// For each stream, the first work whose end frees memory for a request.
    fn work_to_wait_for<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        reach: Reach,
    ) -> DeviceResult<Awaited> {
        // What a private pool has left goes to all.
        let serves = |domain| want.may_draw_on(domain) || !self.tenancies.is_private(domain);
        // Own memory needs a wait only where a frame must leave its old place before it moves.
        let mut points =
            self.free_points(|slot| slot != want.slot || reach.means.unmap_first, serves);
        points.extend(self.retired_points(serves));
        points.extend(self.frames.leaving.iter().flat_map(|frame| self.uses_of(*frame)));
        let mut awaited = self.first_of(device, points)?;
        // When these are over a further removal is what helps.
        if !self.frames.leaving.is_empty() && !reach.removal_failed {
            awaited.fences.extend(self.unbinding.iter().map(|(fence, _)| *fence));
        }
        Ok(awaited)
    }

    /// The uses that keep memory of some domains retired.
    pub(crate) fn retired_points(&self, of: impl Fn(DomainId) -> bool) -> Vec<Point> {
        let retired = self.retired.iter().map(|id| &self.extents[*id]);
        let chains = retired.filter(|extent| of(domain_of(extent.arena)));
        chains.flat_map(|extent| self.uses.iter(extent.uses)).collect()
    }

    /// The last uses of free memory of some streams, in some domains.
    pub(crate) fn free_points(
        &self,
        of: impl Fn(StreamSlot) -> bool,
        lies: impl Fn(DomainId) -> bool,
    ) -> Vec<Point> {
        let slots = self.timelines.slots().filter(|slot| of(*slot));
        slots
            .flat_map(|stream| self.free_of(stream, &lies).into_iter().map(move |id| (stream, id)))
            .map(|(stream, id)| Point { stream, epoch: self.extents[id].epoch })
            .collect()
    }
}

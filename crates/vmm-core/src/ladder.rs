//! What an allocation does when no memory is at hand: one rung after the other, the cheapest first.
//!
//! 1. Poll: memory whose last use is over becomes usable by all; search again.
//! 2. Holes: a short lease goes into a hole between long ones that holds no whole frame.
//! 3. Frames: idle ones of this stream move, or new ones are made up to the target.
//! 4. Other streams' memory, in the setting that lets this stream wait for them on the device.
//! 5. Free ends of frames in use; new frames beyond the target, up to the limit.
//! 6. Steps of other threads that are under way: their memory may serve.
//! 7. A wait on the host, for one fence at a time, and search again.
//! 8. Pressure callbacks; all rungs again if one of them says that it let go of something.
//! 9. The error.
//!
//! Each rung only decides, under the lock; [`crate::pool`] acts, without it.

use crate::arena::{ArenaId, LARGE, SMALL};
use crate::bins::UNIT;
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::extent::ExtentId;
use crate::growth::Means;
use crate::options::CrossStream;
use crate::state::{LeaseId, State, Want};
use crate::step::Growth;
use crate::timeline::{Point, READY, StreamSlot};
use crate::units::Fence;

/// What to do next about a miss.
#[derive(Debug)]
pub(crate) enum Next {
    /// The search succeeded.
    Taken(LeaseId),
    /// Run this growth; it was decided for the request.
    Grow(Growth),
    /// Wait until a step of another thread has come back.
    AwaitStep,
    /// Wait on the host until one of these fences is reached.
    Wait(Vec<Fence>),
    /// Reserve more addresses for this arena.
    Reserve(ArenaId),
    /// Nothing is left to do within the pool.
    Exhausted,
}

/// How far up the ladder a request may go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    pub(crate) cross_stream: CrossStream,
    /// A stream is capturing: no fence may be recorded, asked for or waited for.
    pub(crate) capturing: bool,
    /// The device has refused new frames during this request.
    pub(crate) device_full: bool,
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
        if let Some(id) = self.take(want) {
            return Ok(Next::Taken(id));
        }
        if !reach.capturing {
            self.poll(device, want.slot, reach.cross_stream)?;
        }
        self.join_ready(want.arena(), want.slot);
        if let Some(id) = self.take(want).or_else(|| self.take_hole(want)) {
            return Ok(Next::Taken(id));
        }
        let target = if reach.device_full { 0 } else { self.budget.level(self.counters.live_bytes + want.len) };
        if reach.cross_stream == CrossStream::WaitOnDevice && !reach.capturing {
            if let Some(next) = self.take_fitting(device, want)? {
                return Ok(next);
            }
        }
        if let Some(growth) = self.plan_growth(want, Means { target, ceiling: target, ..reach.means }) {
            return Ok(Next::Grow(growth));
        }
        if reach.cross_stream == CrossStream::WaitOnDevice && !reach.capturing {
            if let Some(next) = self.take_from_others(device, want, reach.means, target)? {
                return Ok(next);
            }
        }
        let limit = if reach.device_full { 0 } else { u64::MAX };
        let ends = !reach.means.unmap_first;
        if let Some(growth) = self.plan_growth(want, Means { target, ceiling: target, ends, ..reach.means }) {
            return Ok(Next::Grow(growth));
        }
        if let Some(growth) = self.plan_growth(want, Means { target, ceiling: limit, ends, ..reach.means }) {
            return Ok(Next::Grow(growth));
        }
        if self.steps_under_way > 0 {
            return Ok(Next::AwaitStep);
        }
        if !self.has_addresses(want) && !reach.address_full {
            return Ok(Next::Reserve(want.arena()));
        }
        if !reach.capturing {
            let fences = self.fences_to_wait_for(device, want.slot, reach.means)?;
            if !fences.is_empty() {
                return Ok(Next::Wait(fences));
            }
        }
        Ok(Next::Exhausted)
    }

    /// Learns how far all streams have come, and frees what that allows.
    pub(crate) fn poll<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        cross_stream: CrossStream,
    ) -> DeviceResult<()> {
        for slot in self.timelines.slots() {
            // A fence is recorded only where an answer would help, and so that a later poll has one.
            if slot != taker && self.has_free(slot) {
                let now = self.timelines.now(slot);
                self.timelines.fence(device, now)?;
            }
            self.timelines.poll(device, slot)?;
        }
        self.settle_retired();
        if cross_stream != CrossStream::Never {
            self.free_reached(taker);
        }
        Ok(())
    }

    fn has_free(&self, slot: StreamSlot) -> bool {
        self.arenas.iter().any(|arena| arena.has_free(slot))
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
        for slot in self.timelines.slots().filter(|slot| *slot != taker) {
            for id in self.free_of(slot) {
                let extent = &self.extents[id];
                let point = Point { stream: slot, epoch: extent.epoch };
                if self.timelines.is_reached(point) {
                    self.reassign(id, Point::REACHED);
                }
            }
        }
    }

    fn free_of(&self, slot: StreamSlot) -> Vec<ExtentId> {
        [SMALL, LARGE]
            .into_iter()
            .flat_map(|arena| self.arenas[usize::from(arena)].free(&self.extents, slot, UNIT))
            .collect()
    }

    /// A hole of the large arena for a short lease: one that holds no whole frame, so that no frame
    /// that could serve a long lease is broken for it.
    fn take_hole(&mut self, want: &Want) -> Option<LeaseId> {
        if want.arena() != SMALL {
            return None;
        }
        let found = self.arenas[usize::from(LARGE)].find(&self.extents, want.slot, want.len, want.alignment)?;
        self.whole_mappings(found).is_empty().then(|| self.carve(found, want))
    }

    /// Takes the shortest extent of another stream that fits, and makes the taker's stream wait for
    /// its last use on the device.
    fn take_fitting<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D, want: &Want) -> DeviceResult<Option<Next>> {
        let arena = &self.arenas[usize::from(want.arena())];
        let fitting = self
            .timelines
            .slots()
            .filter(|slot| *slot != want.slot)
            .filter_map(|slot| arena.find(&self.extents, slot, want.len, want.alignment))
            .filter(|id| self.extents[*id].stream != READY)
            .min_by_key(|id| self.extents[*id].len);
        let Some(id) = fitting else { return Ok(None) };
        self.order_after(device, want.slot, self.last_use(id))?;
        self.reassign(id, self.timelines.now(want.slot));
        Ok(self.take(want).map(Next::Taken))
    }

    /// Makes the taker's stream wait on the device for others, one at a time, and takes over all
    /// that they have free, until it suffices.
    fn take_from_others<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        means: Means,
        target: u64,
    ) -> DeviceResult<Option<Next>> {
        let others: Vec<StreamSlot> = self.timelines.slots().filter(|slot| *slot != want.slot).collect();
        for other in others {
            let free = self.free_of(other);
            if free.is_empty() {
                continue;
            }
            self.order_after(device, want.slot, self.timelines.now(other))?;
            for id in free {
                self.reassign(id, self.timelines.now(want.slot));
            }
            if let Some(next) = self.search_again(want, means, target) {
                return Ok(Some(next));
            }
        }
        while let Some(id) = self.retired.pop() {
            let points: Vec<Point> = self.uses.iter(self.extents[id].uses).collect();
            for point in points {
                if let Err(error) = self.order_after(device, want.slot, point) {
                    self.retired.push(id);
                    return Err(error);
                }
            }
            self.end_retirement(id, self.timelines.now(want.slot));
            if let Some(next) = self.search_again(want, means, target) {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    fn search_again(&mut self, want: &Want, means: Means, target: u64) -> Option<Next> {
        self.join_ready(want.arena(), want.slot);
        if let Some(id) = self.take(want) {
            return Some(Next::Taken(id));
        }
        self.plan_growth(want, Means { target, ceiling: target, ..means }).map(Next::Grow)
    }

    /// Orders later work of `taker` behind `point`, on the device.
    fn order_after<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        point: Point,
    ) -> DeviceResult<()> {
        if point.stream == taker {
            return Ok(());
        }
        if let Some(fence) = self.timelines.fence(device, point)? {
            device.stream_wait(self.timelines.id(taker), fence)?;
            self.counters.device_waits += 1;
        }
        Ok(())
    }

    /// Whether there are free addresses for a request, whatever frames go there.
    fn has_addresses(&self, want: &Want) -> bool {
        let frame = self.frames.longest.max(self.budget.frame_len(want.arena()));
        let need = want.len.saturating_add(want.alignment).saturating_add(frame);
        self.arenas[usize::from(want.arena())].voids(&self.extents).any(|void| self.extents[void].len >= need)
    }

    /// For each stream, the first fence whose passing frees memory for `taker`.
    fn fences_to_wait_for<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        taker: StreamSlot,
        means: Means,
    ) -> DeviceResult<Vec<Fence>> {
        // Own memory needs a wait only where a frame must leave its old place before it moves.
        let mut points = self.free_points(|slot| slot != taker || means.unmap_first);
        points.extend(self.retired.iter().flat_map(|id| self.uses.iter(self.extents[*id].uses)));
        self.first_fences(device, points)
    }

    /// The last uses of free memory of some streams.
    pub(crate) fn free_points(&self, of: impl Fn(StreamSlot) -> bool) -> Vec<Point> {
        let slots = self.timelines.slots().filter(|slot| of(*slot));
        slots
            .flat_map(|stream| self.free_of(stream).into_iter().map(move |id| (stream, id)))
            .map(|(stream, id)| Point { stream, epoch: self.extents[id].epoch })
            .collect()
    }

    /// For each stream, a fence for the first of its points that is not reached.
    pub(crate) fn first_fences<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        mut points: Vec<Point>,
    ) -> DeviceResult<Vec<Fence>> {
        points.retain(|point| !self.timelines.is_reached(*point));
        points.sort_by_key(|point| (point.stream, point.epoch));
        points.dedup_by_key(|point| point.stream);
        let mut fences = Vec::new();
        for point in points {
            fences.extend(self.timelines.fence(device, point)?);
        }
        Ok(fences)
    }
}

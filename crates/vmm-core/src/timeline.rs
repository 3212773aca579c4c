//! Which work of which stream is over, without a device call on the hot path.
//!
//! A release does not record a fence. It only notes the stream's current *epoch*. A fence is recorded
//! when somebody needs to know: it closes the epoch, and is behind all work of it. So a fence may
//! say "not yet" a little longer than needed, but it never says "over" too early, and programs
//! with one stream record hardly any.

use crate::device::{DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, VirtualMemoryDevice};
use crate::units::{Fence, StreamId};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};

/// A stream's place in the tables of the pool.
pub(crate) type StreamSlot = u32;

/// The slot of memory that no queued work uses: any stream may take it.
pub(crate) const READY: StreamSlot = 0;

/// The end of somebody's use of memory: all that was queued on a stream up to this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) stream: StreamSlot,
    pub(crate) epoch: u64,
}

impl Point {
    /// A point that is reached already.
    pub(crate) const REACHED: Self = Self { stream: READY, epoch: 0 };
}

/// Where a point is, as far as its stream can say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    Reached,
    /// Reached no later than this fence.
    Before(Fence),
    /// The stream cannot be recorded on, because it was destroyed, say, and not forgotten before.
    Unknown,
}

/// All that is queued on each stream by some moment, with the serials of the streams.
#[derive(Debug)]
pub(crate) struct Moment(Vec<(Point, u64)>);

/// Forgotten streams between two searches for slots that can be used again.
const MANY_FORGOTTEN: usize = 64;

#[derive(Debug)]
struct Timeline {
    id: StreamId,
    /// Tells apart the streams that have had this slot.
    serial: u64,
    /// The epoch that releases are noted in: one above the last recorded.
    epoch: u64,
    /// The highest epoch known to be over.
    reached: u64,
    /// Epochs that were closed by a fence and are not known to be over, oldest first.
    pending: VecDeque<(u64, u64)>,
    /// The stream is destroyed: nothing can be recorded on it.
    forgotten: bool,
    /// Nothing names the slot; the next new stream gets it.
    vacant: bool,
    /// Whether the present epoch was named: only then is a fence at its end worth anything.
    named: Cell<bool>,
    /// The stream may be destroyed at any moment, so that only its own requests ask the device about it.
    unwatched: bool,
}

impl Timeline {
    fn new(id: StreamId, serial: u64) -> Self {
        Self {
            id,
            serial,
            epoch: 1,
            reached: 0,
            pending: VecDeque::new(),
            forgotten: false,
            vacant: false,
            named: Cell::new(false),
            unwatched: false,
        }
    }

    /// Takes the closed epochs that are over, by epoch and value of the fence, oldest first.
    fn reach(&mut self, is_over: impl Fn(u64, u64) -> bool) {
        while let Some((epoch, _)) = self.pending.pop_front_if(|(e, value)| is_over(*e, *value)) {
            self.reached = epoch;
        }
    }
}

/// What a call about one stream says; `None` if it failed, which is an error for all only where the
/// device is lost.
pub(crate) fn unless_lost<T>(result: DeviceResult<T>) -> DeviceResult<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind == DeviceErrorKind::Deinitialized => Err(error),
        Err(_) => Ok(None),
    }
}

/// All streams the pool has seen.
#[derive(Debug)]
pub(crate) struct Timelines {
    streams: Vec<Timeline>,
    slots: HashMap<StreamId, StreamSlot>,
    /// The last answer of `slot`: most programs use one stream at a time.
    last: (StreamId, StreamSlot),
    /// Streams forgotten since slots were last looked for.
    forgotten: usize,
    vacant: Vec<StreamSlot>,
    /// Streams that could not be recorded on, and are not asked again before [`Timelines::ask_anew`].
    silent: Vec<StreamSlot>,
    /// How many streams there have been.
    seen: u64,
}

/// Adds a point to those that have one of each stream: the later of two stands for both.
pub(crate) fn raise(points: &mut Vec<Point>, point: Point) {
    match points.iter_mut().find(|known| known.stream == point.stream) {
        Some(known) => known.epoch = known.epoch.max(point.epoch),
        None => points.push(point),
    }
}

impl Timelines {
    pub(crate) fn new() -> Self {
        let ready = Timeline { reached: u64::MAX, ..Timeline::new(StreamId(u64::MAX), 0) };
        Self {
            streams: vec![ready],
            slots: HashMap::new(),
            last: (StreamId(u64::MAX), READY),
            forgotten: 0,
            vacant: Vec::new(),
            silent: Vec::new(),
            seen: 0,
        }
    }

    /// The slot of a stream, made on first sight.
    #[inline]
    pub(crate) fn slot(&mut self, id: StreamId) -> StreamSlot {
        if self.last.0 == id && self.last.1 != READY {
            return self.last.1;
        }
        self.slot_slow(id)
    }

    /// The slot of a stream that was seen before.
    pub(crate) fn known_slot(&self, id: StreamId) -> Option<StreamSlot> {
        self.slots.get(&id).copied()
    }

    #[cold]
    fn slot_slow(&mut self, id: StreamId) -> StreamSlot {
        let slot = match self.slots.get(&id) {
            Some(slot) => *slot,
            None => self.add(id),
        };
        self.last = (id, slot);
        slot
    }

    fn add(&mut self, id: StreamId) -> StreamSlot {
        self.seen += 1;
        let timeline = Timeline::new(id, self.seen);
        let slot = match self.vacant.pop() {
            Some(slot) => {
                self.streams[slot as usize] = timeline;
                slot
            }
            None => {
                self.streams.push(timeline);
                StreamSlot::try_from(self.streams.len() - 1).expect("fewer than 2^32 streams")
            }
        };
        self.slots.insert(id, slot);
        slot
    }

    pub(crate) fn id(&self, slot: StreamSlot) -> StreamId {
        self.streams[slot as usize].id
    }

    /// Slots of all streams seen so far.
    pub(crate) fn slots(&self) -> impl Iterator<Item = StreamSlot> + use<> {
        (1..self.streams.len())
            .map(|slot| StreamSlot::try_from(slot).expect("fewer than 2^32 streams"))
    }

    /// The point behind all work queued on a stream so far.
    #[inline]
    pub(crate) fn now(&self, slot: StreamSlot) -> Point {
        let timeline = &self.streams[slot as usize];
        timeline.named.set(true);
        Point { stream: slot, epoch: timeline.epoch }
    }

    /// Whether something may end in the present epoch of a stream, behind all fences that there are.
    pub(crate) fn is_named(&self, slot: StreamSlot) -> bool {
        self.streams[slot as usize].named.get()
    }

    /// The points behind all work queued so far.
    pub(crate) fn all_now(&self) -> Vec<Point> {
        self.slots().map(|slot| self.now(slot)).collect()
    }

    /// Whether a point is known to be reached; asks no device.
    #[inline]
    pub(crate) fn is_reached(&self, point: Point) -> bool {
        point.epoch <= self.streams[point.stream as usize].reached
    }

    /// The latest point of each stream that is not known to be reached. There may be many: those of each
    /// stream for each stale mapping.
    pub(crate) fn newest(&self, points: impl Iterator<Item = Point>) -> Vec<Point> {
        let mut epochs = vec![0; self.streams.len()];
        for point in points {
            let epoch = &mut epochs[point.stream as usize];
            *epoch = point.epoch.max(*epoch);
        }
        let newest = (0..).zip(epochs).map(|(stream, epoch)| Point { stream, epoch });
        newest.filter(|point| !self.is_reached(*point)).collect()
    }

    /// A fence at or behind `point`; records one if there is none yet. `None`: reached already.
    pub(crate) fn fence<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        point: Point,
    ) -> DeviceResult<Option<Fence>> {
        if self.is_reached(point) {
            return Ok(None);
        }
        if let Some(fence) = self.recorded(point) {
            return Ok(Some(fence));
        }
        if self.streams[point.stream as usize].unwatched {
            return Err(DeviceError::new(
                DeviceOp::Record,
                DeviceErrorKind::Failed,
                "the stream may be destroyed",
            ));
        }
        self.record(device, point.stream).map(Some)
    }

    /// Closes the epoch of a stream that lives.
    fn record<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        slot: StreamSlot,
    ) -> DeviceResult<Fence> {
        let timeline = &mut self.streams[slot as usize];
        assert!(!timeline.forgotten, "all points of a forgotten stream have a fence");
        let fence = device.record(timeline.id)?;
        timeline.pending.push_back((timeline.epoch, fence.value));
        timeline.epoch += 1;
        timeline.named.set(false);
        Ok(fence)
    }

    /// Whether the device may be asked about a stream only for requests of its own.
    pub(crate) fn is_unwatched(&self, slot: StreamSlot) -> bool {
        self.streams[slot as usize].unwatched
    }

    /// See [`crate::Pool::watch_stream`].
    pub(crate) fn watch(&mut self, slot: StreamSlot, watched: bool) {
        self.streams[slot as usize].unwatched = !watched;
    }

    /// Notes that a stream lives, since it asks for memory: nobody else would learn how far it is.
    pub(crate) fn note_alive<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        slot: StreamSlot,
    ) -> DeviceResult<()> {
        if self.is_unwatched(slot) && self.recorded(self.now(slot)).is_none() {
            unless_lost(self.record(device, slot))?;
        }
        Ok(())
    }

    /// A fence at or behind `point` that there is already.
    fn recorded(&self, point: Point) -> Option<Fence> {
        let timeline = &self.streams[point.stream as usize];
        let known = timeline.pending.partition_point(|(epoch, _)| *epoch < point.epoch);
        timeline.pending.get(known).map(|(_, value)| Fence { stream: timeline.id, value: *value })
    }

    /// As [`Self::fence`], for those whom a stream that fails must not disturb: only a lost device is an
    /// error. A stream that failed is not recorded on again before [`Self::ask_anew`].
    pub(crate) fn ask<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        point: Point,
    ) -> DeviceResult<Standing> {
        let slot = point.stream;
        if self.silent.contains(&slot) && !self.is_reached(point) {
            return Ok(self.recorded(point).map_or(Standing::Unknown, Standing::Before));
        }
        Ok(match unless_lost(self.fence(device, point))? {
            Some(Some(fence)) => Standing::Before(fence),
            Some(None) => Standing::Reached,
            None => {
                self.silent.push(slot);
                Standing::Unknown
            }
        })
    }

    /// Lets streams be asked again that had failed: some only for a moment.
    pub(crate) fn ask_anew(&mut self) {
        self.silent.clear();
    }

    /// Asks the device how far a stream has come. Closes nothing: see [`Self::fence`]. A stream that
    /// fails is where it was.
    pub(crate) fn poll<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        slot: StreamSlot,
    ) -> DeviceResult<()> {
        let timeline = &mut self.streams[slot as usize];
        if timeline.pending.is_empty() {
            return Ok(());
        }
        if let Some(value) = unless_lost(device.reached(timeline.id))? {
            timeline.reach(|_, of_fence| of_fence <= value);
        }
        Ok(())
    }

    /// Asks the device how far the streams have come that are forgotten. Nobody else might: a stream that
    /// has no memory keeps none from others.
    pub(crate) fn poll_forgotten<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
    ) -> DeviceResult<()> {
        for slot in self.slots() {
            if self.is_forgotten(slot) {
                self.poll(device, slot)?;
            }
        }
        Ok(())
    }

    /// Notes a fence that is reached.
    pub(crate) fn note_reached(&mut self, fence: Fence) {
        for timeline in self.streams.iter_mut().filter(|timeline| timeline.id == fence.stream) {
            timeline.reach(|_, value| value <= fence.value);
        }
    }

    /// The present moment. What is released from now on counts as later.
    pub(crate) fn moment(&mut self) -> Moment {
        let mut points = Vec::with_capacity(self.streams.len());
        for slot in self.slots() {
            let timeline = &mut self.streams[slot as usize];
            points.push((Point { stream: slot, epoch: timeline.epoch }, timeline.serial));
            // What is released on a forgotten stream is older anyway.
            timeline.epoch += u64::from(!timeline.forgotten);
        }
        Moment(points)
    }

    /// Notes that all work is over which was queued by a moment.
    pub(crate) fn pass(&mut self, moment: &Moment) {
        for (point, serial) in &moment.0 {
            let timeline = &mut self.streams[point.stream as usize];
            if timeline.serial == *serial {
                timeline.reach(|epoch, _| epoch <= point.epoch);
                timeline.reached = timeline.reached.max(point.epoch);
            }
        }
    }

    /// Tells the stream of a slot from those that had the slot before, and will have it.
    pub(crate) fn serial(&self, slot: StreamSlot) -> Option<u64> {
        self.streams.get(slot as usize).map(|timeline| timeline.serial)
    }

    pub(crate) fn is_forgotten(&self, slot: StreamSlot) -> bool {
        self.streams[slot as usize].forgotten
    }

    /// Forgets the handle of a stream that is about to be destroyed, after a fence behind all its
    /// work. Its points stay known: what is released on it later ended before that fence.
    pub(crate) fn forget<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        slot: StreamSlot,
    ) -> DeviceResult<()> {
        let now = self.now(slot);
        if !self.is_reached(now) && self.recorded(now).is_none() {
            self.record(device, slot)?;
        }
        let timeline = &mut self.streams[slot as usize];
        timeline.epoch = now.epoch;
        timeline.forgotten = true;
        self.slots.remove(&timeline.id);
        self.last = (StreamId(u64::MAX), READY);
        self.forgotten += 1;
        Ok(())
    }

    /// Streams that are forgotten and whose work is known to be over.
    pub(crate) fn finished(&self) -> impl Iterator<Item = StreamSlot> + '_ {
        self.slots().filter(|slot| {
            let timeline = &self.streams[*slot as usize];
            timeline.forgotten && !timeline.vacant && timeline.reached >= timeline.epoch
        })
    }

    /// Whether so many streams were forgotten that their slots are worth looking for.
    pub(crate) fn has_many_forgotten(&self) -> bool {
        self.forgotten >= MANY_FORGOTTEN
    }

    /// Gives the slots of finished streams that nothing names to the next new streams.
    pub(crate) fn vacate(&mut self, slots: &[StreamSlot]) {
        self.forgotten = 0;
        for slot in slots {
            self.streams[*slot as usize].vacant = true;
            self.vacant.push(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_stable_and_ready_is_reached() {
        let mut timelines = Timelines::new();
        let a = timelines.slot(StreamId(7));
        let b = timelines.slot(StreamId(9));
        assert_ne!(a, b);
        assert_eq!(timelines.slot(StreamId(7)), a);
        assert!(timelines.is_reached(Point::REACHED));
        assert!(!timelines.is_reached(timelines.now(a)));
    }

    #[test]
    fn a_moment_ends_before_what_is_released_after_it() {
        let mut timelines = Timelines::new();
        let slots = [StreamId(7), StreamId(9)].map(|id| timelines.slot(id));
        let before = slots.map(|slot| timelines.now(slot));
        let moment = timelines.moment();
        let after = slots.map(|slot| timelines.now(slot));
        timelines.pass(&moment);
        assert!(before.iter().all(|point| timelines.is_reached(*point)));
        assert!(!after.iter().any(|point| timelines.is_reached(*point)));
    }

    #[test]
    fn the_last_lookup_is_not_confused_by_a_stream_of_the_ready_handle() {
        let mut timelines = Timelines::new();
        assert_ne!(timelines.slot(StreamId(u64::MAX)), READY);
    }
}

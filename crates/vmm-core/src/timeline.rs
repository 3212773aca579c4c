//! Which work of which stream is over, without a device call on the hot path.
//!
//! A release does not record a fence. It only notes the stream's current *epoch*. A fence is recorded
//! when somebody needs to know: it closes the epoch, and is behind all work of it. So a fence may
//! say "not yet" a little longer than needed, but it never says "over" too early, and programs
//! with one stream record hardly any.

use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::units::{Fence, StreamId};
use std::collections::{HashMap, VecDeque};

/// A stream's place in the tables of the pool.
pub(crate) type StreamSlot = u16;

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

#[derive(Debug)]
struct Timeline {
    id: StreamId,
    /// The epoch that releases are noted in: one above the last recorded.
    epoch: u64,
    /// The highest epoch known to be over.
    reached: u64,
    /// Epochs that were closed by a fence and are not known to be over, oldest first.
    pending: VecDeque<(u64, u64)>,
    /// The stream is destroyed: nothing can be recorded on it.
    forgotten: bool,
}

/// All streams the pool has seen.
#[derive(Debug)]
pub(crate) struct Timelines {
    streams: Vec<Timeline>,
    slots: HashMap<StreamId, StreamSlot>,
    /// The last answer of `slot`: most programs use one stream at a time.
    last: (StreamId, StreamSlot),
}

impl Timelines {
    pub(crate) fn new() -> Self {
        let ready = Timeline { id: StreamId(u64::MAX), epoch: 1, reached: u64::MAX, pending: VecDeque::new(), forgotten: false };
        Self { streams: vec![ready], slots: HashMap::new(), last: (StreamId(u64::MAX), READY) }
    }

    /// The slot of a stream, made on first sight.
    #[inline]
    pub(crate) fn slot(&mut self, id: StreamId) -> StreamSlot {
        if self.last.0 == id && self.last.1 != READY {
            return self.last.1;
        }
        self.slot_slow(id)
    }

    #[cold]
    fn slot_slow(&mut self, id: StreamId) -> StreamSlot {
        let slot = *self.slots.entry(id).or_insert_with(|| {
            self.streams.push(Timeline { id, epoch: 1, reached: 0, pending: VecDeque::new(), forgotten: false });
            StreamSlot::try_from(self.streams.len() - 1).expect("at most 65535 streams")
        });
        self.last = (id, slot);
        slot
    }

    pub(crate) fn id(&self, slot: StreamSlot) -> StreamId {
        self.streams[usize::from(slot)].id
    }

    /// Slots of all streams seen so far.
    pub(crate) fn slots(&self) -> impl Iterator<Item = StreamSlot> + use<> {
        (1..self.streams.len()).map(|slot| StreamSlot::try_from(slot).expect("at most 65535 streams"))
    }

    /// The point behind all work queued on a stream so far.
    #[inline]
    pub(crate) fn now(&self, slot: StreamSlot) -> Point {
        Point { stream: slot, epoch: self.streams[usize::from(slot)].epoch }
    }

    /// Whether a point is known to be reached; asks no device.
    #[inline]
    pub(crate) fn is_reached(&self, point: Point) -> bool {
        point.epoch <= self.streams[usize::from(point.stream)].reached
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
        let timeline = &mut self.streams[usize::from(point.stream)];
        let known = timeline.pending.partition_point(|(epoch, _)| *epoch < point.epoch);
        if let Some((_, value)) = timeline.pending.get(known) {
            return Ok(Some(Fence { stream: timeline.id, value: *value }));
        }
        let fence = device.record(timeline.id)?;
        timeline.pending.push_back((timeline.epoch, fence.value));
        timeline.epoch += 1;
        Ok(Some(fence))
    }

    /// Asks the device how far a stream has come. Closes nothing: see [`Self::fence`].
    pub(crate) fn poll<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        slot: StreamSlot,
    ) -> DeviceResult<()> {
        let timeline = &mut self.streams[usize::from(slot)];
        if timeline.pending.is_empty() {
            return Ok(());
        }
        let value = device.reached(timeline.id)?;
        while let Some((epoch, _)) = timeline.pending.front().copied().filter(|(_, v)| *v <= value) {
            timeline.reached = epoch;
            timeline.pending.pop_front();
        }
        Ok(())
    }

    pub(crate) fn is_forgotten(&self, slot: StreamSlot) -> bool {
        self.streams[usize::from(slot)].forgotten
    }

    /// Forgets the handle of a stream that is about to be destroyed. Its points stay known; the
    /// caller has recorded a fence behind them.
    pub(crate) fn forget(&mut self, slot: StreamSlot) {
        let timeline = &mut self.streams[usize::from(slot)];
        timeline.forgotten = true;
        self.slots.remove(&timeline.id);
        self.last = (StreamId(u64::MAX), READY);
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
    fn the_last_lookup_is_not_confused_by_a_stream_of_the_ready_handle() {
        let mut timelines = Timelines::new();
        assert_ne!(timelines.slot(StreamId(u64::MAX)), READY);
    }
}

//! Marks: points in the work of streams, for those who hand pieces of a lease on by themselves.
//!
//! The pool orders work only between leases. Who places blocks in a lease, as a [`Heap`](crate::Heap)
//! does, must know when the work of other streams on a block is over, before its place serves again.

use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::pool::Pool;
use crate::state::{LeaseId, State};
use crate::timeline::{Point, StreamSlot};
use crate::units::StreamId;

/// A point in the work of a stream: passed once all is over that was queued there when it was made. Made
/// by [`Pool::mark`]; valid in that pool alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    point: Point,
    /// Of the stream that had the slot then.
    serial: u64,
}

impl Mark {
    /// Whether two marks are points in the work of one stream.
    pub(crate) fn is_of_same_stream(self, other: Self) -> bool {
        (self.point.stream, self.serial) == (other.point.stream, other.serial)
    }
}

impl State {
    fn mark(&self, slot: StreamSlot) -> Mark {
        let serial = self.timelines.serial(slot).expect("the slot of a stream");
        Mark { point: self.timelines.now(slot), serial }
    }

    /// The point of a mark; `None` if the slot is vacant or another stream's by now. That is so only once
    /// all work of the stream is known to be over.
    fn point_of(&self, mark: Mark) -> Option<Point> {
        let known = self.timelines.serial(mark.point.stream) == Some(mark.serial);
        known.then_some(mark.point)
    }

    fn note_mark(&mut self, id: LeaseId, mark: Mark) {
        let at = self.live(id);
        // A point that is reached is no use. Its slot may be vacant, and would be the next stream's.
        let open = self.point_of(mark).filter(|point| !self.timelines.is_reached(*point));
        let Some(point) = open else { return };
        // What its own stream does is part of the lease anyway.
        if self.extents[at].stream != point.stream {
            self.uses.note(&mut self.extents[at].uses, point);
        }
    }

    /// Learns from the device how far the streams of marks are.
    fn poll_marks<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        marks: &[Mark],
    ) -> DeviceResult<()> {
        let points = marks.iter().filter_map(|mark| self.point_of(*mark)).collect();
        self.poll_points(device, points)
    }
}

impl<D: VirtualMemoryDevice + 'static> Pool<D> {
    /// A mark behind all that is queued on `stream` by now. Makes no device call.
    #[must_use]
    pub fn mark(&self, stream: StreamId) -> Mark {
        let mut state = self.shared().lock();
        let slot = state.timelines.slot(stream);
        state.mark(slot)
    }

    /// A mark behind all that is queued by now on the stream of an earlier mark, which may have been
    /// forgotten since. Makes no device call.
    #[must_use]
    pub fn mark_again(&self, mark: Mark) -> Mark {
        let state = self.shared().lock();
        state.point_of(mark).map_or(mark, |point| state.mark(point.stream))
    }

    /// Which marks are passed. Asks the device, records fences where there are none yet, and never
    /// waits. While a stream captures it asks nothing: then it says what is known. A stream that fails
    /// when it is asked has not come further.
    ///
    /// # Errors
    /// A device that is lost.
    pub fn passed(&self, marks: &[Mark]) -> DeviceResult<Vec<bool>> {
        let mut state = self.shared().lock();
        if !self.shared().capturing(&state)? {
            state.poll_marks(&*self.shared().device, marks)?;
        }
        let over = |point| state.timelines.is_reached(point);
        Ok(marks.iter().map(|mark| state.point_of(*mark).is_none_or(over)).collect())
    }

    /// Waits on the host until one mark more is passed than is known of; for those who can go on only
    /// then. `false`, without a wait, if all are passed, a stream captures, or the streams of the others were
    /// destroyed on a device that cannot be waited for as a whole.
    ///
    /// # Errors
    /// What the device says.
    pub fn wait_for_any(&self, marks: &[Mark]) -> DeviceResult<bool> {
        let awaited = {
            let mut state = self.shared().lock();
            if self.shared().capturing(&state)? {
                return Ok(false);
            }
            let points = marks.iter().filter_map(|mark| state.point_of(*mark)).collect();
            state.timelines.ask_anew();
            state.first_of(&*self.shared().device, points)?
        };
        self.shared().await_work(&awaited)
    }

    pub(crate) fn used_until(&self, id: LeaseId, mark: Mark) {
        // Blocks end in a fork too, where the lock may be held by a thread that is not there.
        let Some(mut state) = self.shared().lock_unless_forked() else { return };
        state.note_mark(id, mark);
        state.validate_in_debug();
    }
}

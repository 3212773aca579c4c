//! Streams, their fences, and the logical clock.

use crate::order::Before;
use std::collections::{HashMap, VecDeque};
use vmm_core::units::{Fence, StreamId};

/// The stream on which a device with queued binds binds. It belongs to the device: fences of it can
/// be waited for, but nothing else can be queued on it.
pub const BIND_STREAM: StreamId = StreamId(u64::MAX);

/// Where [`Streams::make`] begins, far from the small numbers that callers choose themselves.
const FIRST_MADE: u64 = 1 << 32;

/// A fence that is not reached yet.
#[derive(Debug)]
struct Recorded {
    value: u64,
    /// In logical nanoseconds. Rises with the value.
    completion: u64,
    /// All work that is done once the fence is reached.
    before: Before,
}

#[derive(Debug, Default)]
struct Stream {
    /// When all that is queued so far is done, in logical nanoseconds.
    tail: u64,
    /// How many pieces of work were queued.
    position: u64,
    /// Work of other streams that comes before what is queued next.
    before: Before,
    /// The value of the last fence.
    last: u64,
    reached: u64,
    /// The fences `reached + 1 ..= last`.
    ///
    /// Invariant: values are consecutive.
    unreached: VecDeque<Recorded>,
    capturing: bool,
    destroyed: bool,
}

impl Stream {
    fn settle(&mut self, now: u64) {
        while let Some(first) = self.unreached.front() {
            if first.completion > now {
                break;
            }
            self.reached = first.value;
            self.unreached.pop_front();
        }
    }
}

/// Where a new piece of work stands.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) position: u64,
    pub(crate) end: u64,
}

/// What is known of a fence.
#[derive(Debug)]
pub(crate) enum FenceState<'a> {
    Reached,
    /// Reached at `completion`, with all work in `before` done.
    Unreached {
        completion: u64,
        before: &'a Before,
    },
    Unknown,
}

/// All streams of a device and the clock they share.
#[derive(Debug)]
pub(crate) struct Streams {
    by_id: HashMap<StreamId, Stream>,
    now: u64,
    lag: u64,
    next_made: u64,
}

impl Streams {
    pub(crate) fn new(lag: u64) -> Self {
        Self { by_id: HashMap::new(), now: 0, lag, next_made: FIRST_MADE }
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// The clock never goes back.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    pub(crate) fn set_lag(&mut self, lag: u64) {
        self.lag = lag;
    }

    /// When everything that is queued is done.
    pub(crate) fn end_of_all(&self) -> u64 {
        self.by_id.values().map(|stream| stream.tail).fold(self.now, u64::max)
    }

    pub(crate) fn end_of(&self, id: StreamId) -> u64 {
        self.by_id.get(&id).map_or(self.now, |stream| stream.tail.max(self.now))
    }

    pub(crate) fn make(&mut self) -> StreamId {
        let id = StreamId(self.next_made);
        self.next_made += 1;
        self.by_id.insert(id, Stream::default());
        id
    }

    pub(crate) fn destroy(&mut self, id: StreamId) {
        self.by_id.entry(id).or_default().destroyed = true;
    }

    pub(crate) fn is_destroyed(&self, id: StreamId) -> bool {
        self.by_id.get(&id).is_some_and(|stream| stream.destroyed)
    }

    /// Whether streams are made here, and this one was neither made nor used before the first was.
    pub(crate) fn is_unknown(&self, id: StreamId) -> bool {
        self.next_made > FIRST_MADE && !self.by_id.contains_key(&id)
    }

    pub(crate) fn is_capturing(&self, id: StreamId) -> bool {
        self.by_id.get(&id).is_some_and(|stream| stream.capturing)
    }

    pub(crate) fn is_any_capturing(&self) -> bool {
        self.by_id.values().any(|stream| stream.capturing)
    }

    /// Says whether that changed anything.
    pub(crate) fn set_capturing(&mut self, id: StreamId, capturing: bool) -> bool {
        let stream = self.by_id.entry(id).or_default();
        if stream.capturing == capturing {
            return false;
        }
        stream.capturing = capturing;
        true
    }

    /// Queues work of `duration` nanoseconds.
    pub(crate) fn queue(&mut self, id: StreamId, duration: u64) -> Place {
        let now = self.now;
        let stream = self.by_id.entry(id).or_default();
        stream.tail = stream.tail.max(now).saturating_add(duration);
        stream.position += 1;
        Place { position: stream.position, end: stream.tail }
    }

    /// Whether what is queued on `id` next comes after a piece of work of `other`.
    pub(crate) fn next_is_after(&self, id: StreamId, other: StreamId, position: u64) -> bool {
        id == other
            || self.by_id.get(&id).is_some_and(|stream| stream.before.covers(other, position))
    }

    pub(crate) fn record(&mut self, id: StreamId) -> Fence {
        let (now, soonest) = (self.now, self.now.saturating_add(self.lag));
        let stream = self.by_id.entry(id).or_default();
        stream.settle(now);
        // The lag is idle work of the stream, so that what is queued behind the fence stays behind.
        stream.tail = stream.tail.max(soonest);
        stream.last += 1;
        // A fence that is reached when it is recorded still gets its value; `settle` takes it.
        let mut before = stream.before.clone();
        before.raise(id, stream.position);
        let completion = stream.tail;
        stream.unreached.push_back(Recorded { value: stream.last, completion, before });
        Fence { stream: id, value: stream.last }
    }

    pub(crate) fn reached(&mut self, id: StreamId) -> u64 {
        let now = self.now;
        self.by_id.get_mut(&id).map_or(0, |stream| {
            stream.settle(now);
            stream.reached
        })
    }

    pub(crate) fn fence(&self, fence: Fence) -> FenceState<'_> {
        if fence.value == 0 {
            return FenceState::Reached;
        }
        let Some(stream) = self.by_id.get(&fence.stream) else {
            return FenceState::Unknown;
        };
        if fence.value > stream.last {
            return FenceState::Unknown;
        }
        if fence.value <= stream.reached {
            return FenceState::Reached;
        }
        let i = usize::try_from(fence.value - stream.reached - 1).expect("fits, for it is queued");
        let recorded = &stream.unreached[i];
        debug_assert_eq!(recorded.value, fence.value);
        if recorded.completion <= self.now {
            return FenceState::Reached;
        }
        FenceState::Unreached { completion: recorded.completion, before: &recorded.before }
    }

    /// Puts what is queued on `id` next behind `fence`, which is known.
    pub(crate) fn put_behind(&mut self, id: StreamId, fence: Fence) {
        let FenceState::Unreached { completion, before } = self.fence(fence) else {
            return;
        };
        let before = before.clone();
        let stream = self.by_id.entry(id).or_default();
        stream.tail = stream.tail.max(completion);
        stream.before.merge(&before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: StreamId = StreamId(1);
    const B: StreamId = StreamId(2);

    #[test]
    fn a_stream_runs_its_work_in_order() {
        let mut streams = Streams::new(0);
        streams.set_now(10);
        assert_eq!(streams.queue(A, 5).end, 15);
        assert_eq!(streams.queue(A, 5).end, 20);
        assert_eq!(streams.queue(B, 1).end, 11);
        streams.set_now(100);
        assert_eq!(streams.queue(A, 5).end, 105);
    }

    #[test]
    fn fences_are_reached_in_the_order_of_their_values() {
        let mut streams = Streams::new(0);
        streams.queue(A, 5);
        let first = streams.record(A);
        streams.queue(A, 5);
        let second = streams.record(A);
        assert!(second.value > first.value);
        assert_eq!(streams.reached(A), 0);
        streams.set_now(5);
        assert_eq!(streams.reached(A), first.value);
        assert!(matches!(streams.fence(first), FenceState::Reached));
        assert!(matches!(streams.fence(second), FenceState::Unreached { completion: 10, .. }));
        streams.set_now(10);
        assert_eq!(streams.reached(A), second.value);
        let unknown = Fence { stream: A, value: second.value + 1 };
        assert!(matches!(streams.fence(unknown), FenceState::Unknown));
    }

    #[test]
    fn a_wait_orders_across_three_streams() {
        let c = StreamId(3);
        let mut streams = Streams::new(0);
        let work = streams.queue(A, 50);
        let fence = streams.record(A);
        streams.put_behind(B, fence);
        assert_eq!(streams.queue(B, 1).end, 51);
        let fence = streams.record(B);
        assert!(!streams.next_is_after(c, A, work.position));
        streams.put_behind(c, fence);
        assert!(streams.next_is_after(c, A, work.position));
        assert!(!streams.next_is_after(A, B, 1));
    }

    #[test]
    fn with_a_lag_no_fence_is_reached_sooner() {
        let mut streams = Streams::new(100);
        let fence = streams.record(A);
        assert_eq!(streams.queue(A, 5).end, 105);
        streams.set_now(99);
        assert_eq!(streams.reached(A), 0);
        streams.set_now(100);
        assert_eq!(streams.reached(A), fence.value);
    }

    #[test]
    fn a_million_fences_take_no_memory_once_reached() {
        let mut streams = Streams::new(10);
        for _ in 0..1_000_000_u32 {
            streams.record(A);
            let now = streams.now() + 1;
            streams.set_now(now);
        }
        assert!(streams.by_id[&A].unreached.len() <= 11);
    }
}

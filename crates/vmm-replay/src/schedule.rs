//! A trace's events as the calls that a replay makes.
//!
//! All lookups happen here, before the clock runs, so that the replay itself is a walk over one
//! array and its host time is the pool's.

use vmm_trace::{DeviceTrace, EventKind};

/// Index of a tensor in the replay's table.
pub(crate) type Slot = u32;

/// Index of a stream: those of the trace first, then the lanes.
pub(crate) type StreamIndex = u16;

/// Index of a pool of the trace; 0 is memory for all.
pub(crate) type PoolIndex = u16;

/// One call of the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A tensor comes into being.
    Allocate { slot: Slot, len: u64, stream: StreamIndex, pool: PoolIndex },
    /// A tensor goes and its last use lies on its own stream.
    Release { slot: Slot },
    /// A tensor goes while `lane` still works with it, until `end_ns`.
    ReleaseInUse { slot: Slot, lane: StreamIndex, end_ns: u64 },
    /// A private pool is given up.
    EndPool { pool: PoolIndex },
}

/// A call and when it is made, in nanoseconds since the trace's first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) at_ns: u64,
    pub(crate) call: Call,
}

/// Everything that a replay does, in order.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// Tensors that were live when the recording began.
    pub(crate) start: Vec<Call>,
    /// The recorded calls.
    pub(crate) calls: Vec<Timed>,
    /// How many slots the tensors need.
    pub(crate) slots: usize,
    /// How many streams the calls use, lanes included.
    pub(crate) streams: usize,
    /// The largest single allocation in bytes.
    pub(crate) largest: u64,
}

impl Schedule {
    /// Turns a trace's events into calls.
    ///
    /// A request to free whose completion is the next event is a plain release. Where other events
    /// lie between, another stream was still using the tensor until then: its work becomes work on a
    /// lane, a stream that the trace does not have. A tensor whose completion was not recorded is in
    /// use until the trace's end. A private pool of which the recorded allocator gave memory back
    /// had been given up by the program: before that it keeps all it has.
    ///
    /// # Panics
    /// For more than [`MOST_STREAMS`] streams.
    pub(crate) fn of(trace: &DeviceTrace) -> Self {
        let mut slots = Slots::for_tensors(trace.tensor_count);
        let start: Vec<Call> = trace
            .start_live
            .iter()
            .map(|t| Call::Allocate {
                slot: slots.take(t.id),
                len: t.len,
                stream: t.stream,
                pool: t.pool,
            })
            .collect();
        let completions = completions(trace);
        let mut lanes = Lanes::after(trace.streams.len());
        let mut calls = Vec::with_capacity(trace.events.len() / 2);
        for (i, event) in trace.events.iter().enumerate() {
            let at_ns = nanoseconds(event.time_us);
            let call = match event.kind {
                EventKind::Alloc { id, len, stream, pool } => {
                    Call::Allocate { slot: slots.take(id), len, stream, pool }
                }
                EventKind::FreeRequested { id } => {
                    let slot = slots.give_back(id);
                    let completion = completions[id as usize];
                    if completion == i + 1 {
                        Call::Release { slot }
                    } else {
                        let end = trace.events.get(completion).or(trace.events.last());
                        let end_ns = end.map_or(at_ns, |e| nanoseconds(e.time_us));
                        Call::ReleaseInUse { slot, lane: lanes.take(at_ns, end_ns), end_ns }
                    }
                }
                EventKind::SegmentFree { pool, .. } if pool > 0 => Call::EndPool { pool },
                // What else the recorded allocator did with its own segments is not the pool's concern.
                _ => continue,
            };
            calls.push(Timed { at_ns, call });
        }
        let lens = start.iter().chain(calls.iter().map(|t| &t.call)).map(|call| match *call {
            Call::Allocate { len, .. } => len,
            Call::Release { .. } | Call::ReleaseInUse { .. } | Call::EndPool { .. } => 0,
        });
        let largest = lens.max().unwrap_or(0);
        Self { start, calls, slots: slots.count as usize, streams: lanes.count(), largest }
    }
}

/// For each tensor the index of the event that completes its free; `usize::MAX` for none.
fn completions(trace: &DeviceTrace) -> Vec<usize> {
    let mut completions = vec![usize::MAX; trace.tensor_count as usize];
    for (i, event) in trace.events.iter().enumerate() {
        if let EventKind::FreeCompleted { id } = event.kind {
            completions[id as usize] = i;
        }
    }
    completions
}

fn nanoseconds(time_us: u64) -> u64 {
    time_us.saturating_mul(1_000)
}

/// Gives each live tensor a slot, and a slot to the next tensor once its own has gone: the table
/// stays as small as the most tensors that live at once.
struct Slots {
    /// By tensor.
    of: Vec<Slot>,
    free: Vec<Slot>,
    count: Slot,
}

impl Slots {
    fn for_tensors(count: u32) -> Self {
        Self { of: vec![0; count as usize], free: Vec::new(), count: 0 }
    }

    fn take(&mut self, id: u32) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.count += 1;
            self.count - 1
        });
        self.of[id as usize] = slot;
        slot
    }

    fn give_back(&mut self, id: u32) -> Slot {
        let slot = self.of[id as usize];
        self.free.push(slot);
        slot
    }
}

/// The most streams that a trace may have: a pool cannot tell more apart.
pub(crate) const MOST_STREAMS: usize = StreamIndex::MAX as usize - MOST_LANES - 1;

/// The most lanes. Programs need a handful.
const MOST_LANES: usize = 64;

/// Streams for work that the trace shows only by its end.
///
/// Work on one stream ends in order, and deferred frees need not: each goes to a lane whose earlier
/// work ends first.
struct Lanes {
    first: usize,
    ends_ns: Vec<u64>,
}

impl Lanes {
    fn after(streams: usize) -> Self {
        Self { first: streams, ends_ns: Vec::new() }
    }

    fn count(&self) -> usize {
        self.first + self.ends_ns.len()
    }

    fn take(&mut self, at_ns: u64, end_ns: u64) -> StreamIndex {
        // The latest end that still lies before this one leaves the earlier lanes to others.
        let fitting = (0..self.ends_ns.len())
            .filter(|&lane| self.ends_ns[lane].max(at_ns) <= end_ns)
            .max_by_key(|&lane| self.ends_ns[lane]);
        let lane = fitting.unwrap_or_else(|| self.new_lane());
        self.ends_ns[lane] = self.ends_ns[lane].max(end_ns);
        StreamIndex::try_from(self.first + lane).expect("see MOST_STREAMS")
    }

    /// One lane more, or with all in use the one that is free first: then some frees complete later
    /// than recorded.
    fn new_lane(&mut self) -> usize {
        if self.ends_ns.len() < MOST_LANES {
            self.ends_ns.push(0);
            return self.ends_ns.len() - 1;
        }
        let soonest = self.ends_ns.iter().enumerate().min_by_key(|(_, end)| **end);
        soonest.map_or(0, |(lane, _)| lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_keep_ends_in_order() {
        let mut lanes = Lanes::after(2);
        let a = lanes.take(0, 100);
        let b = lanes.take(0, 50);
        let c = lanes.take(10, 60);
        assert_eq!((a, b, c), (2, 3, 3));
        assert_eq!(lanes.take(20, 200), a);
        assert_eq!(lanes.count(), 4);
    }

    #[test]
    fn slots_are_used_again() {
        let mut slots = Slots::for_tensors(13);
        assert_eq!((slots.take(10), slots.take(11)), (0, 1));
        assert_eq!(slots.give_back(10), 0);
        assert_eq!((slots.take(12), slots.count), (0, 2));
    }
}

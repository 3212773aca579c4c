//! The memory of a recorded program over time, reduced to what can be drawn.

use vmm_trace::{Event, EventKind};

use crate::fragmentation::Causes;
use crate::moment::next_to_fail;
use crate::recorded::{Recorded, Request};

/// Most stretches of a timeline. A trace of a million events has some 15 in each; one with fewer
/// events than this loses nothing.
const MOST_STRETCHES: usize = 1 << 16;
/// No stretch is longer than so many parts of the time, unless a single event is.
const STRETCHES_OF_TIME: u64 = 1 << 14;
/// For samples the trace is cut into at most so many parts of equally many events, and these where
/// so many equal parts of its time begin: programs have bursts and pauses. Each sample looks at all
/// holes.
const PARTS: usize = 1024;

/// What a quantity was in a stretch of time, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Least.
    pub low: u64,
    /// Most.
    pub high: u64,
    /// At its end: what holds until the next stretch.
    pub last: u64,
}

impl Span {
    fn at(bytes: u64) -> Self {
        Self { low: bytes, high: bytes, last: bytes }
    }

    fn include(&mut self, bytes: u64) {
        self.low = self.low.min(bytes);
        self.high = self.high.max(bytes);
        self.last = bytes;
    }
}

/// A few events that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Time of its first event, in microseconds since the first of all.
    pub time_us: u64,
    /// What the program had asked for and not got rid of.
    pub requested: Span,
    /// The same with rounding, as blocks.
    pub live: Span,
    /// What the allocator held from the device. Zero where the file does not say.
    pub reserved: Span,
}

/// What each cause took at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since the first event.
    pub time_us: u64,
    /// How many events had happened.
    pub events: usize,
    /// The causes, seen by the next request that needs new memory.
    pub causes: Causes,
    /// The length of that request, in bytes.
    pub judged_by: u64,
    /// The longest request like it that free memory could serve, in bytes.
    pub servable: u64,
    /// The length of the request that would fail next; `None` if all that the program is known to ask
    /// for would be served.
    pub next: Option<u64>,
}

/// Memory over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timeline {
    /// Stretches in order; together they are all events.
    pub stretches: Vec<Stretch>,
    /// The moments of most waste and the ends of many parts of the trace, in order.
    pub samples: Vec<Sample>,
    /// How many events had happened when most was held; the first such moment.
    pub peak_requested_at: usize,
    /// The same for most reserved, after the allocation that it was reserved for. Where it never rises,
    /// the moment at which most of it is wasted while as much is reserved.
    pub peak_reserved_at: usize,
}

impl Timeline {
    /// Walks through the trace twice: once for the curves, once for the causes.
    #[must_use]
    pub fn new(recorded: &Recorded<'_>) -> Self {
        let (mut timeline, picked) = Self::curves(recorded);
        let requests = References::new(recorded);
        let mut walk = recorded.walk();
        for count in picked {
            walk.advance_to(count);
            let request = requests.after(count);
            timeline.samples.push(Sample {
                time_us: time_after(recorded, count),
                events: count,
                causes: Causes::of(&walk.memory, &request),
                judged_by: request.len,
                servable: walk.memory.longest_hole(|kind| kind == request.kind),
                next: next_to_fail(recorded, &requests, &walk.memory, count).map(|next| next.len),
            });
        }
        timeline
    }

    /// The curves, and how many events lie before the moments of most waste.
    fn curves(recorded: &Recorded<'_>) -> (Self, Vec<usize>) {
        let count = recorded.trace.events.len();
        let (per_stretch, per_part) =
            (count.div_ceil(MOST_STRETCHES).max(1), count.div_ceil(PARTS).max(1));
        let us_per_stretch = recorded.trace.duration_us() / STRETCHES_OF_TIME + 1;
        let us_per_part = recorded.trace.duration_us() / PARTS as u64 + 1;
        let part_of =
            |index: usize| (index / per_part, recorded.trace.events[index].time_us / us_per_part);
        let mut walk = recorded.walk();
        let mut timeline = Self::default();
        let start = walk.memory.totals();
        let (mut most_held, mut most_reserved) = (start.held, start.reserved);
        let mut steady = (start.reserved.saturating_sub(start.requested), 0);
        let mut picked: Vec<usize> = vec![0];
        let (mut most_waste, mut last) = (None, None);
        while let Some(index) = walk.step() {
            let totals = walk.memory.totals();
            let live = totals.requested + totals.rounding + totals.fenced;
            match timeline.stretches.last_mut() {
                Some(stretch)
                    if !index.is_multiple_of(per_stretch)
                        && recorded.trace.events[index].time_us
                            < stretch.time_us + us_per_stretch =>
                {
                    stretch.requested.include(totals.held);
                    stretch.live.include(live);
                    stretch.reserved.include(totals.reserved);
                }
                _ => timeline.stretches.push(Stretch {
                    time_us: recorded.trace.events[index].time_us,
                    requested: Span::at(totals.held),
                    live: Span::at(live),
                    reserved: Span::at(totals.reserved),
                }),
            }
            if totals.held > most_held {
                (most_held, timeline.peak_requested_at) = (totals.held, index + 1);
            }
            // Between taking memory and using it nothing is wasted, and between the two steps of a
            // plain release nothing waits.
            if is_half_done(&recorded.trace.events, index) {
                continue;
            }
            if totals.reserved > most_reserved {
                (most_reserved, timeline.peak_reserved_at) = (totals.reserved, index + 1);
            }
            if last.is_some_and(|last: usize| part_of(last - 1) != part_of(index)) {
                picked.extend(most_waste.take().map(|(_, at)| at).filter(|&at| Some(at) != last));
                picked.extend(last);
            }
            last = Some(index + 1);
            let waste = totals.reserved.saturating_sub(totals.requested);
            if totals.reserved == start.reserved && waste > steady.0 {
                steady = (waste, index + 1);
            }
            if most_waste.is_none_or(|(most, _)| waste > most) {
                most_waste = Some((waste, index + 1));
            }
        }
        picked.extend(most_waste.map(|(_, at)| at).filter(|&at| Some(at) != last));
        picked.extend(last);
        if most_reserved == start.reserved {
            timeline.peak_reserved_at = steady.1;
        }
        (timeline, picked)
    }
}

/// Whether an event and the next belong together.
fn is_half_done(events: &[Event], index: usize) -> bool {
    match events[index].kind {
        EventKind::SegmentAlloc { .. } => true,
        EventKind::FreeRequested { id } => {
            let next = events.get(index + 1).map(|event| event.kind);
            next == Some(EventKind::FreeCompleted { id })
        }
        _ => false,
    }
}

/// Time at which so many events have happened.
pub(crate) fn time_after(recorded: &Recorded<'_>, count: usize) -> u64 {
    count.checked_sub(1).map_or(0, |last| recorded.trace.events[last].time_us)
}

/// For each moment the request that fragmentation is judged by.
#[derive(Debug)]
pub(crate) struct References {
    /// As [`Recorded::misses`].
    misses: Vec<(usize, Request)>,
    /// Those of them that are not small. Small segments are short, so what a small request cannot
    /// have is nearly all memory, and says little.
    large: Vec<(usize, Request)>,
    /// For traces without a miss.
    fallback: Request,
    /// How many events there are up to the last allocation.
    asks_until: usize,
}

impl References {
    pub(crate) fn new(recorded: &Recorded<'_>) -> Self {
        let misses = recorded.misses();
        let requests = recorded.trace.events.iter().filter_map(|event| match event.kind {
            EventKind::Alloc { id, len, stream, pool } => {
                Some(recorded.request(id, len, stream, pool))
            }
            _ => None,
        });
        let starts = recorded.trace.start_live.iter();
        let starts = starts.map(|t| recorded.request(t.id, t.len, t.stream, t.pool));
        let largest = requests.chain(starts).max_by_key(|request| request.len);
        let none = Request { len: 1, kind: recorded.kind_of(1, 0, 0), stack: None };
        let large = misses.iter().copied().filter(|(_, miss)| !miss.kind.is_small).collect();
        let is_alloc = |event: &Event| matches!(event.kind, EventKind::Alloc { .. });
        let asks_until = recorded.trace.events.iter().rposition(is_alloc).map_or(0, |at| at + 1);
        Self { misses, large, fallback: largest.unwrap_or(none), asks_until }
    }

    /// The request that fragmentation after so many events is judged by: the next one, not small,
    /// that needs new memory, for there free memory of no use begins to matter. After the last such
    /// request it is that one; where there is none, the largest of all. A failure that comes next
    /// is judged by what failed, however small.
    pub(crate) fn after(&self, count: usize) -> Request {
        if let Some((index, request)) = self.miss(count)
            && index == count
        {
            return request;
        }
        let at = self.large.partition_point(|&(index, _)| index < count);
        let found = self.large.get(at).or(self.large.last()).map(|&(_, request)| request);
        found.unwrap_or(self.fallback)
    }

    /// The first request after so many events that the recorded allocator needed new memory for.
    pub(crate) fn next_miss(&self, count: usize) -> Option<Request> {
        self.miss(count).map(|(_, request)| request)
    }

    /// Whether anything is allocated after so many events.
    pub(crate) fn asks_after(&self, count: usize) -> bool {
        count < self.asks_until
    }

    /// The request of the event with this index, if it was a miss.
    pub(crate) fn miss_at(&self, index: usize) -> Option<Request> {
        self.miss(index).filter(|&(at, _)| at == index).map(|(_, request)| request)
    }

    fn miss(&self, count: usize) -> Option<(usize, Request)> {
        let at = self.misses.partition_point(|&(index, _)| index < count);
        self.misses.get(at).copied()
    }
}

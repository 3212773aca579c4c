//! Follows addresses through a trace: gives ids to tensors and orders their events.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use crate::census::Census;
use crate::details::{Details, OomPlace, SegmentPlace};
use crate::model::{DeviceTrace, Event, EventKind, Segment, StartTensor};

/// No single size and no sum of live sizes is above this, in bytes: 48 bits are more than any device
/// addresses, and sums of checked sizes cannot overflow.
pub(crate) const MAX_BYTES: u64 = 1 << 48;

/// Which steps of a free an entry stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FreeStep {
    /// Only the request; a completion follows or is still open.
    Requested,
    /// Only the completion.
    Completed,
    /// Both: the file records one entry for each free.
    Whole,
}

/// Where and how large a tensor is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) stream: u16,
    pub(crate) pool: u16,
}

/// What lies at an address. The key of a tensor is an address and a generation; the id stands for both.
#[derive(Debug, Clone, Copy)]
enum State {
    Live(u32),
    Pending(u32),
    /// It was freed: a second free without a new allocation is a fault.
    Freed,
}

/// Builds the events of one device.
#[derive(Debug)]
pub(crate) struct Lives {
    device: u32,
    streams: Numbered<u64>,
    pools: Numbered<(u64, u64)>,
    at: HashMap<u64, State>,
    /// Addresses of live allocations of no bytes.
    empty_at: HashSet<u64>,
    /// Length of each tensor, by id.
    lens: Vec<u64>,
    start_live: Vec<StartTensor>,
    start_bytes: u64,
    live_bytes: u64,
    events: Vec<Event>,
    /// Time of the first event in the clock of the file.
    first_us: Option<i64>,
    now_us: u64,
    begun: bool,
    /// Tensors found among the final blocks.
    end_found: u64,
    pub(crate) census: Census,
    pub(crate) details: Details,
}

impl Lives {
    pub(crate) fn new(device: u32, capacity: usize) -> Self {
        Lives {
            device,
            streams: Numbered::starting_with(Vec::new()),
            pools: Numbered::starting_with(vec![(0, 0)]),
            at: HashMap::new(),
            empty_at: HashSet::new(),
            lens: Vec::new(),
            start_live: Vec::new(),
            start_bytes: 0,
            live_bytes: 0,
            events: Vec::with_capacity(capacity),
            first_us: None,
            now_us: 0,
            begun: false,
            end_found: 0,
            census: Census::default(),
            details: Details::default(),
        }
    }

    /// Index of a stream handle.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<u16, String> {
        self.streams.number(handle).ok_or_else(|| "more than 65536 streams".into())
    }

    /// Index of a pool id.
    pub(crate) fn pool(&mut self, id: (u64, u64)) -> Result<u16, String> {
        self.pools.number(id).ok_or_else(|| "more than 65536 pools".into())
    }

    /// Moves the clock to an entry. Without a time it is one microsecond after the one before.
    pub(crate) fn set_time(&mut self, time_us: Option<i64>) {
        let began = std::mem::replace(&mut self.begun, true);
        let Some(time_us) = time_us else {
            self.census.without_time += 1;
            self.now_us = self.now_us.saturating_add(u64::from(began));
            return;
        };
        let first_us = *self.first_us.get_or_insert(time_us);
        match u64::try_from(i128::from(time_us) - i128::from(first_us)) {
            Ok(since) if since >= self.now_us => self.now_us = since,
            _ => self.census.time_moved += 1,
        }
    }

    /// Adds an event that an entry stands for.
    pub(crate) fn push_used(&mut self, kind: EventKind) {
        self.census.used += 1;
        self.push(kind);
    }

    pub(crate) fn alloc(&mut self, span: Span, stack: Option<u32>) -> Result<(), String> {
        if span.len == 0 {
            self.empty_at.insert(span.addr);
            self.census.skipped_zero_length += 1;
            return Ok(());
        }
        match self.at.get(&span.addr) {
            Some(&State::Live(id)) => {
                self.census.reused_while_live += 1;
                self.census.made_requests += 1;
                self.census.made_completions += 1;
                self.push(EventKind::FreeRequested { id });
                self.complete(id);
            }
            Some(&State::Pending(id)) => {
                self.census.made_completions += 1;
                self.complete(id);
            }
            Some(State::Freed) | None => {}
        }
        if !self.empty_at.is_empty() {
            self.empty_at.remove(&span.addr);
        }
        let id = self.new_id(span, stack)?;
        self.at.insert(span.addr, State::Live(id));
        let Span { len, stream, pool, .. } = span;
        self.push_used(EventKind::Alloc { id, len, stream, pool });
        Ok(())
    }

    /// Adds the growth or the shrinking of what the recorded allocator holds.
    pub(crate) fn segment(&mut self, kind: EventKind, place: SegmentPlace) {
        self.details.segments.push(place);
        self.push_used(kind);
    }

    /// Adds an allocation that failed.
    pub(crate) fn oom(&mut self, len: u64, device_free: u64, place: OomPlace) {
        self.details.ooms.push(place);
        self.push_used(EventKind::Oom { len, device_free });
    }

    /// Frees what lies at `span.addr`. The rest of `span` counts only for a tensor that was live before
    /// the first event; `at_start` says whether one can have been.
    pub(crate) fn free(
        &mut self,
        span: Span,
        step: FreeStep,
        at_start: impl FnOnce() -> bool,
    ) -> Result<(), String> {
        let addr = span.addr;
        let state = match self.at.get(&addr) {
            Some(&state) => state,
            None if self.empty_at.contains(&addr) || span.len == 0 => {
                if step != FreeStep::Requested {
                    self.empty_at.remove(&addr);
                }
                self.census.skipped_zero_length += 1;
                return Ok(());
            }
            None if at_start() => {
                self.census.start_freed += 1;
                State::Live(self.new_start(span, None)?)
            }
            None => {
                return Err(format!(
                    "frees {addr:#x}, which was neither allocated in the trace nor live before it"
                ));
            }
        };
        self.census.used += 1;
        let state = match (state, step) {
            (State::Freed, _) => return Err(format!("frees {addr:#x}, which is free already")),
            (State::Pending(_), FreeStep::Requested | FreeStep::Whole) => {
                return Err(format!("requests the free of {addr:#x} a second time"));
            }
            (State::Live(id), FreeStep::Requested) => {
                self.push(EventKind::FreeRequested { id });
                State::Pending(id)
            }
            (State::Pending(id), FreeStep::Completed) => {
                self.complete(id);
                State::Freed
            }
            (State::Live(id), FreeStep::Completed) => {
                self.census.made_requests += 1;
                self.push(EventKind::FreeRequested { id });
                self.complete(id);
                State::Freed
            }
            (State::Live(id), FreeStep::Whole) => {
                self.census.made_completions += 1;
                self.push(EventKind::FreeRequested { id });
                self.complete(id);
                State::Freed
            }
        };
        self.at.insert(addr, state);
        Ok(())
    }

    /// Takes note of a block in use after the last event: a tensor of the trace, or one that was live
    /// before it and outlives it, if `at_start`.
    pub(crate) fn end_block(
        &mut self,
        span: Span,
        stack: Option<u32>,
        at_start: bool,
    ) -> Result<(), String> {
        match self.at.get(&span.addr) {
            Some(State::Live(_) | State::Pending(_)) => self.end_found += 1,
            None if at_start && span.len > 0 => {
                let id = self.new_start(span, stack)?;
                self.census.start_kept += 1;
                self.end_found += 1;
                self.at.insert(span.addr, State::Live(id));
            }
            Some(State::Freed) | None => self.census.end_unexplained += 1,
        }
        Ok(())
    }

    /// Ends the trace.
    pub(crate) fn finish(
        mut self,
        start_reserved: u64,
        end_segments: Vec<Segment>,
    ) -> (DeviceTrace, Details) {
        let (mut open, mut pending) = (0, 0);
        for state in self.at.values() {
            open += u64::from(!matches!(state, State::Freed));
            pending += u64::from(matches!(state, State::Pending(_)));
        }
        self.census.end_pending = pending;
        if !end_segments.is_empty() {
            self.census.end_missing = open - self.end_found;
        }
        let trace = DeviceTrace {
            device: self.device,
            streams: self.streams.items,
            pools: self.pools.items,
            tensor_count: u32::try_from(self.lens.len())
                .expect("every tensor has an id of 32 bits"),
            start_live: self.start_live,
            start_reserved,
            events: self.events,
            end_segments,
            census: self.census,
        };
        (trace, self.details)
    }

    fn push(&mut self, kind: EventKind) {
        self.events.push(Event { time_us: self.now_us, kind });
    }

    fn complete(&mut self, id: u32) {
        self.live_bytes -= self.lens[id as usize];
        self.push(EventKind::FreeCompleted { id });
    }

    fn new_start(&mut self, span: Span, stack: Option<u32>) -> Result<u32, String> {
        let Span { len, stream, pool, .. } = span;
        let id = self.new_id(span, stack)?;
        self.start_bytes = bounded_sum(self.start_bytes, len)?;
        self.start_live.push(StartTensor { id, len, stream, pool });
        Ok(id)
    }

    fn new_id(&mut self, span: Span, stack: Option<u32>) -> Result<u32, String> {
        let id = u32::try_from(self.lens.len()).map_err(|_| "more than 2^32 tensors")?;
        self.live_bytes = bounded_sum(self.live_bytes, span.len)?;
        self.lens.push(span.len);
        self.details.addresses.push(span.addr);
        self.details.stacks.push(stack);
        Ok(id)
    }
}

fn bounded_sum(sum: u64, len: u64) -> Result<u64, String> {
    match sum + len {
        sum if sum <= MAX_BYTES => Ok(sum),
        _ => Err(format!("{len} bytes more bring the live sizes above 2^48 bytes")),
    }
}

/// Gives the numbers 0, 1, 2 … to distinct items.
#[derive(Debug)]
struct Numbered<T> {
    numbers: HashMap<T, u16>,
    items: Vec<T>,
}

impl<T: Copy + Eq + Hash> Numbered<T> {
    fn starting_with(items: Vec<T>) -> Self {
        let mut numbered = Numbered { numbers: HashMap::new(), items: Vec::new() };
        for item in items {
            numbered.number(item);
        }
        numbered
    }

    /// `None` when 16 bits do not suffice.
    fn number(&mut self, item: T) -> Option<u16> {
        if let Some(&number) = self.numbers.get(&item) {
            return Some(number);
        }
        let number = u16::try_from(self.items.len()).ok()?;
        self.numbers.insert(item, number);
        self.items.push(item);
        Some(number)
    }
}

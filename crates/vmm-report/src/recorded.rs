//! Leads memory through a trace.

use std::collections::HashMap;

use vmm_trace::{Block, BlockState, DetailedTrace, Details, DeviceTrace, Event, EventKind, Source};

use crate::lengths::{Lengths, SMALL};
use crate::memory::{Kind, Memory};

/// Segments of `PyTorch` that serve small requests are this long, in bytes, and grow by this much.
const SMALL_SEGMENT: u64 = 2 << 20;
/// Others grow by multiples of this many bytes.
const LARGE_STEP: u64 = 20 << 20;

/// A request that has come or may come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Bytes.
    pub len: u64,
    /// What memory may serve it.
    pub kind: Kind,
    /// Index into the file's stacks, where it says.
    pub stack: Option<u32>,
}

/// A device's trace and what is known of the allocator that it records.
#[derive(Debug)]
pub struct Recorded<'a> {
    /// The events.
    pub trace: &'a DeviceTrace,
    /// Addresses and stacks.
    pub details: &'a Details,
    /// The allocator.
    pub allocator: Allocator,
    /// Whether that is `PyTorch` with expandable segments.
    pub is_expandable: bool,
    /// How long its blocks are.
    lengths: Lengths,
    has_history: bool,
    /// Tensors that are there at the end, by id.
    kept: HashMap<u32, KeptBlock>,
}

/// Who recorded a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocator {
    /// `PyTorch`: a hole serves requests of its own stream, pool and size class.
    PyTorch,
    /// This project's pool: a hole serves requests of its own pool.
    Vmm,
    /// A log that says nothing of memory held: RMM.
    Unknown,
}

/// A block of the final segments.
#[derive(Debug, Clone, Copy)]
struct KeptBlock {
    size: u64,
    is_fenced: bool,
}

impl<'a> Recorded<'a> {
    /// Blocks of at least so many bytes it does not split: `max_split_size`; `None` if it splits all.
    #[must_use]
    pub fn max_split_size(&self) -> Option<u64> {
        self.lengths.max_split()
    }

    /// Its `roundup_power2_divisions`, 0 for none; `None` if they differ by length.
    #[must_use]
    pub fn roundup_power2_divisions(&self) -> Option<u64> {
        self.lengths.uniform_divisions()
    }

    /// Device number `index` of a file's devices.
    ///
    /// # Panics
    /// If the file has fewer devices.
    #[must_use]
    pub fn new(file: &'a DetailedTrace, index: usize) -> Self {
        let (trace, details) = (&file.trace.devices[index], &file.details[index]);
        let allocator = match file.trace.source {
            Source::Rmm => Allocator::Unknown,
            Source::PyTorch if file.trace.settings.iter().any(is_of_vmm) => Allocator::Vmm,
            Source::PyTorch => Allocator::PyTorch,
        };
        let lengths = match allocator {
            Allocator::PyTorch => Lengths::of(&file.trace.settings),
            Allocator::Vmm | Allocator::Unknown => Lengths::default(),
        };
        let is_expandable = allocator == Allocator::PyTorch && expands(&file.trace.settings);
        Self {
            trace,
            details,
            allocator,
            is_expandable,
            lengths,
            has_history: has_history(trace, allocator),
            kept: kept_blocks(trace, details),
        }
    }

    /// Whether the file says how memory came to be as it is at its end. A snapshot that was taken with
    /// the recording off has no events, and one that this project's pool writes of itself has
    /// allocations only, all at one time.
    #[must_use]
    pub fn has_history(&self) -> bool {
        self.has_history
    }

    /// A walk that stands before the first event.
    #[must_use]
    pub(crate) fn walk(&self) -> Walk<'_> {
        let mut walk =
            Walk { recorded: self, memory: Memory::default(), next: 0, segments_seen: 0 };
        walk.fill_start();
        walk
    }

    /// A request of the trace.
    pub(crate) fn request(&self, id: u32, len: u64, stream: u16, pool: u16) -> Request {
        let stack = self.details.stacks[id as usize];
        Request { len, kind: self.kind_of(len, stream, pool), stack }
    }

    /// What memory may serve a request.
    pub(crate) fn kind_of(&self, len: u64, stream: u16, pool: u16) -> Kind {
        self.kind(stream, pool, len <= SMALL)
    }

    /// The kind of memory, as far as the allocator tells kinds apart.
    fn kind(&self, stream: u16, pool: u16, is_small: bool) -> Kind {
        match self.allocator {
            Allocator::PyTorch => Kind { stream, pool, is_small },
            Allocator::Vmm | Allocator::Unknown => Kind { stream: 0, pool, is_small: false },
        }
    }

    /// Requests that the recorded allocator could not serve from what it held, as (index of the
    /// event, request): those that made it take more, and those that failed.
    pub(crate) fn misses(&self) -> Vec<(usize, Request)> {
        let mut misses = Vec::new();
        let (mut grew, mut ooms) = (false, self.details.ooms.iter());
        for (index, event) in self.trace.events.iter().enumerate() {
            match event.kind {
                EventKind::SegmentAlloc { .. } => grew = true,
                EventKind::Alloc { id, len, stream, pool } if std::mem::take(&mut grew) => {
                    misses.push((index, self.request(id, len, stream, pool)));
                }
                EventKind::Oom { len, .. } => {
                    if let Some(place) = ooms.next() {
                        let kind = self.kind_of(len, place.stream, place.pool);
                        misses.push((index, Request { len, kind, stack: place.stack }));
                    }
                }
                _ => {}
            }
        }
        misses
    }
}

fn has_history(trace: &DeviceTrace, allocator: Allocator) -> bool {
    let mut events = trace
        .events
        .iter()
        .filter(|e| !matches!(e.kind, EventKind::Snapshot | EventKind::Annotate));
    let Some(first) = events.next() else { return false };
    let is_live = |event: &Event| {
        matches!(event.kind, EventKind::Alloc { .. }) && event.time_us == first.time_us
    };
    allocator != Allocator::Vmm || !is_live(first) || !events.all(is_live)
}

/// Whether a setting says that this project's pool served the program: in the pool's snapshot of itself, or
/// in a history of `PyTorch`'s.
fn is_of_vmm((key, value): &(String, String)) -> bool {
    match key.as_str() {
        "allocator" => value.starts_with("vmm"),
        _ => CONFIGURATIONS.contains(&key.as_str()) && value == "vmm",
    }
}

/// Where `PyTorch` has what was chosen for its allocator.
const CONFIGURATIONS: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Whether the settings of `PyTorch` switch expandable segments on.
pub(crate) fn expands(settings: &[(String, String)]) -> bool {
    let of = |key: &str| settings.iter().find(|(name, _)| name == key).map(|(_, value)| value);
    of("expandable_segments").is_some_and(|value| value == "True")
        || CONFIGURATIONS
            .into_iter()
            .filter_map(of)
            .any(|conf| conf.replace(' ', "").contains("expandable_segments:True"))
}

/// The trace of a program that got what it asked for in vain: each failed request is served, and
/// released at once. A device trace without such requests comes back as it is.
#[must_use]
pub fn with_failures_served(recorded: &Recorded<'_>) -> DeviceTrace {
    let mut trace = recorded.trace.clone();
    let mut ooms = recorded.details.ooms.iter();
    let mut events = Vec::with_capacity(trace.events.len());
    for event in &trace.events {
        match (event.kind, ooms.as_slice()) {
            (EventKind::Oom { len, .. }, [place, ..]) if len > 0 => {
                ooms.next();
                let id = trace.tensor_count;
                trace.tensor_count += 1;
                let (stream, pool) = (place.stream, place.pool);
                let steps = [
                    EventKind::Alloc { id, len, stream, pool },
                    EventKind::FreeRequested { id },
                    EventKind::FreeCompleted { id },
                ];
                events.extend(steps.map(|kind| Event { time_us: event.time_us, kind }));
            }
            (EventKind::Oom { .. }, _) => {
                ooms.next();
            }
            _ => events.push(*event),
        }
    }
    trace.events = events;
    trace
}

/// Memory that follows a trace event by event.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    recorded: &'a Recorded<'a>,
    pub(crate) memory: Memory,
    /// Index of the next event.
    next: usize,
    segments_seen: usize,
}

impl Walk<'_> {
    /// Applies events until `count` of all have been.
    pub(crate) fn advance_to(&mut self, count: usize) {
        while self.next < count {
            self.step();
        }
    }

    /// Applies one event and gives its index; `None` after the last.
    pub(crate) fn step(&mut self) -> Option<usize> {
        let event = self.recorded.trace.events.get(self.next)?;
        match event.kind {
            EventKind::Alloc { id, len, .. } => {
                let address = self.recorded.details.addresses[id as usize];
                let known = self.recorded.kept.get(&id).map(|block| block.size);
                self.memory.place(id, address, len, known);
            }
            EventKind::FreeRequested { id } => self.memory.request_free(id),
            EventKind::FreeCompleted { id } => self.memory.complete_free(id),
            EventKind::SegmentAlloc { len, .. } | EventKind::SegmentFree { len, .. } => {
                let place = self.recorded.details.segments[self.segments_seen];
                self.segments_seen += 1;
                let range = place.address..place.address.saturating_add(len);
                if matches!(event.kind, EventKind::SegmentAlloc { .. }) {
                    let kind = self.segment_kind(len, place);
                    self.memory.grow(range, kind, place.is_mapping);
                } else {
                    self.memory.shrink(range);
                }
            }
            EventKind::Oom { .. } | EventKind::Snapshot | EventKind::Annotate => {}
        }
        self.next += 1;
        Some(self.next - 1)
    }

    /// Whom a segment serves. The file says so only of those that are there at its end; lengths tell
    /// of the others.
    fn segment_kind(&self, len: u64, place: vmm_trace::SegmentPlace) -> Kind {
        let at_end = &self.recorded.trace.end_segments;
        let after = at_end.partition_point(|segment| segment.address <= place.address);
        let known = after.checked_sub(1).map(|index| &at_end[index]).filter(|segment| {
            place.address < segment.address + segment.total_size
                && segment.is_expandable == place.is_mapping
                && (place.is_mapping || segment.total_size == len)
        });
        let is_small = match known {
            Some(segment) => segment.is_small,
            None if place.is_mapping => !len.is_multiple_of(LARGE_STEP),
            None => len == SMALL_SEGMENT,
        };
        self.recorded.kind(place.stream, place.pool, is_small)
    }

    /// Rebuilds what was there before the first event: from the final segments back over all that
    /// came and went.
    fn fill_start(&mut self) {
        let Recorded { trace, details, .. } = self.recorded;
        let mut back = Memory::new(self.recorded.lengths.clone());
        for segment in &trace.end_segments {
            let kind = self.recorded.kind(segment.stream, segment.pool, segment.is_small);
            let range = segment.address..segment.address + segment.total_size;
            back.grow(range, kind, segment.is_expandable);
        }
        let lens = trace.events.iter().filter_map(|event| match event.kind {
            EventKind::SegmentAlloc { len, .. } => Some((true, len)),
            EventKind::SegmentFree { len, .. } => Some((false, len)),
            _ => None,
        });
        let steps: Vec<_> = lens.zip(&details.segments).collect();
        for &((took, len), &place) in steps.iter().rev() {
            let range = place.address..place.address.saturating_add(len);
            if took {
                back.shrink(range);
            } else {
                back.grow(range, self.segment_kind(len, place), place.is_mapping);
            }
        }
        self.memory = back;
        for tensor in &trace.start_live {
            let address = details.addresses[tensor.id as usize];
            let kept = self.recorded.kept.get(&tensor.id);
            let rounded = self.recorded.lengths.rounded(tensor.len);
            let size = kept.map_or(rounded, |block| block.size);
            self.memory.place(tensor.id, address, tensor.len, Some(size));
            if kept.is_some_and(|block| block.is_fenced) {
                self.memory.request_free(tensor.id);
            }
        }
    }
}

/// The final blocks of tensors that no event frees, by id: their lengths need not be guessed.
fn kept_blocks(trace: &DeviceTrace, details: &Details) -> HashMap<u32, KeptBlock> {
    let blocks = trace.end_segments.iter().flat_map(|segment| &segment.blocks);
    let at: HashMap<u64, &Block> = blocks
        .filter(|block| block.state != BlockState::Inactive)
        .map(|block| (block.address, block))
        .collect();
    if at.is_empty() {
        return HashMap::new();
    }
    let mut open = vec![None; trace.tensor_count as usize];
    for tensor in &trace.start_live {
        open[tensor.id as usize] = Some(tensor.len);
    }
    for event in &trace.events {
        match event.kind {
            EventKind::Alloc { id, len, .. } => open[id as usize] = Some(len),
            EventKind::FreeRequested { id } => open[id as usize] = None,
            _ => {}
        }
    }
    let kept = (0..).zip(open).filter_map(|(id, len)| {
        let block = at.get(&details.addresses[id as usize])?;
        let is_same = len? == block.requested_size && block.size >= block.requested_size;
        let is_fenced = block.state == BlockState::PendingFree;
        is_same.then_some((id, KeptBlock { size: block.size, is_fenced }))
    });
    kept.collect()
}

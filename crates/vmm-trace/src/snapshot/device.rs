//! One device of a snapshot: from raw entries to events.

use std::collections::HashMap;

use super::ranges::Ranges;
use super::segments::{RawSegment, pool_id};
use crate::census::Action;
use crate::details::{Details, OomPlace, SegmentPlace, StackTable};
use crate::error::{Fault, Place};
use crate::lives::{FreeStep, Lives, MAX_BYTES, Span};
use crate::model::{BlockState, DeviceTrace, EventKind, Segment};
use crate::pickle::{Field, Heap, RawEntry, Value};

/// Builds the trace of one device.
///
/// # Errors
/// `Malformed` with the entry for what no allocator can have recorded.
pub(super) fn read_device(
    heap: &Heap,
    device: u32,
    entries: &[Value],
    segments: Vec<RawSegment>,
    stacks: &mut StackTable,
) -> Result<(DeviceTrace, Details), Fault> {
    let survey = Survey::new(heap, device, entries, &segments)?;
    let mut reader = DeviceReader {
        heap,
        lives: Lives::new(device, entries.len()),
        pools: PoolFinder::new(&segments, &survey),
        survey: &survey,
        segments: &segments,
        stacks,
    };
    for (index, &value) in entries.iter().enumerate() {
        // The survey has found an entry in every value.
        if let Some(entry) = heap.entry(value) {
            reader.entry(index, entry).map_err(|what| at_entry(device, index, what))?;
        }
    }
    reader.end().map_err(|what| Fault::malformed(Place::File, format!("device {device}: {what}")))
}

fn at_entry(device: u32, index: usize, what: impl Into<String>) -> Fault {
    Fault::malformed(Place::Entry { device, index: index as u64 }, what)
}

/// What has to be known of the whole trace before its first entry can be read.
#[derive(Debug)]
struct Survey {
    /// How an entry of a free is to be read: a file may lack requests or completions.
    has_completed: bool,
    /// What was reserved before the first entry. `None` where nothing tells of segments.
    start_ranges: Option<Ranges>,
    start_reserved: u64,
    /// Index of the last entry that made a segment at an address.
    born: HashMap<u64, usize>,
}

impl Survey {
    fn new(
        heap: &Heap,
        device: u32,
        entries: &[Value],
        segments: &[RawSegment],
    ) -> Result<Self, Fault> {
        let mut ranges = Ranges::default();
        for segment in segments {
            ranges.add(segment.address, segment.end());
        }
        let mut reserved = Reserved::default();
        let mut born = HashMap::new();
        let mut has_completed = false;
        // Backwards, from the segments that the file shows to those before the first entry.
        for (index, &value) in entries.iter().enumerate().rev() {
            let entry = heap
                .entry(value)
                .ok_or_else(|| at_entry(device, index, "is no trace entry: it has no `action`"))?;
            let took = match entry.action {
                Action::FreeCompleted => {
                    has_completed = true;
                    continue;
                }
                Action::SegmentAlloc | Action::SegmentMap => true,
                Action::SegmentFree | Action::SegmentUnmap => false,
                _ => continue,
            };
            let len = length(entry).map_err(|what| at_entry(device, index, what))?;
            let end = entry.addr.saturating_add(len);
            if took {
                ranges.remove(entry.addr, end);
                born.entry(entry.addr).or_insert(index);
            } else {
                ranges.add(entry.addr, end);
            }
            reserved.step_back(took, len);
        }
        let knows_segments = !segments.is_empty() || reserved.steps > 0;
        let end = segments.iter().map(|segment| i128::from(segment.total_size)).sum();
        let start_reserved = reserved.start(end).ok_or_else(|| {
            Fault::malformed(Place::File, format!("device {device} reserves more than 2^48 bytes"))
        })?;
        Ok(Survey {
            has_completed,
            start_ranges: knows_segments.then_some(ranges),
            start_reserved,
            born,
        })
    }

    /// Whether a tensor can have been live at `addr` before the first entry.
    fn at_start(&self, addr: u64) -> bool {
        self.start_ranges.as_ref().is_none_or(|ranges| ranges.contains(addr))
    }
}

/// The reserved curve relative to its end, followed backwards. Wide enough for any sum of sizes.
#[derive(Debug, Default)]
struct Reserved {
    level: i128,
    lowest: i128,
    highest: i128,
    steps: u64,
}

impl Reserved {
    fn step_back(&mut self, took: bool, len: u64) {
        self.level += if took { -i128::from(len) } else { i128::from(len) };
        self.lowest = self.lowest.min(self.level);
        self.highest = self.highest.max(self.level);
        self.steps += 1;
    }

    /// Bytes before the first entry when there are `end` after the last. A file without segments
    /// says nothing of the end: then the curve is raised until it never goes below zero.
    fn start(&self, end: i128) -> Option<u64> {
        let end = end.max(-self.lowest);
        let highest = end + self.highest;
        let start = u64::try_from(end + self.level).ok()?;
        (highest <= i128::from(MAX_BYTES)).then_some(start)
    }
}

/// Finds the pool of an address in files whose entries have no `pool_id`.
#[derive(Debug)]
struct PoolFinder {
    /// Start, end, index of the first entry that counts, pool; by ascending address. Only segments
    /// outside the default pool, so it is mostly empty.
    segments: Vec<(u64, u64, usize, (u64, u64))>,
}

impl PoolFinder {
    fn new(segments: &[RawSegment], survey: &Survey) -> Self {
        let own = segments.iter().filter(|segment| segment.pool != (0, 0)).map(|segment| {
            // Before that entry another segment lay there, of which nothing is known.
            let born = survey.born.get(&segment.address).copied().unwrap_or(0);
            (segment.address, segment.end(), born, segment.pool)
        });
        PoolFinder { segments: own.collect() }
    }

    fn find(&self, addr: u64, index: usize) -> (u64, u64) {
        let after = self.segments.partition_point(|&(start, ..)| start <= addr);
        match after.checked_sub(1).map(|at| self.segments[at]) {
            Some((_, end, born, pool)) if addr < end && index >= born => pool,
            _ => (0, 0),
        }
    }
}

struct DeviceReader<'a> {
    heap: &'a Heap,
    lives: Lives,
    pools: PoolFinder,
    survey: &'a Survey,
    segments: &'a [RawSegment],
    stacks: &'a mut StackTable,
}

impl DeviceReader<'_> {
    fn entry(&mut self, index: usize, entry: &RawEntry) -> Result<(), String> {
        if let Some(field) = entry.wrong {
            return Err(format!("`{}` has a value of the wrong kind", field.key()));
        }
        self.lives.census.count(entry.action);
        self.lives.census.with_frames += u64::from(entry.frames.is_some());
        self.lives.set_time(entry.has(Field::TimeUs).then_some(entry.time_us));
        match entry.action {
            Action::Alloc => {
                let span = self.span(index, entry)?;
                let stack = self.stack(entry);
                self.lives.alloc(span, stack)?;
            }
            Action::FreeRequested | Action::FreeCompleted => {
                let step = match (entry.action, self.survey.has_completed) {
                    (Action::FreeCompleted, _) => FreeStep::Completed,
                    (_, true) => FreeStep::Requested,
                    (_, false) => FreeStep::Whole,
                };
                let span = self.span(index, entry)?;
                let survey = self.survey;
                self.lives.free(span, step, || survey.at_start(span.addr))?;
            }
            Action::SegmentAlloc | Action::SegmentMap => {
                let place = self.place(index, entry)?;
                let (len, stream) = (length(entry)?, place.stream);
                self.lives.segment(EventKind::SegmentAlloc { len, stream }, place);
            }
            Action::SegmentFree | Action::SegmentUnmap => {
                let place = self.place(index, entry)?;
                let (len, pool) = (length(entry)?, place.pool);
                self.lives.segment(EventKind::SegmentFree { len, pool }, place);
            }
            Action::Oom => {
                let len = length(entry)?;
                let device_free = checked(Field::DeviceFree, entry.device_free)?;
                let pool = entry.pool_id.and_then(|id| pool_id(self.heap, Value::Tuple(id)));
                let place = OomPlace {
                    stream: self.lives.stream(entry.stream)?,
                    pool: self.lives.pool(pool.unwrap_or((0, 0)))?,
                    stack: self.stack(entry),
                };
                self.lives.oom(len, device_free, place);
            }
            Action::Snapshot => self.lives.push_used(EventKind::Snapshot),
            Action::Annotate => self.lives.push_used(EventKind::Annotate),
            Action::Unknown => self.lives.census.skipped_unknown += 1,
        }
        Ok(())
    }

    fn span(&mut self, index: usize, entry: &RawEntry) -> Result<Span, String> {
        if !entry.has(Field::Addr) {
            return Err("has no `addr`".into());
        }
        let pool = match entry.pool_id {
            Some(id) => pool_id(self.heap, Value::Tuple(id)).ok_or("`pool_id` is no pair")?,
            None => self.pools.find(entry.addr, index),
        };
        Ok(Span {
            addr: entry.addr,
            len: length(entry)?,
            stream: self.lives.stream(entry.stream)?,
            pool: self.lives.pool(pool)?,
        })
    }

    /// Where the recorded allocator's own memory came or went.
    fn place(&mut self, index: usize, entry: &RawEntry) -> Result<SegmentPlace, String> {
        let pool = match entry.pool_id {
            Some(id) => pool_id(self.heap, Value::Tuple(id)).unwrap_or((0, 0)),
            None => self.pools.find(entry.addr, index),
        };
        Ok(SegmentPlace {
            address: entry.addr,
            stream: self.lives.stream(entry.stream)?,
            pool: self.lives.pool(pool)?,
            is_mapping: matches!(entry.action, Action::SegmentMap | Action::SegmentUnmap),
        })
    }

    /// The stack of an entry, if it has one.
    fn stack(&mut self, entry: &RawEntry) -> Option<u32> {
        entry.frames.and_then(|list| self.stacks.number(self.heap, list))
    }

    /// Matches the blocks in use after the last entry, and finishes.
    fn end(mut self) -> Result<(DeviceTrace, Details), String> {
        let mut end_segments = Vec::with_capacity(self.segments.len());
        for segment in self.segments {
            let stream = self.lives.stream(segment.stream)?;
            let pool = self.lives.pool(segment.pool)?;
            for (block, &stack) in segment.blocks.iter().zip(&segment.stacks) {
                if block.state != BlockState::Inactive {
                    let (addr, len) = (block.address, block.requested_size);
                    let at_start = self.survey.at_start(addr);
                    let span = Span { addr, len, stream, pool };
                    self.lives.end_block(span, stack, at_start)?;
                }
            }
            end_segments.push(Segment {
                address: segment.address,
                total_size: segment.total_size,
                stream,
                pool,
                is_small: segment.is_small,
                is_expandable: segment.is_expandable,
                blocks: segment.blocks.clone(),
            });
        }
        Ok(self.lives.finish(self.survey.start_reserved, end_segments))
    }
}

fn length(entry: &RawEntry) -> Result<u64, String> {
    if !entry.has(Field::Size) {
        return Err("has no `size`".into());
    }
    checked(Field::Size, entry.size)
}

fn checked(field: Field, number: i64) -> Result<u64, String> {
    match u64::try_from(number) {
        Ok(len) if len <= MAX_BYTES => Ok(len),
        _ => Err(format!("`{}` is {number}, which is no size in bytes", field.key())),
    }
}

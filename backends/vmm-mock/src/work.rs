//! Queued work and what it does to bytes.

use crate::memory::{Memory, Segment};
use crate::observe::Mismatch;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use vmm_core::device::AddrRange;
use vmm_core::units::StreamId;

/// A range that a piece of work uses, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The range.
    pub range: AddrRange,
    /// The use.
    pub kind: AccessKind,
}

impl Access {
    /// Reads the range and forgets what it read.
    #[must_use]
    pub fn read(range: AddrRange) -> Self {
        Self { range, kind: AccessKind::Read }
    }

    /// Writes `byte` all over the range.
    #[must_use]
    pub fn write(range: AddrRange, byte: u8) -> Self {
        Self { range, kind: AccessKind::Write(byte) }
    }

    /// Reads the range and counts what is not `byte`.
    #[must_use]
    pub fn check(range: AddrRange, byte: u8) -> Self {
        Self { range, kind: AccessKind::Check(byte) }
    }
}

/// How a piece of work uses a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes this byte everywhere.
    Write(u8),
    /// It reads and expects this byte everywhere.
    Check(u8),
}

/// Names what [`crate::MockDevice::launch_read`] will have read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadId(pub(crate) u64);

/// What happens to bytes at the end of a piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Fill(Vec<Segment>, u8),
    Write(Vec<Segment>, Arc<[u8]>),
    Copy { to: Vec<Segment>, from: Vec<Segment> },
    Check { stream: StreamId, range: AddrRange, segments: Vec<Segment>, expected: u8 },
    Read(Vec<Segment>, ReadId),
}

#[derive(Debug)]
struct Queued {
    end: u64,
    /// Breaks ties: what was queued first happens first.
    sequence: u64,
    effect: Effect,
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        (self.end, self.sequence) == (other.end, other.sequence)
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.end, self.sequence).cmp(&(other.end, other.sequence))
    }
}

/// Effects that have not happened yet, and what those that have happened found.
#[derive(Debug, Default)]
pub(crate) struct Work {
    queue: BinaryHeap<Reverse<Queued>>,
    sequence: u64,
    next_read: u64,
    reads: HashMap<ReadId, Vec<u8>>,
    pub(crate) mismatches: Vec<Mismatch>,
}

impl Work {
    pub(crate) fn push(&mut self, end: u64, effect: Effect) {
        self.sequence += 1;
        self.queue.push(Reverse(Queued { end, sequence: self.sequence, effect }));
    }

    pub(crate) fn new_read(&mut self) -> ReadId {
        self.next_read += 1;
        ReadId(self.next_read)
    }

    pub(crate) fn take_read(&mut self, id: ReadId) -> Option<Vec<u8>> {
        self.reads.remove(&id)
    }

    /// Lets every effect up to `now` happen, in the order of time.
    pub(crate) fn run_until(&mut self, now: u64, memory: &mut Memory) {
        while self.queue.peek().is_some_and(|Reverse(next)| next.end <= now) {
            let Some(Reverse(next)) = self.queue.pop() else {
                return;
            };
            self.run(next.effect, memory);
        }
    }

    fn run(&mut self, effect: Effect, memory: &mut Memory) {
        match effect {
            Effect::Fill(segments, byte) => {
                for segment in segments {
                    memory.bytes_mut(segment.frame).fill(segment.span(), byte);
                }
            }
            Effect::Write(segments, data) => {
                let mut rest = &data[..];
                for segment in segments {
                    let len = usize::try_from(segment.len).expect("no longer than the data");
                    let (head, tail) = rest.split_at(len);
                    memory.bytes_mut(segment.frame).write(segment.offset, head.into());
                    rest = tail;
                }
            }
            Effect::Copy { to, from } => copy(&to, &from, memory),
            Effect::Check { stream, range, segments, expected } => {
                self.check(stream, range, &segments, expected, memory);
            }
            Effect::Read(segments, id) => {
                let read = |segment: &Segment| memory.bytes(segment.frame).read(segment.span());
                let bytes = segments.iter().map(read).collect::<Vec<_>>().concat();
                self.reads.insert(id, bytes);
            }
        }
    }

    fn check(
        &mut self,
        stream: StreamId,
        range: AddrRange,
        segments: &[Segment],
        expected: u8,
        memory: &Memory,
    ) {
        let mut count = 0;
        let mut first = None;
        for segment in segments {
            let (found, at) = memory.bytes(segment.frame).mismatches(segment.span(), expected);
            count += found;
            first = first
                .or(at.map(|(offset, byte)| (segment.addr.offset(offset - segment.offset), byte)));
        }
        if let Some((first, found)) = first {
            self.mismatches.push(Mismatch { stream, range, expected, first, found, count });
        }
    }
}

/// Copies between two lists of segments of the same total length, cut in different places.
fn copy(to: &[Segment], from: &[Segment], memory: &mut Memory) {
    let mut sources = from.iter().copied();
    let mut source = sources.next();
    for target in to {
        let mut done = 0;
        while done < target.len {
            let Some(piece) = source else { return };
            let len = piece.len.min(target.len - done);
            let part = memory.bytes(piece.frame).cut_out(piece.offset..piece.offset + len);
            memory.bytes_mut(target.frame).paste(target.offset + done, part);
            done += len;
            source = if len == piece.len { sources.next() } else { Some(piece.skip(len)) };
        }
    }
}

//! What a trace says beyond its events: addresses, and the stacks of those who asked.

use std::collections::HashMap;

use crate::model::Trace;
use crate::pickle::{Heap, Value};
use crate::write::Frame;

/// A trace to be looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct DetailedTrace {
    /// What a replay needs.
    pub trace: Trace,
    /// One for each of the trace's devices, in the same order.
    pub details: Vec<Details>,
    /// The stacks that the details refer to.
    pub stacks: Stacks,
}

/// What a replay of one device has no use for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Address of each tensor, by id.
    pub addresses: Vec<u64>,
    /// Who asked for each tensor, by id: an index into [`Stacks`], where the file says.
    pub stacks: Vec<Option<u32>>,
    /// One for each `SegmentAlloc` and `SegmentFree` among the events, in their order.
    pub segments: Vec<SegmentPlace>,
    /// One for each `Oom` among the events, in their order.
    pub ooms: Vec<OomPlace>,
}

/// Where the recorded allocator took or gave back memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentPlace {
    /// First address.
    pub address: u64,
    /// Index of the stream that the memory serves.
    pub stream: u16,
    /// Index of its pool.
    pub pool: u16,
    /// Whether a part of a segment was mapped or unmapped, not a whole one made or released.
    pub is_mapping: bool,
}

/// Who asked for memory in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OomPlace {
    /// Index of the stream.
    pub stream: u16,
    /// Index of the pool.
    pub pool: u16,
    /// Index into [`Stacks`], where the file says.
    pub stack: Option<u32>,
}

/// Stacks, each stored once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stacks {
    frames: Vec<Frame>,
    stacks: Vec<Box<[u32]>>,
}

impl Stacks {
    /// The frames of a stack, innermost first.
    ///
    /// # Panics
    /// For a number that no [`Details`] of the same file has.
    pub fn frames(&self, stack: u32) -> impl DoubleEndedIterator<Item = &Frame> {
        self.stacks[stack as usize].iter().map(|&frame| &self.frames[frame as usize])
    }

    /// How many stacks there are: they have the numbers `0..len`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether the file has no stacks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }
}

/// Numbers the stacks of a file. A list that many entries share is read once, so that the work
/// stays in proportion to the file.
#[derive(Debug, Default)]
pub(crate) struct StackTable {
    of_list: HashMap<u32, Option<u32>>,
    of_frames: HashMap<Box<[u32]>, u32>,
    /// By file, line and function; the strings are the heap's, which holds each once.
    frame_numbers: HashMap<(Option<u32>, i64, Option<u32>), u32>,
    stacks: Stacks,
}

impl StackTable {
    /// The number of the stack that a list of the heap holds; `None` for an empty one.
    pub(crate) fn number(&mut self, heap: &Heap, list: u32) -> Option<u32> {
        if let Some(&number) = self.of_list.get(&list) {
            return number;
        }
        let values = heap.items(Value::List(list)).unwrap_or_default();
        let frames: Box<[u32]> =
            values.iter().filter_map(|&value| self.frame(heap, value)).collect();
        let number = (!frames.is_empty()).then(|| {
            *self.of_frames.entry(frames).or_insert_with_key(|frames| {
                self.stacks.stacks.push(frames.clone());
                // The heap has fewer lists than 2^32, and each makes at most one stack.
                u32::try_from(self.stacks.stacks.len() - 1).expect("lists have 32-bit numbers")
            })
        });
        self.of_list.insert(list, number);
        number
    }

    fn frame(&mut self, heap: &Heap, value: Value) -> Option<u32> {
        let string = |key| match heap.get(value, key) {
            Some(Value::Str(id)) => Some(id),
            _ => None,
        };
        heap.pairs(value)?;
        let (filename, name) = (string("filename"), string("name"));
        let line = match heap.get(value, "line") {
            Some(Value::Int(line)) => line,
            _ => 0,
        };
        let frames = &mut self.stacks.frames;
        Some(*self.frame_numbers.entry((filename, line, name)).or_insert_with(|| {
            let text = |id: Option<u32>| {
                id.and_then(|id| heap.text(Value::Str(id))).unwrap_or("??").to_owned()
            };
            frames.push(Frame {
                filename: text(filename),
                line: u32::try_from(line).unwrap_or(0),
                name: text(name),
            });
            // Each comes from a dict of its own, and those have 32-bit numbers.
            u32::try_from(frames.len() - 1).expect("dicts have 32-bit numbers")
        }))
    }

    pub(crate) fn finish(self) -> Stacks {
        self.stacks
    }
}

//! What a trace is: devices, tensors that were live before it, events in order, and the segments
//! that existed when it was taken.

use crate::census::Census;

/// What was read from one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// File name without `.gz`, `.pickle` and `.csv`.
    pub name: String,
    /// The tool that recorded it.
    pub source: Source,
    /// One for every device that has events or segments, in ascending order of the device.
    pub devices: Vec<DeviceTrace>,
    /// Settings of the recorded allocator, sorted by key. Nested settings are `outer.inner`.
    pub settings: Vec<(String, String)>,
}

/// The tool that recorded a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// `torch.cuda.memory._snapshot()`.
    PyTorch,
    /// The logging resource of RAPIDS RMM.
    Rmm,
}

/// The events of one device.
///
/// A tensor is one allocation: an address that comes back is another tensor with another id.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceTrace {
    /// Index of the device.
    pub device: u32,
    /// Raw stream handles. The `stream` of a tensor, event or segment is an index into this.
    pub streams: Vec<u64>,
    /// Pool ids; index 0 is the default pool (0, 0). The `pool` of a tensor or segment is an index
    /// into this.
    pub pools: Vec<(u64, u64)>,
    /// Tensors have the ids `0..tensor_count`.
    pub tensor_count: u32,
    /// Tensors that were live before the first event, found by walking back from the final segments.
    pub start_live: Vec<StartTensor>,
    /// Reserved bytes before the first event, found likewise.
    pub start_reserved: u64,
    /// Events in the order of the file.
    pub events: Vec<Event>,
    /// Segments when the snapshot was taken, by ascending address. Empty for RMM.
    pub end_segments: Vec<Segment>,
    /// What became of every entry of the file.
    pub census: Census,
}

/// A tensor that was live before the first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartTensor {
    /// Id of the tensor.
    pub id: u32,
    /// Bytes that were asked for.
    pub len: u64,
    /// Index of the stream that allocated it.
    pub stream: u16,
    /// Index of its pool.
    pub pool: u16,
}

/// Something that happened on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Microseconds since the first event of this device; never decreases. Where the file has no
    /// times, entries are one microsecond apart.
    pub time_us: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What an [`Event`] says.
///
/// For every tensor that is freed there is one `FreeRequested` and then at most one `FreeCompleted`,
/// also where the file records only one of the two. Normally the second follows the first directly;
/// if events lie between, another stream was still using the memory (a deferred free). A request
/// without completion was still deferred when the trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A tensor was allocated.
    Alloc {
        /// Id of the new tensor.
        id: u32,
        /// Bytes that were asked for, at least 1.
        len: u64,
        /// Index of the stream that will use it first.
        stream: u16,
        /// Index of its pool.
        pool: u16,
    },
    /// The program let go of a tensor.
    FreeRequested {
        /// Id of the tensor.
        id: u32,
    },
    /// The memory of a tensor became reusable.
    FreeCompleted {
        /// Id of the tensor.
        id: u32,
    },
    /// The recorded allocator took memory from the device (or mapped some into a segment).
    SegmentAlloc {
        /// Bytes.
        len: u64,
        /// Index of the stream that the segment serves.
        stream: u16,
    },
    /// The recorded allocator gave memory back (or unmapped some).
    SegmentFree {
        /// Bytes.
        len: u64,
        /// Index of the pool that they belonged to, where the file says; else 0.
        pool: u16,
    },
    /// An allocation failed.
    Oom {
        /// Bytes that were asked for.
        len: u64,
        /// Free bytes of the device at that moment; 0 where the file does not say.
        device_free: u64,
    },
    /// A snapshot was taken.
    Snapshot,
    /// The program left a note.
    Annotate,
}

/// A segment: a range that the recorded allocator holds from the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Index of its stream.
    pub stream: u16,
    /// Index of its pool.
    pub pool: u16,
    /// Whether it serves small requests only.
    pub is_small: bool,
    /// Whether it grows by mapping.
    pub is_expandable: bool,
    /// Its parts in ascending order; their sizes add up to `total_size`.
    pub blocks: Vec<Block>,
}

/// A part of a [`Segment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes, after the allocator's rounding.
    pub size: u64,
    /// Bytes that were last asked for; equals `size` where the file does not say.
    pub requested_size: u64,
    /// Whether it is in use.
    pub state: BlockState,
}

/// Whether a [`Block`] is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// A tensor lies there.
    Active,
    /// A tensor lay there whose free is deferred.
    PendingFree,
    /// Nothing lies there.
    Inactive,
}

// A trace has millions of events; this keeps a million in 32 MB.
const _: () = assert!(size_of::<Event>() <= 32);

//! Writes snapshots that the viewer of `PyTorch` opens.
//!
//! The viewer is `torch.cuda._memory_viz` and its page <https://pytorch.org/memory_viz>. Every key that it or the
//! documentation of `torch.cuda.memory._snapshot()` names is written, also where it is empty.

mod pickler;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;

pub(crate) use pickler::Pickler;
pub use pickler::Protocol;

use crate::census::Action;
use crate::model::{Block, BlockState};

/// What a snapshot file holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Segments of all devices.
    pub segments: Vec<Segment>,
    /// Entries in order of time, for device 0, 1, 2 ….
    pub device_traces: Vec<Vec<Entry>>,
    /// Settings of the allocator, shown by the viewer as they are.
    pub settings: Vec<(String, String)>,
}

/// A range that the allocator holds from the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Index of the device.
    pub device: u32,
    /// First address.
    pub address: u64,
    /// Stream handle.
    pub stream: u64,
    /// Pool; (0, 0) is the default.
    pub pool: (u64, u64),
    /// Whether it serves small requests only.
    pub is_small: bool,
    /// Whether it grows by mapping.
    pub is_expandable: bool,
    /// Its parts, one behind the other from `address` on. The sum of their sizes is its size.
    pub blocks: Vec<Block>,
}

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What happened. [`Action::Unknown`] is written under the name `unknown`.
    pub action: Action,
    /// Address. For [`Action::Oom`], the free bytes of the device.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Stream handle.
    pub stream: u64,
    /// Microseconds since the epoch.
    pub time_us: u64,
    /// Pool; (0, 0) is the default.
    pub pool: (u64, u64),
    /// Stack, innermost frame first.
    pub frames: Vec<Frame>,
}

/// A line of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// File, as the viewer shows it.
    pub filename: String,
    /// Line in the file, counted from 1.
    pub line: u32,
    /// Function.
    pub name: String,
}

impl Entry {
    /// An entry on stream 0 at time 0, in the default pool, without a stack.
    #[must_use]
    pub fn new(action: Action, addr: u64, size: u64) -> Self {
        Self { action, addr, size, stream: 0, time_us: 0, pool: (0, 0), frames: Vec::new() }
    }
}

impl Segment {
    /// A segment of device 0 and stream 0, in the default pool, for long requests, that does not grow. Its
    /// parts by their size, what of it was requested, and their state, one behind the other.
    #[must_use]
    pub fn new(address: u64, parts: &[(u64, u64, BlockState)]) -> Self {
        let mut end = address;
        let block = |&(size, requested_size, state)| {
            let address = end;
            end += size;
            Block { address, size, requested_size, state }
        };
        let blocks = parts.iter().map(block).collect();
        let (device, stream, pool) = (0, 0, (0, 0));
        Self { device, address, stream, pool, is_small: false, is_expandable: false, blocks }
    }

    /// Bytes: the sum of the sizes of its blocks.
    #[must_use]
    pub fn total_size(&self) -> u64 {
        self.sum(|_| true, |block| block.size)
    }

    fn sum(&self, of: impl Fn(BlockState) -> bool, what: impl Fn(&Block) -> u64) -> u64 {
        self.blocks.iter().filter(|block| of(block.state)).map(what).sum()
    }
}

/// Writes a snapshot to a file, in protocol 4; gzipped if the name ends in `.gz`.
///
/// # Errors
/// Those of the file system. A file that could not be finished is left as it is.
pub fn write_file(path: &Path, snapshot: &Snapshot) -> io::Result<()> {
    let file = BufWriter::new(File::create(path)?);
    let mut file = if path.extension().is_some_and(|ending| ending == "gz") {
        let gzip = GzEncoder::new(file, Compression::default());
        write_snapshot(gzip, snapshot, Protocol::Four)?.finish()?
    } else {
        write_snapshot(file, snapshot, Protocol::Four)?
    };
    file.flush()
}

/// Writes a snapshot as a pickle and gives the writer back.
///
/// # Errors
/// Those of the writer.
pub fn write_snapshot<W: Write>(out: W, snapshot: &Snapshot, protocol: Protocol) -> io::Result<W> {
    let mut pickler = Pickler::new(out, protocol)?;
    pickler.dict(|p| {
        p.str("segments")?;
        p.list(&snapshot.segments, segment)?;
        p.str("device_traces")?;
        p.list(&snapshot.device_traces, |p, trace| p.list(trace, entry))?;
        p.str("allocator_settings")?;
        p.dict(|p| snapshot.settings.iter().try_for_each(|(key, value)| p.str_item(key, value)))?;
        p.str("external_annotations")?;
        p.list(&[] as &[()], |_, ()| Ok(()))
    })?;
    pickler.finish()
}

fn segment<W: Write>(p: &mut Pickler<W>, segment: &Segment) -> io::Result<()> {
    let in_use = |state| state != BlockState::Inactive;
    p.dict(|p| {
        p.int_item("device", segment.device)?;
        p.int_item("address", segment.address)?;
        p.int_item("total_size", segment.total_size())?;
        let allocated = segment.sum(|state| state == BlockState::Active, |block| block.size);
        p.int_item("allocated_size", allocated)?;
        p.int_item("active_size", segment.sum(in_use, |block| block.size))?;
        p.int_item("requested_size", segment.sum(in_use, |block| block.requested_size))?;
        p.int_item("stream", segment.stream)?;
        p.str_item("segment_type", if segment.is_small { "small" } else { "large" })?;
        p.str("segment_pool_id")?;
        p.pair(segment.pool)?;
        p.str("is_expandable")?;
        p.bool(segment.is_expandable)?;
        frames(p, &[])?;
        p.str("blocks")?;
        p.list(&segment.blocks, block)
    })
}

fn block<W: Write>(p: &mut Pickler<W>, block: &Block) -> io::Result<()> {
    p.dict(|p| {
        p.int_item("address", block.address)?;
        p.int_item("size", block.size)?;
        p.int_item("requested_size", block.requested_size)?;
        let state = match block.state {
            BlockState::Active => "active_allocated",
            BlockState::PendingFree => "active_pending_free",
            BlockState::Inactive => "inactive",
        };
        p.str_item("state", state)?;
        frames(p, &[])
    })
}

fn entry<W: Write>(p: &mut Pickler<W>, entry: &Entry) -> io::Result<()> {
    p.dict(|p| {
        p.str_item("action", entry.action.name())?;
        p.int_item(if entry.action == Action::Oom { "device_free" } else { "addr" }, entry.addr)?;
        p.int_item("size", entry.size)?;
        p.int_item("stream", entry.stream)?;
        p.int_item("time_us", entry.time_us)?;
        p.str_item("compile_context", "N/A")?;
        p.str_item("user_metadata", "")?;
        p.str("pool_id")?;
        p.pair(entry.pool)?;
        frames(p, &entry.frames)
    })
}

fn frames<W: Write>(p: &mut Pickler<W>, frames: &[Frame]) -> io::Result<()> {
    p.str("frames")?;
    p.list(frames, |p, frame| {
        p.dict(|p| {
            p.str_item("name", &frame.name)?;
            p.str_item("filename", &frame.filename)?;
            p.int_item("line", frame.line)
        })
    })
}

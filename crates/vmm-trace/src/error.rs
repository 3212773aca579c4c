//! Why a file could not be read. Every message is one line that names the file and says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A position inside a trace file, in the terms that fit the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Byte offset in the data after any gzip layer is taken off.
    Byte(u64),
    /// Index of an entry in the trace of one device, both counted from 0.
    Entry {
        /// Index of the device.
        device: u32,
        /// Index of the entry within that device's trace.
        index: u64,
    },
    /// Index of a segment in the file's list of segments, counted from 0.
    Segment(u64),
    /// Line of a text file, counted from 1.
    Line(u64),
    /// The file as a whole.
    File,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Byte(offset) => write!(f, "byte {offset}"),
            Place::Entry { device, index } => write!(f, "device {device}, entry {index}"),
            Place::Segment(index) => write!(f, "segment {index}"),
            Place::Line(line) => write!(f, "line {line}"),
            Place::File => f.write_str("file"),
        }
    }
}

/// Why a file could not be read.
///
/// A caller with several files reports the error and goes on with the next one: no variant says
/// anything about other files, and none is worth a retry without a change to the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The operating system refused to open or read the file.
    #[error("{}: cannot be read ({source}); check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The file has no bytes, or a snapshot with neither segments nor events.
    #[error("{}: is empty, or holds no segments and no events; record it again with the recording on", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The content is something else than the formats that are read here.
    #[error("{}: not a memory trace ({found}); give a pickled torch.cuda.memory._snapshot() or a CSV log of RMM", path.display())]
    NotASnapshot {
        /// The file.
        path: PathBuf,
        /// What the content looks like.
        found: String,
    },
    /// The pickle wants to import or call something. Nothing of it was executed.
    #[error("{}: byte {offset} imports a name ({name}): not a memory snapshot, possibly hostile, not executed; do not load this file with Python", path.display())]
    Hostile {
        /// The file.
        path: PathBuf,
        /// Byte offset of the opcode, after gzip.
        offset: u64,
        /// The name that it asks for, or the opcode where it gives no name.
        name: String,
    },
    /// The file ends in the middle of a value.
    #[error("{}: ends too early, after byte {offset}; copy or record the file again", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that could be read, after gzip.
        offset: u64,
    },
    /// The content contradicts itself or the format.
    #[error("{}: {place}: {what}; the file is damaged, record it again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        place: Place,
        /// What is wrong there.
        what: String,
    },
    /// Reading on would take more memory than a trace of this length can need.
    #[error("{}: byte {offset}: {what}; not a memory snapshot, or split it into shorter ones", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Byte offset, after gzip.
        offset: u64,
        /// Which bound was met.
        what: &'static str,
    },
    /// A CSV file lacks a column.
    #[error("{}: the column `{missing}` is missing; the first line of an RMM log is Thread,Time,Action,Pointer,Size,Stream", path.display())]
    Columns {
        /// The file.
        path: PathBuf,
        /// The first column that is missing.
        missing: &'static str,
    },
    /// There are segments but no events, so there is nothing to replay.
    #[error("{}: {segments} segments and no allocation, nothing to replay; switch the recording on before the work starts (PyTorch: torch.cuda.memory._record_memory_history())", path.display())]
    NothingToReplay {
        /// The file.
        path: PathBuf,
        /// Segments in the file.
        segments: usize,
    },
}

impl TraceError {
    /// The file that the error is about.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            TraceError::Io { path, .. }
            | TraceError::Empty { path }
            | TraceError::NotASnapshot { path, .. }
            | TraceError::Hostile { path, .. }
            | TraceError::Truncated { path, .. }
            | TraceError::Malformed { path, .. }
            | TraceError::TooLarge { path, .. }
            | TraceError::Columns { path, .. }
            | TraceError::NothingToReplay { path, .. } => path,
        }
    }
}

/// A [`TraceError`] before the name of the file is known: readers see bytes, not paths.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    Empty,
    NotASnapshot(String),
    Hostile { offset: u64, name: String },
    Truncated { offset: u64 },
    Malformed { place: Place, what: String },
    TooLarge { offset: u64, what: &'static str },
    Columns { missing: &'static str },
}

impl Fault {
    pub(crate) fn malformed(place: Place, what: impl Into<String>) -> Self {
        Fault::Malformed { place, what: what.into() }
    }

    /// Sorts an I/O error by what a caller can do: bad data is the file's fault, the rest the system's.
    pub(crate) fn from_io(error: io::Error, offset: u64) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Truncated { offset },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData => {
                Fault::malformed(Place::Byte(offset), error.to_string())
            }
            _ => Fault::Io(error),
        }
    }

    pub(crate) fn in_file(self, path: &Path) -> TraceError {
        let path = path.to_path_buf();
        match self {
            Fault::Io(source) => TraceError::Io { path, source },
            Fault::Empty => TraceError::Empty { path },
            Fault::NotASnapshot(found) => TraceError::NotASnapshot { path, found },
            Fault::Hostile { offset, name } => TraceError::Hostile { path, offset, name },
            Fault::Truncated { offset } => TraceError::Truncated { path, offset },
            Fault::Malformed { place, what } => TraceError::Malformed { path, place, what },
            Fault::TooLarge { offset, what } => TraceError::TooLarge { path, offset, what },
            Fault::Columns { missing } => TraceError::Columns { path, missing },
        }
    }
}

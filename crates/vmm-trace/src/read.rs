//! Opens a file, finds out what it is, and reads it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use crate::details::{DetailedTrace, Stacks};
use crate::error::{Fault, TraceError};
use crate::model::{Source, Trace};
use crate::pickle::{self, Input};
use crate::rmm;
use crate::snapshot::{self, Contents};

/// Deflate never makes more than this many bytes of one.
const MOST_INFLATION: u64 = 1032;

/// How far a file has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the file read so far, before gzip is taken off.
    pub bytes: u64,
    /// Bytes of the file.
    pub total: u64,
}

/// Reads a trace to be replayed.
///
/// `progress` is called every few hundred kilobytes of the file.
///
/// # Errors
/// Every variant of [`TraceError`]; each names the file.
pub fn read_file(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Trace, TraceError> {
    let trace = inspect_file(path, progress)?.trace;
    if trace.event_count() > 0 {
        return Ok(trace);
    }
    let segments = trace.devices.iter().map(|device| device.end_segments.len()).sum();
    Err(TraceError::NothingToReplay { path: path.to_path_buf(), segments })
}

/// Reads a trace to be looked at: as [`read_file`], but segments without events are enough, and with
/// what a replay has no use for: addresses and stacks.
///
/// # Errors
/// Every variant of [`TraceError`] but `NothingToReplay`; each names the file.
pub fn inspect_file(
    path: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<DetailedTrace, TraceError> {
    inspect(path, progress).map_err(|fault| fault.in_file(path))
}

fn inspect(path: &Path, progress: &mut dyn FnMut(Progress)) -> Result<DetailedTrace, Fault> {
    let file = File::open(path).map_err(Fault::Io)?;
    let meta = file.metadata().map_err(Fault::Io)?;
    if meta.is_dir() {
        return Err(Fault::Io(std::io::ErrorKind::IsADirectory.into()));
    }
    // A pipe has no length to check against.
    let total = if meta.is_file() { meta.len() } else { u64::MAX };
    let counted = Counted { file, progress, bytes: 0, total };
    let mut raw = BufReader::with_capacity(256 << 10, counted);
    let is_gzip = raw.fill_buf().map_err(Fault::Io)?.starts_with(&[0x1f, 0x8b]);
    let (mut data, most): (Box<dyn BufRead + '_>, u64) = if is_gzip {
        let plain = BufReader::with_capacity(64 << 10, MultiGzDecoder::new(raw));
        (Box::new(plain), total.saturating_mul(MOST_INFLATION))
    } else {
        (Box::new(raw), total)
    };
    let name = stem(path);
    let (source, contents) = match sniff(data.as_mut())? {
        Kind::Pickle => {
            let mut input = Input::new(Box::new(data), most);
            let (mut heap, root) = pickle::read_pickle(&mut input)?;
            (Source::PyTorch, snapshot::read_snapshot(&mut heap, root)?)
        }
        Kind::Text => {
            let devices = rmm::read_rmm(data)?;
            (Source::Rmm, Contents { devices, settings: Vec::new(), stacks: Stacks::default() })
        }
    };
    let Contents { devices, settings, stacks } = contents;
    if devices.is_empty() {
        return Err(Fault::Empty);
    }
    let (devices, details) = devices.into_iter().unzip();
    Ok(DetailedTrace { trace: Trace { name, source, devices, settings }, details, stacks })
}

enum Kind {
    Pickle,
    Text,
}

/// Tells formats apart by their first bytes; names and endings of files lie too often.
fn sniff(data: &mut dyn BufRead) -> Result<Kind, Fault> {
    let head = data.fill_buf().map_err(|error| Fault::from_io(error, 0))?;
    let other = |found: &str| Err(Fault::NotASnapshot(found.into()));
    match head {
        [] => Err(Fault::Empty),
        [0x80, ..] => Ok(Kind::Pickle),
        [b'P', b'K', 3, 4, ..] => other("a zip archive, as torch.save writes"),
        [0x1f, 0x8b, ..] => other("gzip inside gzip"),
        [b'{' | b'[', ..] => other("JSON"),
        _ if rmm::looks_like_log(head) => Ok(Kind::Text),
        _ => other("neither a pickle of protocol 2 to 5 nor a CSV log"),
    }
}

/// File name without the endings that traces have.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let endings = [".pickle", ".pkl", ".csv", ".log"];
    endings.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name).into()
}

/// Reports how much of a file has been read.
struct Counted<'p> {
    file: File,
    progress: &'p mut dyn FnMut(Progress),
    bytes: u64,
    total: u64,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes += read as u64;
        (self.progress)(Progress { bytes: self.bytes, total: self.total });
        Ok(read)
    }
}

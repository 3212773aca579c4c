//! The CSV log of RMM's logging resource.
//!
//! A log is of one resource and so of one device, and it begins with the resource: nothing was live
//! before. Several threads write it in one order, which is the order of the events.

mod clock;

use std::io::{self, BufRead, Read};

use csv::{ErrorKind, StringRecord};

use self::clock::Clock;
use crate::census::Action;
use crate::details::{Details, OomPlace};
use crate::error::{Fault, Place};
use crate::lives::{FreeStep, Lives, MAX_BYTES, Span};
use crate::model::DeviceTrace;

const COLUMNS: [&str; 6] = ["Thread", "Time", "Action", "Pointer", "Size", "Stream"];
/// Longest line, in bytes. Real ones have about seventy.
const MAX_LINE: usize = 1 << 20;

/// Whether a file that begins with `head` has at least one column of such a log in its first line.
pub(crate) fn looks_like_log(head: &[u8]) -> bool {
    let line = head.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    line.contains(',')
        && line.split(',').any(|cell| COLUMNS.iter().any(|name| is_column(cell, name)))
}

fn is_column(cell: &str, name: &str) -> bool {
    // Spreadsheets put a byte-order mark in front.
    cell.trim_start_matches('\u{feff}').trim().eq_ignore_ascii_case(name)
}

/// Reads a log. Without rows the result has no device.
///
/// # Errors
/// `Columns`, `Truncated`, and `Malformed` with the line.
pub(crate) fn read_rmm(data: impl BufRead) -> Result<Vec<(DeviceTrace, Details)>, Fault> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .from_reader(ShortLines { data, since_end: 0 });
    let header = reader.headers().map_err(|error| csv_fault(error, 0))?;
    let mut columns = [0; COLUMNS.len()];
    for (column, missing) in columns.iter_mut().zip(COLUMNS) {
        *column = header
            .iter()
            .position(|cell| is_column(cell, missing))
            .ok_or(Fault::Columns { missing })?;
    }
    let mut log = Log { lives: Lives::new(0, 0), clock: Clock::default() };
    let mut record = StringRecord::new();
    loop {
        let offset = reader.position().byte();
        if !reader.read_record(&mut record).map_err(|error| csv_fault(error, offset))? {
            break;
        }
        let line = record.position().map_or(0, csv::Position::line);
        let [_, time, action, pointer, size, stream] =
            columns.map(|column| record.get(column).unwrap_or_default());
        log.row(time, action, pointer, size, stream)
            .map_err(|what| Fault::malformed(Place::Line(line), what))?;
    }
    if log.lives.census.entries() == 0 {
        return Ok(Vec::new());
    }
    Ok(vec![log.lives.finish(0, Vec::new())])
}

struct Log {
    lives: Lives,
    clock: Clock,
}

impl Log {
    fn row(
        &mut self,
        time: &str,
        action: &str,
        pointer: &str,
        size: &str,
        stream: &str,
    ) -> Result<(), String> {
        let action = match action {
            "allocate" => Action::Alloc,
            "free" | "deallocate" => Action::FreeRequested,
            "allocate failure" => Action::Oom,
            _ => Action::Unknown,
        };
        self.lives.census.count(action);
        let time = self.clock.read(time)?;
        self.lives.set_time(Some(time));
        if action == Action::Unknown {
            self.lives.census.skipped_unknown += 1;
            return Ok(());
        }
        let len = length(size)?;
        if action == Action::Oom {
            let stream = number(stream).unwrap_or(0);
            let stream = self.lives.stream(stream)?;
            self.lives.oom(len, 0, OomPlace { stream, pool: 0, stack: None });
            return Ok(());
        }
        let addr = address(pointer)?;
        let stream = number(stream).ok_or_else(|| format!("the stream {stream:?} is no handle"))?;
        let mut span = Span { addr, len, stream: self.lives.stream(stream)?, pool: 0 };
        if action == Action::Alloc {
            if addr == 0 && len > 0 {
                return Err(format!("allocates {len} bytes at no address"));
            }
            return self.lives.alloc(span, None);
        }
        if addr == 0 {
            // To free nothing is allowed, whatever size stands beside it.
            span.len = 0;
        }
        self.lives.free(span, FreeStep::Whole, || false)
    }
}

fn length(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(len) if len <= MAX_BYTES => Ok(len),
        _ => Err(format!("the size {text:?} is no number of bytes up to 2^48")),
    }
}

fn address(text: &str) -> Result<u64, String> {
    if matches!(text, "(nil)" | "(null)" | "nullptr") {
        return Ok(0);
    }
    number(text).ok_or_else(|| format!("the pointer {text:?} is no address"))
}

/// A decimal number, or a hexadecimal one with or without `0x`.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| u64::from_str_radix(text, 16).ok()),
    }
}

fn csv_fault(error: csv::Error, offset: u64) -> Fault {
    let line = error.position().map_or(Place::File, |position| Place::Line(position.line()));
    match error.into_kind() {
        ErrorKind::Io(error) => Fault::from_io(error, offset),
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            Fault::malformed(line, format!("has {len} fields, not {expected_len}"))
        }
        ErrorKind::Utf8 { .. } => Fault::malformed(line, "is not UTF-8 text"),
        _ => Fault::malformed(line, "is no CSV"),
    }
}

/// Refuses endless lines: the CSV reader keeps a whole line in memory.
struct ShortLines<R> {
    data: R,
    since_end: usize,
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.data.read(buffer)?;
        self.since_end = match buffer[..read].iter().rposition(|&byte| byte == b'\n') {
            Some(end) => read - end,
            None => self.since_end + read,
        };
        if self.since_end > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line longer than 1 MiB"));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests;

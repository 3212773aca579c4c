//! Reads what is to be looked at.

use crate::exit::Exit;
use crate::inputs::trace_files;
use crate::options::RecordingOptions;
use crate::policies::policies;
use crate::progress::Progress;
use crate::terminal::Terminal;
use std::path::Path;
use vmm_report::{PolicyRow, Recorded};
use vmm_trace::{DetailedTrace, Place, TraceError, inspect_file};

/// Shows each device of all inputs, by its index among those of its file, and what policies need for it.
/// What cannot be read is named and left out.
pub(crate) fn each_device(
    options: &RecordingOptions,
    terminal: Terminal,
    see: &mut dyn FnMut(&DetailedTrace, usize, Vec<PolicyRow>),
) -> Exit {
    let shows_progress = terminal.shows_progress && !options.no_progress;
    let mut exit = Exit::Success;
    for input in &options.inputs {
        let files = trace_files(input).unwrap_or_else(|line| {
            exit = exit.worse(bad_input(&line));
            Vec::new()
        });
        for path in files {
            let file = match read(&path, shows_progress) {
                Ok(file) => file,
                Err(error) => {
                    exit = exit.worse(bad_input(&unreadable(&error)));
                    continue;
                }
            };
            for index in 0..file.trace.devices.len() {
                let rows = if options.no_replay {
                    Vec::new()
                } else {
                    let recorded = Recorded::new(&file, index);
                    policies(&file.trace.name, &recorded, &options.policies, shows_progress)
                };
                see(&file, index, rows);
            }
        }
    }
    exit
}

/// Reads a file with addresses and stacks.
fn read(path: &Path, shows_progress: bool) -> Result<DetailedTrace, TraceError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let progress = Progress::begin(format!("reading {name}"), shows_progress);
    inspect_file(path, &mut |state| progress.at(state.bytes, state.total))
}

/// Why a file cannot be read, in one line. Where it is gzipped, its bytes are counted unpacked.
pub(crate) fn unreadable(error: &TraceError) -> String {
    let names_a_byte = matches!(
        error,
        TraceError::Hostile { .. }
            | TraceError::Truncated { .. }
            | TraceError::TooLarge { .. }
            | TraceError::Malformed { place: Place::Byte(_), .. }
    );
    let is_packed = error.path().extension().is_some_and(|ending| ending == "gz");
    match names_a_byte && is_packed {
        true => format!("{error} (the byte is counted in the unpacked content)"),
        false => error.to_string(),
    }
}

/// Prints one line about an input that is of no use.
pub(crate) fn bad_input(line: &str) -> Exit {
    eprintln!("error: {line}");
    Exit::BadInput
}

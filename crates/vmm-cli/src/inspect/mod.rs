//! `vmm inspect`.

mod show;

use crate::exit::Exit;
use crate::inputs::{tell_apart, trace_files};
use crate::options::InspectOptions;
use crate::policies::policies;
use crate::progress::Progress;
use crate::terminal::Terminal;
use std::path::Path;
use vmm_report::{Inspection, Recorded};
use vmm_trace::{DetailedTrace, TraceError, inspect_file};

/// Looks at all inputs and prints what was found.
pub(crate) fn run(options: &InspectOptions, terminal: Terminal) -> Exit {
    let shows_progress = terminal.shows_progress && !options.no_progress;
    let mut exit = Exit::Success;
    let mut found = Vec::new();
    for input in &options.inputs {
        let files = match trace_files(input) {
            Ok(files) => files,
            Err(line) => {
                eprintln!("error: {line}");
                exit = exit.worse(Exit::BadInput);
                continue;
            }
        };
        for path in files {
            match read(&path, shows_progress) {
                Ok(file) => found.extend(inspect(&file, !options.no_replay, shows_progress)),
                Err(error) => {
                    eprintln!("error: {error}");
                    exit = exit.worse(Exit::BadInput);
                }
            }
        }
    }
    tell_apart(found.iter_mut().map(|inspection| &mut inspection.name));
    if options.json {
        // Numbers and strings only: JSON can say all of it.
        let mut text = serde_json::to_string_pretty(&found).expect("numbers and strings");
        text.push('\n');
        return exit.worse(terminal.print(&text));
    }
    let mut texts: Vec<String> =
        found.iter().map(|inspection| show::text(inspection, terminal.coloured)).collect();
    if found.len() > 1 {
        texts.push(show::overview(&found, terminal.coloured));
    }
    if texts.is_empty() { exit } else { exit.worse(terminal.print(&texts.join("\n"))) }
}

/// Reads a file with addresses and stacks.
pub(crate) fn read(path: &Path, shows_progress: bool) -> Result<DetailedTrace, TraceError> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let progress = Progress::begin(format!("reading {name}"), shows_progress);
    inspect_file(path, &mut |state| progress.at(state.bytes, state.total))
}

fn inspect(file: &DetailedTrace, replays: bool, shows_progress: bool) -> Vec<Inspection> {
    let devices = 0..file.trace.devices.len();
    devices
        .map(|index| {
            let rows = if replays {
                policies(&file.trace.name, &Recorded::new(file, index), shows_progress)
            } else {
                Vec::new()
            };
            Inspection::new(file, index, rows)
        })
        .collect()
}

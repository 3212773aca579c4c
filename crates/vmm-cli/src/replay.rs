//! `vmm replay`.

use crate::device::ReplayDevice;
use crate::exit::Exit;
use crate::inputs::trace_files;
use crate::options::ReplayOptions;
use crate::progress::Progress;
use crate::recordings::{bad_input, unreadable};
use crate::report;
use crate::terminal::Terminal;
use std::path::Path;
use vmm_replay::{
    Amount, ReplayError, ReplayResult, ReplaySettings, if_it_works, smallest_multiple,
};
use vmm_trace::{DeviceTrace, Trace, read_file};

/// Replays all inputs, prints a table or JSON, and says how it went.
pub(crate) fn run(options: &ReplayOptions, terminal: Terminal) -> Exit {
    let device = match ReplayDevice::open(&options.device, options.costs.as_deref()) {
        Ok(device) => device,
        Err(line) => {
            eprintln!("error: {line}");
            return Exit::BadInput;
        }
    };
    let command = Command {
        options,
        device,
        settings: settings(options),
        shows_progress: terminal.shows_progress && !options.no_progress,
    };
    let mut exit = Exit::Success;
    let mut results = Vec::new();
    for input in &options.inputs {
        match trace_files(input) {
            Ok(files) => {
                for file in &files {
                    exit = exit.worse(command.file(file, &mut results));
                }
            }
            Err(line) => exit = exit.worse(bad_input(&line)),
        }
    }
    if results.iter().any(|r| r.failures > 0 || r.check.as_ref().is_some_and(|c| !c.is_clean())) {
        exit = exit.worse(Exit::Failures);
    }
    if options.json {
        exit.worse(terminal.print(&report::json(&results)))
    } else if results.is_empty() {
        exit
    } else {
        exit.worse(terminal.print(&report::table(&results, terminal.coloured)))
    }
}

fn settings(options: &ReplayOptions) -> ReplaySettings {
    ReplaySettings {
        placement: options.placement,
        limit: options.limit,
        target: options.target,
        lag: options.lag,
        busy: options.busy,
        cross_stream: options.cross_stream.into(),
        upkeep: options.maintenance.into(),
        ..ReplaySettings::default()
    }
}

struct Command<'a> {
    options: &'a ReplayOptions,
    device: ReplayDevice,
    settings: ReplaySettings,
    shows_progress: bool,
}

impl Command<'_> {
    /// Replays every device of a file and adds the results.
    fn file(&self, path: &Path, results: &mut Vec<ReplayResult>) -> Exit {
        let trace = match self.read(path) {
            Ok(trace) => trace,
            Err(error) => return bad_input(&unreadable(&error)),
        };
        let devices: Vec<&DeviceTrace> =
            trace.devices.iter().filter(|device| !device.events.is_empty()).collect();
        let mut exit = Exit::Success;
        for device in &devices {
            let name = match devices.len() {
                1 => trace.name.clone(),
                _ => format!("{}#{}", trace.name, device.device),
            };
            match self.one(&name, device) {
                Ok(Some(mut result)) => {
                    result.trace = name;
                    result.device = self.options.device.to_string();
                    results.push(result);
                }
                Ok(None) => {
                    let shown = path.display();
                    eprintln!("error: {shown}: no limit up to 1000 times what {name} needs works");
                    exit = exit.worse(Exit::Failures);
                }
                Err(error) => {
                    let line = format!("{}: {}", path.display(), advice(&error));
                    exit = exit.worse(bad_input(&line));
                }
            }
        }
        exit
    }

    fn read(&self, path: &Path) -> Result<Trace, vmm_trace::TraceError> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let progress = Progress::begin(format!("reading {name}"), self.shows_progress);
        read_file(path, &mut |state| progress.at(state.bytes, state.total))
    }

    /// Replays one device; `None` if a smallest limit was searched for and there is none.
    fn one(&self, name: &str, trace: &DeviceTrace) -> Result<Option<ReplayResult>, ReplayError> {
        if !self.options.budget {
            return self.replay(name, trace, &self.settings).map(Some);
        }
        let found = smallest_multiple(|multiple| {
            let settings = ReplaySettings {
                limit: Some(Amount::OfPeak(multiple)),
                stop_at_failure: true,
                ..self.settings.clone()
            };
            if_it_works(self.replay(&format!("{name} at {multiple:.3}x"), trace, &settings))
        })?;
        Ok(found.map(|result| ReplayResult { budget_bytes: result.limit_bytes, ..result }))
    }

    fn replay(
        &self,
        what: &str,
        trace: &DeviceTrace,
        settings: &ReplaySettings,
    ) -> Result<ReplayResult, ReplayError> {
        let progress = Progress::begin(format!("replaying {what}"), self.shows_progress);
        let mut report = |done: usize, total: usize| progress.at(done as u64, total as u64);
        // A search asks where allocations fail; the last replay, with the limit found, is checked.
        let checked = self.options.check && !settings.stop_at_failure;
        self.device.replay(trace, settings, checked, &mut report)
    }
}

/// The error and what to do about it, in one line.
pub(crate) fn advice(error: &ReplayError) -> String {
    match error {
        ReplayError::NothingRecorded => {
            format!("{error}; record it anew, with the history switched on before the work starts")
        }
        ReplayError::TooManyStreams(_) => format!("{error}; the file is damaged, record it again"),
        ReplayError::LimitBelowAllocation { needed, .. } => {
            format!("{error}; give a limit of at least {}MiB, or 1x", needed.div_ceil(1 << 20))
        }
        ReplayError::Stream(_)
        | ReplayError::Pool(_)
        | ReplayError::TooManyPrivatePools(_)
        | ReplayError::PrivatePool { .. }
        | ReplayError::Device(_)
        | ReplayError::Contents { .. }
        | ReplayError::Checks(_) => error.to_string(),
    }
}

//! `vmm compare`.

mod parallel;
mod show;

use crate::exit::Exit;
use crate::inputs::trace_files;
use crate::options::CompareOptions;
use crate::outcome::{Ask, Outcome};
use crate::policy::{Manager, PolicyOption};
use crate::progress::Progress;
use crate::recordings::{bad_input, unreadable};
use crate::terminal::Terminal;
use parallel::{all_cores, in_parallel};
use std::path::PathBuf;
use vmm_trace::{DeviceTrace, Trace, read_file};

/// How many times longer a replay on the pool takes than a run of a model, roughly; only the order of
/// the work depends on it.
const POOL_WEIGHT: u64 = 6;

/// Compares the policies on all inputs, prints a table, and says how it went.
pub(crate) fn run(options: &CompareOptions, terminal: Terminal) -> Exit {
    let mut policies = Vec::new();
    let named = match options.policies.as_slice() {
        [] => PolicyOption::compared(),
        named => named.to_vec(),
    };
    for policy in named {
        // What is named twice is compared once.
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let comparison = Comparison {
        options,
        policies,
        shows_progress: terminal.shows_progress && !options.no_progress,
    };
    let mut exit = Exit::Success;
    let traces = comparison.read(&mut exit);
    let outcomes = comparison.run(&traces, &mut exit);
    if outcomes.iter().flatten().any(|outcome| outcome.failures() > 0) {
        exit = exit.worse(Exit::Failures);
    }
    let with_budget = !options.no_budget;
    let text = if options.json {
        show::json(&outcomes)
    } else if options.csv {
        // Its lines have no place for a remark.
        show::left_out(&outcomes).iter().for_each(|line| eprintln!("note: {line}"));
        show::csv(&outcomes)
    } else if outcomes.is_empty() {
        return exit;
    } else if options.markdown {
        show::markdown(&outcomes, options.sort, with_budget)
    } else {
        show::table(&outcomes, options.sort, with_budget, terminal.coloured)
    };
    exit.worse(terminal.print(&text))
}

struct Comparison<'a> {
    options: &'a CompareOptions,
    policies: Vec<PolicyOption>,
    shows_progress: bool,
}

/// One device of a trace under its name.
struct Recording<'a> {
    name: String,
    trace: &'a DeviceTrace,
}

/// A recording and a policy, by their indices.
struct Task {
    recording: usize,
    policy: usize,
    /// About how long it takes, in no unit.
    weight: u64,
}

impl Comparison<'_> {
    fn read(&self, exit: &mut Exit) -> Vec<Trace> {
        let mut files: Vec<PathBuf> = Vec::new();
        for input in &self.options.inputs {
            match trace_files(input) {
                Ok(found) => files.extend(found),
                Err(line) => *exit = exit.worse(bad_input(&line)),
            }
        }
        let progress = Progress::begin("reading traces".to_owned(), self.shows_progress);
        let (mut done, total) = (0, files.len() as u64);
        let read = in_parallel(
            &files,
            self.jobs(),
            |file| read_file(file, &mut |_| ()),
            |_| {
                done += 1;
                progress.at(done, total);
            },
        );
        drop(progress);
        let read = read.into_iter().filter_map(|trace| match trace {
            Ok(trace) => Some(trace),
            Err(error) => {
                *exit = exit.worse(bad_input(&unreadable(&error)));
                None
            }
        });
        read.collect()
    }

    /// The outcomes of each recording, in the order of the policies. What cannot be replayed is named
    /// and left out.
    fn run(&self, traces: &[Trace], exit: &mut Exit) -> Vec<Vec<Outcome>> {
        let recordings = recordings(traces);
        let mut tasks = Vec::new();
        for (recording, Recording { trace, .. }) in recordings.iter().enumerate() {
            for (policy, PolicyOption { manager, .. }) in self.policies.iter().enumerate() {
                let factor = if matches!(manager, Manager::Pool { .. }) { POOL_WEIGHT } else { 1 };
                let weight = factor * (trace.events.len() as u64 + 1);
                tasks.push(Task { recording, policy, weight });
            }
        }
        // What takes long begins first, so that no thread is left alone with it at the end.
        tasks.sort_by_key(|task| std::cmp::Reverse(task.weight));
        let progress = Progress::begin("comparing".to_owned(), self.shows_progress);
        let (mut done, total) = (0, tasks.iter().map(|task| task.weight).sum());
        let work = |task: &Task| self.one(&recordings[task.recording], &self.policies[task.policy]);
        let results = in_parallel(&tasks, self.jobs(), work, |task| {
            done += task.weight;
            progress.at(done, total);
        });
        drop(progress);
        let mut results: Vec<(Task, Result<Outcome, String>)> =
            tasks.into_iter().zip(results).collect();
        results.sort_by_key(|(task, _)| (task.recording, task.policy));
        let mut outcomes: Vec<Vec<Outcome>> = recordings.iter().map(|_| Vec::new()).collect();
        for (task, result) in results {
            match result {
                Ok(outcome) => outcomes[task.recording].push(outcome),
                Err(line) => *exit = exit.worse(bad_input(&line)),
            }
        }
        outcomes.retain(|of_recording| !of_recording.is_empty());
        outcomes
    }

    fn jobs(&self) -> std::num::NonZeroUsize {
        self.options.jobs.unwrap_or_else(all_cores)
    }

    fn one(&self, recording: &Recording<'_>, policy: &PolicyOption) -> Result<Outcome, String> {
        let ask = Ask {
            lag: self.options.lag,
            with_budget: !self.options.no_budget,
            curve_samples: None,
        };
        match Outcome::measure(recording.trace, policy, &ask, &mut |_, _| ()) {
            Ok(outcome) => Ok(outcome.named(&recording.name, &policy.to_string())),
            Err(line) => Err(format!("{}, {policy}: {line}", recording.name)),
        }
    }
}

/// Every device that did something.
fn recordings(traces: &[Trace]) -> Vec<Recording<'_>> {
    let mut recordings = Vec::new();
    for trace in traces {
        let devices: Vec<&DeviceTrace> =
            trace.devices.iter().filter(|device| !device.events.is_empty()).collect();
        for device in &devices {
            let name = match devices.len() {
                1 => trace.name.clone(),
                _ => format!("{}#{}", trace.name, device.device),
            };
            recordings.push(Recording { name, trace: device });
        }
    }
    recordings
}

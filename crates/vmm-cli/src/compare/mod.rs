//! `vmm compare`.

mod outcome;
mod parallel;
mod policy;
mod show;

pub use policy::{ComparedPolicy, Manager};

use crate::device::replay_on_mock;
use crate::exit::Exit;
use crate::inputs::trace_files;
use crate::options::CompareOptions;
use crate::progress::Progress;
use crate::replay::advice;
use crate::terminal::Terminal;
use outcome::Outcome;
use parallel::{all_cores, in_parallel};
use std::path::PathBuf;
use vmm_mock::CostModel;
use vmm_models::{Costs, RunSettings};
use vmm_replay::{Amount, Policy, ReplaySettings, if_it_works, smallest_multiple};
use vmm_trace::{DeviceTrace, Trace, read_file};

/// How many times longer a replay on the pool takes than a run of a model, roughly; only the order of
/// the work depends on it.
const POOL_WEIGHT: u64 = 6;

/// Compares the policies on all inputs, prints a table, and says how it went.
pub(crate) fn run(options: &CompareOptions, terminal: Terminal) -> Exit {
    let mut policies = Vec::new();
    let named = match options.policies.as_slice() {
        [] => ComparedPolicy::defaults(),
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
    policies: Vec<ComparedPolicy>,
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
                *exit = exit.worse(bad_input(&error.to_string()));
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
            for (policy, ComparedPolicy { manager, .. }) in self.policies.iter().enumerate() {
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

    fn one(&self, recording: &Recording<'_>, policy: &ComparedPolicy) -> Result<Outcome, String> {
        let outcome = match policy.manager {
            Manager::Pool { policy: served, target } => {
                self.pool(recording.trace, policy.limit, served, target)
            }
            Manager::Model(model) => self.model(recording.trace, policy.limit, model),
        };
        match outcome {
            Ok((outcome, budget)) => {
                Ok(outcome.named(&recording.name, &policy.to_string(), budget))
            }
            Err(line) => Err(format!("{}, {policy}: {line}", recording.name)),
        }
    }

    fn pool(
        &self,
        trace: &DeviceTrace,
        limit: Option<Amount>,
        policy: Policy,
        target: Option<Amount>,
    ) -> Result<(Outcome, Option<u64>), String> {
        let lag = self.options.lag;
        let settings = ReplaySettings { policy, limit, target, lag, ..ReplaySettings::default() };
        let replay = |settings: &ReplaySettings| {
            replay_on_mock(trace, settings, &CostModel::h200(), false, &mut |_, _| ())
        };
        let result = replay(&settings).map_err(|error| advice(&error))?;
        let found = self.search(limit, |multiple| {
            let settings = ReplaySettings {
                limit: Some(Amount::OfPeak(multiple)),
                stop_at_failure: true,
                ..settings.clone()
            };
            let works = if_it_works(replay(&settings)).map_err(|error| advice(&error))?;
            Ok(works.and_then(|result| result.limit_bytes))
        })?;
        Ok((Outcome::of_pool(result), found))
    }

    fn model(
        &self,
        trace: &DeviceTrace,
        limit: Option<Amount>,
        policy: vmm_models::Policy,
    ) -> Result<(Outcome, Option<u64>), String> {
        let costs = Costs::h200().with_lag(self.options.lag);
        let settings = RunSettings { limit, costs, ..RunSettings::default() };
        let run = |settings: &RunSettings| {
            vmm_models::run(trace, &policy, settings, &mut |_, _| ()).map_err(|e| e.to_string())
        };
        let result = run(&settings)?;
        let found = self.search(limit, |multiple| {
            let settings = RunSettings {
                limit: Some(Amount::OfPeak(multiple)),
                stop_at_failure: true,
                ..settings.clone()
            };
            let result = run(&settings)?;
            Ok((result.failures == 0).then_some(result.limit_bytes).flatten())
        })?;
        let mixes_pools = trace.pools.len() > 1 && !policy.keeps_pools_apart();
        Ok((Outcome::of_model(result, policy.fidelity(), mixes_pools), found))
    }

    /// The smallest limit in bytes that works, where it is asked for: not under a limit of its own.
    /// `works` gives the bytes of a multiple that does.
    fn search(
        &self,
        limit: Option<Amount>,
        works: impl FnMut(f64) -> Result<Option<u64>, String>,
    ) -> Result<Option<u64>, String> {
        if self.options.no_budget || limit.is_some() {
            return Ok(None);
        }
        smallest_multiple(works)
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

fn bad_input(line: &str) -> Exit {
    eprintln!("error: {line}");
    Exit::BadInput
}

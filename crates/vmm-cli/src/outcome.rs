//! What came of one trace under one policy.

use crate::device::replay_on_mock;
use crate::policy::{Manager, PolicyOption};
use crate::replay::advice;
use serde::Serialize;
use std::num::NonZeroUsize;
use std::time::Duration;
use vmm_mock::CostModel;
use vmm_models::{Costs, ModelResult, Policy, RunSettings};
use vmm_replay::{
    Amount, OpCalls, Placed, ReplayResult, ReplaySettings, Sample, if_it_works, smallest_multiple,
};
use vmm_trace::DeviceTrace;

/// What is to be found out about a trace under a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    /// How far the device runs behind the host.
    pub(crate) lag: Duration,
    /// Whether the smallest limit that works is searched, where the policy has none.
    pub(crate) with_budget: bool,
    /// About how many samples of the memory in use are kept.
    pub(crate) curve_samples: Option<NonZeroUsize>,
}

/// The figures of a trace under a policy, and how far they are to be believed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    figures: Figures,
    /// What a model was checked against; `None` for this pool, which is no model.
    checked: Option<&'static str>,
    /// What came of the check.
    #[serde(skip)]
    pub(crate) remark: Option<&'static str>,
    /// What is to be known of its figures for this trace.
    #[serde(skip)]
    pub(crate) caveats: Vec<&'static str>,
}

/// Of a trace with pools of captured graphs, where a model puts all in one.
const MIXES_POOLS: &str = "pools of captured graphs are not kept apart, so it may need more";

/// Of RMM's pool, which grows to twice its length where nothing limits it.
const GROWS_OTHERWISE: &str = "under a limit it grows in other steps, by half of what is left, and needs \
                               a larger limit than what it reserves without one";

/// Both kinds have the same keys.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    Pool(Box<ReplayResult>),
    Model(Box<ModelResult>),
}

/// What both kinds say: a field, or a call without arguments.
macro_rules! field {
    ($outcome:expr, $($what:tt)+) => {
        match &$outcome.figures {
            Figures::Pool(result) => result.$($what)+,
            Figures::Model(result) => result.$($what)+,
        }
    };
}

impl Outcome {
    /// Replays the trace on this pool, on a mock H200, or runs the model. `progress` gets the number of
    /// events so far and of all, and begins anew with each limit that is tried.
    ///
    /// # Errors
    /// One line that says why it cannot be replayed.
    pub(crate) fn measure(
        trace: &DeviceTrace,
        policy: &PolicyOption,
        ask: &Ask,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, String> {
        match policy.manager {
            Manager::Pool { placement, target } => {
                Self::of_pool(trace, policy.limit, (placement, target), ask, progress)
            }
            Manager::Model(model) => Self::of_model(trace, policy.limit, model, ask, progress),
        }
    }

    fn of_pool(
        trace: &DeviceTrace,
        limit: Option<Amount>,
        (placement, target): (Option<Placed>, Option<Amount>),
        ask: &Ask,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, String> {
        let Ask { lag, curve_samples, .. } = *ask;
        let free = ReplaySettings {
            placement,
            limit,
            target,
            lag,
            curve_samples,
            ..ReplaySettings::default()
        };
        let mut replay = |settings: &ReplaySettings| {
            replay_on_mock(trace, settings, &CostModel::h200(), false, progress)
        };
        let mut result = replay(&free).map_err(|error| advice(&error))?;
        result.budget_bytes = ask.search(limit, |multiple| {
            let settings = ReplaySettings {
                limit: Some(Amount::OfPeak(multiple)),
                stop_at_failure: true,
                curve_samples: None,
                ..free.clone()
            };
            let works = if_it_works(replay(&settings)).map_err(|error| advice(&error))?;
            Ok(works.and_then(|result| result.limit_bytes))
        })?;
        "mock".clone_into(&mut result.device);
        let figures = Figures::Pool(Box::new(result));
        Ok(Self { figures, checked: None, remark: None, caveats: Vec::new() })
    }

    fn of_model(
        trace: &DeviceTrace,
        limit: Option<Amount>,
        model: Policy,
        ask: &Ask,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, String> {
        let Ask { lag, curve_samples, .. } = *ask;
        let costs = Costs::h200().with_lag(lag);
        let free = RunSettings { limit, costs, curve_samples, ..RunSettings::default() };
        let mut run = |settings: &RunSettings| {
            vmm_models::run(trace, &model, settings, progress).map_err(|error| error.to_string())
        };
        let mut result = run(&free)?;
        result.budget_bytes = ask.search(limit, |multiple| {
            let settings = RunSettings {
                limit: Some(Amount::OfPeak(multiple)),
                stop_at_failure: true,
                curve_samples: None,
                ..free.clone()
            };
            let result = run(&settings)?;
            Ok((result.failures == 0).then_some(result.limit_bytes).flatten())
        })?;
        let (fidelity, remark) = model.fidelity();
        let mut caveats = Vec::new();
        if trace.pools.len() > 1 && !model.keeps_pools_apart() {
            caveats.push(MIXES_POOLS);
        }
        if matches!(model, Policy::RmmPool { .. })
            && result.budget_bytes > Some(result.peak_reserved_bytes)
        {
            caveats.push(GROWS_OTHERWISE);
        }
        Ok(Self {
            figures: Figures::Model(Box::new(result)),
            checked: Some(fidelity.name()),
            remark: Some(remark),
            caveats,
        })
    }

    /// Gives it names.
    pub(crate) fn named(mut self, trace: &str, policy: &str) -> Self {
        let (its_trace, its_policy) = match &mut self.figures {
            Figures::Pool(result) => (&mut result.trace, &mut result.policy),
            Figures::Model(result) => (&mut result.trace, &mut result.policy),
        };
        trace.clone_into(its_trace);
        policy.clone_into(its_policy);
        self
    }

    pub(crate) fn trace(&self) -> &str {
        match &self.figures {
            Figures::Pool(result) => &result.trace,
            Figures::Model(result) => &result.trace,
        }
    }

    pub(crate) fn policy(&self) -> &str {
        match &self.figures {
            Figures::Pool(result) => &result.policy,
            Figures::Model(result) => &result.policy,
        }
    }

    /// The word for what the model was checked against; empty for this pool.
    pub(crate) fn checked(&self) -> &'static str {
        self.checked.unwrap_or_default()
    }

    pub(crate) fn needed_bytes(&self) -> u64 {
        field!(self, peak_requested_bytes)
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        field!(self, peak_reserved_bytes)
    }

    pub(crate) fn recorded_bytes(&self) -> Option<u64> {
        field!(self, recorded_peak_reserved_bytes)
    }

    pub(crate) fn ratio(&self) -> Option<f64> {
        field!(self, reserved_ratio())
    }

    /// The smallest limit that works, where it was searched for and found.
    pub(crate) fn budget_bytes(&self) -> Option<u64> {
        field!(self, budget_bytes)
    }

    /// The same over what the program needs.
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits behind the point")]
    pub(crate) fn budget(&self) -> Option<f64> {
        let needed = self.needed_bytes();
        self.budget_bytes().filter(|_| needed > 0).map(|bytes| bytes as f64 / needed as f64)
    }

    pub(crate) fn driver_calls(&self) -> u64 {
        field!(self, driver_calls)
    }

    pub(crate) fn driver_us(&self) -> f64 {
        field!(self, driver_time_us)
    }

    /// Driver time as a share of the duration.
    pub(crate) fn driver_share(&self) -> Option<f64> {
        field!(self, driver_share())
    }

    /// Driver time that 999 of 1000 allocations did not exceed.
    pub(crate) fn tail_us(&self) -> f64 {
        field!(self, tail_allocation_us)
    }

    pub(crate) fn worst_us(&self) -> f64 {
        field!(self, worst_allocation_us)
    }

    pub(crate) fn waits(&self) -> u64 {
        field!(self, waits)
    }

    /// Host time; only this pool's is known.
    pub(crate) fn host_ns(&self) -> Option<f64> {
        field!(self, host_ns_per_op)
    }

    pub(crate) fn failures(&self) -> u64 {
        field!(self, failures)
    }

    /// Allocations that failed in the recording, which are no part of this.
    pub(crate) fn recorded_failures(&self) -> u64 {
        field!(self, recorded_failures)
    }

    /// Memory over time, where it was asked for.
    pub(crate) fn curve(&self) -> &[Sample] {
        field!(self, curve.as_slice())
    }

    /// Device calls on the allocating thread by operation, those that were made.
    pub(crate) fn calls(&self) -> Vec<(&'static str, OpCalls)> {
        match &self.figures {
            Figures::Pool(result) => {
                result.device_calls.made().map(|(op, calls)| (op.name(), calls)).collect()
            }
            Figures::Model(result) => {
                result.device_calls.made().map(|(call, calls)| (call.name(), calls)).collect()
            }
        }
    }

    /// The same on the worker.
    pub(crate) fn worker_calls(&self) -> Vec<(&'static str, OpCalls)> {
        match &self.figures {
            Figures::Pool(result) => {
                result.worker_device_calls.made().map(|(op, calls)| (op.name(), calls)).collect()
            }
            Figures::Model(_) => Vec::new(),
        }
    }
}

impl Ask {
    /// The smallest limit in bytes that works, where it is asked for: not under a limit of its own.
    /// `works` gives the bytes of a multiple that does.
    fn search(
        &self,
        limit: Option<Amount>,
        works: impl FnMut(f64) -> Result<Option<u64>, String>,
    ) -> Result<Option<u64>, String> {
        if !self.with_budget || limit.is_some() {
            return Ok(None);
        }
        smallest_multiple(works)
    }
}

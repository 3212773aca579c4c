//! What a recorded program would need under each policy that can be replayed here.

use crate::device::replay_on_mock;
use crate::progress::Progress;
use std::num::NonZeroUsize;
use vmm_mock::CostModel;
use vmm_models::{Fidelity, Policy, RunError, RunSettings, TorchOptions};
use vmm_replay::{
    Amount, CallAccount, OpCalls, ReplayResult, ReplaySettings, Sample, if_it_works,
    smallest_multiple,
};
use vmm_report::{Allocator, PolicyRow, Recorded, with_failures_served};
use vmm_trace::DeviceTrace;

/// Points of the curves of what a policy had reserved, before those without a change are left out.
const CURVE_SAMPLES: NonZeroUsize = NonZeroUsize::new(1 << 20).expect("not zero");

/// A row for the recorded allocator, where the file says what it reserved, and rows for those that
/// are replayed. A trace without allocations gives no rows but the first.
pub(crate) fn policies(
    name: &str,
    recorded: &Recorded<'_>,
    shows_progress: bool,
) -> Vec<PolicyRow> {
    let mut rows: Vec<PolicyRow> = recorded_row(recorded).into_iter().collect();
    let trace = with_failures_served(recorded);
    rows.extend(pool_row(name, &trace, shows_progress));
    // Those that people choose by a setting of PyTorch; `vmm compare` has others.
    let plain = TorchOptions::default();
    let split = TorchOptions { max_split_size: Some(128 << 20), ..plain };
    let rounded = TorchOptions { roundup_power2_divisions: 4, ..plain };
    let models = [
        ("PyTorch native, modelled", Policy::Native(plain)),
        ("PyTorch expandable segments, modelled", Policy::Expandable(plain)),
        ("PyTorch max_split_size_mb:128, unchecked model", Policy::Native(split)),
        ("PyTorch roundup_power2_divisions:4, unchecked model", Policy::Native(rounded)),
        ("cudaMallocAsync, unchecked model", Policy::Async),
    ];
    let models = models.into_iter().filter_map(|(policy, model)| {
        let _progress = Progress::begin(format!("{policy} on {name}"), shows_progress);
        let is_recorded = recorded.allocator == Allocator::PyTorch
            && match model {
                Policy::Native(options) => {
                    !recorded.is_expandable
                        && options.max_split_size == recorded.max_split_size()
                        && Some(options.roundup_power2_divisions)
                            == recorded.roundup_power2_divisions()
                }
                Policy::Expandable(_) => recorded.is_expandable,
                _ => false,
            };
        Some(PolicyRow { is_recorded, ..model_row(policy, model, &trace)? })
    });
    rows.extend(models);
    rows
}

/// A model of another allocator, likewise.
fn model_row(policy: &str, model: Policy, trace: &DeviceTrace) -> Option<PolicyRow> {
    let run = |settings: &RunSettings| vmm_models::run(trace, &model, settings, &mut |_, _| ());
    // Lines and bars are for those that are known to be right.
    let (fidelity, _) = model.fidelity();
    let is_drawn = fidelity != Fidelity::Unchecked;
    let curve_samples = is_drawn.then_some(CURVE_SAMPLES);
    let result = run(&RunSettings { curve_samples, ..RunSettings::default() }).ok()?;
    let made = result.device_calls.made().filter(|_| is_drawn);
    let budget = smallest_multiple(|multiple| {
        let limit = Some(Amount::OfPeak(multiple));
        let result = run(&RunSettings { limit, stop_at_failure: true, ..RunSettings::default() })?;
        Ok::<_, RunError>((result.failures == 0).then_some(result.limit_bytes).flatten())
    });
    Some(PolicyRow {
        policy: policy.to_owned(),
        failures: usize::try_from(result.failures).unwrap_or(usize::MAX),
        peak_reserved_bytes: Some(result.peak_reserved_bytes),
        smallest_budget_bytes: budget.ok().flatten(),
        is_recorded: false,
        is_unchecked: !is_drawn,
        driver_calls: Some(result.driver_calls),
        driver_time_us: Some(result.driver_time_us),
        reserved: reserved(&result.curve),
        calls: made.map(|(call, calls)| by_name(call.name(), calls)).collect(),
        worker_calls: Vec::new(),
    })
}

/// What was reserved, less the points at which it stayed the same.
fn reserved(curve: &[Sample]) -> Vec<(u64, u64)> {
    let mut points: Vec<(u64, u64)> =
        curve.iter().map(|sample| (sample.time_us, sample.reserved_bytes)).collect();
    points.dedup_by_key(|&mut (_, bytes)| bytes);
    points
}

fn recorded_row(recorded: &Recorded<'_>) -> Option<PolicyRow> {
    let peak = recorded.trace.recorded_peak_reserved_bytes();
    let policy = match recorded.allocator {
        Allocator::PyTorch => "PyTorch, as recorded",
        Allocator::Vmm => "this pool, as recorded",
        Allocator::Unknown => return None,
    };
    (peak > 0).then(|| PolicyRow {
        policy: policy.to_owned(),
        is_recorded: true,
        failures: recorded.details.ooms.len(),
        peak_reserved_bytes: Some(peak),
        ..PolicyRow::default()
    })
}

/// This pool: without a limit, and the smallest limit that works. `None` where there is nothing to
/// replay.
fn pool_row(name: &str, trace: &DeviceTrace, shows_progress: bool) -> Option<PolicyRow> {
    let replay = |what: String, settings: &ReplaySettings| {
        let progress = Progress::begin(what, shows_progress);
        let mut report = |done: usize, total: usize| progress.at(done as u64, total as u64);
        replay_on_mock(trace, settings, &CostModel::h200(), false, &mut report)
    };
    let free = ReplaySettings { curve_samples: Some(CURVE_SAMPLES), ..ReplaySettings::default() };
    let result = replay(format!("replaying {name}"), &free).ok()?;
    let budget = smallest_multiple(|multiple| {
        let settings = ReplaySettings {
            limit: Some(Amount::OfPeak(multiple)),
            stop_at_failure: true,
            ..ReplaySettings::default()
        };
        if_it_works(replay(format!("{name} at {multiple:.3}x"), &settings))
    });
    let budget = budget.ok().flatten().and_then(|works| works.limit_bytes);
    Some(row_of(&result, budget))
}

fn row_of(result: &ReplayResult, smallest_budget_bytes: Option<u64>) -> PolicyRow {
    PolicyRow {
        policy: "this pool".to_owned(),
        is_recorded: false,
        is_unchecked: false,
        failures: usize::try_from(result.failures).unwrap_or(usize::MAX),
        peak_reserved_bytes: Some(result.peak_reserved_bytes),
        smallest_budget_bytes,
        driver_calls: Some(result.driver_calls),
        driver_time_us: Some(result.driver_time_us),
        reserved: reserved(&result.curve),
        calls: calls_of(&result.device_calls),
        worker_calls: calls_of(&result.worker_device_calls),
    }
}

fn calls_of(account: &CallAccount) -> Vec<(String, u64, f64)> {
    account.made().map(|(op, calls)| by_name(op.name(), calls)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
fn by_name(name: &str, calls: OpCalls) -> (String, u64, f64) {
    (name.to_owned(), calls.count, calls.time_ns as f64 / 1e3)
}

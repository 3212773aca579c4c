//! What a recorded program would need under each policy that can be replayed here.

use crate::device::replay_on_mock;
use crate::progress::Progress;
use std::num::NonZeroUsize;
use vmm_mock::CostModel;
use vmm_models::{Policy, RunError, RunSettings, TorchOptions};
use vmm_replay::{
    Amount, CallAccount, ReplayResult, ReplaySettings, if_it_works, smallest_multiple,
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
    // Those that most people can choose by a setting; `vmm compare` has others.
    let models = [
        ("PyTorch native, modelled", Policy::Native(TorchOptions::default())),
        ("PyTorch expandable segments, modelled", Policy::Expandable(TorchOptions::default())),
    ];
    let models = models.into_iter().filter_map(|(policy, model)| {
        let _progress = Progress::begin(format!("{policy} on {name}"), shows_progress);
        model_row(policy, model, &trace)
    });
    rows.extend(models);
    rows
}

/// A model of another allocator, likewise.
fn model_row(policy: &str, model: Policy, trace: &DeviceTrace) -> Option<PolicyRow> {
    let run = |settings: &RunSettings| vmm_models::run(trace, &model, settings, &mut |_, _| ());
    let result = run(&RunSettings::default()).ok()?;
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
        driver_calls: Some(result.driver_calls),
        driver_time_us: Some(result.driver_time_us),
        reserved: Vec::new(),
        calls: Vec::new(),
        worker_calls: Vec::new(),
    })
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
        failures: recorded.details.ooms.len(),
        peak_reserved_bytes: Some(peak),
        smallest_budget_bytes: None,
        driver_calls: None,
        driver_time_us: None,
        reserved: Vec::new(),
        calls: Vec::new(),
        worker_calls: Vec::new(),
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
    let curve = result.curve.iter().map(|sample| (sample.time_us, sample.reserved_bytes));
    let mut reserved: Vec<(u64, u64)> = curve.collect();
    reserved.dedup_by_key(|&mut (_, bytes)| bytes);
    PolicyRow {
        policy: "this pool".to_owned(),
        failures: usize::try_from(result.failures).unwrap_or(usize::MAX),
        peak_reserved_bytes: Some(result.peak_reserved_bytes),
        smallest_budget_bytes,
        driver_calls: Some(result.driver_calls),
        driver_time_us: Some(result.driver_time_us),
        reserved,
        calls: by_name(&result.device_calls),
        worker_calls: by_name(&result.worker_device_calls),
    }
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
fn by_name(account: &CallAccount) -> Vec<(String, u64, f64)> {
    account
        .made()
        .map(|(op, calls)| (op.name().to_owned(), calls.count, calls.time_ns as f64 / 1e3))
        .collect()
}

//! What a recorded program would need under each policy.

use crate::outcome::{Ask, Outcome};
use crate::policy::{Manager, PolicyOption};
use crate::progress::Progress;
use std::num::NonZeroUsize;
use vmm_models::{Fidelity, Policy};
use vmm_replay::{OpCalls, ReplaySettings, Sample};
use vmm_report::{Allocator, PolicyRow, Recorded, with_failures_served};
use vmm_trace::{DeviceTrace, EventKind};

/// Points of the curves of what a policy had reserved, before those without a change are left out.
const CURVE_SAMPLES: NonZeroUsize = NonZeroUsize::new(1 << 20).expect("not zero");

/// A row for the recorded allocator, where the file says what it reserved, and one for each policy: those
/// that were named on the command line, or the usual ones. A trace without allocations gives no rows but
/// the first, and a file without history none.
pub(crate) fn policies(
    name: &str,
    recorded: &Recorded<'_>,
    named: &[PolicyOption],
    shows_progress: bool,
) -> Vec<PolicyRow> {
    if !recorded.has_history() {
        return Vec::new();
    }
    let mut rows: Vec<PolicyRow> = recorded_row(recorded).into_iter().collect();
    let trace = with_failures_served(recorded);
    if !trace.events.iter().any(|event| matches!(event.kind, EventKind::Alloc { .. })) {
        return rows;
    }
    let usual = PolicyOption::beside_a_program(recorded.allocator);
    for policy in if named.is_empty() { &usual } else { named } {
        // Lines and bars are for models that are known to be right, and for what somebody asked for.
        let is_drawn = !named.is_empty() || policy.fidelity() != Some(Fidelity::Unchecked);
        let progress = Progress::begin(format!("{} on {name}", policy.title()), shows_progress);
        let mut report = |done: usize, total: usize| progress.at(done as u64, total as u64);
        rows.push(PolicyRow {
            is_recorded: records_like(recorded, policy),
            is_variant: is_variant(recorded, policy),
            ..row(&trace, policy, is_drawn, &mut report)
        });
    }
    rows
}

fn recorded_row(recorded: &Recorded<'_>) -> Option<PolicyRow> {
    let peak = recorded.trace.recorded_peak_reserved_bytes();
    let policy = match recorded.allocator {
        Allocator::PyTorch => "PyTorch, as recorded",
        Allocator::Vmm => "vmm, as recorded",
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

/// Whether a policy is a model of the allocator that recorded the program, with its settings.
fn records_like(recorded: &Recorded<'_>, policy: &PolicyOption) -> bool {
    if recorded.allocator != Allocator::PyTorch || policy.limit.is_some() {
        return false;
    }
    match policy.manager {
        Manager::Model(Policy::Native(options)) => {
            !recorded.is_expandable
                && options.max_split_size == recorded.max_split_size()
                && Some(options.roundup_power2_divisions) == recorded.roundup_power2_divisions()
        }
        Manager::Model(Policy::Expandable(_)) => recorded.is_expandable,
        Manager::Model(_) | Manager::Pool { .. } => false,
    }
}

/// Whether a policy is a model of that allocator, whatever its settings.
fn is_variant(recorded: &Recorded<'_>, policy: &PolicyOption) -> bool {
    let is_same = match policy.manager {
        Manager::Model(Policy::Native(_)) => !recorded.is_expandable,
        Manager::Model(Policy::Expandable(_)) => recorded.is_expandable,
        Manager::Model(_) | Manager::Pool { .. } => false,
    };
    recorded.allocator == Allocator::PyTorch && is_same
}

fn row(
    trace: &DeviceTrace,
    policy: &PolicyOption,
    is_drawn: bool,
    progress: &mut dyn FnMut(usize, usize),
) -> PolicyRow {
    let ask = Ask {
        lag: ReplaySettings::default().lag,
        with_budget: true,
        curve_samples: is_drawn.then_some(CURVE_SAMPLES),
    };
    let named = PolicyRow {
        policy: policy.title(),
        is_unchecked: policy.fidelity() == Some(Fidelity::Unchecked),
        ..PolicyRow::default()
    };
    let outcome = match Outcome::measure(trace, policy, &ask, progress) {
        Ok(outcome) => outcome,
        Err(line) => return PolicyRow { remark: Some(line), ..named },
    };
    let (calls, worker_calls) = match is_drawn {
        true => (by_name(outcome.calls()), by_name(outcome.worker_calls())),
        false => Default::default(),
    };
    PolicyRow {
        remark: Some(outcome.caveats.join("; ")).filter(|remark| !remark.is_empty()),
        failures: usize::try_from(outcome.failures()).unwrap_or(usize::MAX),
        peak_reserved_bytes: Some(outcome.reserved_bytes()),
        smallest_budget_bytes: outcome.budget_bytes(),
        driver_calls: Some(outcome.driver_calls()),
        driver_time_us: Some(outcome.driver_us()),
        reserved: reserved(outcome.curve()),
        calls,
        worker_calls,
        ..named
    }
}

/// What was reserved, less the points at which it stayed the same.
fn reserved(curve: &[Sample]) -> Vec<(u64, u64)> {
    let mut points: Vec<(u64, u64)> =
        curve.iter().map(|sample| (sample.time_us, sample.reserved_bytes)).collect();
    points.dedup_by_key(|&mut (_, bytes)| bytes);
    points
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
fn by_name(calls: Vec<(&str, OpCalls)>) -> Vec<(String, u64, f64)> {
    let named = calls.into_iter();
    named.map(|(name, calls)| (name.to_owned(), calls.count, calls.time_ns as f64 / 1e3)).collect()
}

//! Results as a table for people and as JSON for programs.

use crate::figures::{geometric_mean, mib, milliseconds, percent, ratio};
use crate::table::{Cell, Table};
use std::fmt::Write as _;
use vmm_replay::ReplayResult;

/// What a mean takes for a share that is smaller: a millionth.
const SMALLEST_SHARE: f64 = 1e-6;

/// The names of the columns and their units, one above the other.
const COLUMNS: [(&str, &str); 12] = [
    ("trace", ""),
    ("needed", "MiB"),
    ("recorded", "MiB"),
    ("reserved", "MiB"),
    ("ratio", ""),
    ("calls", ""),
    ("driver", "ms"),
    ("driver", "%"),
    ("worker", "%"),
    ("worst", "ms"),
    ("waits", ""),
    ("host", "ns"),
];

/// The last column: a search for the smallest limit leaves no failures to count.
const FAILED: (&str, &str) = ("failed", "");
const BUDGET: (&str, &str) = ("budget", "");

/// Behind the last column, where bytes were checked.
const WRONG: (&str, &str) = ("wrong", "");

/// The results as an aligned table: a row each, and their geometric mean where there are several. The
/// first allocation that failed, and what the checks found, is named below.
pub(crate) fn table(results: &[ReplayResult], coloured: bool) -> String {
    let with_budget = results.iter().any(|r| r.budget_bytes.is_some());
    let last = if with_budget { BUDGET } else { FAILED };
    let wrong = results.iter().any(|r| r.check.is_some()).then_some(WRONG);
    let columns = || COLUMNS.into_iter().chain([last]).chain(wrong);
    let mut table = Table::default();
    table.push(columns().map(|(name, _)| Cell::heading(name)).collect());
    table.push(columns().map(|(_, unit)| Cell::faint(unit)).collect());
    for result in results {
        table.push(row(result, with_budget));
    }
    if results.len() > 1 {
        table.push(mean_row(results, with_budget));
    }
    let mut text = table.render(coloured);
    for result in results {
        if let Some(failure) = &result.first_failure {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}: the first that failed: {failure}", result.trace);
        }
        describe_faults(result, &mut text);
        if let Some(line) = failed_in_the_recording(&result.trace, result.recorded_failures) {
            let _ = writeln!(text, "{line}");
        }
    }
    text
}

/// What a replay of a recording leaves out, in one line: requests that failed in it.
pub(crate) fn failed_in_the_recording(trace: &str, failed: u64) -> Option<String> {
    let what = match failed {
        0 => return None,
        1 => "1 request failed in the recording and is not part of this".to_owned(),
        _ => format!("{failed} requests failed in the recording and are not part of this"),
    };
    Some(format!("{trace}: {what}; 'vmm inspect' counts them"))
}

/// A line for each lease with wrong bytes that is known by name, and one for complaints.
fn describe_faults(result: &ReplayResult, text: &mut String) {
    let Some(check) = &result.check else { return };
    for wrong in &check.first_wrong {
        let _ = writeln!(
            text,
            "{}: lease {} holds a wrong byte at offset {}",
            result.trace, wrong.lease, wrong.offset
        );
    }
    if check.complaints > 0 {
        let _ = writeln!(
            text,
            "{}: illegal calls, and work on the same bytes without an order: {}",
            result.trace, check.complaints
        );
    }
}

fn row(result: &ReplayResult, with_budget: bool) -> Vec<Cell> {
    let or_dash = |text: Option<String>| text.map_or_else(|| Cell::faint("-"), Cell::from);
    let last = if with_budget {
        or_dash(budget_ratio(result).map(|r| format!("{}x", ratio(r))))
    } else if result.failures == 0 {
        Cell::from("0")
    } else {
        Cell::alarming(result.failures.to_string())
    };
    let wrong = result.check.as_ref().map(|check| {
        let bytes = check.wrong_bytes.to_string();
        if check.is_clean() { Cell::from(bytes) } else { Cell::alarming(bytes) }
    });
    let mut row = vec![
        result.trace.as_str().into(),
        mib(result.peak_requested_bytes).into(),
        or_dash(result.recorded_peak_reserved_bytes.map(mib)),
        mib(result.peak_reserved_bytes).into(),
        or_dash(result.reserved_ratio().map(ratio)),
        result.driver_calls.to_string().into(),
        milliseconds(result.driver_time_us).into(),
        or_dash(result.driver_share().map(percent)),
        or_dash(result.worker_share().map(percent)),
        milliseconds(result.worst_allocation_us).into(),
        result.waits.to_string().into(),
        or_dash(result.host_ns_per_op.map(|ns| format!("{ns:.0}"))),
        last,
    ];
    row.extend(wrong);
    row
}

/// Means stand only where a mean says something: ratios, shares and time per operation.
fn mean_row(results: &[ReplayResult], with_budget: bool) -> Vec<Cell> {
    let mean = |of: fn(&ReplayResult) -> Option<f64>, floor: f64| {
        geometric_mean(results.iter().filter_map(of), floor)
    };
    let text = |value: Option<f64>, form: fn(f64) -> String| {
        Cell::heading(value.map_or_else(|| "-".to_owned(), form))
    };
    let empty = Cell::default;
    vec![
        Cell::heading("geometric mean"),
        empty(),
        text(mean(ReplayResult::recorded_ratio, 0.0), |r| format!("{}x", ratio(r))),
        empty(),
        text(mean(ReplayResult::reserved_ratio, 0.0), ratio),
        empty(),
        empty(),
        text(mean(ReplayResult::driver_share, SMALLEST_SHARE), percent),
        text(mean(ReplayResult::worker_share, SMALLEST_SHARE), percent),
        empty(),
        empty(),
        text(mean(|r| r.host_ns_per_op, 1.0), |ns| format!("{ns:.0}")),
        if with_budget {
            text(mean(budget_ratio, 0.0), |r| format!("{}x", ratio(r)))
        } else {
            empty()
        },
    ]
}

/// The smallest working limit over what the program needs.
#[expect(clippy::cast_precision_loss, reason = "shown with three digits behind the point")]
fn budget_ratio(result: &ReplayResult) -> Option<f64> {
    let needed = result.peak_requested_bytes;
    result.budget_bytes.filter(|_| needed > 0).map(|bytes| bytes as f64 / needed as f64)
}

/// The results as one JSON array.
///
/// # Panics
/// Never: the results hold nothing that JSON cannot say.
pub(crate) fn json(results: &[ReplayResult]) -> String {
    let mut text = serde_json::to_string_pretty(results).expect("numbers and strings");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_core::DeviceOp;
    use vmm_replay::{CallAccount, CheckResult, OpCalls, WrongLease};

    fn result(trace: &str, needed: u64, scale: f64) -> ReplayResult {
        ReplayResult {
            trace: trace.to_owned(),
            policy: "vmm".to_owned(),
            device: "mock".to_owned(),
            events: 4_798,
            peak_requested_bytes: needed,
            peak_live_bytes: needed + 512,
            peak_reserved_bytes: needed + (2 << 20),
            recorded_peak_reserved_bytes: Some(needed * 2),
            driver_calls: 311,
            driver_time_us: 1_234.567 * scale,
            worker_driver_time_us: 20_000.0 * scale,
            duration_us: 2_834_922,
            tail_allocation_us: 45.6 * scale,
            worst_allocation_us: 456.7 * scale,
            waits: 0,
            host_ns_per_op: Some(98.76),
            failures: 0,
            recorded_failures: 0,
            first_failure: None,
            device_calls: CallAccount::new(|op| match op {
                DeviceOp::Map => OpCalls { count: 300, time_ns: 1_200_000 },
                DeviceOp::Reached => OpCalls { count: 11, time_ns: 34_567 },
                _ => OpCalls::default(),
            }),
            worker_device_calls: CallAccount::new(|op| match op {
                DeviceOp::MakeFrame => OpCalls { count: 12, time_ns: 20_000_000 },
                _ => OpCalls::default(),
            }),
            check: None,
            limit_bytes: None,
            budget_bytes: None,
            worker_driver_calls: 12,
            curve: Vec::new(),
        }
    }

    #[test]
    fn one_result_needs_no_mean() {
        insta::assert_snapshot!(table(&[result("frag_grow", 7_480 << 20, 1.0)], false));
    }

    #[test]
    fn several_results() {
        let mut failed = result("resnet_multires_train", 8_113 << 20, 100.0);
        failed.failures = 17;
        failed.first_failure = Some("out of memory: 512 bytes asked for".to_owned());
        failed.waits = 3;
        failed.recorded_failures = 2;
        let mut silent = result("rmm_log#1", 6 << 20, 0.0);
        silent.recorded_peak_reserved_bytes = None;
        silent.duration_us = 0;
        let results = [result("prefetch_side_stream", 1_919 << 20, 1.0), failed, silent];
        let text = table(&results, false);
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        insta::assert_snapshot!(text);
    }

    #[test]
    fn budgets_add_a_column() {
        let mut first = result("frag_grow", 1_000 << 20, 1.0);
        first.budget_bytes = Some(1_010 << 20);
        let mut second = result("moe_train", 2_000 << 20, 1.0);
        second.budget_bytes = Some(2_100 << 20);
        insta::assert_snapshot!(table(&[first, second], false));
    }

    #[test]
    fn checks_add_a_column_and_lines() {
        let mut good = result("frag_grow", 1_000 << 20, 1.0);
        good.check = Some(CheckResult { leases: 7, bytes: 700, ..CheckResult::default() });
        let mut bad = result("moe_train", 2_000 << 20, 1.0);
        bad.check = Some(CheckResult {
            wrong_bytes: 4_096,
            complaints: 1,
            first_wrong: vec![WrongLease { lease: 17, offset: 512 }],
            ..good.check.clone().expect("set above")
        });
        insta::assert_snapshot!(table(&[good, bad], false));
    }

    #[test]
    fn json_has_the_stated_keys() {
        let mut searched = result("a", 1 << 20, 1.0);
        searched.budget_bytes = Some(3 << 20);
        searched.recorded_peak_reserved_bytes = None;
        searched.check = Some(CheckResult {
            wrong_bytes: 3,
            first_wrong: vec![WrongLease { lease: 17, offset: 512 }],
            ..CheckResult::default()
        });
        insta::assert_snapshot!(json(&[result("a", 1 << 20, 1.0), searched]));
        assert_eq!(json(&[]), "[]\n");
    }
}

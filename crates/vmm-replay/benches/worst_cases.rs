//! The programs of [`vmm_replay::worst`] on the mock device, as a table.
//!
//! Times are the stated costs of device calls, not those of this machine, so the table is the same
//! in every run. Limits may be given: bytes, or multiples of the peak.
//!
//! ```text
//! cargo bench -p vmm-replay --bench worst_cases
//! cargo bench -p vmm-replay --bench worst_cases -- 1.01x 1.10x
//! ```

use std::env;
use std::sync::Arc;
use vmm_core::DeviceOp;
use vmm_mock::{MockDevice, MockOptions};
use vmm_replay::worst::{self, STEPS};
use vmm_replay::{Amount, CallAccount, OpCalls, ReplayResult, ReplaySettings, Timeline, replay};
use vmm_trace::DeviceTrace;

#[path = "../tests/support/mock_timeline.rs"]
mod mock_timeline;
use mock_timeline::MockTimeline;

/// Physical memory of the mock device in bytes: that of an NVIDIA H200.
const MEMORY: u64 = 141 << 30;

/// Replays a trace on a fresh device and returns that as well, for its account.
fn run(trace: &DeviceTrace, limit: Option<Amount>) -> (ReplayResult, Arc<MockDevice>) {
    let settings = ReplaySettings { limit, ..ReplaySettings::default() };
    let device = Arc::new(MockDevice::new(MockOptions {
        memory: MEMORY,
        lag: u64::try_from(settings.lag.as_nanos()).expect("milliseconds"),
        ..MockOptions::default()
    }));
    let timeline = Arc::new(MockTimeline(Arc::clone(&device)));
    let result = replay(trace, &settings, Arc::clone(&device), &timeline, &mut |_, _| {})
        .expect("the mock device has no faults, and no limit is below one tensor");
    (result, device)
}

fn print_row(name: &str, limit: Option<Amount>, result: &ReplayResult) {
    let gib = result.peak_requested_bytes as f64 / f64::from(1 << 30);
    println!(
        "{name:<20} {limit:>6} {gib:>8.2} {ratio:>9.3} {thread:>10.2} {worker:>10.2} {dearest:>8.2} {waits:>6} {failures:>8}",
        limit = label(limit),
        ratio = result.reserved_ratio().unwrap_or(0.0),
        thread = result.driver_time_us / 1e3,
        worker = result.worker_driver_time_us / 1e3,
        dearest = result.worst_allocation_us / 1e3,
        waits = result.waits,
        failures = result.failures,
    );
}

/// Calls that change memory: the others ask about fences, and cost next to nothing.
const CHANGES: [DeviceOp; 5] = [
    DeviceOp::MakeFrame,
    DeviceOp::Map,
    DeviceOp::SetAccess,
    DeviceOp::Unmap,
    DeviceOp::ReleaseFrame,
];

/// Prints what a repeating program costs in its early steps, and once it should have settled.
fn print_settling(limit: Option<Amount>) {
    let until = |steps| {
        let (result, device) = run(&worst::repeating(steps), limit);
        let cost = device.cost();
        let calls = CHANGES.map(|op| i64::try_from(cost.of(op).calls).expect("few"));
        (result.driver_time_us / 1e3, calls)
    };
    // The pool's end is in each of these, and in no difference between them.
    let marks = [STEPS / 10, STEPS / 2, STEPS].map(|steps| (steps, until(steps)));
    for [(first, before), (last, after)] in marks.array_windows() {
        let calls = CHANGES.iter().zip(after.1.iter().zip(&before.1));
        let calls: Vec<String> =
            calls.map(|(op, (after, before))| format!("{} {op}", after - before)).collect();
        println!(
            "repeating, limit {}, steps {} to {last}: {:.2} ms on the allocating thread; in all {}",
            label(limit),
            first + 1,
            after.0 - before.0,
            calls.join(", "),
        );
    }
}

fn label(limit: Option<Amount>) -> String {
    limit.map_or("none".to_owned(), |limit| limit.to_string())
}

fn main() {
    let mut limits: Vec<Option<Amount>> = env::args()
        .skip(1)
        // Cargo passes an option of its own.
        .filter(|arg| !arg.starts_with("--"))
        .map(|arg| Some(arg.parse().expect("a limit such as 1.03x or 8GiB")))
        .collect();
    if limits.is_empty() {
        limits.push(Some(Amount::OfPeak(1.03)));
    }
    limits.push(None);

    println!(
        "{:<20} {:>6} {:>8} {:>9} {:>10} {:>10} {:>8} {:>6} {:>8}",
        "case",
        "limit",
        "peak GiB",
        "reserved",
        "thread ms",
        "worker ms",
        "dearest",
        "waits",
        "failures"
    );
    for limit in &limits {
        for case in worst::cases() {
            print_row(case.name, *limit, &run(&case.trace, *limit).0);
        }
    }
    println!(
        "reserved: peak reserved over peak requested; dearest: milliseconds in one allocation"
    );
    for limit in limits {
        print_settling(limit);
    }
}

//! The models against what was recorded and measured of the allocators that they stand for.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use vmm_models::{ModelResult, Policy, RunSettings, run};
use vmm_replay::{Amount, Sample};
use vmm_trace::{DeviceTrace, Trace, read_file};

const MIB: f64 = (1 << 20) as f64;

/// A row of the table in `traces/README.md`: `PyTorch`'s own peaks over the peak requested, live.
struct Row {
    name: String,
    peak_requested_mib: f64,
    expandable: f64,
    /// `None` where the program crashed.
    async_pool: Option<f64>,
}

fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces")
}

/// The rows, or `None` with a line that says so where the traces are not there.
fn rows(test: &str) -> Option<Vec<Row>> {
    let Ok(text) = std::fs::read_to_string(shared().join("README.md")) else {
        println!("skipped: {test}: ../shared/traces is missing");
        return None;
    };
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, _, peak, _native, expandable, async_pool, ..] = cells[..] else {
            return None;
        };
        Some(Row {
            name: name.split(' ').next()?.to_owned(),
            peak_requested_mib: peak.parse().ok()?,
            expandable: expandable.parse().ok()?,
            async_pool: async_pool.parse().ok(),
        })
    });
    Some(rows.collect())
}

fn read(path: &Path) -> Trace {
    read_file(path, &mut |_| ()).expect("a recorded trace reads")
}

fn read_shared(name: &str) -> Trace {
    read(&shared().join(format!("{name}.pickle.gz")))
}

fn device(trace: &Trace) -> &DeviceTrace {
    trace.main_device().expect("it has a device")
}

fn run_policy(device: &DeviceTrace, policy: &str, settings: &RunSettings) -> ModelResult {
    let policy: Policy = policy.parse().expect("a policy");
    run(device, &policy, settings, &mut |_, _| {}).expect("it records allocations")
}

fn relative(value: f64, expected: f64) -> f64 {
    value / expected - 1.0
}

/// The mean difference of reserved memory over time, as a share of the recorded mean.
fn curve_difference(device: &DeviceTrace, curve: &[Sample]) -> f64 {
    let recorded: Vec<(u64, u64)> = device.recorded_reserved_curve().collect();
    let (mut at, mut difference, mut whole) = (0, 0.0, 0.0);
    for pair in curve.windows(2) {
        while recorded.get(at + 1).is_some_and(|next| next.0 <= pair[0].time_us) {
            at += 1;
        }
        let lasts = (pair[1].time_us - pair[0].time_us) as f64;
        difference += lasts * pair[0].reserved_bytes.abs_diff(recorded[at].1) as f64;
        whole += lasts * recorded[at].1 as f64;
    }
    difference / whole
}

/// Holds `PyTorch`'s native model against a trace's own segments.
fn check_native(name: &str, trace: &Trace) {
    let device = device(trace);
    let every_event = NonZeroUsize::new(usize::MAX);
    let settings = RunSettings { curve_samples: every_event, ..RunSettings::default() };
    let result = run_policy(device, "native", &settings);
    let recorded = device.recorded_peak_reserved_bytes() as f64;
    let peak = relative(result.peak_reserved_bytes as f64, recorded);
    let curve = curve_difference(device, &result.curve);
    println!("{name}: peak {:+.3} %, curve {:.3} %", peak * 100.0, curve * 100.0);
    assert_eq!(result.failures, 0, "{name}");
    assert!(peak.abs() <= 0.01, "{name}: {peak}");
    assert!(curve <= 0.02, "{name}: {curve}");
}

#[test]
fn native_follows_the_recordings() {
    let Some(rows) = rows("native_follows_the_recordings") else { return };
    assert_eq!(rows.len(), 14);
    for row in rows {
        check_native(&row.name, &read_shared(&row.name));
    }
}

#[test]
fn native_follows_the_recordings_of_the_repository() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    for name in ["frag_grow", "gnn_sampled_train", "prefetch_side_stream", "small_tensors"] {
        check_native(name, &read(&traces.join(format!("{name}.pickle.gz"))));
    }
}

#[test]
fn expandable_has_the_peaks_of_live_runs() {
    let Some(rows) = rows("expandable_has_the_peaks_of_live_runs") else { return };
    assert_eq!(rows.len(), 14);
    for row in rows {
        let trace = read_shared(&row.name);
        let result = run_policy(device(&trace), "expandable", &RunSettings::default());
        // A program whose threads race needs another amount in each run: where the live run and the recorded
        // one differ, its ratio is of the live run's need, and the bytes are what is to be compared.
        let needed = result.peak_requested_bytes as f64 / MIB;
        let live_need = if (needed - row.peak_requested_mib).abs() <= 0.5 {
            needed
        } else {
            row.peak_requested_mib
        };
        let (reserved, live) =
            (result.peak_reserved_bytes as f64 / MIB, row.expandable * live_need);
        let off = relative(reserved, live);
        println!("{}: {reserved:.1} MiB, live {live:.1} ({:+.1} %)", row.name, off * 100.0);
        assert!(off.abs() <= 0.02, "{}: {off}", row.name);
    }
}

/// What the documentation says of a model that is not good enough to be believed.
#[test]
fn the_driver_pool_is_as_far_off_as_it_says() {
    let Some(rows) = rows("the_driver_pool_is_as_far_off_as_it_says") else { return };
    let mut far = Vec::new();
    for row in rows {
        let Some(live) = row.async_pool else { continue };
        let trace = read_shared(&row.name);
        let result = run_policy(device(&trace), "async", &RunSettings::default());
        let off = relative(result.reserved_ratio().expect("it requests memory"), live);
        println!("{} of {:.0} MiB: {:+.1} %", row.name, row.peak_requested_mib, off * 100.0);
        if off.abs() > 0.17 {
            far.push((row.name, (off * 100.0).round()));
        }
    }
    assert_eq!(far, [("gnn_sampled_train".to_owned(), 36.0)]);
}

/// Multiples of the peak as limits: the largest at which the live program died, the smallest at which
/// it finished, for `PyTorch`'s native allocator and with expandable segments (measured on an H200 with
/// `torch.cuda.set_per_process_memory_fraction`). 1 for "did not die".
const LIVE_LIMITS: [(&str, [f64; 2], [f64; 2]); 9] = [
    ("gpt2_train_varlen", [1.06, 1.10], [1.0, 1.03]),
    ("bert_infer_varlen", [1.5, f64::INFINITY], [1.10, 1.25]),
    ("resnet_multires_train", [1.0, 1.03], [1.0, 1.03]),
    ("deeplab_mixed_infer", [1.10, 1.25], [1.03, 1.06]),
    ("gnn_sampled_train", [1.03, 1.06], [1.0, 1.03]),
    ("moe_train", [1.06, 1.10], [1.0, 1.03]),
    ("frag_grow", [1.10, 1.25], [1.06, 1.10]),
    ("serve_two_streams", [1.0, 1.03], [1.0, 1.03]),
    ("llama_lora_ckpt", [1.10, 1.25], [1.0, 1.03]),
];

/// The program that the models judge otherwise than the card did: three threads race in it, and a
/// program that waits for memory races differently than the recorded one.
const EXCEPTION: &str = "serve_two_streams";

#[test]
fn programs_die_at_the_limits_at_which_they_died() {
    if rows("programs_die_at_the_limits_at_which_they_died").is_none() {
        return;
    }
    for (name, native, expandable) in LIVE_LIMITS {
        let trace = read_shared(name);
        for (policy, [died, finished]) in [("native", native), ("expandable", expandable)] {
            let finishes = |limit: f64| {
                let settings = RunSettings {
                    limit: Some(Amount::OfPeak(limit)),
                    stop_at_failure: true,
                    ..RunSettings::default()
                };
                run_policy(device(&trace), policy, &settings).failures == 0
            };
            let agrees = (died == 1.0 || !finishes(died))
                && (finished == f64::INFINITY || finishes(finished));
            assert_eq!(agrees, name != EXCEPTION, "{name} with {policy}");
        }
    }
}

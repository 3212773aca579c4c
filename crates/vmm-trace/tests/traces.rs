//! The recorded traces against the figures that were measured when they were recorded.

use std::path::{Path, PathBuf};

use vmm_trace::{EventKind, Trace, read_file};

const MIB: f64 = (1 << 20) as f64;

/// A row of the table in `traces/README.md`.
struct Row {
    name: String,
    allocations: u64,
    peak_requested_mib: f64,
    native: f64,
}

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces")
}

/// The rows, or `None` with a line that says so where the traces are not there.
fn table(test: &str) -> Option<Vec<Row>> {
    let Ok(text) = std::fs::read_to_string(traces().join("README.md")) else {
        println!("skipped: {test}: ../shared/traces is missing");
        return None;
    };
    let rows = text.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, name, allocations, peak, native, ..] = cells[..] else {
            return None;
        };
        Some(Row {
            name: name.split(' ').next()?.into(),
            allocations: allocations.parse().ok()?,
            peak_requested_mib: peak.parse().ok()?,
            native: native.parse().ok()?,
        })
    });
    Some(rows.collect())
}

fn read(name: &str) -> Trace {
    let path = traces().join(format!("{name}.pickle.gz"));
    read_file(&path, &mut |_| ()).expect("a recorded trace reads")
}

#[test]
fn recorded_traces_give_the_recorded_figures() {
    let Some(rows) = table("recorded_traces_give_the_recorded_figures") else {
        return;
    };
    assert_eq!(rows.len(), 14);
    for row in rows {
        let name = &row.name;
        let start = std::time::Instant::now();
        let trace = read(name);
        let took = start.elapsed();
        assert_eq!(trace.name, *name);
        assert_eq!(trace.devices.len(), 1, "{name}");
        let device = trace.main_device().expect("it has a device");

        let census = &device.census;
        assert!(census.is_complete(), "{name}: {census:?}");
        let made = census.made_requests + census.made_completions;
        assert_eq!(device.events.len() as u64, census.used + made, "{name}");
        assert_eq!((census.skipped_unknown, made, census.end_missing), (0, 0, 0), "{name}");
        assert_eq!(census.end_unexplained, 0, "{name}");
        // The table counts one allocation from before the recording.
        assert_eq!(u64::from(device.tensor_count) + 1, row.allocations, "{name}");

        let requested = device.peak_requested_bytes() as f64 / MIB;
        let reserved = device.recorded_peak_reserved_bytes() as f64 / MIB;
        let last = device.recorded_reserved_curve().last().expect("it has a start");
        assert_eq!(last.1, device.end_reserved_bytes(), "{name}");
        println!("{name}: {took:.2?}, {requested:.2} MiB, {:.4}", reserved / requested);
        // Three threads race in this one, and the table comes from another run than the trace.
        if name == "serve_two_streams" {
            assert!((requested - 599.91).abs() < 0.01, "{name}: {requested}");
            assert!((reserved - row.native * row.peak_requested_mib).abs() < 2.0, "{name}");
            continue;
        }
        assert!((requested - row.peak_requested_mib).abs() <= 0.51, "{name}: {requested}");
        assert!((reserved / requested - row.native).abs() < 0.001, "{name}: {reserved}");
    }
}

#[test]
fn deferred_frees_and_graph_pools_are_seen() {
    if table("deferred_frees_and_graph_pools_are_seen").is_none() {
        return;
    }
    let trace = read("prefetch_side_stream");
    let device = &trace.devices[0];
    let deferred = device.events.windows(2).filter(|pair| match pair[0].kind {
        EventKind::FreeRequested { id } => pair[1].kind != EventKind::FreeCompleted { id },
        _ => false,
    });
    assert_eq!(deferred.count(), 125);
    // The last entry of the file is one more request.
    assert_eq!(device.census.end_pending, 1);
    assert_eq!(device.streams.len(), 2);

    let trace = read("graph_decode");
    let device = &trace.devices[0];
    let mut per_pool = vec![0u32; device.pools.len()];
    for event in &device.events {
        if let EventKind::Alloc { pool, .. } = event.kind {
            per_pool[pool as usize] += 1;
        }
    }
    println!("graph_decode: {:?} {per_pool:?}", device.pools);
    assert_eq!(device.pools.len(), 5);
}

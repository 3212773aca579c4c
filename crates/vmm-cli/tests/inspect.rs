//! `vmm inspect` and `vmm report` as a user meets them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vmm_trace::write::{Entry, Frame, Segment, Snapshot, write_file};
use vmm_trace::{Action, BlockState, read_file};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn vmm(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmm")).args(args).current_dir(dir).output().expect("vmm runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// Entries of one stream, one each millisecond, asked for by `step`.
fn entries(of: &[(Action, u64, u64, u32)]) -> Vec<Entry> {
    let entry = |(at, &(action, addr, size, line)): (usize, &(Action, u64, u64, u32))| {
        let filename = "/home/me/model/train.py".to_owned();
        let frames = vec![Frame { filename, line, name: "step".into() }];
        Entry { time_us: 1_000 * at as u64, frames, ..Entry::new(action, addr, size) }
    };
    of.iter().enumerate().map(entry).collect()
}

/// A program with 400 MiB in two segments of 512 MiB that asks for 500 MiB in vain.
fn failing_program(folder: &Path) -> PathBuf {
    let second = BASE + (2 << 30);
    let trace = entries(&[
        (Action::SegmentAlloc, BASE, 512 * MIB, 10),
        (Action::Alloc, BASE, 200 * MIB, 11),
        (Action::SegmentAlloc, second, 512 * MIB, 10),
        (Action::Alloc, second, 200 * MIB, 11),
        (Action::Oom, 60 * MIB, 500 * MIB, 12),
    ]);
    let path = folder.join("failing.pickle");
    let snapshot = Snapshot { device_traces: vec![trace], ..Snapshot::default() };
    write_file(&path, &snapshot).expect("writable");
    path
}

#[test]
fn a_failure_is_told_with_its_causes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    let output = vmm(folder.path(), &["inspect", "failing.pickle"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    insta::assert_snapshot!(text(&output.stdout));
}

#[test]
fn owners_at_a_failure_that_is_not_at_the_peak_are_listed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = entries(&[
        (Action::SegmentAlloc, BASE, 512 * MIB, 10),
        (Action::Alloc, BASE, 400 * MIB, 11),
        (Action::Alloc, BASE + 400 * MIB, 50 * MIB, 12),
        (Action::FreeRequested, BASE, 400 * MIB, 13),
        (Action::FreeCompleted, BASE, 400 * MIB, 13),
        (Action::Oom, 60 * MIB, 500 * MIB, 14),
    ]);
    let snapshot = Snapshot { device_traces: vec![trace], ..Snapshot::default() };
    write_file(&folder.path().join("late.pickle"), &snapshot).expect("writable");
    let output = vmm(folder.path(), &["inspect", "late.pickle", "--no-replay"]);
    let shown = text(&output.stdout);
    let (failure, peak) = shown.split_once("at the peak of 450 MiB").expect("both");
    let (_, owners) = failure.split_once("50.0 MiB were held by").expect("a list of its own");
    let owner: Vec<&str> = owners.split_whitespace().collect();
    let expected = ["step", "(model/train.py:12)", "50.0", "MiB", "100", "%", "1", "tensor"];
    assert_eq!(owner, expected, "{shown}");
    assert!(peak.contains("step (model/train.py:11)   400 MiB"), "{shown}");
}

#[test]
fn a_snapshot_without_history_gets_no_figures_of_a_program() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let parts = [(60 * MIB, 60 * MIB, BlockState::Active), (40 * MIB, 0, BlockState::Inactive)];
    let state = Snapshot { segments: vec![Segment::new(BASE, &parts)], ..Snapshot::default() };
    write_file(&folder.path().join("state.pickle"), &state).expect("writable");
    let own = Snapshot {
        device_traces: vec![entries(&[(Action::Alloc, BASE, 60 * MIB, 11)])],
        settings: vec![("allocator".into(), "vmm 0.1.0".into())],
        ..state
    };
    write_file(&folder.path().join("own.pickle"), &own).expect("writable");
    for name in ["state.pickle", "own.pickle"] {
        let output = vmm(folder.path(), &["inspect", name]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let shown = text(&output.stdout);
        for part in
            ["without history", "60.0 MiB in use, 100 MiB reserved", "_record_memory_history()"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        for part in ["policies", "budget", " µs", "at the peak", "runs in"] {
            assert!(!shown.contains(part), "{part}: {shown}");
        }
        let output = vmm(folder.path(), &["inspect", name, "--json"]);
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(all[0]["policies"], serde_json::json!([]));
        assert_eq!(all[0]["has_history"], false);
        let page = ["report", name, "-o", "state.html"];
        assert_eq!(vmm(folder.path(), &page).status.code(), Some(0));
        let page = fs::read_to_string(folder.path().join("state.html")).expect("written");
        assert!(page.contains("without history") && !page.contains("What each policy needs"));
    }
}

#[test]
fn a_log_of_rmm_is_set_beside_its_own_resources() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,10:00:00.000000,allocate,0x100000,4194304,0\n\
               1,10:00:00.000010,allocate,0x700000,2097152,0\n\
               1,10:00:00.000020,allocate,0xb00000,2097152,0\n\
               1,10:00:00.000030,free,0x100000,4194304,0\n";
    fs::write(folder.path().join("log.csv"), log).expect("writable");
    let output = vmm(folder.path(), &["inspect", "log.csv"]);
    let shown = text(&output.stdout);
    for row in ["RMM pool, unchecked model", "RMM arena, unchecked model", "PyTorch native"] {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    assert!(!shown.contains("max_split_size"), "no setting of RMM: {shown}");
}

#[test]
fn json_says_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    let output = vmm(folder.path(), &["inspect", "failing.pickle", "--json", "--no-replay"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = &all[0];
    assert_eq!(found["peak_requested_bytes"], 400 * MIB);
    assert_eq!(found["ooms"][0]["wanted"]["owner"], "step (model/train.py:12)");
    assert_eq!(found["ooms"][0]["moment"]["causes"]["too_small"], 624 * MIB);
    assert_eq!(found["ooms"][0]["moment"]["time_us"], 4_000);
    assert_eq!(found["peak"]["time_us"], 3_000);
    assert_eq!(found["policies"], serde_json::json!([]));
}

#[test]
fn several_devices_are_set_side_by_side() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    let output = vmm(folder.path(), &["inspect", "failing.pickle", "failing.pickle"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let (_, overview) = shown.split_once("all 2 devices").expect("behind the devices");
    let rows: Vec<Vec<&str>> =
        overview.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0][..3], ["failing", "400", "MiB"], "{overview}");
    assert_eq!(rows[1][..4], ["failing", "(2)", "400", "MiB"]);
    assert_eq!(rows[0][rows[0].len() - 4..], ["1", "900", "MiB", "vmm"]);
    let alone = vmm(folder.path(), &["inspect", "failing.pickle", "--no-replay"]);
    assert!(!text(&alone.stdout).contains("all 1 devices"));

    // Without policies there is no column for the least of them.
    let plain = vmm(folder.path(), &["inspect", "failing.pickle", "failing.pickle", "--no-replay"]);
    let (_, overview) = text(&plain.stdout).split_once("all 2 devices").expect("behind them");
    assert!(overview.contains("failed") && !overview.contains("budget"), "{overview}");
    for (more, has_budgets) in [(&["--no-replay"][..], false), (&[], true)] {
        let args = ["report", "failing.pickle", "failing.pickle", "-o", "job.html"];
        assert_eq!(vmm(folder.path(), &[&args, more].concat()).status.code(), Some(0));
        let page = fs::read_to_string(folder.path().join("job.html")).expect("written");
        assert_eq!(page.contains("<th>smallest budget</th>"), has_budgets);
        let small = "data-small data-device=\"1\"";
        let (_, canvas) = page.split_once(small).expect("a small figure for each");
        let (canvas, _) = canvas.split_once('>').expect("a tag");
        assert!(canvas.contains("aria-label=\"Memory over time, failing (2)\""), "{canvas}");
    }
}

#[test]
fn policies_can_be_named_and_what_cannot_be_replayed_says_why() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    let named = ["--policy", "vmm:limit=2x,best-fit,native:max_split_size=64MiB"];
    let output = vmm(folder.path(), &[&["inspect", "failing.pickle"], &named[..]].concat());
    let shown = text(&output.stdout);
    for row in ["vmm, limit 2x ", "vmm, blocks by best-fit ", "PyTorch max_split_size_mb:64, unch"]
    {
        assert!(shown.contains(row), "{row}: {shown}");
    }
    assert!(!shown.contains("cudaMallocAsync"), "what is not named is left out");
    let both = vmm(folder.path(), &["report", "x", "-o", "y", "--policy", "vmm", "--no-replay"]);
    assert_eq!(both.status.code(), Some(2), "{}", text(&both.stderr));

    many_pools(folder.path());
    let output = vmm(folder.path(), &["inspect", "pools.pickle"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("vmm: more than 4094 of its private pools live at a time"), "{shown}");
    assert!(shown.contains("pools of captured graphs are not kept apart"), "{shown}");
    let page = ["report", "pools.pickle", "-o", "pools.html"];
    assert_eq!(vmm(folder.path(), &page).status.code(), Some(0));
    let page = fs::read_to_string(folder.path().join("pools.html")).expect("written");
    assert!(page.contains("more than 4094 of its private pools live at a time"));
}

/// Writes a program that keeps 4100 pools of graphs.
fn many_pools(folder: &Path) {
    let entries = (0..4100).flat_map(|pool| {
        let entry = move |action, size| Entry {
            time_us: pool,
            pool: (1, pool),
            ..Entry::new(action, BASE + pool * (64 << 20), size)
        };
        [entry(Action::SegmentAlloc, 20 << 20), entry(Action::Alloc, 3 << 20)]
    });
    let snapshot = Snapshot { device_traces: vec![entries.collect()], ..Snapshot::default() };
    write_file(&folder.join("pools.pickle"), &snapshot).expect("writable");
}

#[test]
fn bad_input_is_named_and_the_rest_is_shown() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    fs::write(folder.path().join("bad.pickle"), "nonsense").expect("writable");
    let args = ["inspect", "bad.pickle", "failing.pickle", "--no-replay"];
    let output = vmm(folder.path(), &args);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).starts_with("error: bad.pickle: "), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("failing: "));
    let rank = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/small_tensors.pickle.gz");
    let whole = fs::read(rank).expect("readable");
    fs::write(folder.path().join("cut.pickle.gz"), &whole[..whole.len() / 2]).expect("writable");
    for command in ["inspect", "compare", "replay"] {
        let output = vmm(folder.path(), &[command, "cut.pickle.gz"]);
        let line = text(&output.stderr);
        assert!(line.contains("ends too early, after byte"), "{line}");
        assert!(line.contains("counted in the unpacked content"), "{line}");
    }
    let nowhere = vmm(folder.path(), &["report", "failing.pickle", "-o", "no/such/place.html"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(text(&nowhere.stderr).contains("no/such/place.html: cannot be written"));
}

#[test]
fn a_report_holds_all_ranks_and_figures_become_files() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let rank = traces.join("frag_grow.pickle.gz");
    assert!(read_file(&rank, &mut |_| ()).is_ok());
    failing_program(folder.path());
    let rank = rank.to_str().expect("UTF-8");
    let args = ["report", rank, "failing.pickle", "failing.pickle", "-o", "job.html"];
    let more = ["--figures", "out", "--format", "svg", "--limit", "8GiB"];
    let output = vmm(folder.path(), &[&args[..], &more[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = fs::read_to_string(folder.path().join("job.html")).expect("written");
    for part in [
        "<!DOCTYPE html>",
        "GPU memory of 3 devices",
        "failing (2)",
        "role=\"tab\"",
        "Out of memory",
        "smallest budget",
        "reserved by vmm",
        "runs in",
    ] {
        assert!(page.contains(part), "{part} is missing");
    }
    assert!(!page.contains("http://") && !page.contains("https://"), "loads nothing");
    let mut figures: Vec<String> = fs::read_dir(folder.path().join("out"))
        .expect("made")
        .map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8"))
        .filter(|name| name.starts_with("frag_grow"))
        .collect();
    figures.sort();
    let names = ["calls", "causes", "map", "memory", "peak", "policies"];
    assert_eq!(figures, names.map(|name| format!("frag_grow.{name}.svg")));
}

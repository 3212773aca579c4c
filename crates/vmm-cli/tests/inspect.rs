//! `vmm inspect` and `vmm report` as a user meets them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use vmm_trace::write::{Entry, Frame, Snapshot, write_file};
use vmm_trace::{Action, read_file};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

fn vmm(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vmm")).args(args).current_dir(dir).output().expect("vmm runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// A program with 400 MiB in two segments of 512 MiB that asks for 500 MiB in vain.
fn failing_program(folder: &Path) -> PathBuf {
    let mut trace = Vec::new();
    let mut entry = |action, addr, size, line| {
        let file = "/home/me/model/train.py".to_owned();
        let frames = vec![Frame { filename: file, line, name: "step".into() }];
        let time_us = 1_000 * trace.len() as u64;
        trace.push(Entry { action, addr, size, stream: 0, time_us, pool: (0, 0), frames });
    };
    for segment in [BASE, BASE + (2 << 30)] {
        entry(Action::SegmentAlloc, segment, 512 * MIB, 10);
        entry(Action::Alloc, segment, 200 * MIB, 11);
    }
    entry(Action::Oom, 60 * MIB, 500 * MIB, 12);
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
fn json_says_the_same() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    failing_program(folder.path());
    let output = vmm(folder.path(), &["inspect", "failing.pickle", "--json", "--no-replay"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let found = &all[0];
    assert_eq!(found["peak_requested_bytes"], 400 * MIB);
    assert_eq!(found["ooms"][0]["wanted"]["owner"], "step (model/train.py:12)");
    assert_eq!(found["ooms"][0]["moment"]["causes"]["too_small"], 624 * MIB);
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
    assert!(shown.contains("vmm: more than 254 of its private pools live at a time"), "{shown}");
    assert!(shown.contains("pools of captured graphs are not kept apart"), "{shown}");
    let page = ["report", "pools.pickle", "-o", "pools.html"];
    assert_eq!(vmm(folder.path(), &page).status.code(), Some(0));
    let page = fs::read_to_string(folder.path().join("pools.html")).expect("written");
    assert!(page.contains("more than 254 of its private pools live at a time"));
}

/// Writes a program that keeps 300 pools of graphs.
fn many_pools(folder: &Path) {
    let entries = (0..300).flat_map(|pool| {
        let entry = move |action, size| Entry {
            action,
            addr: BASE + pool * (64 << 20),
            size,
            stream: 0,
            time_us: pool,
            pool: (1, pool),
            frames: Vec::new(),
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

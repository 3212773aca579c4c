//! `vmm compare` as a user meets it.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use vmm_trace::Action;
use vmm_trace::write::{Entry, Snapshot, write_file};

/// Policies of which the repository's smallest trace is replayed in no time.
const SOME: &str = "vmm:limit=1.10x,native,native:max_split_size=128MiB,expandable,async,\
                    rmm-pool,rmm-arena,cudamalloc";

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

/// Exit code, standard output and standard error.
fn vmm(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(args)
        .current_dir(traces())
        .env("COLUMNS", "100")
        .output()
        .expect("vmm runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("vmm ends by itself");
    (code, text(output.stdout), text(output.stderr))
}

/// The output of a comparison that goes well.
fn compared(args: &[&str]) -> String {
    let (code, out, err) = vmm(&[&["compare"], args].concat());
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    out
}

fn parsed(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("a JSON array")
}

/// Words without what differs from run to run: the host's time of the pool, which is the third from the
/// end, and the widths that follow it.
fn without_host_time(table: &str) -> String {
    let lines = table.lines().map(|line| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        if line.trim_start().starts_with("vmm") {
            let host = words.len() - 3;
            words[host] = "[ns]";
        }
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_table() {
    let shown = compared(&["frag_grow.pickle.gz", "--policy", SOME]);
    insta::assert_snapshot!(without_host_time(&shown));
}

#[test]
fn a_table_of_several_traces_in_the_given_order() {
    let args =
        ["frag_grow.pickle.gz", "gnn_sampled_train.pickle.gz", "--no-budget", "--sort", "given"];
    let shown = compared(&[&args[..], &["--policy", "rmm-arena,native,expandable"]].concat());
    insta::assert_snapshot!(shown);
}

#[test]
fn markdown() {
    let models = "native,expandable,rmm-pool:initial=8GiB";
    let args = ["frag_grow.pickle.gz", "--markdown", "--sort", "budget", "--policy", models];
    insta::assert_snapshot!(compared(&args));
}

#[test]
fn comma_separated_values() {
    let args = ["frag_grow.pickle.gz", "--csv", "--policy", "cudamalloc,native:limit=20GiB"];
    insta::assert_snapshot!(compared(&args));
}

#[test]
fn json_has_the_keys_of_a_replay() {
    let shown = compared(&["frag_grow.pickle.gz", "--json", "--policy", "vmm,native"]);
    let (code, replayed, err) = vmm(&["replay", "frag_grow.pickle.gz", "--json", "--budget"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let mut expected = keys(&parsed(&replayed)[0]);
    expected.push("checked".to_owned());
    expected.sort_unstable();
    let [pool, native] = &parsed(&shown)[..] else { panic!("two objects: {shown}") };
    for object in [pool, native] {
        let mut keys = keys(object);
        keys.sort_unstable();
        assert_eq!(keys, expected);
    }
    assert_eq!((&pool["policy"], &pool["checked"]), (&"vmm".into(), &Value::Null));
    assert_eq!((&native["policy"], &native["checked"]), (&"native".into(), &"recorded".into()));
    // Both searches are the same, so the smallest limit is the one that the replay found.
    assert_eq!(pool["budget_bytes"], parsed(&replayed)[0]["budget_bytes"]);
    assert!(pool["host_ns_per_op"].is_f64() && native["host_ns_per_op"].is_null());
    assert_eq!(native["device_calls"]["cuda_malloc"]["count"], native["driver_calls"]);
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let run = |jobs: &str| {
        let args = ["frag_grow.pickle.gz", "small_tensors.pickle.gz", "--no-budget", "--json"];
        let shown = compared(&[&args[..], &["--jobs", jobs, "--policy", SOME]].concat());
        let mut objects = parsed(&shown);
        for object in &mut objects {
            object["host_ns_per_op"].take();
        }
        objects
    };
    let alone = run("1");
    assert_eq!(alone.len(), 16);
    assert_eq!(alone, run("7"));
}

#[test]
fn a_limit_that_is_too_small_fails() {
    let args =
        ["compare", "frag_grow.pickle.gz", "--policy", "native:limit=1.03x,expandable", "--csv"];
    let (code, out, err) = vmm(&args);
    assert_eq!((code, err.as_str()), (1, ""), "{out}");
    let failures: Vec<u64> = out
        .lines()
        .skip(1)
        .map(|line| line.split(',').nth(15).expect("a column").parse().expect("a number"))
        .collect();
    assert!(failures[0] > 0 && failures[1] == 0, "{out}");
}

/// 40 MiB come and go in the pool of a graph, then 40 MiB are wanted outside.
fn program_with_a_graph(path: &Path) {
    const BYTES: u64 = 40 << 20;
    let entry =
        |time_us, action, addr, pool| Entry { time_us, pool, ..Entry::new(action, addr, BYTES) };
    let (graph, all) = ((0, 1), (0, 0));
    let entries = vec![
        entry(0, Action::Alloc, 1 << 40, graph),
        entry(20_000, Action::FreeRequested, 1 << 40, graph),
        entry(20_000, Action::FreeCompleted, 1 << 40, graph),
        entry(40_000, Action::Alloc, 1 << 41, all),
    ];
    let snapshot = Snapshot { device_traces: vec![entries], ..Snapshot::default() };
    write_file(path, &snapshot).expect("writable");
}

#[test]
fn who_keeps_the_pools_of_graphs_apart_needs_more() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("graph.pickle");
    program_with_a_graph(&path);
    let path = path.to_str().expect("UTF-8");
    let table = compared(&[path, "--policy", "vmm,native,expandable,async,rmm-pool"]);
    let remark = "graph under async, rmm-pool: pools of captured graphs are not kept apart";
    assert!(table.contains(remark), "{table}");
    let json = compared(&[path, "--policy", "vmm,native,expandable,cudamalloc", "--json"]);
    let budgets: Vec<u64> =
        parsed(&json).iter().map(|o| o["budget_bytes"].as_u64().expect("a number") >> 20).collect();
    assert!(budgets[..3].iter().all(|mib| (80..90).contains(mib)), "{budgets:?}");
    assert_eq!(budgets[3], 40);
    let plain = compared(&["frag_grow.pickle.gz", "--policy", "rmm-pool", "--no-budget"]);
    assert!(!plain.contains("captured graphs"), "{plain}");
}

/// 100 MiB are in use when 300 more are asked for in vain.
fn program_that_fails(path: &Path) {
    let entry = |time_us, action, addr, size| Entry { time_us, ..Entry::new(action, addr, size) };
    let entries = vec![
        entry(0, Action::Alloc, 1 << 40, 100 << 20),
        entry(20_000, Action::Oom, 50 << 20, 300 << 20),
        entry(40_000, Action::FreeRequested, 1 << 40, 100 << 20),
        entry(40_000, Action::FreeCompleted, 1 << 40, 100 << 20),
    ];
    let snapshot = Snapshot { device_traces: vec![entries], ..Snapshot::default() };
    write_file(path, &snapshot).expect("writable");
}

#[test]
fn requests_that_failed_in_the_recording_are_left_out_and_that_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("failing.pickle");
    program_that_fails(&path);
    let path = path.to_str().expect("UTF-8");
    let note = "failing: 1 request failed in the recording and is not part of this; 'vmm inspect'";
    for args in [&["compare", path, "--policy", "native"][..], &["replay", path, "--budget"]] {
        let (code, out, err) = vmm(args);
        assert_eq!((code, err.as_str(), out.matches(note).count()), (0, "", 1), "{out}");
    }
    let markdown = compared(&[path, "--policy", "native", "--markdown"]);
    assert!(markdown.contains(&format!("- {note}")), "{markdown}");
    let (code, out, err) = vmm(&["compare", path, "--policy", "native", "--csv"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    assert!(err.starts_with(&format!("note: {note}")), "{err}");
    for args in
        [&["compare", path, "--policy", "vmm,native", "--json"][..], &["replay", path, "--json"]]
    {
        for object in parsed(&vmm(args).1) {
            assert_eq!(object["recorded_failures"], 1);
            assert_eq!(object["peak_requested_bytes"], 100 << 20);
        }
    }
}

/// Where nothing limits it, RMM's pool takes 26 and then 30 MiB for these two requests. Under a limit it
/// begins with half of that, of which 2 MiB are too few for the second.
#[test]
fn a_pool_that_grows_otherwise_under_a_limit_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("steps.pickle");
    let entry = |at: u64, mib: u64| Entry {
        time_us: at,
        ..Entry::new(Action::Alloc, (1 << 40) + (at << 32), mib << 20)
    };
    let entries = vec![entry(0, 26), entry(1, 30)];
    let snapshot = Snapshot { device_traces: vec![entries], ..Snapshot::default() };
    write_file(&path, &snapshot).expect("writable");
    let path = path.to_str().expect("UTF-8");
    let json = compared(&[path, "--policy", "rmm-pool", "--json"]);
    let of = |key: &str| parsed(&json)[0][key].as_u64().expect("a number") >> 20;
    assert_eq!((of("peak_reserved_bytes"), of("budget_bytes")), (56, 58));
    let table = compared(&[path, "--policy", "rmm-pool,rmm-arena"]);
    let remark = "steps under rmm-pool: under a limit it grows in other steps";
    assert!(table.contains(remark), "{table}");
}

#[test]
fn wrong_command_lines() {
    let shown: Vec<String> = [
        &["--policy", "native,tcmalloc"][..],
        &["--policy", "native:split=4"],
        &["--policy", "native:max_split_size=1.5x"],
        &["--policy", "vmm:limit=lots"],
        &["--json", "--csv"],
        &["--jobs", "0"],
    ]
    .iter()
    .map(|args| {
        let (code, out, err) = vmm(&[&["compare", "frag_grow.pickle.gz"], *args].concat());
        assert_eq!((code, out.as_str()), (2, ""));
        err
    })
    .collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn a_bad_file_is_named_and_the_rest_compared() {
    let args = ["compare", "missing.pickle", "frag_grow.pickle.gz", "--no-budget", "--csv"];
    let (code, out, err) = vmm(&[&args[..], &["--policy", "native"]].concat());
    assert_eq!((code, out.lines().count()), (2, 2), "{out}");
    assert!(err.starts_with("error: ") && err.contains("missing.pickle"), "{err}");
}

#[test]
fn help() {
    insta::assert_snapshot!(vmm(&["compare", "--help"]).1);
}

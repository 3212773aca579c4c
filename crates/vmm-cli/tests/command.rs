//! The command as a user meets it: its output, its errors and its exit codes.

use flate2::{Compression, write::GzEncoder};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `vmm` in `dir` and shows what a user would see.
fn vmm(dir: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(args)
        .current_dir(dir)
        .env("COLUMNS", "100")
        .output()
        .expect("vmm runs");
    let code = output.status.code().expect("vmm ends by itself");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let (out, err) = (text(output.stdout), text(output.stderr));
    format!("$ vmm {}\nexit code {code}\n--- stdout\n{out}--- stderr\n{err}", args.join(" "))
}

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces")
}

/// Output without what differs from run to run: the host's time, and the widths that follow it.
fn without_host_time(shown: &str) -> String {
    let mut in_rows = false;
    let mut lines = Vec::new();
    for line in shown.lines() {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        in_rows &= !line.starts_with("---");
        if in_rows {
            // The column before the last; the row of means leaves the last one empty.
            let last = words.len() - 1;
            let host = if line.starts_with("geometric mean") { last } else { last - 1 };
            words[host] = "[ns]";
            lines.push(words.join(" "));
        } else {
            // The line below the names holds the units.
            in_rows = line.trim_start().starts_with("MiB");
            lines.push(if in_rows || line.starts_with("trace ") {
                words.join(" ")
            } else {
                line.to_owned()
            });
        }
    }
    lines.join("\n")
}

/// JSON without the host's time.
fn without_host_time_in_json(shown: &str) -> String {
    let lines = shown.lines().map(|line| match line.split_once("\"host_ns_per_op\": ") {
        Some((before, _)) => format!("{before}\"host_ns_per_op\": [ns],"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn help() {
    let dir = traces();
    insta::assert_snapshot!("help", vmm(&dir, &["--help"]));
    insta::assert_snapshot!("help_replay", vmm(&dir, &["replay", "--help"]));
    insta::assert_snapshot!("help_probe", vmm(&dir, &["probe", "--help"]));
}

#[test]
fn wrong_command_lines() {
    let dir = traces();
    let shown = [
        vmm(&dir, &["replay"]),
        vmm(&dir, &["replay", "frag_grow.pickle.gz", "--limit", "3 potatoes"]),
        vmm(&dir, &["replay", "frag_grow.pickle.gz", "--lag", "5"]),
        vmm(&dir, &["replay", "frag_grow.pickle.gz", "--limit", "1x", "--budget"]),
        vmm(&dir, &["replay", "frag_grow.pickle.gz", "--device", "gpu"]),
        vmm(&dir, &["replay", "frag_grow.pickle.gz", "--device", "cuda:1", "--costs", "any"]),
        vmm(&dir, &["probe", "--device", "cuda:first"]),
    ];
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn completions() {
    for shell in ["bash", "zsh", "fish"] {
        let shown = vmm(&traces(), &["completions", shell]);
        assert!(shown.contains("exit code 0") && shown.contains("cross-stream"), "{shown}");
    }
}

#[test]
fn a_table() {
    let shown = vmm(&traces(), &["replay", "frag_grow.pickle.gz", "--limit", "1.10x"]);
    insta::assert_snapshot!(without_host_time(&shown));
}

#[test]
fn json() {
    let shown = vmm(&traces(), &["replay", "frag_grow.pickle.gz", "--limit", "1.10x", "--json"]);
    insta::assert_snapshot!(without_host_time_in_json(&shown));
}

#[test]
fn failed_allocations_give_exit_code_one() {
    // Below the peak something must fail, whatever the pool does.
    let shown = vmm(&traces(), &["replay", "frag_grow.pickle.gz", "--limit", "0.9x"]);
    assert!(shown.contains("exit code 1"), "{shown}");
}

#[test]
fn a_limit_below_one_allocation() {
    let shown = vmm(&traces(), &["replay", "frag_grow.pickle.gz", "--limit", "4MiB"]);
    insta::assert_snapshot!(shown);
}

#[test]
fn bad_input_is_named_and_the_rest_is_replayed() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file =
        |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("writable");
    let whole = fs::read(traces().join("frag_grow.pickle.gz")).expect("the trace ships");
    let mut gzipped = GzEncoder::new(Vec::new(), Compression::fast());
    gzipped.write_all(b"\x80\x04\x95").expect("in memory");

    file("empty.pickle", b"");
    file("half.pickle.gz", &whole[..whole.len() / 2]);
    file("short.pickle.gz", &gzipped.finish().expect("in memory"));
    file("broken_gzip.pickle.gz", b"\x1f\x8b\x08\x00garbage that is no deflate stream");
    file("global.pickle", b"\x80\x02cos\nsystem\n(U\x04true\x85R.");
    file("number.pickle", b"\x80\x02K\x07.");
    file("text.pickle", b"this is a letter, not a trace\n");
    file("json.pickle", b"{\"segments\": []}");
    file("columns.csv", b"Thread,Time,Action,Pointer\n1,00:00:00.0,allocate,0x1\n");
    file("free.csv", b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,free,0x10,16,0\n");
    file("size.csv", b"Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x10,-5,0\n");
    fs::create_dir(dir.path().join("nothing")).expect("writable");
    file("good.pickle.gz", &whole);

    let shown = vmm(
        dir.path(),
        &[
            "replay",
            "empty.pickle",
            "half.pickle.gz",
            "short.pickle.gz",
            "broken_gzip.pickle.gz",
            "global.pickle",
            "number.pickle",
            "text.pickle",
            "json.pickle",
            "columns.csv",
            "free.csv",
            "size.csv",
            "missing.pickle",
            "nothing",
            "good.pickle.gz",
        ],
    );
    // What became of the good one is another test's concern.
    let (head, rest) = shown.split_once("trace ").expect("a table");
    let (table, errors) = rest.split_once("--- stderr").expect("always there");
    assert!(table.contains("\ngood "), "{table}");
    insta::assert_snapshot!(format!("{head}(the table)\n--- stderr{errors}"));
}

#[test]
fn a_checked_replay_has_the_figures_of_an_unchecked_one() {
    let plain = ["replay", "frag_grow.pickle.gz", "--limit", "1.10x", "--json"];
    let checked = [&plain[..], &["--check"]].concat();
    let shown = vmm(&traces(), &checked);
    let (before, check) = shown.split_once(",\n    \"check\": {").expect("the result of the check");
    let unchecked = vmm(&traces(), &plain);
    let unchecked = without_host_time_in_json(unchecked.split_once('\n').expect("lines").1);
    let before = without_host_time_in_json(before.split_once('\n').expect("lines").1);
    assert!(unchecked.starts_with(&before), "{before}\n{unchecked}");
    insta::assert_snapshot!(check);
}

#[test]
fn a_busy_device_is_slower() {
    let driver_ms = |more: &[&str]| {
        let args = [&["replay", "frag_grow.pickle.gz", "--maintenance", "none", "--json"], more];
        let shown = vmm(&traces(), &args.concat());
        let time = shown.split_once("\"driver_time_us\": ").expect("the key").1;
        time.split_once(',').expect("more keys").0.parse::<f64>().expect("a number") / 1e3
    };
    let (idle, busy) = (driver_ms(&[]), driver_ms(&["--busy"]));
    assert!(busy > 2.0 * idle, "{busy} ms busy, {idle} ms idle");
}

/// Hides the cards of a machine that has some.
fn vmm_without_cards(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(args)
        .current_dir(traces())
        .env("CUDA_VISIBLE_DEVICES", "")
        .output()
        .expect("vmm runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("vmm ends by itself");
    (code, text(output.stdout), text(output.stderr))
}

#[test]
fn a_replay_on_a_card_that_is_not_there_is_one_clear_line() {
    let replay = ["replay", "frag_grow.pickle.gz", "--device", "cuda:1"];
    let (code, out, err) = vmm_without_cards(&replay);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(err.starts_with("error: cuda:1: the CUDA driver "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn a_probe_without_a_card_says_what_is_missing() {
    let (code, out, err) = vmm_without_cards(&["probe"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("cuda:0"), "{out}");
    assert!(out.contains("\nnot available\n") && out.contains("  CUDA: the CUDA driver "), "{out}");
    assert!(!out.contains("virtual memory"), "{out}");
}

#[test]
fn a_probe_always_has_the_same_keys() {
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().expect("an object").keys().cloned().collect()
    };
    let (code, without, _) = vmm_without_cards(&["probe", "--json"]);
    assert_eq!(code, 0);
    let (code, mock, _) = vmm_without_cards(&["probe", "--json", "--device", "mock"]);
    assert_eq!(code, 0);
    let (without, mock) = (parse(&without), parse(&mock));
    assert_eq!(keys(&without), keys(&mock));
    for nothing in ["virtual_memory", "calls", "frames"] {
        assert!(without[nothing].is_null() && !mock[nothing].is_null(), "{nothing}");
    }
    assert!(without["unavailable"].as_str().is_some_and(|text| text.contains("CUDA: ")));
    assert!(mock["unavailable"].is_null());
    assert_eq!(mock["memory"]["largest_block_bytes"], mock["memory"]["free_bytes"]);
}

#[test]
fn a_probe_of_the_mock() {
    insta::assert_snapshot!(vmm(&traces(), &["probe", "--device", "mock"]));
}

#[test]
fn a_probe_that_measures_nothing() {
    insta::assert_snapshot!(vmm(&traces(), &["probe", "--device", "mock", "--no-measure"]));
}

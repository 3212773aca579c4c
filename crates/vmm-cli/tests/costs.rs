//! `vmm replay --costs`: the mock with the costs of a probed card.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs `vmm` and gives its exit code, output and errors.
fn vmm(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(args)
        .current_dir(dir)
        .output()
        .expect("vmm runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let code = output.status.code().expect("vmm ends by itself");
    (code, text(output.stdout), text(output.stderr))
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// What a probe of the mock prints.
fn probe() -> String {
    let (code, out, err) = vmm(Path::new("."), &["probe", "--device", "mock", "--json"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    out
}

/// The result of a replay with these arguments, without the host's time.
fn replay(dir: &Path, more: &[&str]) -> Value {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let trace: PathBuf = traces.join("frag_grow.pickle.gz");
    let trace = trace.to_str().expect("UTF-8");
    let args = [&["replay", trace, "--limit", "1.10x", "--json"], more].concat();
    let (code, out, err) = vmm(dir, &args);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let mut result = json(&out)[0].take();
    result.as_object_mut().expect("an object").remove("host_ns_per_op").expect("the key");
    result
}

#[test]
fn costs_of_the_mock_change_nothing() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    fs::write(dir.path().join("mock.json"), probe()).expect("writable");
    for more in [&[][..], &["--busy"]] {
        let probed = replay(dir.path(), &[&["--costs", "mock.json"], more].concat());
        assert_eq!(probed, replay(dir.path(), more));
    }
}

#[test]
fn costs_are_those_of_the_file() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut probe = json(&probe());
    for frame in probe["frames"].as_array_mut().expect("a list") {
        frame["set_access_us"] = 7.into();
        frame["make_frame_us"] = 3.into();
    }
    fs::write(dir.path().join("card.json"), probe.to_string()).expect("writable");
    let result = replay(dir.path(), &["--costs", "card.json"]);
    let call = |name: &str, key: &str| {
        let both = ["device_calls", "worker_device_calls"].map(|who| &result[who][name][key]);
        both.iter().filter_map(|value| value.as_f64()).sum::<f64>()
    };
    assert!(call("make_frame", "count") > 0.0);
    assert_eq!(call("make_frame", "time_us"), 3.0 * call("make_frame", "count"));
    // A call may be about several frames.
    let accesses = call("set_access", "time_us") / 7.0;
    assert!(accesses >= call("set_access", "count"), "{accesses}");
    assert!((accesses - accesses.round()).abs() < 1e-6, "{accesses}");
}

#[test]
fn files_that_are_no_probe_are_one_clear_line() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str, text: &[u8]| fs::write(dir.path().join(name), text).expect("writable");
    file("empty.json", b"");
    file("half.json", &probe().as_bytes()[..500]);
    file("object.json", b"{}");
    file("replay.json", b"[{\"trace\": \"frag_grow\", \"policy\": \"vmm\"}]");
    file("table.json", b"mock  141 GiB\n\ncalls by length\n");
    file("trace.json", &[0x80; 2 << 20]);
    let asked = vmm(Path::new("."), &["probe", "--device", "mock", "--json", "--no-measure"]);
    file("asked.json", asked.1.as_bytes());
    fs::create_dir(dir.path().join("folder.json")).expect("writable");
    let names =
        ["empty", "half", "object", "replay", "table", "trace", "asked", "folder", "missing"];
    let lines = names.map(|name| {
        let costs = format!("{name}.json");
        let args = ["replay", "frag_grow.pickle.gz", "--costs", &costs];
        let (code, out, err) = vmm(dir.path(), &args);
        assert_eq!((code, out.as_str(), err.lines().count()), (2, "", 1), "{err}");
        err
    });
    insta::assert_snapshot!(lines.concat());
}

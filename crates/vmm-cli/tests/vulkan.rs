//! The command on the best Vulkan device of the machine, or the one that `VMM_VULKAN_DEVICE` names.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

#[path = "support/small_log.rs"]
mod small_log;

/// Makes a missing device a failure.
const REQUIRED: &str = "VMM_REQUIRE_VULKAN";

fn vmm(args: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmm"));
    command.args(args).envs(settings.iter().copied()).output().expect("vmm runs")
}

fn json(args: &[&str]) -> Value {
    let output = vmm(args, &[]);
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}\n{err}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The device as the command line names it; `None`, and says so, where there is none.
fn device() -> Option<String> {
    let device = match std::env::var("VMM_VULKAN_DEVICE") {
        Ok(choice) if !choice.is_empty() => format!("vulkan:{choice}"),
        _ => "vulkan".to_owned(),
    };
    let found = json(&["probe", "--device", &device, "--json", "--no-measure"]);
    let Some(why) = found["unavailable"].as_str() else { return Some(device) };
    assert!(std::env::var_os(REQUIRED).is_none(), "{REQUIRED} is set, and {why}");
    println!("skipped: {why}");
    None
}

#[test]
fn a_checked_replay_finds_nothing_wrong() {
    let Some(device) = device() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = small_log::write(folder.path());
    let path = path.to_str().expect("UTF-8");
    let replay = |device: &str, more: &[&str]| {
        let args = ["replay", path, "--limit", "1.2x", "--check", "--json", "--device", device];
        json(&[&args[..], more].concat())[0].take()
    };
    let mock = replay("mock", &[]);
    for more in [&[][..], &["--busy"], &["--maintenance", "none"]] {
        let found = replay(&device, more);
        assert_eq!(found["device"], device.as_str());
        for same in ["events", "peak_requested_bytes", "failures"] {
            assert_eq!(found[same], mock[same], "{same} with {more:?}");
        }
        assert_eq!(found["check"], mock["check"], "{more:?}");
        assert_eq!(found["check"]["leases"], small_log::TENSORS);
        assert_eq!(found["check"]["wrong_bytes"], 0);
        // Binds are on the account, by whomever they are made.
        let sum = |op: &str, key: &str| {
            let both = ["device_calls", "worker_device_calls"].map(|who| &found[who][op][key]);
            both.iter().filter_map(|value| value.as_f64()).sum::<f64>()
        };
        assert!(sum("map", "count") > 0.0 && sum("map", "time_us") > 0.0, "{found}");
    }
}

#[test]
fn a_probe_knows_the_device() {
    let Some(device) = device() else { return };
    let found = json(&["probe", "--device", &device, "--json"]);
    for known in ["name", "driver_version", "vulkan", "calls"] {
        assert!(!found[known].is_null(), "{known}: {found}");
    }
    assert_eq!(found["virtual_memory"]["queued_binds"], true);
    let heaps = found["vulkan"]["heaps"].as_array().expect("a list");
    let frames = heaps.iter().filter(|heap| heap["frames"] == true);
    let bytes = frames.filter_map(|heap| heap["bytes"].as_u64()).sum::<u64>();
    assert_eq!(Some(bytes), found["memory"]["total_bytes"].as_u64());
    let lens = found["frames"].as_array().expect("measured");
    assert!(!lens.is_empty());
    for len in lens {
        // The device does it behind the call.
        for (call, done) in [("map_us", "map_done_us"), ("unmap_us", "unmap_done_us")] {
            let (call, done) = (len[call].as_f64(), len[done].as_f64());
            assert!(call.is_some() && done >= call, "{len}");
        }
    }
    let shown = vmm(&["probe", "--device", &device, "--no-measure"], &[]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    for line in ["  driver  ", "  granule  ", "  heaps  ", "  queues  ", "  bind queue  "] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn a_device_that_is_not_there_is_answered_with_a_list() {
    let Some(device) = device() else { return };
    let found = json(&["probe", "--device", &device, "--json", "--no-measure"]);
    let name = found["name"].as_str().expect("a name");
    for wrong in ["vulkan:99", "vulkan:no such card"] {
        expect_one_line(&["replay", ".", "--device", wrong], &[], &format!(": {name}"));
        let shown = vmm(&["probe", "--device", wrong], &[]);
        assert!(shown.status.success());
        assert!(String::from_utf8_lossy(&shown.stdout).contains(name), "{shown:?}");
    }
}

/// The command ends with one line of error that has `part` in it.
fn expect_one_line(args: &[&str], settings: &[(&str, &str)], part: &str) {
    let output = vmm(args, settings);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(2), &b""[..]), "{err}");
    assert!(err.starts_with("error: vulkan") && err.contains(part), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn without_a_driver_one_line_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if device().is_none() {
        // Without the loader there is another line: the test below has it.
        return;
    }
    let none = folder.path().join("none.json");
    let none = none.to_str().expect("UTF-8");
    let settings = [("VK_DRIVER_FILES", none), ("VK_ICD_FILENAMES", none)];
    expect_one_line(&["replay", ".", "--device", "vulkan"], &settings, "finds no driver");
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_loader_one_line_says_so() {
    // What is found first and is no library ends the search.
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["libvulkan.so.1", "libvulkan.so"] {
        fs::write(folder.path().join(name), b"").expect("writable");
    }
    let path: &Path = folder.path();
    let settings = [("LD_LIBRARY_PATH", path.to_str().expect("UTF-8"))];
    expect_one_line(&["replay", ".", "--device", "vulkan"], &settings, "loader does not load");
    let shown = vmm(&["probe", "--device", "vulkan"], &settings);
    let out = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.status.success() && out.contains("not available\n  Vulkan: "), "{out}");
}

//! The command on a driver without a card: the one that the CUDA backend's own tests are run with.
//!
//! What it shows is that the command makes its calls in a legal order and reads the answers right;
//! times mean nothing there.

use serde_json::Value;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

#[path = "support/small_log.rs"]
mod small_log;

/// Builds the driver in a folder of its own. `None`, and says so, without a compiler.
fn driver() -> Option<TempDir> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let library = folder.path().join("libcuda.so.1");
    let backend = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../backends/vmm-cuda");
    let mut command = Command::new("cc");
    command.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library);
    command.arg(backend.join("tests/fake_driver/cuda.c")).arg("-lpthread");
    let Ok(output) = command.output() else {
        println!("skipped: no C compiler (cc)");
        return None;
    };
    assert!(output.status.success(), "{output:?}");
    std::os::unix::fs::symlink(&library, folder.path().join("libcuda.so")).expect("a link");
    Some(folder)
}

/// Runs `vmm` with the driver and returns its JSON.
fn vmm(driver: &TempDir, args: &[&str], settings: &[(&str, &str)]) -> Value {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let output = Command::new(env!("CARGO_BIN_EXE_vmm"))
        .args(args)
        .current_dir(traces)
        .env("LD_LIBRARY_PATH", driver.path())
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .output()
        .expect("vmm runs");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {:?}\n{err}", output.status);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_checked_replay_on_a_card_is_that_of_the_mock() {
    let Some(driver) = driver() else { return };
    // The driver has 4 GiB.
    let path = small_log::write(driver.path());
    let path = path.to_str().expect("UTF-8");
    let replay = |more: &[&str]| {
        let args = [&["replay", path, "--limit", "1.2x", "--check", "--json"], more].concat();
        vmm(&driver, &args, &[])
    };
    for more in [&["--device", "cuda"][..], &["--device", "cuda:0", "--busy"]] {
        let (card, mock) = (&replay(more)[0], &replay(&[])[0]);
        assert_eq!((&card["device"], &mock["device"]), (&"cuda:0".into(), &"mock".into()));
        for same in ["events", "peak_requested_bytes", "peak_live_bytes", "failures"] {
            assert_eq!(card[same], mock[same], "{same}");
        }
        assert_eq!(card["check"], mock["check"]);
        assert_eq!(card["check"]["leases"], small_log::TENSORS);
        assert_eq!(card["check"]["wrong_bytes"], 0);
        let calls = |kind: &str| card[kind]["map"]["count"].as_u64().unwrap_or(0);
        assert!(calls("device_calls") + calls("worker_device_calls") > 0, "{card}");
    }
}

#[test]
fn a_probe_measures_a_card() {
    let Some(driver) = driver() else { return };
    let found = vmm(&driver, &["probe", "--json"], &[]);
    assert_eq!(found["name"], "fake device 0");
    assert_eq!(found["cuda_version"], "13.0");
    assert_eq!(found["uuid"], "GPU-00102030-4050-6070-8090-a0b0c0d0e0f0");
    assert_eq!(found["virtual_memory"]["remapping"], true);
    assert_eq!(found["memory"]["largest_block_bytes"], found["memory"]["free_bytes"]);
    let lens: Vec<_> = found["frames"].as_array().expect("measured").iter().collect();
    assert_eq!(lens.len(), 5, "2 MiB to a quarter of 4 GiB");
    assert!(lens.iter().all(|frame| frame["set_access_us"].is_number()), "{lens:?}");
    assert_eq!(found["calls"].as_array().map(Vec::len), Some(8));
}

#[test]
fn a_probe_of_a_card_without_virtual_memory() {
    let Some(driver) = driver() else { return };
    let found = vmm(&driver, &["probe", "--json"], &[("FAKE_CUDA_NO_VMM", "1")]);
    assert_eq!(found["virtual_memory"]["remapping"], false);
    let frame = &found["frames"][0];
    assert!(frame["make_frame_us"].is_number() && frame["map_us"].is_null(), "{frame}");
}

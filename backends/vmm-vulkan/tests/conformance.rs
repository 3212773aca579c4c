//! The conformance suite on a Vulkan device: with aliases, without them, and with the driver's granule.
//!
//! Each case is a test of its own, on a device of its own. Whether there is a device is known only
//! when they run, so the tests are made then. Where no device can be opened any more in this process,
//! a case goes on in a process of its own; with `VMM_VULKAN_APART` set, all do.

mod common;

use common::harness::VulkanHarness;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use vmm_conformance::{Case, Outcome, case, device_cases, outcome_of};
use vmm_vulkan::{Fresh, VulkanDevice, VulkanOptions};

/// Cases that go through a pool's whole life some five hundred times: with aliases only.
const LENGTHY: [&str; 2] =
    ["every_device_call_may_fail_once", "every_device_call_may_fail_for_good"];

/// Gives each case a process of its own.
const APART: &str = "VMM_VULKAN_APART";

/// Cases to run.
type Cases = fn() -> Vec<Case<VulkanHarness>>;

/// The granule on a device that runs on the host, in bytes. Such devices have very fine ones, of which
/// pools would make thousands of frames.
const COARSE: u64 = 512 << 10;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    // Listing must not need a device.
    let found = if arguments.list { Ok(false) } else { common::look() };
    let granule = if found == Ok(true) { 1 } else { COARSE };
    let missing = found.err();
    let coarse = VulkanOptions { granule, ..common::options() };
    let poisoned = VulkanOptions { aliases: false, fresh: Fresh::Poison(0xA5), ..coarse.clone() };
    let everything = case::all::<VulkanHarness>;
    // Cases of pools count in frames that divide 2 MiB, which is not so with a granule that is finer.
    let of_the_device = device_cases::all::<VulkanHarness>;
    let variants: [(_, _, Cases); 3] = [
        ("aliases", coarse, everything),
        ("without_aliases", poisoned, everything),
        ("finest_granule", common::options(), of_the_device),
    ];
    let mut trials = Vec::new();
    for (variant, options, cases) in variants {
        let left_out = |name: &str| variant == "without_aliases" && LENGTHY.contains(&name);
        for case in cases().into_iter().filter(|case| !left_out(case.name)) {
            let (name, options) = (case.name, options.clone());
            let trial = format!("{variant}::{name}");
            let (skip, title) = (missing.is_some(), trial.clone());
            let test = move || if skip { Ok(()) } else { run(name, &title, options) };
            // nextest reads what a test says of itself; the plain runner only this.
            let by_runner = skip && std::env::var_os("NEXTEST").is_none();
            let trial = Trial::test(trial, test);
            let kind = if by_runner { "skipped: no Vulkan device" } else { "" };
            trials.push(trial.with_ignored_flag(by_runner).with_kind(kind));
        }
    }
    if let Some(why) = &missing {
        println!("skipped: {why}");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(name: &str, trial: &str, options: VulkanOptions) -> Result<(), Failed> {
    let alone = common::is_child();
    if !alone && std::env::var_os(APART).is_some() {
        return run_apart(trial);
    }
    match common::open(options) {
        Ok(device) => judge(name, device),
        Err(why) if !alone => {
            eprintln!("note: {trial} runs in a process of its own, for here it now is so: {why}");
            run_apart(trial)
        }
        Err(why) => Err(format!("the device was there before, and now: {why}").into()),
    }
}

fn judge(name: &str, device: VulkanDevice) -> Result<(), Failed> {
    let log = device.message_log();
    let outcome = outcome_of(name, || VulkanHarness::new(Arc::new(device)));
    // The device is gone by now, so that also what it left over was spoken of.
    let messages = log.list();
    match outcome {
        Outcome::Failed(why) => Err(format!("{why}; the validation layer: {messages:?}").into()),
        _ if !messages.is_empty() => Err(format!("the validation layer: {messages:?}").into()),
        _ if !log.has_ended() => Err("something keeps the device open".into()),
        Outcome::Passed => Ok(()),
        Outcome::RuledOut(need) => {
            println!("ruled out: {name}: {need}");
            Ok(())
        }
    }
}

/// Runs one test in a process of its own. A device that is missing there is a failure.
fn run_apart(trial: &str) -> Result<(), Failed> {
    let program = std::env::current_exe()?;
    let output = Command::new(program).args(["--exact", trial]).env(common::CHILD, "1").output()?;
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() || !out.contains("1 passed") {
        return Err(format!("alone: {}\n{out}\n{err}", output.status).into());
    }
    if let Some(start) = out.find("ruled out: ") {
        println!("{}", out[start..].lines().next().unwrap_or_default());
    }
    Ok(())
}

//! The conformance suite on a Vulkan device: with aliases, without them, and with the driver's granule.
//!
//! Each case is a test of its own. Whether there is a device is known only when they run, so the
//! tests are made then.

mod common;

use common::harness::VulkanHarness;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use vmm_conformance::{Case, Outcome, case, device_cases, outcome_of};
use vmm_vulkan::{Fresh, VulkanOptions};

/// Cases that go through a pool's whole life some five hundred times: with aliases only.
const LENGTHY: [&str; 2] =
    ["every_device_call_may_fail_once", "every_device_call_may_fail_for_good"];

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
            let skip = missing.is_some();
            let test = move || if skip { Ok(()) } else { run(name, options) };
            // nextest reads what a test says of itself; the plain runner only this.
            let by_runner = skip && std::env::var_os("NEXTEST").is_none();
            let trial = Trial::test(format!("{variant}::{name}"), test);
            let kind = if by_runner { "skipped: no Vulkan device" } else { "" };
            trials.push(trial.with_ignored_flag(by_runner).with_kind(kind));
        }
    }
    if let Some(why) = &missing {
        println!("skipped: {why}");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(name: &str, options: VulkanOptions) -> Result<(), Failed> {
    let Some(device) = common::device(options) else { return Ok(()) };
    let log = device.message_log();
    let outcome = outcome_of(name, || VulkanHarness::new(device));
    // The device is gone by now, so that also what it left over was spoken of.
    let messages = log.list();
    match outcome {
        Outcome::Failed(why) => Err(format!("{why}; the validation layer: {messages:?}").into()),
        _ if !messages.is_empty() => Err(format!("the validation layer: {messages:?}").into()),
        Outcome::Passed => Ok(()),
        Outcome::RuledOut(need) => {
            println!("ruled out: {name}: {need}");
            Ok(())
        }
    }
}

//! The conformance suite on a card: with virtual memory and with plain allocations.
//!
//! Each case is a test of its own. Whether there is a card is known only when it runs, so that the tests
//! are made then.

mod common;

use common::Cards;
use common::harness::CudaHarness;
use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::sync::Arc;
use vmm_conformance::{Outcome, case, outcome_of};
use vmm_cuda::CudaDevice;

type Open = fn(&Cards) -> Arc<CudaDevice>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let missing = CudaDevice::count().err().map(|why| why.to_string());
    let variants: [(&str, Open); 2] = [("virtual_memory", Cards::first), ("plain", Cards::plain)];
    let mut trials = Vec::new();
    for (variant, open) in variants {
        for case in case::all::<CudaHarness>() {
            let (name, missing) = (case.name, missing.clone());
            let skip = missing.is_some();
            let trial = Trial::test(format!("{variant}::{name}"), move || run(name, open, missing));
            // nextest reads what a test says of itself; the plain runner only this.
            let by_runner = skip && std::env::var_os("NEXTEST").is_none();
            trials.push(trial.with_ignored_flag(by_runner).with_kind(if by_runner {
                "skipped: no card"
            } else {
                ""
            }));
        }
    }
    if let (Some(why), false) = (&missing, arguments.list) {
        println!("skipped: {why}");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(name: &str, open: Open, missing: Option<String>) -> Result<(), Failed> {
    if let Some(why) = missing {
        println!("skipped: {why}");
        return Ok(());
    }
    // There was one when the program began: that it is gone is a failure.
    let cards = Cards::take(1).ok_or("there is no card any more")?;
    let device = open(&cards);
    match outcome_of(name, || CudaHarness::new(cards, device)) {
        Outcome::Passed => Ok(()),
        Outcome::RuledOut(need) => {
            println!("ruled out: {name}: {need}");
            Ok(())
        }
        Outcome::Failed(why) => Err(why.into()),
    }
}

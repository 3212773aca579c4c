//! Cases and how they are run.

use crate::device_cases;
use crate::harness::Harness;
use crate::outcome::{CaseResult, Outcome, Report};
use crate::pool_cases;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Something that must hold on every device.
pub struct Case<H> {
    /// Unique. Also the name of the function and of the generated test.
    pub name: &'static str,
    /// Runs it on a fresh device.
    pub run: fn(&H) -> CaseResult,
}

impl<H> fmt::Debug for Case<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Every case.
#[must_use]
pub fn all<H: Harness>() -> Vec<Case<H>> {
    let mut cases = device_cases::all();
    cases.extend(pool_cases::all());
    cases
}

/// Runs one case on a fresh device. A panic is a failure.
pub fn run<H: Harness>(case: &Case<H>, make: impl FnOnce() -> H) -> Outcome {
    let harness = make();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        (case.run)(&harness).and_then(|()| {
            let left = harness.leftovers();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("left on the device: {left:?}").into())
            }
        })
    }));
    match outcome {
        Ok(result) => result.into(),
        Err(panic) => {
            let message = panic.downcast_ref::<String>().cloned();
            let message = message.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
            Outcome::Failed(format!("panic: {}", message.unwrap_or_default()))
        }
    }
}

/// Runs every case, each on a fresh device.
pub fn run_all<H: Harness>(make: impl Fn() -> H) -> Report {
    let outcomes = all::<H>().iter().map(|case| (case.name, run(case, &make))).collect();
    Report { outcomes }
}

/// Runs the case of that name; for generated tests.
///
/// # Panics
/// If the case fails or does not exist.
pub fn run_named<H: Harness>(name: &str, make: impl FnOnce() -> H) {
    match outcome_of(name, make) {
        Outcome::Passed => {}
        Outcome::RuledOut(need) => println!("ruled out: {name}: {need}"),
        Outcome::Failed(why) => panic!("{name}: {why}"),
    }
}

/// What the case of that name comes to.
///
/// # Panics
/// If there is none.
pub fn outcome_of<H: Harness>(name: &str, make: impl FnOnce() -> H) -> Outcome {
    let cases = all::<H>();
    let case = cases.iter().find(|case| case.name == name).expect("a case of this name");
    run(case, make)
}

/// Makes a test of every case. The argument is an expression that makes a fresh harness.
///
/// ```
/// vmm_conformance::conformance_tests!(vmm_conformance::MockHarness::default());
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        $crate::with_device_cases! { generate_tests, { $make } }
        $crate::with_pool_cases! { generate_tests, { $make } }
    };
}

/// Makes one test for each name.
#[doc(hidden)]
#[macro_export]
macro_rules! generate_tests {
    ({ $make:expr } $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::run_named(stringify!($name), || $make);
            }
        )*
    };
}

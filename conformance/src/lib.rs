//! What every device and the pool on it must do, as a library of cases.
//!
//! A backend implements [`Harness`] and calls [`conformance_tests!`] in a test file; each case then
//! is a test of its own. A case passes, fails, or is ruled out by an ability that the backend lacks
//! and that is named: nothing is skipped in silence.
//!
//! The case of random operations runs as many of them as `VMM_RANDOM_OPERATIONS` says, for each
//! setting; the default suits a debug build.
//!
//! Each bullet of the documentation of [`vmm_core::device`] has a case; the table is
//! [`contract::CLAUSES`], and a test compares it with the text.
#![forbid(unsafe_code)]

pub mod harness;
pub mod outcome;

pub mod case;
pub mod contract;
pub mod mock;

pub mod device_cases;
pub mod pool_cases;
mod scene;

pub use case::{Case, outcome_of, run, run_all, run_named};
pub use harness::{Abilities, Harness, HarnessResult, Use};
pub use mock::{MockHarness, OverMock};
pub use outcome::{CaseResult, Need, Outcome, Report, Stop};

//! Models of other allocators of GPU memory, for comparison with the pool on recorded traces.
//!
//! A model does what the allocator does with memory and with calls of the driver, and nothing else: it
//! is told the events of a trace ([`run`]) and keeps an account of what a device would have seen. Each
//! [`Policy`] documents in its module what it guarantees, what it costs, where it is from and what it
//! leaves out, and [`Policy::fidelity`] says how far it was checked.
//!
//! ```
//! use vmm_models::{Policy, RunSettings, run};
//! # use vmm_replay::worst::cases;
//! # let trace = cases().swap_remove(0).trace;
//! let policy: Policy = "native:max_split_size=128MiB".parse()?;
//! let result = run(&trace, &policy, &RunSettings::default(), &mut |_, _| {})?;
//! println!("{policy}: {} bytes reserved at most", result.peak_reserved_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod costs;
mod driver;
mod heap;
mod model;
mod plain;
mod policy;
mod result;
mod rmm;
mod run;
mod space;
mod stream_ordered;
mod torch;

pub use costs::Costs;
pub use driver::{Call, ModelCalls};
pub use policy::{Fidelity, Policy, PolicyError};
pub use result::ModelResult;
pub use run::{RunError, RunSettings, run};
pub use torch::TorchOptions;

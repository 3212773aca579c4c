//! Models of other allocators of GPU memory, for comparison with the pool on recorded traces.
//!
//! A model does what the allocator does with memory and with calls of the driver, and nothing else: it
//! is told the events of a trace ([`run`]) and keeps an account of what a device would have seen. Each
//! module of a model says what the allocator guarantees, what it costs, where the facts are from and what
//! is left out: [`plain`], [`torch`], [`stream_ordered`], [`rmm`]. [`Policy`] names them, and
//! [`Policy::fidelity`] says how far each was checked.
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
mod model;
mod pieces;
pub mod plain;
mod policy;
#[cfg(test)]
mod properties;
pub mod rmm;
mod run;
mod space;
pub mod stream_ordered;
pub mod torch;

pub use costs::Costs;
pub use driver::{Call, ModelCalls};
pub use policy::{Fidelity, Policy, PolicyError};
pub use run::{ModelResult, RunError, RunSettings, run};
pub use torch::TorchOptions;

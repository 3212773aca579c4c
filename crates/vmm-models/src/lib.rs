//! Models of other allocators of GPU memory.
#![forbid(unsafe_code)]

mod costs;
mod driver;
mod model;
mod policy;
mod result;
mod run;
mod space;
mod torch;

pub use costs::Costs;
pub use driver::{Call, ModelCalls};
pub use policy::Policy;
pub use result::ModelResult;
pub use run::{RunError, RunSettings, run};
pub use torch::TorchOptions;

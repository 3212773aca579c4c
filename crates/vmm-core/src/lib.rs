//! A pool of GPU memory on the GPU's own virtual memory.
#![forbid(unsafe_code)]

pub mod device;
mod error;
mod options;
mod report;
pub mod units;

mod arena;
mod bins;
mod budget;
mod extent;
mod frame;
mod growth;
mod idle;
mod inspect;
mod ladder;
mod lease;
mod maintenance;
mod owner;
mod pool;
mod recall;
mod region;
mod settle;
mod shared;
mod slab;
mod state;
mod step;
mod teardown;
mod timeline;
mod uses;
mod validate;
mod worker;

pub use lease::Lease;
pub use owner::Owner;
pub use pool::{Pool, Pressure, Request};
pub use state::LeaseId;
pub use step::{Step, StepOutcome};

pub use device::{
    AddrRange, Capabilities, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind,
    Mapping, MemoryInfo, Properties, VirtualMemoryDevice,
};
pub use error::{AllocError, OutOfMemory, PoolError};
pub use options::{Clock, CrossStream, Maintenance, PoolOptions};
pub use report::{Counters, FrameView, FreeView, LeaseView, MappingView, Snapshot, Stats};
pub use units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId, round_down, round_up};

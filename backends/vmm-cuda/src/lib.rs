//! The CUDA backend of the pool: virtual memory, fences and copies through the CUDA driver.
//!
//! The driver's library is loaded when the first device is opened, not before, and a machine without it
//! gets an [`Unavailable`] that says what to do.
//!
//! ```
//! use std::sync::Arc;
//! use vmm_core::{Owner, Pool, PoolOptions, VirtualMemoryDevice};
//! use vmm_cuda::{CudaDevice, CudaOptions};
//!
//! let device = match CudaDevice::new(CudaOptions::default()) {
//!     Ok(device) => Arc::new(device),
//!     Err(why) => {
//!         println!("{why}");
//!         return Ok(());
//!     }
//! };
//! let pool = Pool::new(Arc::clone(&device), PoolOptions::default())?;
//! let stream = device.make_stream()?;
//! let lease = pool.allocate(1 << 20, stream, Owner::NONE)?;
//! device.fill(lease.addr(), 7, lease.len(), stream)?;
//! drop(lease);
//! pool.forget_stream(stream)?;
//! device.destroy_stream(stream)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Streams
//!
//! The pool knows a stream by its handle; [`CudaDevice::stream_id`] gives the name of any, the default
//! streams among them.
//!
//! # Contexts, threads, the end
//!
//! All work is in the primary context of the device, which is made current for the duration of a call and
//! no longer. Threads, their current device and their captures are left as they were. When the driver
//! has shut down, the context was reset, or the process is a fork, every call is
//! [`vmm_core::DeviceErrorKind::Deinitialized`] and dropping does nothing.
//!
//! # cudarc
//!
//! [`LeaseSlice`] is pool memory that cudarc's functions take. [`kernels`] has small kernels for checks
//! and measurements that need no toolkit.
#![cfg(target_os = "linux")]

mod options;
mod unavailable;

mod driver;
mod error;
mod ffi;
mod process;

mod context;
mod open;

mod fence;
mod memory;
mod stream;

mod bind;
mod device;
mod order;

pub mod kernels;
mod slice;

pub use device::CudaDevice;
pub use options::{CudaOptions, VirtualMemory};
pub use slice::{LeaseSlice, SliceError};
pub use unavailable::Unavailable;

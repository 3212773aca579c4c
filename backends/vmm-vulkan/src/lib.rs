//! The Vulkan backend: the device interface of `vmm-core` on sparse buffers.
//!
//! | in the interface | in Vulkan |
//! |---|---|
//! | region | a sparse buffer; its address is the buffer's device address |
//! | granule | the alignment that the driver asks of sparse buffers, or a coarser one by choice |
//! | frame | a piece of a block of device memory, from `gpu-allocator` |
//! | map, unmap | `vkQueueBindSparse`: queued, behind fences, on a queue of its own where there is one |
//! | stream | a timeline semaphore and the queue that its work goes to; several may share a queue |
//! | fence | a value of that timeline |
//! | set access | nothing: what is bound can be used |
//!
//! ```no_run
//! use std::sync::Arc;
//! use vmm_core::{Pool, PoolOptions};
//! use vmm_vulkan::{Submit, VulkanDevice, VulkanOptions};
//!
//! let device = Arc::new(VulkanDevice::new(VulkanOptions::default())?);
//! let options = PoolOptions { limit: Some(1 << 30), ..PoolOptions::default() };
//! let pool = Pool::new(Arc::clone(&device), options)?;
//! let stream = device.make_stream()?;
//! let lease = pool.allocate(64 << 20, stream, pool.owner("activations"))?;
//! let range = device.lease_range(&lease);
//! let descriptor = range.descriptor(); // for descriptor sets
//! let address = range.address; // for shaders with buffer references
//! # let commands = [];
//! // SAFETY: the command buffers are recorded, and stay until the stream is past them.
//! unsafe { device.submit(stream, &Submit { commands: &commands, ..Submit::default() })? };
//! lease.release(stream);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it needs
//!
//! Vulkan 1.2 with the features in [`FEATURES`], a queue with compute and one that binds. Where
//! something is missing [`Unavailable`] names it. Without a GPU, lavapipe of Mesa 25.0 or newer does.
//!
//! # Streams and queues
//!
//! Work of one stream runs in order, each piece behind the one before with all that it wrote; a barrier
//! in front of every submission sees to that. A stream that was made here ([`VulkanDevice::make_stream`])
//! knows all its work, so that recording a fence names the point behind the last submission and makes no
//! call of the driver; waits are noted and go along with the next submission. A queue of the user's
//! can be a stream as a whole ([`VulkanDevice::queue_stream`]): there, recording is an empty submit.
//!
//! Everything goes to the driver at once and waits there, by semaphores. The exception is a stream behind
//! a closed [`Gate`] that shares its queue: its work, and what waits for it, is kept back until the gate
//! opens, so that the queue goes on to serve others.
//!
//! # What is the user's affair
//!
//! - Whoever submits to a queue that this crate uses, too, hands over the lock that guards it
//!   ([`QueueLock`]).
//! - The host accesses a sparse buffer when it binds, on any thread, and Vulkan wants such accesses
//!   to exclude others of the same buffer. Recording commands and writing descriptors with it meanwhile
//!   disturbs no driver that we know of, nor the validation layer.
//! - Work that uses reserved addresses without memory reads zeros only where
//!   [`VulkanDevice::strict_residency`] says so.
//! - Fresh memory may hold what another program left there: see [`Fresh`].
//! - Old validation layers (1.3.239 is one) take a copy between neighbours that were bound as one for a copy onto
//!   itself.
//!
//! # Tests
//!
//! They take the best device of the machine, or the one that `VMM_VULKAN_DEVICE` names by index or by
//! a part of its name; GPUs come before lavapipe. Without a device they say that they were skipped,
//! unless `VMM_REQUIRE_VULKAN` is set. The validation layer watches, and its messages are failures.

mod facts;
mod options;
mod unavailable;

mod choice;
mod context;
mod messages;

mod bind;
mod buffer;
mod error;
mod memory;
mod regions;

mod commands;
mod fence;
mod queue;
mod stream;
mod streams;

mod about;
mod device;
mod transfer;
mod user;

mod gate;
mod kernels;
mod pipeline;

pub use about::{About, Heap};
pub use choice::{DeviceSummary, list_devices};
pub use device::VulkanDevice;
pub use facts::FEATURES;
pub use gate::Gate;
pub use kernels::{Contents, Mismatches, Spinner};
pub use messages::MessageLog;
pub use options::{DeviceChoice, ExternalDevice, ExternalQueue, Fresh, QueueLock, VulkanOptions};
pub use stream::BIND_STREAM;
pub use unavailable::Unavailable;
pub use user::{BufferRange, Living, Submit};

/// The bindings that the interface of this crate is in terms of.
pub use ash;

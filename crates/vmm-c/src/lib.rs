//! The C interface of `vmm`: what `libvmm.so`, `libvmm.a` and `include/vmm.h` are made of.
//!
//! Programs in C and C++ include the header, which says of each function what it needs and does.
//! Names here are those of C, so that one thing has one name on both sides.
//!
//! # How the interface evolves
//!
//! Structs begin with their size, which the caller sets to `sizeof`. Later versions only add fields
//! at the end: a program that was compiled earlier gets defaults for what it does not know, and one
//! that was compiled later is refused only where it uses what the library does not know. Functions
//! and status values are added and never change their meaning within one `SONAME`. Choices travel
//! as `uint32_t`, so that a number that is none is an error and not undefined behaviour.
//!
//! # Threads and lifetimes
//!
//! Every function may be called by any thread at any time, but for the destruction of a pool, which
//! must be the last call with it. A lease is named by its address, and any thread may release it.
//! Texts say how long they live; that of `vmm_last_error` belongs to the thread.
//!
//! Loading the library runs no code and loads no driver: a pool on a CUDA device does, when it is
//! made. A pool can be made before the program has initialised CUDA, in any thread, whatever device
//! is current.
//!
//! # Streams
//!
//! A stream is its `cudaStream_t`, and `NULL` the default stream. `cudaStreamPerThread` is a stream
//! for each thread, and means that of the calling thread. A program that destroys a stream says so
//! before, with `vmm_forget_stream`.
//!
//! # Faults
//!
//! No panic leaves the library. One that happens in a call of a pool makes it `VMM_PANICKED`, and
//! the pool refuses all further use: what it holds stays as it is, since work may be using it.
//!
//! # From an address to its lease
//!
//! C names leases by address: the pool finds them itself (`vmm_core`'s raw leases), under the lock that an
//! allocation or release takes anyway. `benches/c_pairs.rs` measures what this interface adds.
#![allow(non_camel_case_types)]

mod callbacks;
mod device;
mod error;
mod guard;
mod memory;
mod options;
mod owners;
mod peers;
mod pool;
mod private;
mod sized;
mod snapshot;
mod stats;
mod status;
mod upkeep;
mod version;
mod walk;

pub use callbacks::{
    vmm_add_pressure_callback, vmm_pressure_callback_t, vmm_pressure_t,
    vmm_remove_pressure_callback,
};
pub use device::{AnyDevice, vmm_device_count, vmm_device_kind_t};
pub use error::{vmm_last_error, vmm_last_out_of_memory, vmm_out_of_memory_t};
pub use memory::{
    vmm_allocate, vmm_allocate_at_hand, vmm_find, vmm_free, vmm_lease_t, vmm_release, vmm_share,
    vmm_stream_t, vmm_used_on,
};
pub use options::{
    VMM_NO_TARGET, vmm_cross_stream_t, vmm_frame_kind_t, vmm_maintenance_t, vmm_pool_options_t,
    vmm_virtual_memory_t,
};
pub use owners::vmm_owner;
pub use peers::{vmm_add_peer, vmm_grant};
pub use pool::{
    vmm_device_info, vmm_device_info_t, vmm_device_name, vmm_pool_create, vmm_pool_destroy,
    vmm_pool_t,
};
pub use private::{
    vmm_private_allocate, vmm_private_allocate_at, vmm_private_create, vmm_private_release,
};
pub use snapshot::vmm_write_snapshot;
pub use stats::{vmm_reset_peaks, vmm_stats, vmm_stats_t};
pub use status::{vmm_status_name, vmm_status_t};
pub use upkeep::{
    vmm_forget_stream, vmm_maintain, vmm_set_limit, vmm_set_target, vmm_trim, vmm_trim_and_wait,
    vmm_validate, vmm_watch_stream,
};
pub use version::{VMM_VERSION_MAJOR, VMM_VERSION_MINOR, VMM_VERSION_PATCH, vmm_version};
pub use walk::{vmm_piece_kind_t, vmm_piece_t, vmm_visit_t, vmm_walk};

//! A pool of GPU memory on the GPU's own virtual memory.
//!
//! | word | meaning |
//! |---|---|
//! | granule | the device's smallest mappable length, asked of the device |
//! | region | a reserved range of device addresses |
//! | page | one granule-long slot of a region |
//! | frame | physical memory made by one device call, a multiple of the granule, mapped whole or not at all |
//! | mapping | joins pages to a frame; one frame may have several (aliases) |
//! | extent | a piece of a region: free, live, retired, dead or void |
//! | stream | an ordered queue of device work |
//! | fence | a point in the work of a stream: reached or not yet |
//! | lease | what a user holds: counted, shareable between operators, released on a stream |
//! | peer | another device that has access to memory of the pool |
//! | private pool | memory that one user keeps apart, as for captured graphs: it stays where it is |
//! | pool | the facade that users see |
//! | placement | the policy that decides where in a range of addresses a block lies |
//! | heap | blocks in leases of a pool, where a placement says |
//!
//! # The protocol of a lease
//!
//! 1. [`Pool::allocate`] gives a lease with count 1. The same address is never live twice.
//! 2. [`Lease::share`] declares another user: count + 1.
//! 3. [`Lease::used_on`] notes work on a further stream.
//! 4. [`Lease::release`], or drop, lowers the count and notes where that user's work ends.
//! 5. At count 0 the memory is *retired*: work on the one stream that used it may have it at once, by
//!    stream order; others when its fences are reached, or when their stream is made to wait for
//!    them on the device ([`CrossStream`]).
//! 6. Nothing is unmapped before all its fences are reached.
//!
//! # Private pools
//!
//! [`Pool::private_pool`] keeps memory apart for one user, as for graphs that are captured: it stays
//! mapped where it is, and serves allocations from that [`PrivatePool`] alone while it lives.
//!
//! # Placements and heaps
//!
//! Leases lie where the pool's own policy says. Who wants another one, as fixed blocks for a KV cache
//! or a bump arena for a step, takes a [`Heap`] with a [`placement`]: its blocks lie in leases of the pool.
//!
//! # What it guarantees
//!
//! Reserved memory never exceeds the limit. A call that fails changes nothing. Allocate and release
//! from memory at hand make no device call and cost the same whatever the number of leases. The
//! host waits for the device only when nothing else can serve an allocation, and in
//! [`Pool::trim_and_wait`] and the drop of a pool. `ARCHITECTURE.md` has the rest.
//!
//! On a device that cannot map ([`Capabilities::remapping`]) all of this holds for plain allocations,
//! with two differences: what is free in pieces serves no longer request, and a release may wait.
//!
//! The pool is generic over [`VirtualMemoryDevice`]; this crate names no GPU interface.
#![forbid(unsafe_code)]

pub mod device;
mod error;
mod options;
pub mod placement;
mod report;
pub mod units;

mod arena;
mod bins;
mod budget;
mod churn;
mod directory;
mod extent;
mod frame;
mod growth;
mod heap;
mod holdings;
mod idle;
mod inspect;
mod ladder;
mod lease;
mod maintenance;
mod mark;
mod miss;
mod owner;
mod packing;
mod peers;
mod plain;
mod pool;
mod private;
mod raw;
mod recall;
mod region;
mod settle;
mod shared;
mod state;
mod step;
mod table;
mod teardown;
mod tenancy;
mod timeline;
mod uses;
mod validate;
mod wait;
mod worker;

pub use heap::{Heap, HeapLease, HeapOptions};
pub use lease::Lease;
pub use mark::Mark;
pub use owner::Owner;
pub use pool::{Pool, Pressure, Request};
pub use private::{AllocAtError, PrivatePool};
pub use raw::RawLease;
pub use step::{Step, StepOutcome};

pub use device::{
    AddrRange, Capabilities, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind,
    Mapping, MemoryInfo, Properties, VirtualMemoryDevice,
};
pub use error::{AllocError, NotALease, OutOfMemory, PoolError};
pub use options::{Clock, CrossStream, Maintenance, PoolOptions};
pub use report::{
    Counters, FrameView, FreeView, LeaseView, MappingView, PrivateView, Snapshot, Stats,
};
pub use tenancy::PrivateId;
pub use units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId, round_down, round_up};

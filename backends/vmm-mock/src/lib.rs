//! A strict device that needs no hardware.
//!
//! [`MockDevice`] keeps the rules of a real driver and refuses what a real driver refuses, or would
//! let pass and punish later: partial maps, an unmap under queued work, a fence that was never
//! recorded. What is legal here is meant to be legal on the card.
//!
//! Time is logical and moves only when it is told to ([`MockDevice::advance`]) or when the host
//! waits. Work changes bytes when the clock passes its end, so an ordering that is missing shows as
//! wrong bytes ([`MockDevice::mismatches`]) and as a race ([`MockDevice::races`]), in every run.
//!
//! Driver calls cost no logical time; what they would have cost is in [`MockDevice::cost`].
//!
//! [`Faulty`] wraps any device and makes chosen calls fail.
//!
//! ```
//! use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
//! use vmm_mock::{MockDevice, MockOptions};
//!
//! let device = MockDevice::new(MockOptions::default());
//! let granule = device.properties().granule;
//! let base = device.reserve(granule, granule)?;
//! let range = AddrRange { addr: base, len: granule };
//! let frame = device.make_frame(granule, FrameKind::Device)?;
//! device.map(&[Mapping { range, frame }], &[])?;
//! device.set_access(range, &[])?;
//!
//! let stream = device.make_stream();
//! device.fill(base, 7, granule, stream)?;
//! device.launch_check(stream, 1_000, range, 7)?;
//! device.finish_all();
//! assert!(device.mismatches().is_empty());
//! # Ok::<(), vmm_core::device::DeviceError>(())
//! ```
#![forbid(unsafe_code)]

mod options;

mod address;
mod bytes;
mod memory;

mod graph;
mod order;
mod stream;
mod work;

mod control;
mod cost;
mod device;
mod fault;
mod observe;
mod state;

pub use cost::{CostModel, CostSnapshot, Curve, OpCost};
pub use device::MockDevice;
pub use fault::{Faulty, FaultyCall};
pub use graph::Graph;
pub use observe::{Leftovers, Mismatch, Race, Waits};
pub use options::MockOptions;
pub use stream::BIND_STREAM;
pub use work::{Access, AccessKind, ReadId};

/// The example of the README, so that it stays true.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

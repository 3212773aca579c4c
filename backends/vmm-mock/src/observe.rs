//! What a test can see of a mock device.

use vmm_core::device::{AddrRange, Mapping};
use vmm_core::units::{DeviceAddr, FrameHandle, StreamId};

/// Work found other bytes than it expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the work ran.
    pub stream: StreamId,
    /// What it read.
    pub range: AddrRange,
    /// What it expected everywhere.
    pub expected: u8,
    /// The first address with something else.
    pub first: DeviceAddr,
    /// What was there.
    pub found: u8,
    /// How many bytes differed.
    pub count: u64,
}

/// Two pieces of work use the same bytes, one writes, and nothing orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Race {
    /// The stream of the earlier work.
    pub earlier: StreamId,
    /// The stream of the work that was queued later.
    pub later: StreamId,
    /// The range that the later work uses.
    pub range: AddrRange,
}

/// Waits of the host in which it really waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// How many.
    pub count: u64,
    /// For how long, in logical nanoseconds.
    pub nanos: u64,
}

/// What lives on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Reserved ranges, by address.
    pub regions: Vec<AddrRange>,
    /// Frames and their lengths in bytes, by handle.
    pub frames: Vec<(FrameHandle, u64)>,
    /// Mappings, by address.
    pub mappings: Vec<Mapping>,
}

impl Leftovers {
    /// Whether nothing is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty() && self.frames.is_empty() && self.mappings.is_empty()
    }
}

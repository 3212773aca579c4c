//! The quantities that cross the device interface, each a type of its own.
//!
//! Lengths are plain `u64` bytes: every function that takes one says so by the name `len`.

use std::fmt;

/// An address on the device. Zero is never a valid address of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceAddr(pub u64);

impl DeviceAddr {
    /// The address `len` bytes further on.
    ///
    /// # Panics
    /// On overflow: regions end below 2^64, so the caller has left its region.
    #[must_use]
    pub fn offset(self, len: u64) -> Self {
        Self(self.0.checked_add(len).expect("address beyond 2^64"))
    }

    /// Bytes from `base` up to here.
    ///
    /// # Panics
    /// If `base` lies above.
    #[must_use]
    pub fn since(self, base: Self) -> u64 {
        self.0.checked_sub(base.0).expect("address below its base")
    }
}

impl fmt::Debug for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for DeviceAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A stream: an ordered queue of device work. The value is the device's own handle (a `CUstream`,
/// a Vulkan queue), so that streams made elsewhere can be named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StreamId(pub u64);

/// The device's handle of a frame. Unique among the living frames of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameHandle(pub u64);

/// The ordinal of a device in its machine, for access by peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOrdinal(pub u32);

/// A point in the work of a stream: reached once the stream has finished all that was queued on it
/// before the fence was recorded.
///
/// Values of one stream only rise, and a stream that has reached a value has reached all lower
/// ones. Value 0 is reached from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// Where the fence was recorded.
    pub stream: StreamId,
    /// Its place on that stream.
    pub value: u64,
}

impl Fence {
    /// A fence that is reached already.
    pub const REACHED: Self = Self { stream: StreamId(0), value: 0 };
}

/// `len` rounded up to a multiple of `unit`, a power of two; `None` beyond 2^64.
#[must_use]
pub fn round_up(len: u64, unit: u64) -> Option<u64> {
    debug_assert!(unit.is_power_of_two());
    Some(len.checked_add(unit - 1)? & !(unit - 1))
}

/// `len` rounded down to a multiple of `unit`, a power of two.
#[must_use]
pub fn round_down(len: u64, unit: u64) -> u64 {
    debug_assert!(unit.is_power_of_two());
    len & !(unit - 1)
}

//! What can go wrong, each with the facts that its handler needs.

use crate::device::DeviceError;
use crate::units::DeviceAddr;
use std::fmt;

/// Why an allocation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No state of the pool could ever serve this. A retry cannot help.
    #[error(
        "{requested} bytes at alignment {alignment} can never fit: {} is {largest_ever} bytes{}",
        if *limited { "the limit" } else { "the memory of the device" },
        if alignment.is_power_of_two() { "" } else { ", and an alignment is a power of two" }
    )]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
        /// Alignment asked for, in bytes.
        alignment: u64,
        /// The most that an empty pool could serve, in bytes.
        largest_ever: u64,
        /// Whether that is the pool's limit, rather than the memory of the device.
        limited: bool,
    },
    /// Not now. It may succeed once others release.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The device failed in a way that memory cannot mend. Nothing has changed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

/// The state of the pool when nothing more could be done for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested: u64,
    /// The pool's limit in bytes, if it has one.
    pub limit: Option<u64>,
    /// Physical memory of the pool in bytes.
    pub reserved: u64,
    /// Bytes in leases.
    pub live: u64,
    /// Bytes released but still in use by queued work.
    pub retired: u64,
    /// The largest request that would succeed now, in bytes, as far as the pool can tell.
    pub largest_possible: u64,
    /// The largest holders: name and live bytes, largest first.
    pub owners: Vec<(String, u64)>,
    /// What the device said, if it refused before the limit was reached.
    pub device: Option<DeviceError>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} bytes asked for; reserved {}", self.requested, self.reserved)?;
        match self.limit {
            Some(limit) => write!(f, " of at most {limit}")?,
            None => write!(f, ", no limit set")?,
        }
        write!(
            f,
            ", live {}, retired {}; the largest request possible now is {} bytes",
            self.live, self.retired, self.largest_possible
        )?;
        for (i, (name, bytes)) in self.owners.iter().enumerate() {
            write!(f, "{}{name} {bytes}", if i == 0 { "; held by " } else { ", " })?;
        }
        if let Some(error) = &self.device {
            write!(f, "; the device refused: {error}")?;
        }
        Ok(())
    }
}

/// An address at which no live lease begins that is named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no live lease of this pool begins at {addr:?}: it was released already, or comes from elsewhere"
)]
pub struct NotALease {
    /// The address.
    pub addr: DeviceAddr,
}

/// Why a pool could not be made or changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The device lacks what was asked for.
    #[error("device {device:?} does not support {missing}")]
    NotSupported {
        /// The device's name.
        device: String,
        /// The capability that is missing.
        missing: &'static str,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Options(&'static str),
    /// A stream is capturing a graph, which the call would break.
    #[error("a stream is capturing a graph: call again when the capture has ended")]
    Capturing,
    /// An address is not that of a lease.
    #[error("{0}")]
    NotALease(#[from] NotALease),
    /// Too many private pools live or have leases.
    #[error("{most} private pools live or have leases: release one")]
    TooManyPrivatePools {
        /// How many there can be.
        most: usize,
    },
    /// A device call failed.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl PoolError {
    /// What the device said, if that is why.
    pub(crate) fn device(self) -> Option<DeviceError> {
        if let Self::Device(error) = self { Some(error) } else { None }
    }
}

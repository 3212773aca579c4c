//! What a mock device is to be like.

use crate::cost::CostModel;
use vmm_core::device::{Capabilities, FrameKind};
use vmm_core::units::DeviceOrdinal;

/// Gibibyte, in bytes.
const GIB: u64 = 1 << 30;
/// Tebibyte, in bytes.
const TIB: u64 = 1 << 40;

/// What a [`crate::MockDevice`] is to be like. The default is an H200 with 16 GiB, the first
/// of eight cards.
#[derive(Clone, Debug)]
pub struct MockOptions {
    /// For people.
    pub name: String,
    /// The smallest mappable length of device memory, in bytes; a power of two.
    pub granule: u64,
    /// Granules of the other kinds of frame; a kind that is missing is not supported.
    pub other_granules: Vec<(FrameKind, u64)>,
    /// Physical memory, in bytes.
    pub memory: u64,
    /// A longer reservation is refused, in bytes.
    pub max_reservation: u64,
    /// All reservations together, in bytes.
    pub address_space: u64,
    /// What the device can do.
    pub capabilities: Capabilities,
    /// Other devices that can be given access, by ordinal. None without that capability.
    pub peers: Vec<DeviceOrdinal>,
    /// What its driver calls cost.
    pub cost: CostModel,
    /// See [`crate::MockDevice::set_lag`], in nanoseconds.
    pub lag: u64,
}

impl Default for MockOptions {
    fn default() -> Self {
        let granule = 2 << 20;
        Self {
            name: "mock".to_owned(),
            granule,
            other_granules: vec![
                (FrameKind::Exportable, granule),
                (FrameKind::Rdma, granule),
                (FrameKind::Host, granule),
            ],
            memory: 16 * GIB,
            max_reservation: 64 * TIB,
            address_space: 128 * TIB,
            capabilities: Capabilities {
                remapping: true,
                aliases: true,
                queued_binds: false,
                peers: true,
                capture: true,
            },
            peers: (1..8).map(DeviceOrdinal).collect(),
            cost: CostModel::h200(),
            lag: 0,
        }
    }
}

impl MockOptions {
    /// The default device with `memory` bytes.
    #[must_use]
    pub fn with_memory(memory: u64) -> Self {
        Self { memory, ..Self::default() }
    }

    /// A device in the manner of Vulkan's sparse binding: binds are queued, the granule is 64 KiB,
    /// access needs no call of its own but the pool makes it, and there is neither capture nor peers.
    #[must_use]
    pub fn queued_binds() -> Self {
        Self {
            granule: 64 << 10,
            other_granules: Vec::new(),
            max_reservation: TIB,
            address_space: TIB,
            capabilities: Capabilities {
                remapping: true,
                aliases: true,
                queued_binds: true,
                peers: false,
                capture: false,
            },
            peers: Vec::new(),
            ..Self::default()
        }
    }

    /// A device that can only allocate, in the manner of CUDA's `cuMemAlloc` and `cuMemFree`: a frame
    /// has one address, nothing can be mapped, and a release waits for all work of the device.
    #[must_use]
    pub fn without_remapping() -> Self {
        let options = Self::default();
        Self {
            other_granules: vec![(FrameKind::Host, options.granule)],
            capabilities: Capabilities {
                remapping: false,
                aliases: false,
                peers: false,
                ..options.capabilities
            },
            peers: Vec::new(),
            cost: CostModel::h200_without_remapping(),
            ..options
        }
    }

    /// A device on which a frame has one mapping at most.
    #[must_use]
    pub fn without_aliases() -> Self {
        let options = Self::default();
        Self {
            capabilities: Capabilities { aliases: false, peers: false, ..options.capabilities },
            peers: Vec::new(),
            ..options
        }
    }
}

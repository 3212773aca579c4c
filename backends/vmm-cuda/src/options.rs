//! Which device, and how.

/// How [`crate::CudaDevice::new`] opens a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// The ordinal of the device, as the driver counts those that are visible to the process.
    pub ordinal: u32,
    /// Whether the device's virtual memory is used.
    pub virtual_memory: VirtualMemory,
    /// The NUMA node of frames in host memory; without it the node that is nearest to the device.
    pub numa_node: Option<u32>,
}

impl CudaOptions {
    /// The default for the device of this ordinal.
    #[must_use]
    pub fn of_device(ordinal: u32) -> Self {
        Self { ordinal, ..Self::default() }
    }
}

/// Whether the device's virtual memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VirtualMemory {
    /// Where the device has it.
    #[default]
    Auto,
    /// Never: frames are plain allocations (`cuMemAlloc`) that lie where the driver has put them.
    Plain,
}

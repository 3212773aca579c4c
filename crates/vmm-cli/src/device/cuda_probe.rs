//! A CUDA card to be looked at.

use vmm_core::{DeviceResult, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions, VirtualMemory};

/// An open card, and what the device interface does not tell of it.
pub(crate) struct ProbedCard {
    device: CudaDevice,
    ordinal: u32,
}

impl ProbedCard {
    /// Opens the card of this ordinal.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(crate) fn open(ordinal: u32) -> Result<Self, String> {
        let device = CudaDevice::new(CudaOptions::of_device(ordinal)).map_err(|e| e.to_string())?;
        Ok(Self { device, ordinal })
    }

    /// The card's virtual memory.
    pub(crate) fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The version of CUDA that the driver is made for.
    pub(crate) fn cuda_version(&self) -> String {
        let (major, minor) = self.device.driver_version();
        format!("{major}.{minor}")
    }

    /// The card once more, with plain allocations.
    ///
    /// # Errors
    /// One line that says why not.
    pub(crate) fn plain(&self) -> Result<CudaDevice, String> {
        let options = CudaOptions {
            virtual_memory: VirtualMemory::Plain,
            ..CudaOptions::of_device(self.ordinal)
        };
        CudaDevice::new(options).map_err(|e| e.to_string())
    }

    /// Two streams. They go with the process.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn streams(&self) -> DeviceResult<[StreamId; 2]> {
        Ok([self.device.make_stream()?, self.device.make_stream()?])
    }

    /// What tells the card from all others.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.device.uuid()
    }
}

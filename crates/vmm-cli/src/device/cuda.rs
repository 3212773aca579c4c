//! A CUDA card for replays.

use super::card::Card;
use super::card_contents::{Checks, Found};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vmm_core::device::AddrRange;
use vmm_core::{DeviceResult, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions, kernels};

/// An open card.
pub(crate) struct CudaCard(Arc<CudaDevice>);

impl CudaCard {
    /// Opens the card of this ordinal.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(crate) fn open(ordinal: u32) -> Result<Self, String> {
        let device = CudaDevice::new(CudaOptions::of_device(ordinal)).map_err(|e| e.to_string())?;
        Ok(Self(Arc::new(device)))
    }
}

impl Card for CudaCard {
    type Device = CudaDevice;

    fn device(&self) -> &Arc<CudaDevice> {
        &self.0
    }

    fn make_stream(&self) -> DeviceResult<StreamId> {
        self.0.make_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.0.destroy_stream(stream)
    }

    fn synchronize_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.0.synchronize_stream(stream)
    }

    fn nap(&self, duration: Duration, stream: StreamId) -> DeviceResult<()> {
        kernels::nap(&self.0, duration, stream)
    }

    fn checks(&self) -> DeviceResult<Box<dyn Checks>> {
        let kernels = kernels::Contents::new(&self.0)?;
        Ok(Box::new(CudaChecks { kernels, known: Mutex::default() }))
    }

    fn load(&self) -> DeviceResult<Box<dyn Any>> {
        Ok(Box::new(Load::begin(&self.0)?))
    }
}

/// Kernels, and what of their sums is known already.
struct CudaChecks {
    kernels: kernels::Contents,
    known: Mutex<kernels::Mismatches>,
}

impl Checks for CudaChecks {
    fn fill(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.kernels.fill(range, seed, stream)
    }

    fn check(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.kernels.check(range, seed, stream)
    }

    fn found(&self) -> DeviceResult<Found> {
        let found = self.kernels.mismatches()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *known, found);
        // The card keeps the lowest wrong address of all, so a new one is of the latest checks.
        let first = found.first.filter(|first| Some(*first) != before.first);
        Ok(Found { wrong_bytes: found.count - before.count, first })
    }
}

/// A kernel that runs on a stream of its own until this is dropped, or for half a minute.
struct Load {
    device: Arc<CudaDevice>,
    gate: kernels::Gate,
    stream: StreamId,
}

impl Load {
    fn begin(device: &Arc<CudaDevice>) -> DeviceResult<Self> {
        let gate = kernels::Gate::new(device)?;
        let this = Self { device: Arc::clone(device), gate, stream: device.make_stream()? };
        this.gate.hold(this.stream)?;
        Ok(this)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.gate.open();
        // A stream that cannot be destroyed goes with the process.
        let _ = self.device.synchronize_stream(self.stream);
        let _ = self.device.destroy_stream(self.stream);
    }
}

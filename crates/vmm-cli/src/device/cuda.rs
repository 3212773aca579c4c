//! A CUDA card as a place for replays: real driver calls under the logical clock of the trace.

use super::cuda_contents::CudaContents;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::{DeviceAddr, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, Fence, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions, kernels};
use vmm_replay::{
    CallAccount, Contents, Ground, Metered, Paced, ReplayError, ReplayResult, ReplaySettings,
    replay, replay_checked,
};
use vmm_trace::DeviceTrace;

/// How long the stand-in for work before each fence runs. Long enough that the fence is not reached
/// while the next calls are made, short enough that tens of thousands of them are seconds.
const STAND_IN: Duration = Duration::from_micros(20);

/// A card that is this late has stopped.
const PATIENCE: Duration = Duration::from_secs(60);

/// One card, for all replays of the command.
pub(crate) struct CudaReplays {
    device: Arc<CudaDevice>,
    streams: Arc<Streams>,
}

impl CudaReplays {
    /// Opens the card of this ordinal and makes it warm: the first calls of a process are dearer than
    /// all later ones.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(crate) fn open(ordinal: u32) -> Result<Self, String> {
        let device = CudaDevice::new(CudaOptions::of_device(ordinal)).map_err(|e| e.to_string())?;
        let device = Arc::new(device);
        let streams = Arc::new(Streams { device: Arc::clone(&device), made: Mutex::default() });
        let this = Self { device, streams };
        this.warm_up().map_err(|error| format!("the device fails at its first calls: {error}"))?;
        Ok(this)
    }

    /// Replays a trace on a fresh pool, and checks the bytes of its leases if `checked` says so.
    ///
    /// # Errors
    /// As [`replay`].
    pub(crate) fn replay(
        &self,
        trace: &DeviceTrace,
        settings: &ReplaySettings,
        checked: bool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ReplayResult, ReplayError> {
        let meter = Arc::new(Metered::new(Arc::clone(&self.device)));
        let ground = CudaGround { meter: Arc::clone(&meter), streams: Arc::clone(&self.streams) };
        let device = Arc::new(Paced::new(meter, ground, settings.lag));
        let contents = checked.then(|| CudaContents::new(&self.device)).transpose();
        let contents = contents.map_err(ReplayError::Checks)?;
        // Ends before the contents do, whose end waits for the whole card.
        let load = settings.busy.then(|| Load::begin(&self.device)).transpose();
        let _load = load.map_err(ReplayError::Stream)?;
        match &contents {
            Some(contents) => {
                replay_checked(trace, settings, Arc::clone(&device), &device, contents, progress)
            }
            None => replay(trace, settings, Arc::clone(&device), &device, progress),
        }
    }

    /// One of each call that a replay makes, kernels included.
    fn warm_up(&self) -> DeviceResult<()> {
        let device = &self.device;
        let contents = CudaContents::new(device)?;
        let stream = self.streams.get(0)?;
        if !device.properties().capabilities.remapping {
            return kernels::nap(device, STAND_IN, stream)
                .and_then(|()| device.synchronize_stream(stream));
        }
        let len = device.properties().granule;
        let range = AddrRange { addr: device.reserve(len, len)?, len };
        let frame = device.make_frame(len, FrameKind::Device)?;
        device.map(&[Mapping { range, frame }], &[])?;
        device.set_access(range, &[])?;
        contents.fill(0, range, stream)?;
        contents.check(0, range, stream)?;
        kernels::nap(device, STAND_IN, stream)?;
        let fence = device.record(stream)?;
        device.stream_wait(self.streams.get(1)?, fence)?;
        device.reached(stream)?;
        device.synchronize_stream(stream)?;
        contents.finish()?;
        device.unmap(&[range], &[])?;
        device.release_frame(frame)?;
        device.free_region(range.addr, len)
    }
}

/// Streams of the card, made when they are first asked for and kept for later replays.
struct Streams {
    device: Arc<CudaDevice>,
    made: Mutex<Vec<StreamId>>,
}

impl Streams {
    fn get(&self, index: usize) -> DeviceResult<StreamId> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        while made.len() <= index {
            made.push(self.device.make_stream()?);
        }
        Ok(made[index])
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        for stream in made.drain(..) {
            // A stream that cannot be destroyed goes with the process.
            let _ = self.device.destroy_stream(stream);
        }
    }
}

/// A kernel that runs on a stream of its own until this is dropped, or for half a minute. The host
/// must not wait for the whole device meanwhile.
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

/// What a replay needs of the card beside the calls that are measured.
struct CudaGround {
    meter: Arc<Metered<CudaDevice>>,
    streams: Arc<Streams>,
}

impl Ground for CudaGround {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        self.streams.get(index)
    }

    fn occupy(&self, stream: StreamId) -> DeviceResult<()> {
        kernels::nap(self.meter.device(), STAND_IN, stream)
    }

    fn catch_up(&self, fence: Fence) -> DeviceResult<()> {
        // Past the meter: the wait is the price of the time that the replay skips.
        if self.meter.device().wait(fence, PATIENCE)? {
            return Ok(());
        }
        Err(DeviceError {
            op: DeviceOp::Wait,
            kind: DeviceErrorKind::Failed,
            addr: DeviceAddr(0),
            len: 0,
            code: 0,
            detail: "the device has not finished its work within a minute",
        })
    }

    fn calls(&self) -> CallAccount {
        self.meter.calls()
    }
}

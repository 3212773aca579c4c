//! Work that is held up until the host lets it go.

use crate::device::{VulkanDevice, refused};
use crate::error::Call;
use crate::stream::{Kind, Stream, Wait};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use vmm_core::device::{DeviceOp, DeviceResult};
use vmm_core::units::StreamId;

/// Holds streams up until it is opened, or dropped.
///
/// A stream that has its queue to itself is held up by the device, as is a stream that is a queue: it
/// waits for a semaphore. On a queue that serves several streams only this one shall wait, so its work
/// is kept back on the host, and reaches the driver when the gate opens.
pub struct Gate {
    device: Arc<VulkanDevice>,
    stream: Arc<Stream>,
    /// The last point that it was opened up to.
    opened: Mutex<u64>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that holds nothing.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<VulkanDevice>) -> DeviceResult<Self> {
        let stream = Stream::new(&device.context, StreamId(0), Kind::Gate, usize::MAX);
        let stream = stream.map_err(|error| Call::of(DeviceOp::Record).failed(error))?;
        let opened = Mutex::new(stream.submitted());
        Ok(Self { device: Arc::clone(device), stream: Arc::new(stream), opened })
    }

    /// Lets what is queued on a stream from now on wait for the next [`Gate::open`].
    ///
    /// # Errors
    /// If there is no such stream, or what the driver says.
    pub fn hold(&self, stream: StreamId) -> DeviceResult<()> {
        let opened = self.opened.lock();
        let wait = Wait { stream: Arc::clone(&self.stream), point: *opened + 1 };
        let held = self.device.streams.put_behind(stream, wait);
        held.map_err(|refusal| refused(Call::of(DeviceOp::StreamWait), refusal))
    }

    /// Lets everything go that is held, without waiting for it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn open(&self) -> DeviceResult<()> {
        {
            let mut opened = self.opened.lock();
            let signalled = self.stream.signal(*opened + 1);
            signalled.map_err(|error| Call::of(DeviceOp::Record).failed(error))?;
            *opened += 1;
            self.stream.set_submitted(*opened);
        }
        self.device.streams.pump();
        Ok(())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A lost device holds nothing up.
        let _ = self.open();
    }
}

//! A Vulkan device for replays.

use super::card::{Card, PATIENCE};
use super::card_contents::{Checks, Found};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use vmm_core::device::{AddrRange, VirtualMemoryDevice};
use vmm_core::{DeviceResult, Fence, StreamId};
use vmm_vulkan::{Contents, DeviceChoice, Spinner, VulkanDevice, VulkanOptions};

/// How long one kernel of a load runs. A device that gives its queues turns lets others have theirs
/// when it ends.
const LOAD: Duration = Duration::from_millis(1);

/// An open device.
pub(crate) struct VulkanCard {
    device: Arc<VulkanDevice>,
    spinner: Arc<Spinner>,
}

impl VulkanCard {
    /// Opens the device of that choice.
    ///
    /// # Errors
    /// One line that says what is missing and what to do.
    pub(crate) fn open(choice: &DeviceChoice) -> Result<Self, String> {
        let device = VulkanDevice::new(VulkanOptions::of_device(choice.clone()));
        let device = Arc::new(device.map_err(|error| error.to_string())?);
        let spinner = Spinner::new(&device).map_err(|error| error.to_string())?;
        Ok(Self { device, spinner: Arc::new(spinner) })
    }
}

impl Card for VulkanCard {
    type Device = VulkanDevice;

    fn device(&self) -> &Arc<VulkanDevice> {
        &self.device
    }

    fn make_stream(&self) -> DeviceResult<StreamId> {
        self.device.make_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.device.destroy_stream(stream)
    }

    fn synchronize_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.device.synchronize_stream(stream)
    }

    fn nap(&self, duration: Duration, stream: StreamId) -> DeviceResult<()> {
        self.spinner.nap(duration, stream)
    }

    fn checks(&self) -> DeviceResult<Box<dyn Checks>> {
        Ok(Box::new(VulkanChecks(Contents::new(&self.device)?)))
    }

    fn load(&self) -> DeviceResult<Box<dyn Any>> {
        Ok(Box::new(Load::begin(&self.device, &self.spinner)?))
    }
}

struct VulkanChecks(Contents);

impl Checks for VulkanChecks {
    fn fill(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.0.fill(range, seed, stream)
    }

    fn check(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.0.check(range, seed, stream)
    }

    fn found(&self) -> DeviceResult<Found> {
        let found = self.0.mismatches();
        Ok(Found { wrong_bytes: found.count, first: found.first })
    }
}

/// Short kernels, one behind the other, on a stream of their own until this is dropped.
struct Load {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn begin(device: &Arc<VulkanDevice>, spinner: &Arc<Spinner>) -> DeviceResult<Self> {
        let (device, spinner) = (Arc::clone(device), Arc::clone(spinner));
        let stream = device.make_stream()?;
        // What can fail at all fails at the first.
        spinner.nap(LOAD, stream)?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            let mut before = Fence::REACHED;
            while !told.load(Ordering::Relaxed) {
                // The next is queued before the last one ends, so that the device has no rest.
                let queued = spinner.nap(LOAD, stream).and_then(|()| device.record(stream));
                let Ok(fence) = queued else { break };
                if device.wait(before, PATIENCE) != Ok(true) {
                    break;
                }
                before = fence;
            }
            // A stream that cannot be destroyed goes with the process.
            let _ = device.synchronize_stream(stream);
            let _ = device.destroy_stream(stream);
        });
        Ok(Self { ends, thread: Some(thread) })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic, and if it did the replay would be none the worse.
            let _ = thread.join();
        }
    }
}

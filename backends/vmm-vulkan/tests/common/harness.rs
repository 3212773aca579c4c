//! The harness of the Vulkan backend for the conformance suite.

use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmm_conformance::{Abilities, Harness, HarnessResult, Use};
use vmm_core::device::{AddrRange, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, StreamId};
use vmm_vulkan::{Contents, Gate, Spinner, VulkanDevice};

/// How long a wait for binds may take.
const LONG: Duration = Duration::from_secs(60);

/// A device and what puts it to work.
pub struct VulkanHarness {
    device: Arc<VulkanDevice>,
    gate: Gate,
    spinner: Spinner,
    contents: Contents,
    /// Whose findings nobody looks at: work that only reads.
    readers: Contents,
    wrong: Mutex<Vec<String>>,
}

impl VulkanHarness {
    /// A harness of a fresh device.
    ///
    /// # Panics
    /// If its shaders cannot be loaded.
    pub fn new(device: Arc<VulkanDevice>) -> Self {
        let loaded = "shaders that every device runs";
        Self {
            gate: Gate::new(&device).expect(loaded),
            spinner: Spinner::new(&device).expect(loaded),
            contents: Contents::new(&device).expect(loaded),
            readers: Contents::new(&device).expect(loaded),
            wrong: Mutex::default(),
            device,
        }
    }

    fn queue(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()> {
        for used in uses {
            match *used {
                Use::Read(range) => self.readers.check_byte(range, 0, stream),
                Use::Write(range, byte) => self.device.fill(range.addr, byte, range.len, stream),
                Use::Expect(range, byte) => self.contents.check_byte(range, byte, stream),
            }
            .map_err(say)?;
        }
        Ok(())
    }
}

fn say(error: impl Display) -> String {
    error.to_string()
}

fn cannot<T>() -> HarnessResult<T> {
    Err("Vulkan has nothing of the kind".to_owned())
}

impl Harness for VulkanHarness {
    type Device = VulkanDevice;

    fn device(&self) -> &Arc<VulkanDevice> {
        &self.device
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            strict: false,
            occupy: true,
            exhaustible: true,
            memory_control: false,
            capture: false,
            leftovers: true,
        }
    }

    fn make_stream(&self) -> HarnessResult<StreamId> {
        self.device.make_stream().map_err(say)
    }

    fn destroy_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.device.destroy_stream(stream).map_err(say)
    }

    fn work(&self, stream: StreamId, duration: Duration, uses: &[Use]) -> HarnessResult<()> {
        // A device that runs on the host takes its time from other tests.
        let duration = if self.device.is_gpu() { duration } else { duration / 50 };
        self.spinner.nap(duration, stream).map_err(say)?;
        self.queue(stream, uses)
    }

    fn occupy(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()> {
        self.gate.hold(stream).map_err(say)?;
        self.spinner.nap(Duration::ZERO, stream).map_err(say)?;
        self.queue(stream, uses)
    }

    fn let_go(&self) -> HarnessResult<()> {
        self.gate.open().map_err(say)
    }

    fn write(&self, stream: StreamId, to: DeviceAddr, bytes: &[u8]) -> HarnessResult<()> {
        self.device.write_bytes(stream, to, bytes).map_err(say)
    }

    fn read(&self, stream: StreamId, range: AddrRange) -> HarnessResult<Vec<u8>> {
        self.device.read_bytes(stream, range).map_err(say)
    }

    fn synchronize_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.device.synchronize_stream(stream).map_err(say)
    }

    fn synchronize(&self) -> HarnessResult<()> {
        self.device.synchronize().map_err(say)
    }

    fn leave_free(&self, _free: u64) -> HarnessResult<()> {
        cannot()
    }

    fn begin_capture(&self, _stream: StreamId) -> HarnessResult<()> {
        cannot()
    }

    fn end_capture(&self, _stream: StreamId) -> HarnessResult<()> {
        cannot()
    }

    fn peers(&self) -> Vec<DeviceOrdinal> {
        Vec::new()
    }

    fn read_as_peer(&self, _peer: DeviceOrdinal, _range: AddrRange) -> HarnessResult<Vec<u8>> {
        cannot()
    }

    fn leftovers(&self) -> Vec<String> {
        let living = self.device.living();
        let regions = living.regions.iter().map(|region| format!("{region:?}"));
        let frames = living.frames.iter().map(|frame| format!("{frame:?}"));
        let mappings = living.mappings.iter().map(|mapping| format!("{mapping:?}"));
        regions.chain(frames).chain(mappings).collect()
    }

    fn forget_leftovers(&self) -> HarnessResult<()> {
        let (device, living) = (&self.device, self.device.living());
        device.synchronize().map_err(say)?;
        let ranges: Vec<AddrRange> = living.mappings.iter().map(|mapping| mapping.range).collect();
        let gone = device.unmap(&ranges, &[]).map_err(say)?;
        if !device.wait(gone, LONG).map_err(say)? {
            return Err("the unbind does not end".to_owned());
        }
        for (frame, _) in living.frames {
            device.release_frame(frame).map_err(say)?;
        }
        for region in living.regions {
            device.free_region(region.addr, region.len).map_err(say)?;
        }
        Ok(())
    }

    fn refusals(&self) -> usize {
        0
    }

    fn complaints(&self) -> Vec<String> {
        let mut wrong = self.wrong.lock().expect("no panic under the lock");
        let found = self.contents.mismatches();
        if found.count > 0 {
            wrong.push(format!("{} bytes are wrong, one at {:?}", found.count, found.first));
        }
        let said = self.device.messages();
        wrong.iter().cloned().chain(said).collect()
    }
}

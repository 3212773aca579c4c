//! The harness of the mock device, and of any device built around it.

use crate::harness::{Abilities, Harness, HarnessResult, Use};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{AddrRange, DeviceError, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, StreamId};
use vmm_mock::{Access, Faulty, MockDevice, MockOptions};

/// A day, in logical nanoseconds: longer than any case waits.
const DAY: u64 = 86_400_000_000_000;
/// How long a read or a write takes, in logical nanoseconds.
const TRANSFER: u64 = 1_000;

/// A device with a mock inside.
pub trait OverMock: VirtualMemoryDevice + 'static {
    /// The mock inside, which does the work.
    fn mock(&self) -> &MockDevice;
}

impl OverMock for MockDevice {
    fn mock(&self) -> &MockDevice {
        self
    }
}

impl OverMock for Faulty<MockDevice> {
    fn mock(&self) -> &MockDevice {
        self.inner()
    }
}

/// The harness of a device with a mock inside.
pub struct MockHarness<D = MockDevice> {
    device: Arc<D>,
}

impl<D> fmt::Debug for MockHarness<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MockHarness").finish_non_exhaustive()
    }
}

impl Default for MockHarness {
    fn default() -> Self {
        Self::new(MockDevice::new(MockOptions::default()))
    }
}

impl<D: OverMock> MockHarness<D> {
    /// A harness of this device.
    pub fn new(device: D) -> Self {
        Self { device: Arc::new(device) }
    }

    fn mock(&self) -> &MockDevice {
        self.device.mock()
    }
}

fn say(error: DeviceError) -> String {
    error.to_string()
}

fn accesses(uses: &[Use]) -> Vec<Access> {
    let access = |used: &Use| match *used {
        Use::Read(range) => Access::read(range),
        Use::Write(range, byte) => Access::write(range, byte),
        Use::Expect(range, byte) => Access::check(range, byte),
    };
    uses.iter().map(access).collect()
}

impl<D: OverMock> Harness for MockHarness<D> {
    type Device = D;

    fn device(&self) -> &Arc<D> {
        &self.device
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            strict: true,
            occupy: true,
            exhaustible: true,
            memory_control: true,
            capture: self.mock().properties().capabilities.capture,
            leftovers: true,
        }
    }

    fn make_stream(&self) -> HarnessResult<StreamId> {
        Ok(self.mock().make_stream())
    }

    fn destroy_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.mock().destroy_stream(stream);
        Ok(())
    }

    fn work(&self, stream: StreamId, duration: Duration, uses: &[Use]) -> HarnessResult<()> {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(DAY);
        self.mock().launch(stream, nanos, &accesses(uses)).map_err(say)
    }

    fn occupy(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()> {
        self.mock().launch(stream, DAY, &accesses(uses)).map_err(say)
    }

    fn let_go(&self) -> HarnessResult<()> {
        self.mock().finish_all();
        Ok(())
    }

    fn write(&self, stream: StreamId, to: DeviceAddr, bytes: &[u8]) -> HarnessResult<()> {
        self.mock().launch_write(stream, TRANSFER, to, bytes).map_err(say)?;
        self.mock().finish(stream);
        Ok(())
    }

    fn read(&self, stream: StreamId, range: AddrRange) -> HarnessResult<Vec<u8>> {
        let id = self.mock().launch_read(stream, TRANSFER, range).map_err(say)?;
        self.mock().finish(stream);
        self.mock().take_read(id).ok_or_else(|| "the read did not end".to_owned())
    }

    fn synchronize_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.mock().finish(stream);
        Ok(())
    }

    fn synchronize(&self) -> HarnessResult<()> {
        self.mock().finish_all();
        Ok(())
    }

    fn leave_free(&self, free: u64) -> HarnessResult<()> {
        self.mock().other_use(0);
        let now = self.mock().memory_info().map_err(say)?;
        self.mock().other_use(now.free.saturating_sub(free));
        Ok(())
    }

    fn begin_capture(&self, stream: StreamId) -> HarnessResult<()> {
        self.mock().begin_capture(stream);
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> HarnessResult<()> {
        self.mock().end_capture(stream);
        Ok(())
    }

    fn peers(&self) -> Vec<DeviceOrdinal> {
        self.mock().peers().to_vec()
    }

    fn read_as_peer(&self, peer: DeviceOrdinal, range: AddrRange) -> HarnessResult<Vec<u8>> {
        let mock = self.mock();
        if !mock.peer_has_access(peer, range) {
            return Err(format!("{peer:?} has no access to {range:?}"));
        }
        let stream = mock.make_stream();
        let id = mock.launch_read_as_peer(peer, stream, TRANSFER, range).map_err(say)?;
        mock.finish(stream);
        mock.destroy_stream(stream);
        mock.take_read(id).ok_or_else(|| "the read did not end".to_owned())
    }

    fn leftovers(&self) -> Vec<String> {
        let left = self.mock().leftovers();
        let regions = left.regions.iter().map(|region| format!("{region:?}"));
        let frames = left.frames.iter().map(|frame| format!("{frame:?}"));
        let mappings = left.mappings.iter().map(|mapping| format!("{mapping:?}"));
        regions.chain(frames).chain(mappings).collect()
    }

    fn forget_leftovers(&self) -> HarnessResult<()> {
        let (mock, left) = (self.mock(), self.mock().leftovers());
        mock.finish_all();
        let ranges: Vec<_> = left.mappings.iter().map(|mapping| mapping.range).collect();
        if !ranges.is_empty() {
            mock.unmap(&ranges, &[]).map_err(say)?;
        }
        mock.finish_all();
        for (frame, _) in left.frames {
            mock.release_frame(frame).map_err(say)?;
        }
        for region in left.regions {
            mock.free_region(region.addr, region.len).map_err(say)?;
        }
        Ok(())
    }

    fn refusals(&self) -> usize {
        self.mock().violations().len()
    }

    fn complaints(&self) -> Vec<String> {
        let races = self.mock().races().into_iter().map(|race| format!("{race:?}"));
        let wrong = self.mock().mismatches().into_iter().map(|wrong| format!("{wrong:?}"));
        races.chain(wrong).collect()
    }
}

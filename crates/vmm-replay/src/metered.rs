//! A device whose calls are counted and timed.

use crate::calls::{CallAccount, OpCalls};
use crate::stopwatch::reading_time;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, FrameKind, Mapping, MemoryInfo, Properties};
use vmm_core::{
    DeviceAddr, DeviceOp, DeviceOrdinal, DeviceResult, Fence, FrameHandle, StreamId,
    VirtualMemoryDevice,
};

/// Passes every call on to a device and measures it on the system's clock.
///
/// What reading the clock takes is subtracted. The time is that of the calling thread, so it holds
/// whatever makes a call slow: a busy device, or a driver that another thread is in.
#[derive(Debug)]
pub struct Metered<D> {
    device: Arc<D>,
    /// What reading the clock takes, in nanoseconds.
    overhead_ns: u64,
    // Counters are independent statistics, so relaxed order suffices.
    counts: [AtomicU64; DeviceOp::ALL.len()],
    times_ns: [AtomicU64; DeviceOp::ALL.len()],
}

impl<D: VirtualMemoryDevice> Metered<D> {
    /// A meter in front of `device`, with nothing on it yet.
    #[must_use]
    pub fn new(device: Arc<D>) -> Self {
        let overhead_ns = nanoseconds(reading_time());
        Self { device, overhead_ns, counts: Default::default(), times_ns: Default::default() }
    }

    /// The device behind the meter. What is called on it directly is not measured.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The calls so far.
    #[must_use]
    pub fn calls(&self) -> CallAccount {
        CallAccount::new(|op| OpCalls {
            count: self.counts[op as usize].load(Ordering::Relaxed),
            time_ns: self.times_ns[op as usize].load(Ordering::Relaxed),
        })
    }

    fn measure<R>(&self, op: DeviceOp, call: impl FnOnce(&D) -> R) -> R {
        let start = Instant::now();
        let result = call(&self.device);
        let took_ns = nanoseconds(start.elapsed()).saturating_sub(self.overhead_ns);
        self.counts[op as usize].fetch_add(1, Ordering::Relaxed);
        self.times_ns[op as usize].fetch_add(took_ns, Ordering::Relaxed);
        result
    }
}

/// Beyond 584 years there is no telling.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<D: VirtualMemoryDevice> VirtualMemoryDevice for Metered<D> {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.measure(DeviceOp::MemoryInfo, D::memory_info)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.measure(DeviceOp::IsCapturing, |device| device.is_capturing(stream))
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        self.device.fixed_addr(frame)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.measure(DeviceOp::Reserve, |device| device.reserve(len, alignment))
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        self.measure(DeviceOp::FreeRegion, |device| device.free_region(base, len))
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        self.measure(DeviceOp::MakeFrame, |device| device.make_frame(len, kind))
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        self.measure(DeviceOp::ReleaseFrame, |device| device.release_frame(frame))
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        self.measure(DeviceOp::Map, |device| device.map(batch, after))
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        self.measure(DeviceOp::Unmap, |device| device.unmap(ranges, after))
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        self.measure(DeviceOp::SetAccess, |device| device.set_access(range, peers))
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        self.measure(DeviceOp::Record, |device| device.record(stream))
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        self.measure(DeviceOp::Reached, |device| device.reached(stream))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        self.measure(DeviceOp::Wait, |device| device.wait(fence, timeout))
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        self.measure(DeviceOp::WaitIdle, D::wait_idle)
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        self.measure(DeviceOp::StreamWait, |device| device.stream_wait(stream, fence))
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.measure(DeviceOp::Copy, |device| device.copy(to, from, len, stream))
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.measure(DeviceOp::Fill, |device| device.fill(to, byte, len, stream))
    }
}

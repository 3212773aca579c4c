//! The device.

use crate::context::{Context, Relaxed};
use crate::driver::Driver;
use crate::error::About;
use crate::fence::Fences;
use crate::kernels::Loaded;
use crate::memory::Accounts;
use crate::open::{self, Facts};
use crate::options::CudaOptions;
use crate::order::Event;
use crate::stream;
use crate::unavailable::Unavailable;
use cudarc::driver::sys::{CUcontext, CUstream};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping, MemoryInfo, Properties,
    VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};

/// A CUDA device and one share in its primary context.
///
/// Every method may be called from any thread, whatever device that thread uses otherwise, during
/// captures of other streams, and after the context was reset or the driver has shut down: then the
/// error is [`DeviceErrorKind::Deinitialized`], and dropping does nothing. The same goes for a fork of
/// the process.
#[derive(Debug)]
pub struct CudaDevice {
    pub(crate) ordinal: u32,
    pub(crate) facts: Facts,
    pub(crate) accounts: Mutex<Accounts>,
    pub(crate) fences: Fences<Event>,
    pub(crate) kernels: Mutex<Option<Loaded>>,
    /// Last, so that it is dropped behind what lives in it.
    pub(crate) context: Context,
}

impl CudaDevice {
    /// Opens a device. No call of CUDA is made, and its library not loaded, before this or
    /// [`CudaDevice::count`].
    ///
    /// # Errors
    /// Says what is missing and what to do about it.
    pub fn new(options: CudaOptions) -> Result<Self, Unavailable> {
        let driver = Driver::get()?;
        // None of the calls touches a stream, so that a capture need not forbid them, nor end by them.
        // Where the driver does not relax the mode, a device still opens outside of captures.
        let _relaxed = Relaxed::enter(driver);
        let facts = open::facts(driver, options)?;
        let context = Context::retain(driver, facts.device)?;
        Ok(Self {
            ordinal: options.ordinal,
            facts,
            accounts: Mutex::default(),
            fences: Fences::new(Vec::new()),
            kernels: Mutex::new(None),
            context,
        })
    }

    /// How many devices the driver sees. [`Unavailable::NoDevice`] if it is none.
    ///
    /// # Errors
    /// As [`CudaDevice::new`].
    pub fn count() -> Result<u32, Unavailable> {
        match open::count(Driver::get()?)? {
            0 => Err(Unavailable::NoDevice),
            count => Ok(count),
        }
    }

    /// Its ordinal among those that the process sees.
    #[must_use]
    pub fn ordinal(&self) -> DeviceOrdinal {
        DeviceOrdinal(self.ordinal)
    }

    /// The other devices that can be given access to this one's memory.
    #[must_use]
    pub fn peers(&self) -> Vec<DeviceOrdinal> {
        self.facts.peers.iter().map(|peer| DeviceOrdinal(peer.ordinal)).collect()
    }

    /// The primary context. It lives at least as long as the device, unless somebody resets it.
    #[must_use]
    pub fn context(&self) -> CUcontext {
        self.context.raw()
    }

    /// What tells the card, or the part of one that the process sees, from all others. NVML knows it
    /// by the same number.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.facts.uuid
    }

    /// The version of CUDA that the driver is made for, major and minor.
    #[must_use]
    pub fn driver_version(&self) -> (u32, u32) {
        self.context.driver().version()
    }

    /// Whether calls still reach the device: its context was not reset, the driver has not shut down,
    /// and the process is not a fork.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.context.enter(About::op(DeviceOp::MemoryInfo)).is_ok()
    }

    /// The name of a stream, to be used with the pool.
    ///
    /// - Null and `CU_STREAM_LEGACY` are one stream, `StreamId(0)`.
    /// - `CU_STREAM_PER_THREAD` is another stream on each thread: this returns the name of the
    ///   calling thread's. It may be used from any thread; on other threads than its own, fences of
    ///   it are recorded on the legacy stream, which is behind all work of the per-thread streams.
    /// - Any other stream is named by its handle.
    ///
    /// So `StreamId(raw as u64)` is right for all streams but `CU_STREAM_PER_THREAD`, with which
    /// every call is refused as [`DeviceErrorKind::Illegal`].
    #[must_use]
    pub fn stream_id(raw: CUstream) -> StreamId {
        stream::name(raw)
    }

    /// Makes a stream that does not wait for the legacy default stream (`CU_STREAM_NON_BLOCKING`).
    /// [`CudaDevice::destroy_stream`] destroys it; dropping the device does not.
    ///
    /// # Errors
    /// The driver's.
    pub fn make_stream(&self) -> DeviceResult<StreamId> {
        self.new_stream()
    }

    /// Destroys a stream that [`CudaDevice::make_stream`] made, once its work is done; does not wait
    /// for that. A pool that knows the stream must be told before (`Pool::forget_stream`).
    ///
    /// # Errors
    /// The driver's.
    pub fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.end_stream(stream)
    }

    /// Waits on the host for all work of a stream.
    ///
    /// # Errors
    /// The driver's; also that of work which has failed.
    pub fn synchronize_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.wait_for_stream(stream)
    }

    /// Waits on the host for all work of the device.
    ///
    /// # Errors
    /// The driver's; also that of work which has failed.
    pub fn synchronize(&self) -> DeviceResult<()> {
        self.wait_for_all()
    }

    /// Copies bytes from the host behind the work of a stream, and waits for that.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self, to: DeviceAddr, from: &[u8], stream: StreamId) -> DeviceResult<()> {
        self.copy_in(to, from, stream)
    }

    /// Copies bytes to the host behind the work of a stream, and waits for that.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self, to: &mut [u8], from: DeviceAddr, stream: StreamId) -> DeviceResult<()> {
        self.copy_out(to, from, stream)
    }

    /// A file descriptor from which another process, or this one, can import the frame
    /// (`cuMemImportFromShareableHandle`). It is closed on drop, and in programs that this process
    /// starts. The memory stays until the frame is released and all that was imported as well.
    ///
    /// # Errors
    /// - [`DeviceErrorKind::NotSupported`]: the frame is not [`FrameKind::Exportable`].
    /// - [`DeviceErrorKind::Illegal`]: no such frame.
    /// - Else the driver's.
    pub fn export(&self, frame: FrameHandle) -> DeviceResult<OwnedFd> {
        self.export_frame(frame)
    }

    /// Removes everything that lives on the device by its own accounts, mappings first. For programs
    /// whose pool has ended without being able to, a test of lost drivers say. The caller has waited for
    /// all work, and nothing else uses what was made through this device.
    ///
    /// # Errors
    /// The driver's, with what is left still in the accounts.
    pub fn remove_leftovers(&self) -> DeviceResult<()> {
        self.remove_all()
    }

    /// What lives on the device by its own accounts, in words; empty if nothing does.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        if self.context.lives() { self.accounts.lock().leftovers() } else { Vec::new() }
    }
}

impl Drop for CudaDevice {
    /// Frames and reservations that are left stay until the process ends: whoever made them may still
    /// have work queued on them.
    fn drop(&mut self) {
        // A fork must not even look at the locks: another thread may have held one.
        if !self.context.lives() {
            return;
        }
        let (events, kernels) = (self.fences.drain(), self.kernels.get_mut().take());
        let Ok(_current) = self.context.enter_relaxed(About::op(DeviceOp::Record)) else { return };
        events.into_iter().for_each(|event| self.destroy_event(event));
        if let Some(kernels) = kernels {
            self.unload(kernels);
        }
    }
}

impl VirtualMemoryDevice for CudaDevice {
    fn properties(&self) -> &Properties {
        &self.facts.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let about = About::op(DeviceOp::MemoryInfo);
        let _current = self.context.enter_relaxed(about)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the context is current, and the driver writes the numbers.
        let result = unsafe { (self.context.driver().mem_get_info)(&raw mut free, &raw mut total) };
        self.context.check(about, result)?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.ask_capturing(stream)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.mappable(About::len(DeviceOp::Reserve, len))?;
        self.reserve_range(len, alignment)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        let range = AddrRange { addr: base, len };
        self.mappable(About::range(DeviceOp::FreeRegion, range))?;
        self.free_range(range)
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        let about = About::len(DeviceOp::MakeFrame, len);
        if self.facts.properties.granule_of(kind).is_none() {
            let detail = "the device has no frames of this kind";
            return Err(about.error(DeviceErrorKind::NotSupported, detail));
        }
        if self.maps() { self.create(len, kind) } else { self.allocate(len) }
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        (!self.maps()).then_some(DeviceAddr(frame.0))
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        if self.maps() { self.release(frame) } else { self.free(frame) }
    }

    fn map(&self, batch: &[Mapping], _after: &[Fence]) -> DeviceResult<Fence> {
        self.mappable(About::op(DeviceOp::Map))?;
        self.map_all(batch)?;
        Ok(Fence::REACHED)
    }

    fn unmap(&self, ranges: &[AddrRange], _after: &[Fence]) -> DeviceResult<Fence> {
        self.mappable(About::op(DeviceOp::Unmap))?;
        self.unmap_all(ranges)?;
        Ok(Fence::REACHED)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        self.mappable(About::range(DeviceOp::SetAccess, range))?;
        self.grant(range, peers)
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        self.record_fence(stream)
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        self.reached_value(stream)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        self.wait_for_fence(fence, timeout)
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        self.wait_until_idle()
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        self.put_behind(stream, fence)
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.queue_copy(to, from, len, stream)
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.queue_fill(to, byte, len, stream)
    }
}

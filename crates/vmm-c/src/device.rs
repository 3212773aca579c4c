//! The devices that a pool of this interface can be on, as one type.

use crate::error::Fault;
use crate::guard;
use crate::status::vmm_status_t;
use std::ffi::c_void;
use std::time::Duration;
use vmm_core::{
    AddrRange, DeviceAddr, DeviceOrdinal, DeviceResult, Fence, FrameHandle, FrameKind, Mapping,
    MemoryInfo, Properties, StreamId, VirtualMemoryDevice,
};
use vmm_cuda::{CudaDevice, CudaOptions, Unavailable, VirtualMemory};
use vmm_mock::{MockDevice, MockOptions};

/// What a device is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_device_kind_t {
    /// A CUDA device of this machine. The driver library is loaded when the first one is named.
    VMM_DEVICE_CUDA = 0,
    /// A device without hardware, with the rules and the memory of an NVIDIA H200: its addresses
    /// are numbers that nothing can be stored at. For tests.
    VMM_DEVICE_MOCK = 1,
}

/// A device of either kind; all calls go to it as they are.
#[derive(Debug)]
pub enum AnyDevice {
    /// A card.
    Cuda(Box<CudaDevice>),
    /// No card.
    Mock(Box<MockDevice>),
}

impl AnyDevice {
    /// The CUDA device of this ordinal. Loads the driver.
    pub(crate) fn cuda(ordinal: u32, virtual_memory: VirtualMemory) -> Result<Self, Fault> {
        let options = CudaOptions { virtual_memory, ..CudaOptions::of_device(ordinal) };
        Ok(Self::Cuda(Box::new(CudaDevice::new(options)?)))
    }

    /// A mock device with `memory` bytes.
    pub(crate) fn mock(memory: u64, virtual_memory: VirtualMemory) -> Self {
        let options = match virtual_memory {
            VirtualMemory::Auto => MockOptions::default(),
            VirtualMemory::Plain => MockOptions::without_remapping(),
        };
        Self::Mock(Box::new(MockDevice::new(MockOptions { memory, ..options })))
    }

    /// The pool's name for a stream handle of this device.
    #[inline]
    pub(crate) fn stream(&self, raw: *mut c_void) -> StreamId {
        match self {
            Self::Cuda(_) => CudaDevice::stream_id(raw.cast()),
            Self::Mock(_) => StreamId(raw.addr() as u64),
        }
    }
}

impl From<Unavailable> for Fault {
    #[cold]
    fn from(reason: Unavailable) -> Self {
        Self::new(vmm_status_t::VMM_UNAVAILABLE, reason.to_string())
    }
}

/// How many devices of a `vmm_device_kind_t` there are. For CUDA this loads the driver; for the
/// mock the answer is 1, though each pool on it has a device of its own.
///
/// # Safety
/// `count` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_device_count(kind: u32, count: *mut u32) -> vmm_status_t {
    guard::call(|| {
        let number = match vmm_device_kind_t::from_number(kind)? {
            vmm_device_kind_t::VMM_DEVICE_CUDA => CudaDevice::count()?,
            vmm_device_kind_t::VMM_DEVICE_MOCK => 1,
        };
        // SAFETY: by this function's contract.
        unsafe { guard::write(count, number, "count") }
    })
}

impl vmm_device_kind_t {
    pub(crate) fn from_number(number: u32) -> Result<Self, Fault> {
        match number {
            0 => Ok(Self::VMM_DEVICE_CUDA),
            1 => Ok(Self::VMM_DEVICE_MOCK),
            _ => Err(Fault::argument(format!(
                "there is no device kind {number}: use a vmm_device_kind_t"
            ))),
        }
    }
}

/// Hands a call on to whichever device it is.
macro_rules! delegate {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Self::Cuda($device) => $call,
            Self::Mock($device) => $call,
        }
    };
}

impl VirtualMemoryDevice for AnyDevice {
    fn properties(&self) -> &Properties {
        delegate!(self, device => device.properties())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        delegate!(self, device => device.memory_info())
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        delegate!(self, device => device.is_capturing(stream))
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        delegate!(self, device => device.reserve(len, alignment))
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        delegate!(self, device => device.free_region(base, len))
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        delegate!(self, device => device.make_frame(len, kind))
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        delegate!(self, device => device.fixed_addr(frame))
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        delegate!(self, device => device.release_frame(frame))
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        delegate!(self, device => device.map(batch, after))
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        delegate!(self, device => device.unmap(ranges, after))
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        delegate!(self, device => device.set_access(range, peers))
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        delegate!(self, device => device.record(stream))
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        delegate!(self, device => device.reached(stream))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        delegate!(self, device => device.wait(fence, timeout))
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        delegate!(self, device => device.wait_idle())
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        delegate!(self, device => device.stream_wait(stream, fence))
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        delegate!(self, device => device.copy(to, from, len, stream))
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        delegate!(self, device => device.fill(to, byte, len, stream))
    }
}

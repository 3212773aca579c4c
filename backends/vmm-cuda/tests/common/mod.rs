//! What the tests share: a card for one test at a time, and the suite's harness.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod checks;
pub(crate) mod harness;

use cudarc::driver::sys;
use std::fs::File;
use std::sync::Arc;
use vmm_core::device::{AddrRange, DeviceResult, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, FrameHandle, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions, VirtualMemory};

/// What tests lock that use a card.
pub(crate) const LOCK_FILE: &str = "vmm-cuda-tests.lock";

/// The cards, for one test at a time: free memory is looked at, and tests run side by side, in threads
/// or in processes.
pub(crate) struct Cards {
    _lock: File,
}

impl Cards {
    /// Waits for the tests that have them; `None`, and says so, where there are fewer than `count`.
    pub(crate) fn take(count: u32) -> Option<Self> {
        match CudaDevice::count() {
            Ok(found) if found >= count => {}
            Ok(found) => {
                println!("skipped: {count} CUDA devices are needed and there are {found}");
                return None;
            }
            Err(why) => {
                println!("skipped: {why}");
                return None;
            }
        }
        let path = std::env::temp_dir().join(LOCK_FILE);
        let lock = File::options().create(true).append(true).open(path).expect("a file to lock");
        lock.lock().expect("a lock");
        Some(Self { _lock: lock })
    }

    pub(crate) fn open(&self, options: CudaOptions) -> Arc<CudaDevice> {
        Arc::new(CudaDevice::new(options).expect("a device, for there is one"))
    }

    /// Device 0 with its virtual memory.
    pub(crate) fn first(&self) -> Arc<CudaDevice> {
        self.open(CudaOptions::default())
    }

    /// Device 0 with plain allocations.
    pub(crate) fn plain(&self) -> Arc<CudaDevice> {
        let virtual_memory = VirtualMemory::Plain;
        self.open(CudaOptions { virtual_memory, ..CudaOptions::default() })
    }
}

/// The handle of a stream, for calls of the driver that the device has not.
pub(crate) fn raw(stream: StreamId) -> sys::CUstream {
    std::ptr::without_provenance_mut(usize::try_from(stream.0).expect("a handle"))
}

/// Makes a context current on this thread and restores what was.
pub(crate) fn in_context<T>(device: &CudaDevice, run: impl FnOnce() -> T) -> T {
    // SAFETY: the device holds the context.
    let pushed = unsafe { sys::cuCtxPushCurrent_v2(device.context()) };
    assert_eq!(pushed, sys::CUresult::CUDA_SUCCESS);
    let result = run();
    let mut popped = std::ptr::null_mut();
    // SAFETY: what was pushed above.
    let code = unsafe { sys::cuCtxPopCurrent_v2(&raw mut popped) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    result
}

pub(crate) use sys::CUstreamCaptureMode_enum as CaptureMode;

/// Begins a capture on a stream; it is ended on the same thread.
pub(crate) fn begin_capture(device: &CudaDevice, stream: sys::CUstream, mode: CaptureMode) {
    let code = in_context(device, || {
        // SAFETY: the stream lives, and the context is current.
        unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }
    });
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS, "begin of a capture");
}

/// Ends a capture and drops the graph; says whether the capture was whole.
pub(crate) fn end_capture(device: &CudaDevice, stream: sys::CUstream) -> Result<(), String> {
    in_context(device, || {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, and the driver writes the graph.
        let code = unsafe { sys::cuStreamEndCapture(stream, &raw mut graph) };
        if !graph.is_null() {
            // SAFETY: the graph of the capture, which nobody else has.
            unsafe { sys::cuGraphDestroy(graph) };
        }
        if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(format!("{code:?}")) }
    })
}

/// Usable memory of one frame.
pub(crate) struct Room {
    device: Arc<CudaDevice>,
    frame: FrameHandle,
    range: AddrRange,
}

impl Room {
    pub(crate) fn new(device: &Arc<CudaDevice>, len: u64) -> DeviceResult<Self> {
        Self::of_kind(device, len, FrameKind::Device)
    }

    pub(crate) fn of_kind(
        device: &Arc<CudaDevice>,
        len: u64,
        kind: FrameKind,
    ) -> DeviceResult<Self> {
        let base = device.reserve(len, device.properties().granule)?;
        let frame = device.make_frame(len, kind)?;
        let range = AddrRange { addr: base, len };
        device.map(&[Mapping { range, frame }], &[])?;
        device.set_access(range, &[])?;
        Ok(Self { device: Arc::clone(device), frame, range })
    }

    pub(crate) fn addr(&self) -> DeviceAddr {
        self.range.addr
    }

    pub(crate) fn range(&self) -> AddrRange {
        self.range
    }

    pub(crate) fn frame(&self) -> FrameHandle {
        self.frame
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let AddrRange { addr, len } = self.range;
        // A test that has failed already should not fail again here.
        let _ = self.device.unmap(&[self.range], &[]);
        let _ = self.device.release_frame(self.frame);
        let _ = self.device.free_region(addr, len);
    }
}

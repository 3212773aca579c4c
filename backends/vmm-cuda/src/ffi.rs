//! The driver's interface in C, as far as it is used here: numbers and layouts of `cuda.h`.
//!
//! Declared here and not taken from cudarc, whose declarations change with the version of CUDA that
//! it is built for and whose results are enumerations: a driver newer than the bindings may return a
//! number that is none of them. A test compares what is here with cudarc.

use cudarc::driver::sys;
use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// `CUresult`
pub(crate) type Code = c_int;
/// `CUdevice`
pub(crate) type Device = c_int;
/// `CUdeviceptr`
pub(crate) type DevicePtr = c_ulonglong;
/// `CUmemGenericAllocationHandle`
pub(crate) type Handle = c_ulonglong;
pub(crate) type Context = sys::CUcontext;
pub(crate) type Stream = sys::CUstream;
pub(crate) type Event = sys::CUevent;
pub(crate) type Module = sys::CUmodule;
pub(crate) type Function = sys::CUfunction;
pub(crate) type Char = c_char;

/// `CUresult`
pub(crate) mod code {
    use super::Code;
    pub(crate) const SUCCESS: Code = 0;
    pub(crate) const INVALID_VALUE: Code = 1;
    pub(crate) const OUT_OF_MEMORY: Code = 2;
    pub(crate) const NOT_INITIALIZED: Code = 3;
    pub(crate) const DEINITIALIZED: Code = 4;
    pub(crate) const NO_DEVICE: Code = 100;
    pub(crate) const INVALID_CONTEXT: Code = 201;
    pub(crate) const PEER_ACCESS_UNSUPPORTED: Code = 217;
    pub(crate) const NOT_READY: Code = 600;
    pub(crate) const CONTEXT_IS_DESTROYED: Code = 709;
    pub(crate) const NOT_SUPPORTED: Code = 801;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: Code = 900;
    pub(crate) const STREAM_CAPTURE_INVALIDATED: Code = 901;
    pub(crate) const STREAM_CAPTURE_IMPLICIT: Code = 906;
    pub(crate) const CAPTURED_EVENT: Code = 907;
}

/// `CUdevice_attribute`
pub(crate) mod attribute {
    use std::ffi::c_int;
    pub(crate) const VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: c_int = 102;
    pub(crate) const HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: c_int = 103;
    pub(crate) const GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: c_int = 110;
    /// From CUDA 12.2.
    pub(crate) const HOST_NUMA_ID: c_int = 134;
    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 16;
}

/// `CU_STREAM_LEGACY`
pub(crate) const STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`
pub(crate) const STREAM_PER_THREAD: usize = 2;
/// `CU_STREAM_NON_BLOCKING`
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_STATUS_NONE`
pub(crate) const CAPTURE_STATUS_NONE: c_int = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`
pub(crate) const CAPTURE_MODE_RELAXED: c_int = 2;
/// `CU_EVENT_DISABLE_TIMING`
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`
pub(crate) const ALLOCATION_TYPE_PINNED: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub(crate) const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA`, from CUDA 12.2.
pub(crate) const LOCATION_HOST_NUMA: c_int = 3;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`
pub(crate) const HANDLE_POSIX_FILE_DESCRIPTOR: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`
pub(crate) const ACCESS_READ_WRITE: c_int = 3;
/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`
pub(crate) const GRANULARITY_MINIMUM: c_int = 0;
/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`
pub(crate) const HOST_PORTABLE_MAPPED: c_uint = 1 | 2;

/// `CUmemLocation`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// `CUmemAllocationProp::allocFlags`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AllocationFlags {
    pub(crate) compression_type: c_uchar,
    pub(crate) gpu_direct_rdma_capable: c_uchar,
    pub(crate) usage: c_ushort,
    pub(crate) reserved: [c_uchar; 4],
}

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProp {
    pub(crate) kind: c_int,
    pub(crate) handle_types: c_int,
    pub(crate) location: Location,
    pub(crate) win32_metadata: *mut c_void,
    pub(crate) flags: AllocationFlags,
}

/// `CUmemAccessDesc`
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: c_int,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn layouts_are_those_of_cudarc() {
        assert_eq!(size_of::<Location>(), size_of::<sys::CUmemLocation>());
        assert_eq!(size_of::<AccessDesc>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(offset_of!(AccessDesc, flags), offset_of!(sys::CUmemAccessDesc, flags));
        type Theirs = sys::CUmemAllocationProp;
        assert_eq!(size_of::<AllocationProp>(), size_of::<Theirs>());
        let theirs = offset_of!(Theirs, requestedHandleTypes);
        assert_eq!(offset_of!(AllocationProp, handle_types), theirs);
        assert_eq!(offset_of!(AllocationProp, location), offset_of!(Theirs, location));
        assert_eq!(offset_of!(AllocationProp, flags), offset_of!(Theirs, allocFlags));
        let theirs = offset_of!(sys::CUmemAllocationProp_st__bindgen_ty_1, gpuDirectRDMACapable);
        assert_eq!(offset_of!(AllocationFlags, gpu_direct_rdma_capable), theirs);
        assert_eq!(size_of::<Handle>(), size_of::<sys::CUmemGenericAllocationHandle>());
        assert_eq!(size_of::<DevicePtr>(), size_of::<sys::CUdeviceptr>());
    }

    #[test]
    fn results_are_those_of_cudarc() {
        use sys::cudaError_enum as E;
        let pairs = [
            (code::SUCCESS, E::CUDA_SUCCESS),
            (code::INVALID_VALUE, E::CUDA_ERROR_INVALID_VALUE),
            (code::OUT_OF_MEMORY, E::CUDA_ERROR_OUT_OF_MEMORY),
            (code::NOT_INITIALIZED, E::CUDA_ERROR_NOT_INITIALIZED),
            (code::DEINITIALIZED, E::CUDA_ERROR_DEINITIALIZED),
            (code::NO_DEVICE, E::CUDA_ERROR_NO_DEVICE),
            (code::INVALID_CONTEXT, E::CUDA_ERROR_INVALID_CONTEXT),
            (code::PEER_ACCESS_UNSUPPORTED, E::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED),
            (code::NOT_READY, E::CUDA_ERROR_NOT_READY),
            (code::CONTEXT_IS_DESTROYED, E::CUDA_ERROR_CONTEXT_IS_DESTROYED),
            (code::NOT_SUPPORTED, E::CUDA_ERROR_NOT_SUPPORTED),
            (code::STREAM_CAPTURE_UNSUPPORTED, E::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
            (code::STREAM_CAPTURE_INVALIDATED, E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
            (code::STREAM_CAPTURE_IMPLICIT, E::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
            (code::CAPTURED_EVENT, E::CUDA_ERROR_CAPTURED_EVENT),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(ours, theirs as Code, "{theirs:?}");
        }
    }

    #[test]
    fn other_numbers_are_those_of_cudarc() {
        use sys::CUdevice_attribute_enum as A;
        let vmm = A::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED;
        let posix = A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        let rdma = A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
        let sms = A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        assert_eq!(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, vmm as c_int);
        assert_eq!(attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, posix as c_int);
        assert_eq!(attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, rdma as c_int);
        assert_eq!(attribute::MULTIPROCESSOR_COUNT, sms as c_int);
        let relaxed = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        assert_eq!(CAPTURE_MODE_RELAXED, relaxed as c_int);
        let none = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        assert_eq!(CAPTURE_STATUS_NONE, none as c_int);
        let timing = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;
        assert_eq!(EVENT_DISABLE_TIMING, timing as c_uint);
        let blocking = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING;
        assert_eq!(STREAM_NON_BLOCKING, blocking as c_uint);
        let pinned = sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
        assert_eq!(ALLOCATION_TYPE_PINNED, pinned as c_int);
        let device = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        assert_eq!(LOCATION_DEVICE, device as c_int);
        let access = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        assert_eq!(ACCESS_READ_WRITE, access as c_int);
    }
}

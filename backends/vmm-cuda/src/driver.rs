//! The driver's library, loaded on first use and kept.
//!
//! Loaded here and not through cudarc, which panics where the library or a function of it is missing.
//! A program that links to the library as well gets the same one: the loader keeps one per process.

use crate::ffi::{
    AccessDesc, AllocationProp, Char, Code, Context, Device, DevicePtr, Event, Function, Handle,
    Module, Stream, code,
};
use crate::process;
use crate::unavailable::{NEEDED, Unavailable};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::error::Error;
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// The library's names, most exact first: `libcuda.so` alone belongs to the toolkit's stubs, too.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

macro_rules! driver {
    ($($symbol:literal => $name:ident($($argument:ty),*);)+) => {
        /// The driver's functions.
        ///
        /// Calling one is sound where the driver's documentation of it says so; nothing here is
        /// called before `cuInit` has succeeded, but for `cuDriverGetVersion`.
        #[derive(Debug)]
        pub(crate) struct Driver {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Code,)+
            /// From CUDA 12.0.
            pub(crate) ctx_get_id: Option<unsafe extern "C" fn(Context, *mut c_ulonglong) -> Code>,
            version: (u32, u32),
        }

        impl Driver {
            fn of_library(library: &Library) -> Result<Self, Unavailable> {
                Ok(Self {
                    $($name: symbol(library, $symbol)?,)+
                    ctx_get_id: symbol(library, "cuCtxGetId").ok(),
                    version: (0, 0),
                })
            }
        }
    };
}

driver! {
    "cuInit" => init(c_uint);
    "cuDriverGetVersion" => driver_get_version(*mut c_int);
    "cuGetErrorName" => get_error_name(Code, *mut *const Char);
    "cuDeviceGetCount" => device_get_count(*mut c_int);
    "cuDeviceGet" => device_get(*mut Device, c_int);
    "cuDeviceGetName" => device_get_name(*mut Char, c_int, Device);
    "cuDeviceGetUuid_v2" => device_get_uuid(*mut [u8; 16], Device);
    "cuDeviceGetAttribute" => device_get_attribute(*mut c_int, c_int, Device);
    "cuDeviceCanAccessPeer" => device_can_access_peer(*mut c_int, Device, Device);
    "cuDevicePrimaryCtxRetain" => primary_ctx_retain(*mut Context, Device);
    "cuDevicePrimaryCtxRelease_v2" => primary_ctx_release(Device);
    "cuCtxGetCurrent" => ctx_get_current(*mut Context);
    "cuCtxPushCurrent_v2" => ctx_push_current(Context);
    "cuCtxPopCurrent_v2" => ctx_pop_current(*mut Context);
    "cuCtxSynchronize" => ctx_synchronize();
    "cuThreadExchangeStreamCaptureMode" => exchange_capture_mode(*mut c_int);
    "cuMemGetInfo_v2" => mem_get_info(*mut usize, *mut usize);
    "cuMemAlloc_v2" => mem_alloc(*mut DevicePtr, usize);
    "cuMemFree_v2" => mem_free(DevicePtr);
    "cuMemHostAlloc" => mem_host_alloc(*mut *mut c_void, usize, c_uint);
    "cuMemFreeHost" => mem_free_host(*mut c_void);
    "cuMemHostGetDevicePointer_v2" => mem_host_get_device_pointer(*mut DevicePtr, *mut c_void, c_uint);
    "cuMemAddressReserve" => mem_address_reserve(*mut DevicePtr, usize, usize, DevicePtr, c_ulonglong);
    "cuMemAddressFree" => mem_address_free(DevicePtr, usize);
    "cuMemGetAllocationGranularity" => mem_get_allocation_granularity(*mut usize, *const AllocationProp, c_int);
    "cuMemCreate" => mem_create(*mut Handle, usize, *const AllocationProp, c_ulonglong);
    "cuMemRelease" => mem_release(Handle);
    "cuMemMap" => mem_map(DevicePtr, usize, usize, Handle, c_ulonglong);
    "cuMemUnmap" => mem_unmap(DevicePtr, usize);
    "cuMemSetAccess" => mem_set_access(DevicePtr, usize, *const AccessDesc, usize);
    "cuMemExportToShareableHandle" => mem_export(*mut c_void, Handle, c_int, c_ulonglong);
    "cuMemcpyDtoDAsync_v2" => memcpy_dtod_async(DevicePtr, DevicePtr, usize, Stream);
    "cuMemcpyHtoDAsync_v2" => memcpy_htod_async(DevicePtr, *const c_void, usize, Stream);
    "cuMemcpyDtoHAsync_v2" => memcpy_dtoh_async(*mut c_void, DevicePtr, usize, Stream);
    "cuMemsetD8Async" => memset_d8_async(DevicePtr, u8, usize, Stream);
    "cuStreamCreate" => stream_create(*mut Stream, c_uint);
    "cuStreamDestroy_v2" => stream_destroy(Stream);
    "cuStreamSynchronize" => stream_synchronize(Stream);
    "cuStreamIsCapturing" => stream_is_capturing(Stream, *mut c_int);
    "cuStreamWaitEvent" => stream_wait_event(Stream, Event, c_uint);
    "cuEventCreate" => event_create(*mut Event, c_uint);
    "cuEventDestroy_v2" => event_destroy(Event);
    "cuEventRecord" => event_record(Event, Stream);
    "cuEventQuery" => event_query(Event);
    "cuModuleLoadData" => module_load_data(*mut Module, *const c_void);
    "cuModuleUnload" => module_unload(Module);
    "cuModuleGetFunction" => module_get_function(*mut Function, Module, *const Char);
    "cuLaunchKernel" => launch_kernel(
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void,
        *mut *mut c_void
    );
}

fn symbol<T: Copy>(library: &Library, name: &'static str) -> Result<T, Unavailable> {
    // SAFETY: `T` is the type of this function of the driver's library, as `driver!` lists them, and
    // the library is never unloaded (`load` forgets it).
    unsafe { library.get::<T>(name.as_bytes()) }
        .map(|found| *found)
        .map_err(|_| Unavailable::Incomplete { symbol: name })
}

impl Driver {
    /// The driver, initialised. Loads the library on the first call.
    pub(crate) fn get() -> Result<&'static Self, Unavailable> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if process::is_forked() {
            return Err(Unavailable::Forked);
        }
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let driver = Self::load()?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    fn load() -> Result<Self, Unavailable> {
        let library = open()?;
        let mut driver = Self::of_library(&library)?;
        let mut version = 0;
        // SAFETY: the one call that is legal before `cuInit`; it writes the number.
        driver.check("cuDriverGetVersion", unsafe {
            (driver.driver_get_version)(&raw mut version)
        })?;
        driver.version = version_of(version);
        if driver.version < NEEDED {
            return Err(Unavailable::TooOld { found: driver.version, needed: NEEDED });
        }
        process::watch_forks();
        // SAFETY: 0 is the only legal argument.
        match unsafe { (driver.init)(0) } {
            code::NO_DEVICE => return Err(Unavailable::NoDevice),
            result => driver.check("cuInit", result)?,
        }
        // The driver's threads outlive everything, and so must its code.
        std::mem::forget(library);
        Ok(driver)
    }

    /// The version of CUDA that the driver is made for, major and minor.
    pub(crate) fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The driver's name for a result.
    pub(crate) fn name_of(&self, result: Code) -> &'static str {
        let mut name = std::ptr::null();
        // SAFETY: legal with any number; it writes a pointer.
        let found = unsafe { (self.get_error_name)(result, &raw mut name) };
        if found != code::SUCCESS || name.is_null() {
            return "unknown to the driver";
        }
        // SAFETY: the driver's documentation gives a NUL-terminated string that it never frees, and
        // the library is never unloaded.
        unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default()
    }

    /// For calls before there is a device.
    pub(crate) fn check(&self, call: &'static str, result: Code) -> Result<(), Unavailable> {
        match result {
            code::SUCCESS => Ok(()),
            code::NO_DEVICE => Err(Unavailable::NoDevice),
            _ => Err(Unavailable::Call { call, code: result, detail: self.name_of(result) }),
        }
    }
}

fn open() -> Result<Library, Unavailable> {
    let mut reasons = Vec::new();
    for name in NAMES {
        // SAFETY: what runs when the library loads is NVIDIA's, as in every program that uses CUDA.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => return Ok(library),
            // What the loader says comes as the source of the error.
            Err(error) => {
                reasons.push(error.source().map_or(error.to_string(), ToString::to_string));
            }
        }
    }
    Err(Unavailable::NoLibrary { reason: reasons.swap_remove(0) })
}

/// CUDA packs a version as 1000 times the major number and 10 times the minor one.
fn version_of(packed: c_int) -> (u32, u32) {
    let packed = u32::try_from(packed).unwrap_or(0);
    (packed / 1000, packed % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_unpacked() {
        assert_eq!(version_of(13_000), (13, 0));
        assert_eq!(version_of(11_040), (11, 4));
        assert_eq!(version_of(12_080), (12, 8));
        assert_eq!(version_of(-1), (0, 0));
        assert!(version_of(11_030) < NEEDED && version_of(12_000) > NEEDED);
    }
}

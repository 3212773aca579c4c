//! Pools: their making and their end, and what they are on.

use crate::callbacks::Callbacks;
use crate::device::AnyDevice;
use crate::error::{self, Fault};
use crate::guard;
use crate::options::{Wanted, vmm_pool_options_t};
use crate::owners::Owners;
use crate::private::Privates;
use crate::sized::SizedStruct;
use crate::status::vmm_status_t;
use std::ffi::{CString, c_char};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmm_core::{Pool, VirtualMemoryDevice};

/// A pool of one device's memory.
#[derive(Debug)]
pub struct vmm_pool_t {
    pub(crate) pool: Pool<AnyDevice>,
    pub(crate) owners: Owners,
    pub(crate) callbacks: Arc<Callbacks>,
    pub(crate) privates: Privates,
    /// A panic happened in a call of this pool.
    pub(crate) broken: AtomicBool,
    /// The ordinal of its device, for snapshots.
    pub(crate) ordinal: u32,
    device_name: CString,
}

/// Makes a pool and writes it to `pool`. Reserves addresses and makes no memory yet.
///
/// `VMM_UNAVAILABLE` where there is no such device or no driver, `VMM_NOT_SUPPORTED` where the
/// device lacks what the options ask for, `VMM_INVALID_ARGUMENT` for options that make no sense. On
/// an error `pool` is set to NULL.
///
/// # Safety
/// `options` is NULL or points to options whose `size` is set, with `peers` NULL or as many
/// ordinals as `peer_count` says. `pool` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_pool_create(
    options: *const vmm_pool_options_t,
    pool: *mut *mut vmm_pool_t,
) -> vmm_status_t {
    guard::call(|| {
        // SAFETY: by this function's contract.
        unsafe { guard::write(pool, std::ptr::null_mut(), "pool")? };
        // SAFETY: by this function's contract.
        let made = unsafe { vmm_pool_t::new(options)? };
        // SAFETY: by this function's contract. The box lives until `vmm_pool_destroy`.
        unsafe { guard::write(pool, Box::into_raw(Box::new(made)), "pool") }
    })
}

impl vmm_pool_t {
    /// # Safety
    /// As `vmm_pool_create` for its options.
    unsafe fn new(options: *const vmm_pool_options_t) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let Wanted { device, options, ordinal } = unsafe { vmm_pool_options_t::open(options)? };
        let mut name = device.properties().name.clone().into_bytes();
        name.retain(|byte| *byte != 0);
        Ok(Self {
            pool: Pool::new(Arc::new(device), options)?,
            owners: Owners::new(),
            callbacks: Arc::default(),
            privates: Privates::default(),
            broken: AtomicBool::new(false),
            ordinal,
            device_name: CString::new(name).unwrap_or_default(),
        })
    }
}

/// Ends a pool and gives everything it has back to the device. Waits for work that still uses its
/// memory.
///
/// Leases that are still held end with it: no work may be queued on their memory any more. NULL is
/// fine. A pool that refuses use after `VMM_PANICKED` is left behind with its memory, and the call
/// says so.
///
/// # Safety
/// `pool` is NULL or lives. No other call with this pool is under way or
/// comes later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_pool_destroy(pool: *mut vmm_pool_t) -> vmm_status_t {
    if pool.is_null() {
        return vmm_status_t::VMM_OK;
    }
    // SAFETY: not NULL as checked; by this function's contract it comes from `Box::into_raw` in
    // `vmm_pool_create`, and nobody uses it any more.
    let pool = unsafe { Box::from_raw(pool) };
    if pool.broken.load(Ordering::Relaxed) {
        std::mem::forget(pool);
        return error::keep(guard::refused());
    }
    guard::call(move || {
        pool.callbacks.clear();
        pool.pool.release_all_raw();
        drop(pool);
        Ok(())
    })
}

/// The name of the device of a pool; an empty text for NULL. It lives as long as the pool.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_device_name(pool: *const vmm_pool_t) -> *const c_char {
    // SAFETY: by this function's contract.
    unsafe { pool.as_ref() }.map_or(c"".as_ptr(), |pool| pool.device_name.as_ptr())
}

/// What the device of a pool is and can do. Lengths are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_device_info_t {
    /// Set it to `sizeof(vmm_device_info_t)` before the call.
    pub size: usize,
    /// Physical memory that nobody uses, at this moment.
    pub free: u64,
    /// Physical memory.
    pub total: u64,
    /// The smallest mappable length of device memory.
    pub granule: u64,
    /// The longest range of addresses worth asking for.
    pub max_reservation: u64,
    /// Not 0: memory can move to other addresses while it is free.
    pub remapping: u32,
    /// Not 0: one piece of memory can be mapped at several addresses at once.
    pub aliases: u32,
    /// Not 0: other devices can be given access.
    pub peers: u32,
    /// Not 0: streams can capture graphs.
    pub capture: u32,
}

// SAFETY: `size` comes first, all other fields are integers, and 32-bit ones come in pairs, so that
// there is no gap.
unsafe impl SizedStruct for vmm_device_info_t {}

/// Writes what the device of a pool is and can do to `info`. Asks the device for its free memory.
///
/// # Safety
/// `pool` is NULL or lives, `info` is NULL or points to a
/// `vmm_device_info_t` whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_device_info(
    pool: *mut vmm_pool_t,
    info: *mut vmm_device_info_t,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let device = pool.pool.device();
        let memory = device.memory_info()?;
        let properties = device.properties();
        let can = properties.capabilities;
        let found = vmm_device_info_t {
            size: size_of::<vmm_device_info_t>(),
            free: memory.free,
            total: memory.total,
            granule: properties.granule,
            max_reservation: properties.max_reservation,
            remapping: u32::from(can.remapping),
            aliases: u32::from(can.aliases),
            peers: u32::from(can.peers),
            capture: u32::from(can.capture),
        };
        // SAFETY: by this function's contract.
        unsafe { found.write_to(info, "info") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

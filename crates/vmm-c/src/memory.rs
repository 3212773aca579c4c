//! Leases: allocate, share, use, release, and whose memory an address is.

use crate::error::Fault;
use crate::guard;
use crate::pool::vmm_pool_t;
use crate::sized::SizedStruct;
use crate::status::vmm_status_t;
use std::ffi::c_void;
use vmm_core::{DeviceAddr, NotALease, PoolError, Request};

/// A stream of the device: a `cudaStream_t` or `CUstream` as it is, NULL being the default stream.
/// A mock device takes any number.
pub type vmm_stream_t = *mut c_void;

/// Allocates `len` bytes for work on `stream` and writes their address to `ptr`; one user holds
/// them.
///
/// `alignment` is a power of two in bytes; less than 512 means 512. `owner` comes from `vmm_owner`,
/// 0 is nobody in particular. No bytes give NULL, for which nothing needs to be released.
/// `VMM_OUT_OF_MEMORY`: not now. `VMM_TOO_LARGE`: never. On an error `ptr` is set to NULL and
/// nothing has changed.
///
/// # Safety
/// `pool` is NULL or lives, `ptr` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_allocate(
    pool: *mut vmm_pool_t,
    len: u64,
    alignment: u64,
    stream: vmm_stream_t,
    owner: u32,
    ptr: *mut *mut c_void,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, std::ptr::null_mut(), "ptr")? };
        let addr = pool.pool.allocate_raw(&pool.request(len, alignment, stream, owner)?)?;
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, pointer(addr), "ptr") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// As `vmm_allocate`, from memory that is at hand: makes no device call whatever. `VMM_NOT_AT_HAND`
/// if there is none; the pool may still be able to make some.
///
/// # Safety
/// As `vmm_allocate`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_allocate_at_hand(
    pool: *mut vmm_pool_t,
    len: u64,
    alignment: u64,
    stream: vmm_stream_t,
    owner: u32,
    ptr: *mut *mut c_void,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, std::ptr::null_mut(), "ptr")? };
        let request = pool.request(len, alignment, stream, owner)?;
        let addr = pool.pool.allocate_raw_at_hand(&request)?.ok_or_else(|| {
            Fault::new(
                vmm_status_t::VMM_NOT_AT_HAND,
                format!("{len} bytes are not at hand for this stream: vmm_allocate may make them"),
            )
        })?;
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, pointer(addr), "ptr") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Declares a further user of the lease at `ptr`: it ends only after one release more. NULL is
/// fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_share(pool: *mut vmm_pool_t, ptr: *mut c_void) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        if ptr.is_null() {
            Ok(())
        } else {
            pool.pool.share_raw(addr(ptr)).map_err(|e| pool.not_a_lease(e))
        }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Notes that work on a further stream uses the lease at `ptr`, from now until its last release.
/// NULL is fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_used_on(
    pool: *mut vmm_pool_t,
    ptr: *mut c_void,
    stream: vmm_stream_t,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        if ptr.is_null() {
            return Ok(());
        }
        let stream = pool.pool.device().stream(stream);
        pool.pool.used_on_raw(addr(ptr), stream).map_err(|e| pool.not_a_lease(e))
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// One user of the lease at `ptr` lets go. Its work ends with what is queued on `stream` by now;
/// the program need not wait for it. After the last release the address is not the caller's any
/// more. NULL is fine.
///
/// `VMM_NOT_A_LEASE`, with nothing changed, if no lease of this pool begins there: it was released
/// already, belongs to another pool, or `ptr` lies in the middle of a lease. An address that was
/// released and then given out anew is live again, so a release too many of it cannot be told from
/// a right one.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_release(
    pool: *mut vmm_pool_t,
    ptr: *mut c_void,
    stream: vmm_stream_t,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        if ptr.is_null() {
            return Ok(());
        }
        let stream = pool.pool.device().stream(stream);
        pool.pool.release_raw(addr(ptr), Some(stream)).map_err(|e| pool.not_a_lease(e))?;
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// As `vmm_release`, on the stream that the lease was allocated for, which may be destroyed by now:
/// for a user that knows no more than the address. Writes the bytes that were asked for to `len`,
/// unless that is NULL; 0 for NULL.
///
/// # Safety
/// `pool` is NULL or lives, `len` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_free(
    pool: *mut vmm_pool_t,
    ptr: *mut c_void,
    len: *mut u64,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let released = if ptr.is_null() {
            0
        } else {
            let released = pool.pool.release_raw(addr(ptr), None);
            released.map_err(|e| pool.not_a_lease(e))?.len
        };
        if !len.is_null() {
            // SAFETY: not NULL as checked, and writable by this function's contract.
            unsafe { len.write(released) };
        }
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// The lease that an address lies in.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_lease_t {
    /// Set it to `sizeof(vmm_lease_t)` before the call.
    pub size: usize,
    /// Where the lease begins: what `vmm_release` takes.
    pub base: *mut c_void,
    /// Bytes as they were asked for.
    pub len: u64,
    /// Bytes from its beginning to the address that was asked about.
    pub offset: u64,
    /// Whom it is accounted to.
    pub owner: u32,
    /// How many hold it.
    pub count: u32,
}

// SAFETY: `size` comes first, then a pointer, which may be any address, and integers without a gap.
unsafe impl SizedStruct for vmm_lease_t {}

/// Finds the live lease that `ptr` lies in, at its beginning or anywhere in it. Looks at this
/// pool only, not at the device. `VMM_NOT_A_LEASE` if there is none.
///
/// # Safety
/// `pool` is NULL or lives, `lease` is NULL or points to a `vmm_lease_t`
/// whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_find(
    pool: *mut vmm_pool_t,
    ptr: *const c_void,
    lease: *mut vmm_lease_t,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let at = addr(ptr);
        let found = pool.pool.find_raw(at);
        let found = found.ok_or_else(|| pool.not_a_lease(NotALease { addr: at }))?;
        let found = vmm_lease_t {
            size: size_of::<vmm_lease_t>(),
            base: pointer(found.addr),
            len: found.len,
            offset: at.since(found.addr),
            owner: pool.owners.number(found.owner),
            count: found.count,
        };
        // SAFETY: by this function's contract.
        unsafe { found.write_to(lease, "lease") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// A pointer as a device address.
#[inline]
pub(crate) fn addr(ptr: *const c_void) -> DeviceAddr {
    DeviceAddr(ptr.addr() as u64)
}

/// A device address as a pointer. It is for the device, and nothing of this library reads through
/// it.
#[inline]
pub(crate) fn pointer(addr: DeviceAddr) -> *mut c_void {
    #[expect(clippy::cast_possible_truncation, reason = "as long as a pointer, see below")]
    let addr = addr.0 as usize;
    std::ptr::without_provenance_mut(addr)
}

// Device addresses are 64 bits long.
const _: () = assert!(size_of::<usize>() == 8);

impl vmm_pool_t {
    #[inline]
    pub(crate) fn request(
        &self,
        len: u64,
        alignment: u64,
        stream: vmm_stream_t,
        owner: u32,
    ) -> Result<Request, Fault> {
        let stream = self.pool.device().stream(stream);
        Ok(Request { len, alignment, stream, owner: self.owners.get(owner)? })
    }

    #[cold]
    pub(crate) fn not_a_lease(&self, error: NotALease) -> Fault {
        let text = match self.pool.find_raw(error.addr) {
            Some(found) => format!(
                "{:?} lies {} bytes inside the lease at {:?}: pass the address that vmm_allocate \
                 gave, which vmm_find has as base",
                error.addr,
                error.addr.since(found.addr),
                found.addr
            ),
            None => error.to_string(),
        };
        Fault::new(vmm_status_t::VMM_NOT_A_LEASE, text)
    }

    /// What a call that names a lease came to.
    #[cold]
    pub(crate) fn lease_fault(&self, error: PoolError) -> Fault {
        match error {
            PoolError::NotALease(error) => self.not_a_lease(error),
            other => other.into(),
        }
    }
}

//! Leases: allocate, share, use, release, and whose memory an address is.

use crate::error::Fault;
use crate::guard;
use crate::pool::vmm_pool_t;
use crate::sized::SizedStruct;
use crate::status::vmm_status_t;
use crate::table::{Lease, NotALease};
use std::ffi::c_void;
use vmm_core::Request;

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
        let lease = pool.pool.allocate_with(pool.request(len, alignment, stream, owner)?)?;
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, pool.hold(lease), "ptr") }
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
        let lease = pool.pool.allocate_at_hand(request)?.ok_or_else(|| {
            Fault::new(
                vmm_status_t::VMM_NOT_AT_HAND,
                format!("{len} bytes are not at hand for this stream: vmm_allocate may make them"),
            )
        })?;
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, pool.hold(lease), "ptr") }
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
            pool.table.share(addr(ptr)).map_err(|e| pool.not_a_lease(ptr, e))
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
        let stream = pool.pool.device().stream(stream);
        pool.with_lease(ptr, |lease| lease.used_on(stream))
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
        pool.table.release(addr(ptr), stream).map_err(|e| pool.not_a_lease(ptr, e))
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
/// library's own tables only. `VMM_NOT_A_LEASE` if there is none.
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
        let found = pool.table.find(addr(ptr)).ok_or_else(|| pool.not_a_lease(ptr, NotALease))?;
        let found = vmm_lease_t {
            size: size_of::<vmm_lease_t>(),
            base: pointer(found.base),
            len: found.len,
            offset: addr(ptr) - found.base,
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
pub(crate) fn addr(ptr: *const c_void) -> u64 {
    ptr.addr() as u64
}

/// A device address as a pointer. It is for the device, and nothing of this library reads through
/// it.
#[inline]
pub(crate) fn pointer(addr: u64) -> *mut c_void {
    #[expect(clippy::cast_possible_truncation, reason = "as long as a pointer, see below")]
    let addr = addr as usize;
    std::ptr::without_provenance_mut(addr)
}

// Device addresses are 64 bits long.
const _: () = assert!(size_of::<usize>() == 8);

impl vmm_pool_t {
    #[inline]
    fn request(
        &self,
        len: u64,
        alignment: u64,
        stream: vmm_stream_t,
        owner: u32,
    ) -> Result<Request, Fault> {
        let stream = self.pool.device().stream(stream);
        Ok(Request { len, alignment, stream, owner: self.owners.get(owner)? })
    }

    /// Puts a lease where its address finds it.
    #[inline]
    fn hold(&self, lease: Lease) -> *mut c_void {
        let addr = lease.addr().0;
        if addr != 0 {
            self.table.insert(lease);
        }
        pointer(addr)
    }

    /// Does something with the lease at `ptr`, and nothing for NULL.
    pub(crate) fn with_lease<T: Default>(
        &self,
        ptr: *const c_void,
        body: impl FnOnce(&Lease) -> T,
    ) -> Result<T, Fault> {
        if ptr.is_null() {
            return Ok(T::default());
        }
        self.table.with(addr(ptr), body).map_err(|e| self.not_a_lease(ptr, e))
    }

    #[cold]
    pub(crate) fn not_a_lease(&self, ptr: *const c_void, _: NotALease) -> Fault {
        let text = match self.table.find(addr(ptr)) {
            Some(found) => format!(
                "{ptr:p} lies {} bytes inside the lease at {:#x}: pass the address that \
                 vmm_allocate gave, which vmm_find has as base",
                addr(ptr) - found.base,
                found.base
            ),
            None => format!(
                "{ptr:p} is not in a live lease of this pool: it was released already, or comes \
                 from elsewhere"
            ),
        };
        Fault::new(vmm_status_t::VMM_NOT_A_LEASE, text)
    }
}

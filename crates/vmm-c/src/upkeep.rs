//! How much memory a pool has, and the work that need not be done at once.

use crate::error::Fault;
use crate::guard;
use crate::memory::vmm_stream_t;
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use vmm_core::{PoolError, VirtualMemoryDevice};

/// Releases memory that is idle until at most `keep` bytes are reserved. Never waits: memory that
/// queued work still uses goes later, during maintenance. Writes the bytes released to `released`,
/// unless that is NULL.
///
/// # Safety
/// `pool` is NULL or lives, `released` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_trim(
    pool: *mut vmm_pool_t,
    keep: u64,
    released: *mut u64,
) -> vmm_status_t {
    // SAFETY: by this function's contract.
    unsafe { trim(pool, released, |pool| pool.pool.trim(keep)) }
}

/// As `vmm_trim`, but waits on the host for work that still uses idle memory.
///
/// # Safety
/// As `vmm_trim`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_trim_and_wait(
    pool: *mut vmm_pool_t,
    keep: u64,
    released: *mut u64,
) -> vmm_status_t {
    // SAFETY: by this function's contract.
    unsafe { trim(pool, released, |pool| pool.pool.trim_and_wait(keep)) }
}

/// # Safety
/// As `vmm_trim`.
unsafe fn trim(
    pool: *mut vmm_pool_t,
    released: *mut u64,
    how: impl FnOnce(&vmm_pool_t) -> Result<u64, PoolError>,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let bytes = how(pool)?;
        if released.is_null() {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        unsafe { guard::write(released, bytes, "released") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Sets the limit in bytes; 0: none. One below what is reserved stops growth at once, and
/// `vmm_trim` brings the pool below it. `VMM_INVALID_ARGUMENT` for less than one granule of the
/// device.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_set_limit(pool: *mut vmm_pool_t, limit: u64) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let granule = pool.pool.device().properties().granule;
        if limit != 0 && limit < granule {
            return Err(Fault::argument(format!(
                "a limit of {limit} bytes is below one granule of the device, {granule}: raise it, \
                 or pass 0 for none"
            )));
        }
        pool.pool.set_limit((limit != 0).then_some(limit));
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Sets the target in bytes: what the pool makes ahead of need and tries to stay under. 0: the
/// limit; `VMM_NO_TARGET`: none, also where there is a limit.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_set_target(pool: *mut vmm_pool_t, target: u64) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        pool.pool.set_target((target != 0).then_some(target));
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Does one step of maintenance: a few device calls, none that waits. For pools with
/// `VMM_MAINTENANCE_USER_LOOP`; on others it is allowed and not needed. Sets `worked` unless that
/// is NULL: false when there was nothing to do, and after a failure.
///
/// # Safety
/// `pool` is NULL or lives, `worked` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_maintain(pool: *mut vmm_pool_t, worked: *mut bool) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let did = pool.pool.maintain();
        if worked.is_null() {
            return Ok(());
        }
        // SAFETY: by this function's contract.
        unsafe { guard::write(worked, did, "worked") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// To be called before a stream is destroyed: the pool records where its work ends. A later stream
/// of the same handle is a new one. `VMM_CAPTURING` while a stream captures a graph; the stream is
/// not forgotten then.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_forget_stream(
    pool: *mut vmm_pool_t,
    stream: vmm_stream_t,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let stream = pool.pool.device().stream(stream);
        Ok(pool.pool.forget_stream(stream)?)
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Says whether the pool may ask the device about a stream, as it may about all others. Where it may not,
/// the stream can be destroyed at any moment, without `vmm_forget_stream` and before its leases end. What
/// it released since its last request serves it alone, and others once the pool has waited for the whole
/// device, as it does where it would fail otherwise. For streams of other libraries.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_watch_stream(
    pool: *mut vmm_pool_t,
    stream: vmm_stream_t,
    watched: bool,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let stream = pool.pool.device().stream(stream);
        pool.pool.watch_stream(stream, watched);
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Checks all structures of the pool against each other, for tests of programs that use it. A fault
/// makes it `VMM_PANICKED`. Holds up all other calls meanwhile.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_validate(pool: *mut vmm_pool_t) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        pool.pool.validate();
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

//! Access for other devices.

use crate::guard;
use crate::memory::addr;
use crate::options::ordinals;
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use std::ffi::c_void;
use vmm_core::DeviceOrdinal;

/// Lets a further device use all memory of the pool: what there is before the call returns, and
/// what is made later. Costs about a millisecond for each piece of memory on real cards.
/// `VMM_NOT_SUPPORTED` where the devices cannot reach each other. On an error the device is not
/// registered, and a later call may succeed.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_add_peer(pool: *mut vmm_pool_t, ordinal: u32) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| Ok(pool.pool.add_peer(DeviceOrdinal(ordinal))?);
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Lets other devices use the memory of the lease at `ptr`, until the lease ends. The memory stays
/// where it is. NULL is fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// # Safety
/// `pool` is NULL or lives, `peers` is NULL or points to `peer_count`
/// ordinals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_grant(
    pool: *mut vmm_pool_t,
    ptr: *mut c_void,
    peers: *const u32,
    peer_count: usize,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        // SAFETY: by this function's contract.
        let peers = unsafe { ordinals(peers, peer_count)? };
        if ptr.is_null() {
            return Ok(());
        }
        pool.pool.grant_raw(addr(ptr), &peers).map_err(|error| pool.lease_fault(error))
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

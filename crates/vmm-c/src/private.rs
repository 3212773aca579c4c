//! Private pools by number: memory at addresses of its own that stays where it is, for captured
//! graphs.

use crate::device::AnyDevice;
use crate::error::Fault;
use crate::guard;
use crate::memory::{addr, pointer, vmm_stream_t};
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::c_void;
use vmm_core::{AllocAtError, PrivatePool};

/// The private pools that C has made and not released.
#[derive(Debug, Default)]
pub(crate) struct Privates(Mutex<HashMap<u64, PrivatePool<AnyDevice>>>);

impl Privates {
    /// A hold of the caller's: one that is released meanwhile stays until the call is over.
    fn get(&self, id: u64) -> Result<PrivatePool<AnyDevice>, Fault> {
        self.0.lock().get(&id).cloned().ok_or_else(|| none_of(id))
    }
}

#[cold]
fn none_of(id: u64) -> Fault {
    Fault::argument(format!(
        "there is no private pool {id} in this pool: it was released, or vmm_private_create did not \
         make it"
    ))
}

impl From<AllocAtError> for Fault {
    #[cold]
    fn from(error: AllocAtError) -> Self {
        match error {
            AllocAtError::NotFree { .. } => {
                Self::new(vmm_status_t::VMM_OUT_OF_MEMORY, error.to_string())
            }
            AllocAtError::Device(error) => error.into(),
        }
    }
}

/// Makes a private pool and writes its number to `id`: from 1 on, and never used twice in one pool.
///
/// A private pool has addresses of its own. Its memory stays mapped where it is and serves its own
/// allocations only, until it is released: as a captured graph needs it, which uses the addresses
/// that it was captured with whenever it runs. Limit, accounts and streams are those of the pool.
/// It has no memory before the first allocation.
///
/// `VMM_OUT_OF_MEMORY` if 4094 others live or have leases. On an error `id` is set to 0.
///
/// # Safety
/// `pool` is NULL or lives, `id` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_private_create(pool: *mut vmm_pool_t, id: *mut u64) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        // SAFETY: by this function's contract.
        unsafe { guard::write(id, 0, "id")? };
        let private = pool.pool.private_pool()?;
        let number = private.id().number();
        pool.privates.0.lock().insert(number, private);
        // SAFETY: by this function's contract.
        unsafe { guard::write(id, number, "id") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// As `vmm_allocate`, from a private pool. While a stream captures it asks nothing of it: memory
/// comes from what the private pool has free for that stream, from idle memory of the pool that no
/// queued work uses, or is made.
///
/// What is released during a capture is used again by what the stream captures later. Afterwards it
/// is free for later captures: the program orders the launches of graphs that share a private pool.
///
/// The lease is one like all others: `vmm_release`, `vmm_share`, `vmm_used_on` and `vmm_find` take
/// its address. `VMM_INVALID_ARGUMENT` if there is no private pool of this number.
///
/// # Safety
/// `pool` is NULL or lives, `ptr` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_private_allocate(
    pool: *mut vmm_pool_t,
    id: u64,
    len: u64,
    alignment: u64,
    stream: vmm_stream_t,
    owner: u32,
    ptr: *mut *mut c_void,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, std::ptr::null_mut(), "ptr")? };
        let private = pool.privates.get(id)?;
        let addr = private.allocate_raw(&pool.request(len, alignment, stream, owner)?)?;
        // SAFETY: by this function's contract.
        unsafe { guard::write(ptr, pointer(addr), "ptr") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Allocates exactly the `len` bytes at `ptr`, free memory of a private pool: so leases can be put
/// back where they were before they were released, as the checkpoints of CUDA graph trees want.
///
/// `VMM_OUT_OF_MEMORY`, with nothing changed, if a part of the range is held, in use by work that
/// `stream` cannot be ordered after, or not memory of the private pool. No bytes are fine anywhere,
/// and nothing needs to be released then.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_private_allocate_at(
    pool: *mut vmm_pool_t,
    id: u64,
    ptr: *mut c_void,
    len: u64,
    stream: vmm_stream_t,
    owner: u32,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let private = pool.privates.get(id)?;
        Ok(private.allocate_raw_at(addr(ptr), &pool.request(len, 0, stream, owner)?)?)
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Ends a private pool: nothing can be allocated from it any more, and its number means nothing.
/// Its memory goes back to the pool as its leases end, once all work has passed that is queued by
/// then on any stream that the pool has seen; launches of its graphs on other streams must be over.
/// Makes no device call. `VMM_INVALID_ARGUMENT` if there is no private pool of this number.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_private_release(pool: *mut vmm_pool_t, id: u64) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let private = pool.privates.0.lock().remove(&id);
        private.map(drop).ok_or_else(|| none_of(id))
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

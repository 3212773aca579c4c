//! The border: no panic crosses it, and a pool in which one happened is not used again.

use crate::error::{self, Fault};
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// Runs the body of a function that C calls.
#[inline]
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> vmm_status_t {
    // Whatever a panic leaves half-done is out of reach afterwards: it happened on values of
    // this call, or in a pool, which is then marked.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => vmm_status_t::VMM_OK,
        Ok(Err(fault)) => error::keep(fault),
        Err(payload) => error::keep(Fault::panicked(&*payload)),
    }
}

/// As [`call`], for a function of a pool.
///
/// # Safety
/// `pool` is NULL or comes from `vmm_pool_create` and was not destroyed.
#[inline]
pub(crate) unsafe fn with_pool(
    pool: *const vmm_pool_t,
    body: impl FnOnce(&vmm_pool_t) -> Result<(), Fault>,
) -> vmm_status_t {
    // SAFETY: by this function's contract a pointer that is not NULL is a live pool.
    let Some(pool) = (unsafe { pool.as_ref() }) else {
        return error::keep(Fault::argument("pool is NULL"));
    };
    if pool.broken.load(Ordering::Relaxed) {
        return error::keep(refused());
    }
    let status = call(|| body(pool));
    if status == vmm_status_t::VMM_PANICKED {
        pool.broken.store(true, Ordering::Relaxed);
    }
    status
}

/// What a pool says in which a panic happened.
#[cold]
pub(crate) fn refused() -> Fault {
    Fault::new(
        vmm_status_t::VMM_PANICKED,
        "a fault inside the library happened in this pool before: it cannot be used any more",
    )
}

/// Where the result of a call goes.
///
/// # Safety
/// `out` is NULL or can be written.
pub(crate) unsafe fn write<T>(out: *mut T, value: T, name: &str) -> Result<(), Fault> {
    if out.is_null() {
        return Err(Fault::argument(format!("{name} is NULL")));
    }
    // SAFETY: not NULL as checked, and writable by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::vmm_device_kind_t;
    use crate::options::vmm_pool_options_t;
    use crate::pool::{vmm_pool_create, vmm_pool_destroy};
    use crate::upkeep::vmm_validate;
    use std::ffi::CStr;
    use std::ptr::null_mut;

    fn last_error() -> String {
        // SAFETY: the text is read before this thread makes another call.
        unsafe { CStr::from_ptr(error::vmm_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_pool_in_which_a_panic_happened_is_not_used_again() {
        // SAFETY: all fields are integers, or a pointer that may be NULL.
        let mut options: vmm_pool_options_t = unsafe { std::mem::zeroed() };
        options.size = size_of::<vmm_pool_options_t>();
        options.device_kind = vmm_device_kind_t::VMM_DEVICE_MOCK as u32;
        options.maintenance = 1;
        let mut pool = null_mut();
        // SAFETY: options with their size, and a place for the pool.
        let made = unsafe { vmm_pool_create(&raw const options, &raw mut pool) };
        assert_eq!(made, vmm_status_t::VMM_OK);
        // SAFETY: the pool lives.
        let status = unsafe { with_pool(pool, |_| panic!("seven is {}", 8)) };
        assert_eq!(status, vmm_status_t::VMM_PANICKED);
        assert!(last_error().contains("seven is 8"), "{}", last_error());
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_validate(pool) }, vmm_status_t::VMM_PANICKED);
        assert!(last_error().contains("cannot be used any more"), "{}", last_error());
        // SAFETY: the pool lives, and nobody uses it afterwards.
        assert_eq!(unsafe { vmm_pool_destroy(pool) }, vmm_status_t::VMM_PANICKED);
    }
}

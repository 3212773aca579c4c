//! Private pools through the interface.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;
use vmm::vmm_status_t::*;
use vmm::*;

const MIB: u64 = 1 << 20;

/// A pool on a mock device that does no maintenance by itself.
struct Pool(*mut vmm_pool_t);

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made in `pool`, and whoever could use it borrows `self`.
        assert_eq!(unsafe { vmm_pool_destroy(self.0) }, VMM_OK);
    }
}

fn pool(limit: u64) -> Pool {
    // SAFETY: all fields are integers, or a pointer that may be NULL.
    let mut options: vmm_pool_options_t = unsafe { std::mem::zeroed() };
    options.size = size_of::<vmm_pool_options_t>();
    options.device_kind = vmm_device_kind_t::VMM_DEVICE_MOCK as u32;
    options.maintenance = vmm_maintenance_t::VMM_MAINTENANCE_USER_LOOP as u32;
    options.limit = limit;
    let mut pool = null_mut();
    // SAFETY: options with their size, and a place for the pool.
    assert_eq!(unsafe { vmm_pool_create(&raw const options, &raw mut pool) }, VMM_OK);
    Pool(pool)
}

fn last_error() -> String {
    // SAFETY: the text is copied before this thread makes another call.
    unsafe { CStr::from_ptr(vmm_last_error()) }.to_str().expect("UTF-8").to_owned()
}

const STREAM: *mut c_void = std::ptr::without_provenance_mut(1);

impl Pool {
    fn create(&self) -> u64 {
        let mut id = 7;
        // SAFETY: the pool lives, and `id` can be written.
        assert_eq!(unsafe { vmm_private_create(self.0, &raw mut id) }, VMM_OK);
        id
    }

    fn allocate(&self, id: u64, len: u64) -> Result<*mut c_void, vmm_status_t> {
        let mut ptr = STREAM;
        // SAFETY: the pool lives, and `ptr` can be written.
        match unsafe { vmm_private_allocate(self.0, id, len, 0, STREAM, 0, &raw mut ptr) } {
            VMM_OK => Ok(ptr),
            status => {
                assert!(ptr.is_null());
                Err(status)
            }
        }
    }

    fn allocate_at(&self, id: u64, ptr: *mut c_void, len: u64) -> vmm_status_t {
        // SAFETY: the pool lives.
        unsafe { vmm_private_allocate_at(self.0, id, ptr, len, STREAM, 0) }
    }

    fn release(&self, ptr: *mut c_void) {
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_release(self.0, ptr, STREAM) }, VMM_OK);
    }

    fn end(&self, id: u64) -> vmm_status_t {
        // SAFETY: the pool lives.
        unsafe { vmm_private_release(self.0, id) }
    }

    fn find(&self, ptr: *mut c_void) -> Option<(*mut c_void, u64)> {
        // SAFETY: all fields are integers, or a pointer that may be NULL.
        let mut lease: vmm_lease_t = unsafe { std::mem::zeroed() };
        lease.size = size_of::<vmm_lease_t>();
        // SAFETY: the pool lives, and `lease` has its size.
        let status = unsafe { vmm_find(self.0, ptr, &raw mut lease) };
        (status == VMM_OK).then_some((lease.base, lease.len))
    }

    fn reserved(&self) -> u64 {
        self.stats().reserved_bytes
    }

    fn stats(&self) -> vmm_stats_t {
        // SAFETY: all fields are integers.
        let mut stats: vmm_stats_t = unsafe { std::mem::zeroed() };
        stats.size = size_of::<vmm_stats_t>();
        // SAFETY: the pool lives, and `stats` has its size.
        assert_eq!(unsafe { vmm_stats(self.0, &raw mut stats) }, VMM_OK);
        stats
    }
}

#[test]
fn memory_of_a_private_pool_comes_back_at_its_end() {
    let pool = pool(16 * MIB);
    let (first, second) = (pool.create(), pool.create());
    assert_eq!((first, second), (1, 2));
    let kept = pool.allocate(first, 6 * MIB).expect("within the limit");
    let gone = pool.allocate(first, 4 * MIB).expect("within the limit");
    assert_eq!(pool.find(kept.wrapping_byte_add(5)), Some((kept, 6 * MIB)));
    let stats = pool.stats();
    assert_eq!((stats.private_pools, stats.private_reserved_bytes), (2, stats.reserved_bytes));
    pool.release(gone);
    assert_eq!(
        pool.allocate(second, 8 * MIB),
        Err(VMM_OUT_OF_MEMORY),
        "the first keeps what it has"
    );
    assert_eq!(pool.end(first), VMM_OK);
    let taken = pool.allocate(second, 8 * MIB).expect("what the first had free");
    assert_eq!(pool.allocate(first, MIB), Err(VMM_INVALID_ARGUMENT));
    assert!(last_error().contains("no private pool 1"), "{}", last_error());
    assert_eq!(pool.end(first), VMM_INVALID_ARGUMENT);
    pool.release(kept);
    pool.release(taken);
    assert_eq!(pool.end(second), VMM_OK);
    assert_eq!(pool.create(), 3, "numbers are never used twice");
    let mut released = 0;
    // SAFETY: the pool lives, and `released` can be written.
    assert_eq!(unsafe { vmm_trim_and_wait(pool.0, 0, &raw mut released) }, VMM_OK);
    assert_eq!(pool.reserved(), 0);
}

#[test]
fn a_range_is_given_out_exactly_where_it_was() {
    let pool = pool(0);
    let id = pool.create();
    let lens = [3 * MIB, 700, 5 * MIB];
    let places = lens.map(|len| (pool.allocate(id, len).expect("memory is far from short"), len));
    for (ptr, len) in places {
        assert_eq!(pool.allocate_at(id, ptr, len), VMM_OUT_OF_MEMORY, "it is held");
    }
    for (ptr, _) in places {
        pool.release(ptr);
    }
    for (ptr, len) in places.into_iter().rev() {
        assert_eq!(pool.allocate_at(id, ptr, len), VMM_OK);
        assert_eq!(pool.find(ptr), Some((ptr, len)));
    }
    assert_eq!(pool.allocate_at(id, null_mut(), 512), VMM_OUT_OF_MEMORY);
    assert_eq!(pool.allocate_at(id, null_mut(), 0), VMM_OK);
    assert_eq!(pool.allocate_at(id + 1, places[0].0, 512), VMM_INVALID_ARGUMENT);
    for (ptr, _) in places {
        pool.release(ptr);
    }
    // One that was never released ends with its pool, as its lease does.
    pool.allocate(id, MIB).expect("memory is far from short");
}

#[test]
fn nulls_are_refused() {
    let pool = pool(0);
    let id = pool.create();
    // SAFETY: NULL is allowed everywhere here.
    unsafe {
        assert_eq!(vmm_private_create(null_mut(), null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_private_create(pool.0, null_mut()), VMM_INVALID_ARGUMENT);
        let status = vmm_private_allocate(pool.0, id, 512, 0, STREAM, 0, null_mut());
        assert_eq!(status, VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_private_release(null_mut(), id), VMM_INVALID_ARGUMENT);
    }
    assert_eq!(pool.create(), 2, "a private pool whose number had no place was not made");
    assert_eq!(pool.allocate(id, 0), Ok(null_mut()));
    assert_eq!(pool.allocate(id, u64::MAX), Err(VMM_TOO_LARGE));
}

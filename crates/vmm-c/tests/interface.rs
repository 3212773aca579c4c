//! The functions of the interface with arguments as C may pass them.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
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

fn options() -> vmm_pool_options_t {
    // SAFETY: all fields are integers, or a pointer that may be NULL.
    let mut options: vmm_pool_options_t = unsafe { std::mem::zeroed() };
    options.size = size_of::<vmm_pool_options_t>();
    options.device_kind = vmm_device_kind_t::VMM_DEVICE_MOCK as u32;
    options.maintenance = vmm_maintenance_t::VMM_MAINTENANCE_USER_LOOP as u32;
    options
}

fn create(options: &vmm_pool_options_t) -> Result<Pool, vmm_status_t> {
    let mut pool = null_mut();
    // SAFETY: options with their size, and a place for the pool.
    match unsafe { vmm_pool_create(options, &raw mut pool) } {
        VMM_OK => Ok(Pool(pool)),
        status => {
            assert!(pool.is_null());
            Err(status)
        }
    }
}

fn pool(limit: u64) -> Pool {
    create(&vmm_pool_options_t { limit, ..options() }).expect("a mock device is always there")
}

fn last_error() -> String {
    // SAFETY: the text is copied before this thread makes another call.
    unsafe { CStr::from_ptr(vmm_last_error()) }.to_str().expect("UTF-8").to_owned()
}

fn stream(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(number)
}

impl Pool {
    fn allocate(&self, len: u64) -> Result<*mut c_void, vmm_status_t> {
        self.allocate_with(len, 0, 0)
    }

    fn allocate_with(
        &self,
        len: u64,
        alignment: u64,
        owner: u32,
    ) -> Result<*mut c_void, vmm_status_t> {
        let mut ptr = stream(1);
        // SAFETY: the pool lives, and `ptr` can be written.
        match unsafe { vmm_allocate(self.0, len, alignment, stream(1), owner, &raw mut ptr) } {
            VMM_OK => Ok(ptr),
            status => {
                assert!(ptr.is_null(), "an error leaves NULL");
                Err(status)
            }
        }
    }

    fn release(&self, ptr: *mut c_void) -> vmm_status_t {
        // SAFETY: the pool lives.
        unsafe { vmm_release(self.0, ptr, stream(1)) }
    }

    fn find(&self, ptr: *const c_void) -> Result<vmm_lease_t, vmm_status_t> {
        let mut lease = vmm_lease_t {
            size: size_of::<vmm_lease_t>(),
            base: null_mut(),
            len: 0,
            offset: 0,
            owner: 0,
            count: 0,
        };
        // SAFETY: the pool lives, and the size is set.
        match unsafe { vmm_find(self.0, ptr, &raw mut lease) } {
            VMM_OK => Ok(lease),
            status => Err(status),
        }
    }

    fn owner(&self, name: &str) -> u32 {
        let name = CString::new(name).expect("no zero");
        let mut owner = u32::MAX;
        // SAFETY: the pool lives, the name is a text, and the number can be written.
        assert_eq!(unsafe { vmm_owner(self.0, name.as_ptr(), &raw mut owner) }, VMM_OK);
        owner
    }

    fn stats(&self) -> vmm_stats_t {
        // SAFETY: all fields are integers.
        let mut stats: vmm_stats_t = unsafe { std::mem::zeroed() };
        stats.size = size_of::<vmm_stats_t>();
        // SAFETY: the pool lives, and the size is set.
        assert_eq!(unsafe { vmm_stats(self.0, &raw mut stats) }, VMM_OK);
        stats
    }

    fn validate(&self) {
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_validate(self.0) }, VMM_OK, "{}", last_error());
    }
}

#[test]
fn null_is_an_error_and_never_read() {
    let pool = pool(0);
    let mut other = null_mut();
    // SAFETY: every function takes NULL.
    unsafe {
        assert_eq!(vmm_pool_create(null(), &raw mut other), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_pool_create(&options(), null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_pool_destroy(null_mut()), VMM_OK);
        let mut ptr = null_mut();
        let allocated = vmm_allocate(null_mut(), 1, 0, null_mut(), 0, &raw mut ptr);
        assert_eq!(allocated, VMM_INVALID_ARGUMENT);
        assert_eq!(last_error(), "pool is NULL");
        let allocated = vmm_allocate(pool.0, 1, 0, null_mut(), 0, null_mut());
        assert_eq!(allocated, VMM_INVALID_ARGUMENT);
        let allocated = vmm_allocate_at_hand(pool.0, 1, 0, null_mut(), 0, null_mut());
        assert_eq!(allocated, VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_share(pool.0, null_mut()), VMM_OK);
        assert_eq!(vmm_used_on(pool.0, null_mut(), stream(3)), VMM_OK);
        assert_eq!(vmm_release(pool.0, null_mut(), null_mut()), VMM_OK);
        assert_eq!(vmm_grant(pool.0, null_mut(), null(), 0), VMM_OK);
        assert_eq!(vmm_find(pool.0, null(), null_mut()), VMM_NOT_A_LEASE);
        assert_eq!(vmm_stats(pool.0, null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_device_info(pool.0, null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_owner(pool.0, null(), null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_owner(pool.0, c"x".as_ptr(), null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_trim(pool.0, 0, null_mut()), VMM_OK);
        assert_eq!(vmm_maintain(pool.0, null_mut()), VMM_OK);
        assert_eq!(vmm_write_snapshot(pool.0, null()), VMM_INVALID_ARGUMENT);
        let added = vmm_add_pressure_callback(pool.0, None, null_mut(), null_mut());
        assert_eq!(added, VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_last_out_of_memory(null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_device_count(1, null_mut()), VMM_INVALID_ARGUMENT);
        assert_eq!(CStr::from_ptr(vmm_device_name(null())).to_bytes(), b"");
    }
    assert_eq!(pool.stats().live_leases, 0, "nothing was allocated");
    pool.validate();
}

#[test]
fn options_that_make_no_sense_are_named() {
    let refused = |options: vmm_pool_options_t, expected: &str| {
        assert_eq!(create(&options).err(), Some(VMM_INVALID_ARGUMENT));
        assert!(last_error().contains(expected), "{}", last_error());
    };
    refused(vmm_pool_options_t { size: 0, ..options() }, "sizeof");
    refused(vmm_pool_options_t { device_kind: 2, ..options() }, "vmm_device_kind_t");
    refused(vmm_pool_options_t { cross_stream: 3, ..options() }, "cross_stream is 3");
    refused(vmm_pool_options_t { maintenance: 9, ..options() }, "vmm_maintenance_t");
    refused(vmm_pool_options_t { frame_kind: 4, ..options() }, "vmm_frame_kind_t");
    refused(vmm_pool_options_t { virtual_memory: 2, ..options() }, "vmm_virtual_memory_t");
    refused(vmm_pool_options_t { limit: 1, ..options() }, "granule");
    refused(vmm_pool_options_t { peer_count: 2, ..options() }, "uint32_t");
}

#[test]
fn a_program_compiled_with_the_first_fields_only_gets_defaults() {
    let mut early = options();
    early.size = std::mem::offset_of!(vmm_pool_options_t, mock_memory);
    // What lies behind the struct of such a program is not read.
    early.limit = 1;
    early.maintenance = 77;
    let pool = create(&early).expect("defaults");
    assert_eq!(pool.stats().limit, 0);
}

#[test]
fn a_card_that_is_not_there_is_unavailable() {
    let card = vmm_pool_options_t { device_kind: 0, device_ordinal: 1000, ..options() };
    assert_eq!(create(&card).err(), Some(VMM_UNAVAILABLE));
    assert!(last_error().len() > 20, "{}", last_error());
    let mut count = 7;
    // SAFETY: the number can be written.
    assert_eq!(unsafe { vmm_device_count(1, &raw mut count) }, VMM_OK);
    assert_eq!(count, 1);
    // SAFETY: the number can be written.
    assert_eq!(unsafe { vmm_device_count(5, &raw mut count) }, VMM_INVALID_ARGUMENT);
}

#[test]
fn addresses_that_are_no_leases_change_nothing() {
    let (pool, other) = (pool(0), pool(0));
    let ptr = pool.allocate(5000).unwrap();
    let inside = ptr.wrapping_byte_add(512);
    assert_eq!(pool.release(inside), VMM_NOT_A_LEASE);
    assert!(last_error().contains("512 bytes inside the lease at"), "{}", last_error());
    assert_eq!(other.release(ptr), VMM_NOT_A_LEASE, "a lease of another pool");
    for foreign in [1, 0x1234, usize::MAX] {
        assert_eq!(pool.release(stream(foreign)), VMM_NOT_A_LEASE);
        assert_eq!(pool.find(stream(foreign)).err(), Some(VMM_NOT_A_LEASE));
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_share(pool.0, stream(foreign)) }, VMM_NOT_A_LEASE);
        // SAFETY: the pool lives.
        let used = unsafe { vmm_used_on(pool.0, stream(foreign), null_mut()) };
        assert_eq!(used, VMM_NOT_A_LEASE);
    }
    assert_eq!(pool.stats().live_leases, 1);
    assert_eq!(pool.release(ptr), VMM_OK);
    assert_eq!(pool.release(ptr), VMM_NOT_A_LEASE);
    assert!(last_error().contains("released already"), "{}", last_error());
    pool.validate();
}

#[test]
fn odd_requests() {
    let pool = pool(64 * MIB);
    assert_eq!(pool.allocate(0), Ok(null_mut()));
    for len in [u64::MAX, i64::MAX as u64, 65 * MIB] {
        assert_eq!(pool.allocate(len), Err(VMM_TOO_LARGE));
    }
    for alignment in [3, 1 << 62] {
        assert_eq!(pool.allocate_with(1, alignment, 0), Err(VMM_TOO_LARGE));
    }
    assert_eq!(pool.allocate_with(1, 0, 17), Err(VMM_INVALID_ARGUMENT), "no such owner");
    let ptr = pool.allocate_with(1, 4 * MIB, 0).unwrap();
    assert_eq!(ptr.addr() % 0x40_0000, 0);
    assert_eq!(pool.release(ptr), VMM_OK);
    let mut other = null_mut();
    // SAFETY: the pool lives, and `other` can be written.
    let at_hand = |len, ptr: &mut *mut c_void| unsafe {
        vmm_allocate_at_hand(pool.0, len, 0, stream(1), 0, ptr)
    };
    assert_eq!(at_hand(60 * MIB, &mut other), VMM_NOT_AT_HAND);
    assert!(other.is_null());
    assert_eq!(at_hand(1, &mut other), VMM_OK);
    assert_eq!(pool.release(other), VMM_OK);
}

#[test]
fn owners_are_numbers() {
    let pool = pool(0);
    let (one, two) = (pool.owner("one"), pool.owner("two"));
    assert_eq!((one, two, pool.owner("one")), (1, 2, 1));
    let ptr = pool.allocate_with(100, 0, two).unwrap();
    let found = pool.find(ptr).unwrap();
    assert_eq!((found.owner, found.count, found.len), (two, 1, 100));
    assert_eq!(pool.release(ptr), VMM_OK);
}

#[test]
fn out_of_memory_has_facts() {
    let pool = pool(64 * MIB);
    let weights = pool.owner("weights");
    let ptr = pool.allocate_with(50 * MIB, 0, weights).unwrap();
    assert_eq!(pool.allocate(20 * MIB), Err(VMM_OUT_OF_MEMORY));
    assert!(last_error().contains("held by weights 52428800"), "{}", last_error());
    // SAFETY: all fields are integers.
    let mut facts: vmm_out_of_memory_t = unsafe { std::mem::zeroed() };
    facts.size = size_of::<vmm_out_of_memory_t>();
    // SAFETY: the size is set.
    assert_eq!(unsafe { vmm_last_out_of_memory(&raw mut facts) }, VMM_OK);
    assert_eq!((facts.requested, facts.limit, facts.live), (20 * MIB, 64 * MIB, 50 * MIB));
    assert!(facts.largest_possible >= 10 * MIB && facts.largest_possible < 20 * MIB, "{facts:?}");
    // The largest request possible is possible.
    let rest = pool.allocate(facts.largest_possible).unwrap();
    assert_eq!(pool.release(rest), VMM_OK);
    assert_eq!(pool.release(ptr), VMM_OK);
}

#[test]
fn leases_that_are_held_end_with_the_pool() {
    let pool = pool(0);
    let ptr = pool.allocate(MIB).unwrap();
    // SAFETY: the pool lives.
    assert_eq!(unsafe { vmm_share(pool.0, ptr) }, VMM_OK);
    drop(pool);
}

#[test]
fn memory_goes_back_and_limits_change() {
    let pool = pool(0);
    let ptr = pool.allocate(100 * MIB).unwrap();
    assert_eq!(pool.release(ptr), VMM_OK);
    assert!(pool.stats().reserved_bytes >= 100 * MIB);
    let mut released = 0;
    // SAFETY: the pool lives, and the number can be written.
    assert_eq!(unsafe { vmm_trim_and_wait(pool.0, 0, &raw mut released) }, VMM_OK);
    assert!(released >= 100 * MIB);
    assert_eq!(pool.stats().reserved_bytes, 0);
    // SAFETY: the pool lives.
    unsafe {
        assert_eq!(vmm_set_limit(pool.0, 5), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_set_limit(pool.0, 20 * MIB), VMM_OK);
        assert_eq!(vmm_set_target(pool.0, 10 * MIB), VMM_OK);
    }
    let stats = pool.stats();
    assert_eq!((stats.limit, stats.target), (20 * MIB, 10 * MIB));
    let mut worked = true;
    while worked {
        // SAFETY: the pool lives, and the flag can be written.
        assert_eq!(unsafe { vmm_maintain(pool.0, &raw mut worked) }, VMM_OK);
    }
    assert_eq!(pool.stats().reserved_bytes, 10 * MIB, "made ahead up to the target");
    assert_eq!(pool.allocate(21 * MIB), Err(VMM_TOO_LARGE));
    // SAFETY: the pool lives.
    assert_eq!(unsafe { vmm_forget_stream(pool.0, stream(1)) }, VMM_OK);
}

#[test]
fn peers_get_access() {
    let peers = [1, 2];
    let pool = create(&vmm_pool_options_t { peers: peers.as_ptr(), peer_count: 2, ..options() });
    let pool = pool.expect("the mock has peers");
    let ptr = pool.allocate(MIB).unwrap();
    // SAFETY: the pool lives, and the arrays are as long as said.
    unsafe {
        assert_eq!(vmm_add_peer(pool.0, 3), VMM_OK);
        assert_eq!(vmm_grant(pool.0, ptr, peers.as_ptr(), 2), VMM_OK);
        assert_eq!(vmm_grant(pool.0, ptr, null(), 2), VMM_INVALID_ARGUMENT);
        let inside = ptr.wrapping_byte_add(1);
        assert_eq!(vmm_grant(pool.0, inside, peers.as_ptr(), 2), VMM_NOT_A_LEASE);
    }
    assert_eq!(pool.find(ptr).unwrap().count, 1, "a grant holds nothing");
    assert_eq!(pool.release(ptr), VMM_OK);
    assert_eq!(pool.stats().live_leases, 0);

    let plain = vmm_pool_options_t { virtual_memory: 1, ..options() };
    let plain = create(&plain).expect("a pool on plain memory");
    // SAFETY: the pool lives.
    assert_eq!(unsafe { vmm_add_peer(plain.0, 3) }, VMM_NOT_SUPPORTED);
}

#[test]
fn plain_memory() {
    let pool = create(&vmm_pool_options_t { virtual_memory: 1, ..options() }).expect("a pool");
    // SAFETY: all fields are integers.
    let mut info: vmm_device_info_t = unsafe { std::mem::zeroed() };
    info.size = size_of::<vmm_device_info_t>();
    // SAFETY: the pool lives, and the size is set.
    assert_eq!(unsafe { vmm_device_info(pool.0, &raw mut info) }, VMM_OK);
    assert_eq!((info.remapping, info.aliases), (0, 0));
    assert_eq!(info.total, 141 << 30);
    let ptr = pool.allocate(3 * MIB).unwrap();
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = CString::new(file.path().to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: the pool lives, and the path is a text.
    assert_eq!(unsafe { vmm_write_snapshot(pool.0, path.as_ptr()) }, VMM_OK);
    assert_eq!(requested_in(file.path()), 3 * MIB);
    assert_eq!(pool.release(ptr), VMM_OK);
    pool.validate();
}

/// Bytes of the blocks in use that a snapshot shows.
fn requested_in(path: &std::path::Path) -> u64 {
    let trace = vmm_trace::read_file(path, &mut |_| {}).expect("a snapshot that can be read");
    let blocks = trace.devices.iter().flat_map(|d| &d.end_segments).flat_map(|s| &s.blocks);
    blocks
        .filter(|block| block.state == vmm_trace::BlockState::Active)
        .map(|block| block.requested_size)
        .sum()
}

#[test]
fn a_snapshot_shows_what_lives() {
    let pool = pool(0);
    let kept: Vec<_> =
        [700, 3 * MIB, 90 * MIB].map(|len| pool.allocate(len).unwrap()).into_iter().collect();
    let gone = pool.allocate(10 * MIB).unwrap();
    assert_eq!(pool.release(gone), VMM_OK);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("pool.pickle.gz");
    let path = CString::new(file.to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: the pool lives, and the path is a text.
    assert_eq!(unsafe { vmm_write_snapshot(pool.0, path.as_ptr()) }, VMM_OK, "{}", last_error());
    assert_eq!(requested_in(&file), 700 + 93 * MIB);
    let trace = vmm_trace::read_file(&file, &mut |_| {}).expect("a snapshot that can be read");
    let reserved: u64 = trace.devices[0].end_segments.iter().map(|s| s.total_size).sum();
    assert_eq!(reserved, pool.stats().reserved_bytes, "mapped ranges are the memory of the pool");
    let path =
        CString::new(folder.path().join("none/x").to_str().expect("UTF-8")).expect("no zero");
    // SAFETY: the pool lives, and the path is a text.
    assert_eq!(unsafe { vmm_write_snapshot(pool.0, path.as_ptr()) }, VMM_IO_FAILED);
    assert!(last_error().contains("none/x"), "{}", last_error());
    kept.into_iter().for_each(|ptr| assert_eq!(pool.release(ptr), VMM_OK));
}

/// What a callback is to do.
struct Plan {
    pool: *mut vmm_pool_t,
    calls: AtomicU32,
    /// The callback to remove from inside, if any.
    remove: AtomicU64,
}

unsafe extern "C" fn carry_out(pressure: *const vmm_pressure_t, plan: *mut c_void) {
    // SAFETY: the tests pass a plan that lives longer than its callback, and the library a
    // pressure.
    let (pressure, plan) = unsafe { (&*pressure, &*plan.cast::<Plan>()) };
    assert_eq!(pressure.size, size_of::<vmm_pressure_t>());
    plan.calls.fetch_add(1, Ordering::Relaxed);
    let remove = plan.remove.load(Ordering::Relaxed);
    if remove != 0 {
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_remove_pressure_callback(plan.pool, remove) }, VMM_OK);
    }
    // A call that fails inside calls no callbacks.
    let mut ptr = null_mut();
    // SAFETY: the pool lives, and `ptr` can be written.
    let status = unsafe { vmm_allocate(plan.pool, 60 * MIB, 0, stream(1), 0, &raw mut ptr) };
    assert_eq!(status, VMM_OUT_OF_MEMORY);
}

#[test]
fn callbacks_come_and_go() {
    let pool = pool(64 * MIB);
    let held = pool.allocate(40 * MIB).unwrap();
    let plan = Plan { pool: pool.0, calls: AtomicU32::new(0), remove: AtomicU64::new(0) };
    let data = (&raw const plan).cast_mut().cast::<c_void>();
    let mut ids = [0; 2];
    for id in &mut ids {
        // SAFETY: the plan lives until the callbacks are removed.
        let added = unsafe { vmm_add_pressure_callback(pool.0, Some(carry_out), data, id) };
        assert_eq!(added, VMM_OK);
    }
    let fail = || assert_eq!(pool.allocate(50 * MIB), Err(VMM_OUT_OF_MEMORY));
    fail();
    assert_eq!(plan.calls.load(Ordering::Relaxed), 2);
    // The first one removes the second, from inside, so that it is not called in this round either.
    plan.remove.store(ids[1], Ordering::Relaxed);
    fail();
    assert_eq!(plan.calls.load(Ordering::Relaxed), 3);
    plan.remove.store(0, Ordering::Relaxed);
    // SAFETY: the pool lives.
    unsafe {
        assert_eq!(vmm_remove_pressure_callback(pool.0, ids[1]), VMM_INVALID_ARGUMENT);
        assert_eq!(vmm_remove_pressure_callback(pool.0, ids[0]), VMM_OK);
    }
    fail();
    assert_eq!(plan.calls.load(Ordering::Relaxed), 3);
    assert_eq!(pool.release(held), VMM_OK);
}

#[test]
fn errors_belong_to_their_thread() {
    let pool = pool(0);
    assert_eq!(pool.release(stream(0x77)), VMM_NOT_A_LEASE);
    let before = last_error();
    assert!(before.contains("0x77"), "{before}");
    std::thread::spawn(|| assert_eq!(last_error(), "")).join().expect("no error there");
    assert_eq!(pool.allocate(0), Ok(null_mut()));
    assert_eq!(last_error(), before, "a call that succeeds changes nothing");
    // SAFETY: texts that live as long as the library.
    let name = |status| unsafe { CStr::from_ptr(vmm_status_name(status)) }.to_bytes();
    assert_eq!(name(VMM_NOT_A_LEASE as u32), b"VMM_NOT_A_LEASE");
    assert_eq!(name(4711), b"unknown status");
}

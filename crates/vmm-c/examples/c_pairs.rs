//! Allocates and releases through the C interface or the Rust one: for counting instructions.
//!
//! ```text
//! c_pairs c|rust [LEN] [PAIRS]
//! valgrind --tool=callgrind --toggle-collect="*pairs_measured*" \
//!     target/release/examples/c_pairs c 512 100000
//! ```
//!
//! The instructions per pair are those that callgrind reports, over `PAIRS`.

use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::Arc;
use vmm::{
    AnyDevice, vmm_allocate, vmm_device_kind_t, vmm_maintenance_t, vmm_pool_create,
    vmm_pool_destroy, vmm_pool_options_t, vmm_pool_t, vmm_release, vmm_status_t,
};
use vmm_core::{Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_mock::{MockDevice, MockOptions};

const STREAM: u64 = 1;

#[inline(never)]
fn rust_pairs_measured(pool: &Pool<AnyDevice>, len: u64, pairs: u64) {
    for _ in 0..pairs {
        let lease = pool.allocate(black_box(len), StreamId(STREAM), Owner::NONE);
        black_box(lease).expect("memory is far from short").release(StreamId(STREAM));
    }
}

#[inline(never)]
fn c_pairs_measured(pool: *mut vmm_pool_t, len: u64, pairs: u64) {
    let stream: *mut c_void = std::ptr::without_provenance_mut(1);
    for _ in 0..pairs {
        let mut ptr = null_mut();
        // SAFETY: `main` destroys the pool afterwards, and `ptr` can be written.
        let status = unsafe { vmm_allocate(pool, black_box(len), 0, stream, 0, &raw mut ptr) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        // SAFETY: as above.
        let status = unsafe { vmm_release(pool, black_box(ptr), stream) };
        assert_eq!(status, vmm_status_t::VMM_OK);
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let interface = args.next().unwrap_or_default();
    let mut number = |default| args.next().map_or(default, |n| n.parse().expect("a number"));
    let (len, pairs) = (number(512), number(1_000_000));
    match interface.as_str() {
        "rust" => {
            let device = AnyDevice::Mock(Box::new(MockDevice::new(MockOptions::default())));
            let options =
                PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() };
            let pool = Pool::new(Arc::new(device), options).expect("the mock has all it needs");
            // The memory is made, and cut, before.
            rust_pairs_warm(&pool, len);
            rust_pairs_measured(&pool, len, pairs);
        }
        "c" => {
            // SAFETY: all fields are integers, or a pointer that may be NULL.
            let mut options: vmm_pool_options_t = unsafe { std::mem::zeroed() };
            options.size = size_of::<vmm_pool_options_t>();
            options.device_kind = vmm_device_kind_t::VMM_DEVICE_MOCK as u32;
            options.maintenance = vmm_maintenance_t::VMM_MAINTENANCE_USER_LOOP as u32;
            let mut pool = null_mut();
            // SAFETY: options with their size, and a place for the pool.
            let status = unsafe { vmm_pool_create(&raw const options, &raw mut pool) };
            assert_eq!(status, vmm_status_t::VMM_OK);
            c_pairs_warm(pool, len);
            c_pairs_measured(pool, len, pairs);
            // SAFETY: nobody uses the pool afterwards.
            unsafe { vmm_pool_destroy(pool) };
        }
        _ => {
            eprintln!("usage: c_pairs c|rust [LEN] [PAIRS]");
            std::process::exit(2);
        }
    }
}

/// The first pair makes memory; it is none of those measured.
fn rust_pairs_warm(pool: &Pool<AnyDevice>, len: u64) {
    let lease = pool.allocate(len, StreamId(STREAM), Owner::NONE);
    lease.expect("memory is far from short").release(StreamId(STREAM));
}

/// As [`rust_pairs_warm`].
fn c_pairs_warm(pool: *mut vmm_pool_t, len: u64) {
    let mut ptr = null_mut();
    let stream: *mut c_void = std::ptr::without_provenance_mut(1);
    // SAFETY: the pool lives, and `ptr` can be written.
    let status = unsafe { vmm_allocate(pool, len, 0, stream, 0, &raw mut ptr) };
    assert_eq!(status, vmm_status_t::VMM_OK);
    // SAFETY: the pool lives.
    let status = unsafe { vmm_release(pool, ptr, stream) };
    assert_eq!(status, vmm_status_t::VMM_OK);
}

//! A process with a pool on a card ends in order, whoever goes first.
//!
//! Each way is tried `VMM_EXIT_ROUNDS` times (5 by default), each in a process of its own.

mod common;

use common::{Cards, in_context};
use cudarc::driver::sys;
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use vmm_core::device::{DeviceErrorKind, VirtualMemoryDevice};
use vmm_core::units::StreamId;
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions};
use vmm_cuda::{CudaDevice, CudaOptions};

/// Set in the processes that are to end; says how.
const WAY: &str = "VMM_TEST_WAY";

struct Held {
    pool: Pool<CudaDevice>,
    lease: Lease<CudaDevice>,
    stream: StreamId,
}

static HELD: OnceLock<Held> = OnceLock::new();

thread_local! {
    static OF_THREAD: OnceLock<Held> = const { OnceLock::new() };
}

fn held(maintenance: Maintenance) -> Held {
    let device = Arc::new(CudaDevice::new(CudaOptions::default()).expect("a device"));
    let page = device.properties().granule;
    let stream = device.make_stream().expect("a stream");
    let options = PoolOptions { limit: Some(64 * page), maintenance, ..PoolOptions::default() };
    let pool = Pool::new(device, options).expect("a pool");
    let lease = pool.allocate(3 * page, stream, Owner::NONE).expect("memory");
    drop(pool.allocate(5 * page, stream, Owner::NONE).expect("memory"));
    pool.device().fill(lease.addr(), 1, lease.len(), stream).expect("a fill");
    Held { pool, lease, stream }
}

fn reset() {
    // SAFETY: destroys the context of device 0, whoever uses it; that is what is tested.
    let code = unsafe { sys::cuDevicePrimaryCtxReset_v2(0) };
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
}

extern "C" fn drop_in_atexit() {
    OF_ATEXIT.lock().take();
}

static OF_ATEXIT: parking_lot::Mutex<Option<Held>> = parking_lot::Mutex::new(None);

extern "C" fn use_in_atexit() {
    if let Some(held) = HELD.get() {
        // The driver may be gone by now or not; either way this returns.
        let _ = held.pool.device().record(held.stream);
        let _ = held.pool.allocate(1 << 20, held.stream, Owner::NONE);
    }
}

/// What a child of a fork may do: everything, and all of it says no.
fn in_fork(held: Held) -> i32 {
    let device = Arc::clone(held.pool.device());
    let kinds = [
        device.record(held.stream).unwrap_err().kind,
        device.reached(held.stream).unwrap_err().kind,
        device.memory_info().unwrap_err().kind,
        device.make_frame(2 << 20, vmm_core::FrameKind::Device).unwrap_err().kind,
    ];
    let refused = kinds == [DeviceErrorKind::Deinitialized; 4];
    let unavailable = CudaDevice::new(CudaOptions::default()).is_err();
    drop(device);
    // The pool's lock may have been held by a thread that is not here, so that the pool and what it
    // has given out stay as they are.
    std::mem::forget(held);
    i32::from(!(refused && unavailable))
}

fn fork(held: Held) {
    // SAFETY: the child uses what this test is about, and then ends without destructors.
    match unsafe { libc::fork() } {
        0 => {
            let code = in_fork(held);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(code) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child made above.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's status");
            // The parent goes on as before.
            let device = held.pool.device();
            device.synchronize().expect("no failure");
            drop(held);
        }
    }
}

/// In the child of a fork a whole device is dropped, with a lock held elsewhere at the time.
fn fork_and_drop() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    let stream = device.make_stream().expect("a stream");
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                device.record(stream).expect("a fence");
                device.reached(stream).expect("a look");
            }
        });
        for _ in 0..20 {
            // SAFETY: as above.
            match unsafe { libc::fork() } {
                0 => {
                    let lost = device.record(stream).is_err() && device.reached(stream).is_err();
                    let lost = lost && device.leftovers().is_empty();
                    // SAFETY: reads the device out of the parent's frame; the child ends before
                    // anything of that frame is used again.
                    drop(unsafe { std::ptr::read(&raw const device) });
                    // SAFETY: ends the child at once.
                    unsafe { libc::_exit(i32::from(!lost)) };
                }
                child => {
                    let mut status = 0;
                    // SAFETY: waits for the child made above.
                    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                    assert_eq!(status, 0, "the child's status");
                }
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

const WAYS: [&str; 12] = [
    "static pool",
    "static pool with a worker",
    "exit",
    "exit from another thread",
    "pool of a thread",
    "context reset, then drop",
    "context reset, then exit",
    "device dropped first",
    "drop in atexit",
    "use in atexit",
    "fork",
    "fork and drop",
];

/// Does nothing in the ordinary run.
#[test]
fn child() {
    let Ok(way) = std::env::var(WAY) else { return };
    let keep = |maintenance| assert!(HELD.set(held(maintenance)).is_ok(), "set once");
    match way.as_str() {
        "static pool" => keep(Maintenance::UserLoop),
        "static pool with a worker" => keep(Maintenance::Worker),
        "exit" => {
            keep(Maintenance::Worker);
            std::process::exit(0);
        }
        "exit from another thread" => {
            keep(Maintenance::Worker);
            let other = thread::spawn(|| std::process::exit(0));
            let _: Result<(), _> = other.join();
        }
        "pool of a thread" => OF_THREAD.with(|of_thread| {
            assert!(of_thread.set(held(Maintenance::Worker)).is_ok(), "set once");
        }),
        "context reset, then drop" => {
            let held = held(Maintenance::Worker);
            reset();
            assert!(held.pool.device().record(held.stream).is_err());
            drop(held.lease);
            drop(held.pool);
        }
        "context reset, then exit" => {
            keep(Maintenance::Worker);
            reset();
        }
        "device dropped first" => {
            let Held { pool, lease, .. } = held(Maintenance::Worker);
            let device = Arc::clone(pool.device());
            drop(pool);
            in_context(&device, || drop(lease));
            assert_eq!(device.leftovers(), [""; 0]);
        }
        "drop in atexit" => {
            *OF_ATEXIT.lock() = Some(held(Maintenance::Worker));
            // SAFETY: the function is safe to call at any time.
            assert_eq!(unsafe { libc::atexit(drop_in_atexit) }, 0);
        }
        "use in atexit" => {
            keep(Maintenance::Worker);
            // SAFETY: as above.
            assert_eq!(unsafe { libc::atexit(use_in_atexit) }, 0);
        }
        "fork" => fork(held(Maintenance::Worker)),
        "fork and drop" => fork_and_drop(),
        _ => panic!("an unknown way: {way}"),
    }
}

#[test]
fn a_process_ends_in_order() {
    let Some(_cards) = Cards::take(1) else { return };
    let rounds = std::env::var("VMM_EXIT_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let program = std::env::current_exe().expect("the path of this test");
    for way in WAYS {
        for round in 0..rounds {
            let mut command = Command::new(&program);
            command.args(["--exact", "child", "--nocapture"]).env(WAY, way);
            let mut process = command.spawn().expect("a process");
            let status = (0..6_000).find_map(|_| {
                thread::sleep(Duration::from_millis(10));
                process.try_wait().expect("its status")
            });
            let Some(status) = status else {
                process.kill().expect("a process");
                panic!("{way}, round {round}: does not end");
            };
            assert!(status.success(), "{way}, round {round}: {status}");
        }
    }
}

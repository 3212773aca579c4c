//! What has a bound: waits, fences, tables, and what the device holds beyond the accounts.
#![allow(missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::MIB;
use vmm_core::*;
use vmm_mock::{Access, Faulty, MockDevice, MockOptions};

type Device = Faulty<MockDevice>;

const WAYS: [CrossStream; 3] =
    [CrossStream::WaitOnDevice, CrossStream::WhenReached, CrossStream::Never];

struct Scene {
    device: Arc<MockDevice>,
    faulty: Arc<Device>,
    pool: Pool<Device>,
}

impl Scene {
    fn new(options: MockOptions, limit: u64, cross_stream: CrossStream) -> Self {
        let device = Arc::new(MockDevice::new(MockOptions { memory: 1 << 30, ..options }));
        let faulty = Arc::new(Device::new(Arc::clone(&device)));
        let options = PoolOptions {
            limit: Some(limit),
            cross_stream,
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        let pool = Pool::new(Arc::clone(&faulty), options).expect("a pool on the mock");
        Self { device, faulty, pool }
    }

    fn take(&self, len: u64, stream: StreamId) -> Lease<Device> {
        self.pool.allocate(len, stream, Owner::NONE).expect("memory")
    }

    /// Memory that a stream released and still writes.
    fn leave(&self, len: u64, stream: StreamId) {
        let lease = self.take(len, stream);
        self.write(AddrRange { addr: lease.addr(), len }, stream);
        lease.release(stream);
    }

    fn write(&self, range: AddrRange, stream: StreamId) {
        self.device.launch(stream, 1_000_000, &[Access::write(range, 1)]).expect("work");
    }

    fn expect_oom(&self, len: u64, stream: StreamId) {
        let result = self.pool.allocate(len, stream, Owner::NONE);
        assert!(matches!(result, Err(AllocError::OutOfMemory(_))), "{result:?}");
    }

    fn close(self) {
        let Self { device, faulty, pool } = self;
        pool.validate();
        drop((pool, faulty));
        device.finish_all();
        assert!(device.leftovers().is_empty(), "{:?}", device.leftovers());
        assert_eq!((device.races(), device.mismatches()), (Vec::new(), Vec::new()));
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn the_end_of_a_pool_waits_for_work_on_leases_that_are_named_by_their_addresses() {
    for options in
        [MockOptions::default(), MockOptions::queued_binds(), MockOptions::without_remapping()]
    {
        let scene = Scene::new(options, 64 * MIB, CrossStream::WaitOnDevice);
        let (home, other) = (scene.device.make_stream(), scene.device.make_stream());
        let addr = scene.pool.allocate_raw(&Request::new(4 * MIB, home)).expect("memory");
        scene.pool.share_raw(addr).expect("a lease");
        scene.pool.used_on_raw(addr, other).expect("a lease");
        let made = scene.device.record(home).expect("a fence");
        scene.device.stream_wait(other, made).expect("an order");
        for stream in [home, other] {
            let read = [Access::read(AddrRange { addr, len: 4 * MIB })];
            scene.device.launch(stream, 1_000_000, &read).expect("work");
        }
        scene.close();
    }
}

/// Somebody who works on and on: each time that others wait, memory comes and goes.
fn work_on(pool: &Pool<Device>, faulty: &Arc<Device>, stream: StreamId, turns: &Arc<AtomicU64>) {
    let lease = pool.allocate(8 * MIB, stream, Owner::NONE).expect("memory");
    let range = AddrRange { addr: lease.addr(), len: lease.len() };
    faulty.inner().launch(stream, 1_000_000, &[Access::write(range, 1)]).expect("work");
    lease.release(stream);
    if turns.fetch_add(1, Ordering::Relaxed) < 50 {
        let (pool, device, turns) = (pool.clone(), Arc::clone(faulty), Arc::clone(turns));
        faulty.once_before(DeviceOp::Wait, move || work_on(&pool, &device, stream, &turns));
    }
}

#[test]
fn who_asks_for_what_leases_hold_waits_for_no_work() {
    for cross_stream in WAYS {
        let scene = Scene::new(MockOptions::default(), 64 * MIB, cross_stream);
        let (first, busy) = (scene.device.make_stream(), scene.device.make_stream());
        let held = scene.take(40 * MIB, first);
        let turns = Arc::default();
        work_on(&scene.pool, &scene.faulty, busy, &turns);
        scene.expect_oom(60 * MIB, first);
        assert_eq!(scene.pool.stats().host_waits, 0, "{cross_stream:?}");
        // The hook holds the pool.
        scene.faulty.once_before(DeviceOp::MemoryInfo, || {});
        drop(held);
        scene.close();
    }
}

#[test]
fn what_can_not_be_unmapped_is_not_waited_for_without_end() {
    let scene = Scene::new(MockOptions::queued_binds(), 64 * MIB, CrossStream::WhenReached);
    let stream = scene.device.make_stream();
    scene.device.set_lag(1_000_000);
    // Twelve halves of six short frames, of which every second one stays.
    let mut halves: Vec<_> = (0..12).map(|_| Some(scene.take(32 << 10, stream))).collect();
    halves.iter_mut().step_by(2).for_each(|half| drop(half.take()));
    let leases = [40, 8, 7].map(|len| scene.take(len * MIB, stream));
    let [held, idle @ ..] = leases;
    drop(idle);
    let reserved = scene.pool.stats().reserved_bytes;
    assert_eq!(scene.pool.trim(reserved).expect("a trim"), 0, "fences are recorded");
    scene.device.finish_all();
    // Some removals are queued on the device, and others fail from now on.
    assert_eq!(scene.pool.trim(reserved - 1).expect("a trim"), 0);
    scene.faulty.fail_from(DeviceOp::Unmap, 1, DeviceErrorKind::Failed);
    scene.pool.trim(0).expect_err("a removal fails");
    let waits = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&waits);
    scene.faulty.fail_when(move |call| {
        let many = call.op == DeviceOp::Wait && seen.fetch_add(1, Ordering::Relaxed) > 1000;
        many.then_some(DeviceErrorKind::Failed)
    });
    // All that is not live would suffice, but not all of it can move.
    scene.expect_oom(24 * MIB - (256 << 10), stream);
    scene.faulty.clear();
    drop((held, halves));
    scene.close();
}

/// The frames of a growth that failed stay until the device has taken the binds back that it queued.
#[test]
fn a_frame_that_was_never_used_is_not_released_before_its_unbind_is_done() {
    let scene = Scene::new(MockOptions::queued_binds(), 64 * MIB, CrossStream::WhenReached);
    scene.faulty.fail_from(DeviceOp::Wait, 1, DeviceErrorKind::Failed);
    assert!(!scene.pool.maintain(), "nobody knows when what was made ahead is bound");
    assert_eq!(scene.pool.trim(0).expect("a trim"), 0);
    assert_eq!(scene.device.violations(), []);
    scene.faulty.clear();
    scene.device.finish_all();
    assert!(scene.pool.trim(0).expect("a trim") > 0);
    scene.close();
}

#[test]
fn one_fence_that_cannot_be_waited_for_is_nobody_elses_failure() {
    for failing in [1, 2] {
        let scene = Scene::new(MockOptions::default(), 32 * MIB, CrossStream::WhenReached);
        let streams = [(); 3].map(|()| scene.device.make_stream());
        let leases = [0, 1].map(|at| scene.take(16 * MIB, streams[at]));
        for (lease, stream) in leases.into_iter().zip(streams) {
            scene.write(AddrRange { addr: lease.addr(), len: lease.len() }, stream);
            lease.release(stream);
        }
        scene.faulty.fail(DeviceOp::Wait, failing, DeviceErrorKind::Failed);
        drop(scene.take(16 * MIB, streams[2]));
        assert_eq!(scene.faulty.faults(), 1);
        scene.close();
    }
}

#[test]
fn a_stream_gets_one_fence_however_many_misses_others_have() {
    let scene = Scene::new(MockOptions::default(), 512 * MIB, CrossStream::WhenReached);
    let (first, busy) = (scene.device.make_stream(), scene.device.make_stream());
    scene.leave(8 * MIB, busy);
    let before = scene.faulty.calls(DeviceOp::Record);
    let leases: Vec<_> = (0..200).map(|_| scene.take(2 * MIB, first)).collect();
    assert!(scene.pool.stats().misses > 100);
    assert_eq!(scene.faulty.calls(DeviceOp::Record) - before, 1);
    scene.leave(8 * MIB, busy);
    drop(leases);
    drop(scene.take(500 * MIB, first));
    scene.close();
}

#[test]
fn streams_that_have_no_memory_are_forgotten_for_good() {
    let scene = Scene::new(MockOptions::default(), 64 * MIB, CrossStream::WhenReached);
    for _ in 0..1000 {
        let stream = scene.device.make_stream();
        let _ = scene.pool.mark(stream);
        scene.pool.forget_stream(stream).expect("a stream that lives");
        scene.device.destroy_stream(stream);
    }
    let before = scene.faulty.calls(DeviceOp::Reached);
    drop(scene.take(MIB, scene.device.make_stream()));
    let asked = scene.faulty.calls(DeviceOp::Reached) - before;
    assert!(asked < 200, "{asked} streams are asked about");
    scene.close();
}

#[test]
fn a_trial_of_a_peer_stays_within_the_limit() {
    let scene = Scene::new(MockOptions::default(), 4 * MIB, CrossStream::WaitOnDevice);
    let stream = scene.device.make_stream();
    let (pool, faulty) = (scene.pool.clone(), Arc::clone(&scene.faulty));
    let most = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&most);
    // Another thread makes what the limit allows meanwhile.
    scene.faulty.once_before(DeviceOp::SetAccess, move || {
        while let Some(step) = pool.begin_step() {
            pool.finish_step(step.run(&*faulty));
        }
        seen.store(faulty.frame_bytes(), Ordering::Relaxed);
    });
    scene.pool.add_peer(DeviceOrdinal(1)).expect("a peer");
    let most = most.load(Ordering::Relaxed);
    assert!((1..=4 * MIB).contains(&most), "{most} bytes");
    let lease = scene.take(4 * MIB, stream);
    let range = AddrRange { addr: lease.addr(), len: lease.len() };
    assert!(scene.device.peer_has_access(DeviceOrdinal(1), range));
    drop(lease);
    scene.close();
}

#[test]
fn a_stream_waits_once_for_each_other_that_may_use_what_a_private_pool_left() {
    let scene = Scene::new(MockOptions::default(), 64 * MIB, CrossStream::WaitOnDevice);
    let taker = scene.device.make_stream();
    for _ in 0..20 {
        let stream = scene.device.make_stream();
        let _ = scene.pool.mark(stream);
        scene.device.launch(stream, 1_000_000, &[]).expect("work");
    }
    let private = scene.pool.private_pool().expect("few private pools");
    let take = || private.allocate(2 * MIB, taker, Owner::NONE).expect("memory");
    drop([(); 30].map(|()| take()));
    drop(private);
    let lease = scene.take(50 * MIB, taker);
    scene.write(AddrRange { addr: lease.addr(), len: lease.len() }, taker);
    assert_eq!(scene.pool.stats().device_waits, 20);
    drop(lease);
    scene.close();
}

//! Streams that were destroyed and not forgotten before: their users' mistake, but nobody else's failure,
//! and no memory is lost for ever.
#![allow(missing_docs)]

use std::sync::Arc;
use vmm_core::placement::PlacementKind;
use vmm_core::{
    AddrRange, AllocError, CrossStream, DeviceErrorKind, DeviceOp, Heap, HeapOptions, Lease,
    Maintenance, Owner, Pool, PoolOptions, StreamId, VirtualMemoryDevice,
};
use vmm_mock::{Faulty, MockDevice, MockOptions};

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 64 * MIB;
/// How long queued work takes, in nanoseconds.
const WORK: u64 = 1_000_000;

const WAYS: [CrossStream; 3] =
    [CrossStream::WaitOnDevice, CrossStream::WhenReached, CrossStream::Never];

/// A device, a pool over it, and two streams, of which the first is to be destroyed.
struct Scene {
    device: Arc<MockDevice>,
    faulty: Arc<Faulty<MockDevice>>,
    pool: Pool<Faulty<MockDevice>>,
    lost: StreamId,
    good: StreamId,
}

impl Scene {
    fn new(cross_stream: CrossStream) -> Self {
        Self::on(MockOptions::with_memory(1 << 30), cross_stream)
    }

    fn on(options: MockOptions, cross_stream: CrossStream) -> Self {
        let maintenance = Maintenance::UserLoop;
        Self::with(options, PoolOptions { cross_stream, maintenance, ..PoolOptions::default() })
    }

    fn with(device: MockOptions, options: PoolOptions) -> Self {
        let device = Arc::new(MockDevice::new(device));
        let (lost, good) = (device.make_stream(), device.make_stream());
        let faulty = Arc::new(Faulty::new(Arc::clone(&device)));
        let options = PoolOptions { limit: Some(LIMIT), ..options };
        let pool = Pool::new(Arc::clone(&faulty), options).expect("a pool on the mock");
        Self { device, faulty, pool, lost, good }
    }

    fn take(&self, len: u64, stream: StreamId) -> Lease<Faulty<MockDevice>> {
        self.pool.allocate(len, stream, Owner::NONE).expect("memory")
    }

    /// Queues work that writes all over a lease.
    fn write(&self, lease: &Lease<Faulty<MockDevice>>, stream: StreamId, byte: u8) {
        let uses = [vmm_mock::Access::write(whole(lease), byte)];
        self.device.launch(stream, WORK, &uses).expect("work");
    }

    /// Leaves memory of `len` bytes that queued work of a destroyed stream still writes.
    fn lose(&self, len: u64) {
        let lease = self.take(len, self.lost);
        self.write(&lease, self.lost, 1);
        lease.release(self.lost);
        self.device.destroy_stream(self.lost);
    }

    /// Takes all memory, and writes it: whoever wrote before must have ended.
    fn take_all(&self) {
        let all = self.take(LIMIT, self.good);
        self.write(&all, self.good, 2);
        self.device.launch_check(self.good, WORK, whole(&all), 2).expect("work");
    }

    fn idle_waits(&self) -> u64 {
        self.faulty.calls(DeviceOp::WaitIdle)
    }

    /// Ends the pool. The device has complained of nothing but questions to the destroyed stream.
    fn close(self) {
        let Self { device, faulty, pool, .. } = self;
        pool.validate();
        drop((pool, faulty));
        device.finish_all();
        assert!(device.leftovers().is_empty(), "{:?}", device.leftovers());
        assert_eq!((device.races(), device.mismatches()), (Vec::new(), Vec::new()));
        for refused in device.violations() {
            assert_eq!(refused.detail, "the stream was destroyed", "{refused}");
        }
    }
}

fn whole<D: VirtualMemoryDevice>(lease: &Lease<D>) -> AddrRange {
    AddrRange { addr: lease.addr(), len: lease.len() }
}

#[test]
fn memory_released_on_a_destroyed_stream_is_missed_by_nobody_else() {
    for options in [MockOptions::default(), MockOptions::without_remapping()] {
        for cross_stream in WAYS {
            let s = Scene::on(options.clone(), cross_stream);
            s.lose(16 * MIB);
            for len in [32, 40, 8, 48] {
                drop(s.take(len * MIB, s.good));
            }
            assert_eq!(s.idle_waits(), 0, "there was other memory");
            s.take_all();
            assert_eq!(s.idle_waits(), 1);
            s.take_all();
            assert_eq!(s.idle_waits(), 1, "it serves all from then on");
            s.close();
        }
    }
}

#[test]
fn memory_used_on_a_destroyed_stream_is_missed_by_nobody_else() {
    for cross_stream in WAYS {
        let s = Scene::new(cross_stream);
        let lease = s.take(16 * MIB, s.good);
        lease.used_on(s.lost);
        s.write(&lease, s.lost, 1);
        s.device.destroy_stream(s.lost);
        drop(lease);
        for len in [32, 40, 8, 48] {
            drop(s.take(len * MIB, s.good));
        }
        assert_eq!(s.idle_waits(), 0, "there was other memory");
        s.take_all();
        assert_eq!((s.idle_waits(), s.pool.stats().retired_bytes), (1, 0));
        s.close();
    }
}

/// What was released before the last fence of the stream needs no wait for the whole device.
#[test]
fn fences_of_a_destroyed_stream_still_tell() {
    for cross_stream in WAYS {
        let s = Scene::new(cross_stream);
        let lease = s.take(LIMIT, s.lost);
        s.write(&lease, s.lost, 1);
        lease.release(s.lost);
        assert_eq!(s.pool.trim(0).expect("no wait"), 0, "the fence is recorded, and not reached");
        s.device.destroy_stream(s.lost);
        s.take_all();
        assert_eq!(s.idle_waits(), 0);
        s.close();
    }
}

#[test]
fn a_request_on_a_destroyed_stream_takes_what_needs_no_order() {
    for cross_stream in WAYS {
        let s = Scene::new(cross_stream);
        let lease = s.take(LIMIT, s.good);
        s.write(&lease, s.good, 1);
        drop(lease);
        s.device.destroy_stream(s.lost);
        drop(s.take(LIMIT / 2, s.lost));
        assert_eq!(s.idle_waits(), 0, "a fence of the other stream told");
        s.close();
    }
}

#[test]
fn private_pools_begin_and_end_beside_a_destroyed_stream() {
    for cross_stream in WAYS {
        let s = Scene::new(cross_stream);
        let private = s.pool.private_pool().expect("a private pool");
        let lease = private.allocate(8 * MIB, s.lost, Owner::NONE).expect("memory");
        let addr = lease.addr();
        s.write(&lease, s.lost, 1);
        lease.release(s.lost);
        s.device.destroy_stream(s.lost);
        assert!(private.allocate_at(addr, 8 * MIB, s.good, Owner::NONE).is_err(), "still in use");
        let other = s.pool.private_pool().expect("another private pool");
        drop(other.allocate(8 * MIB, s.good, Owner::NONE).expect("memory"));
        assert_eq!(s.idle_waits(), 0);
        drop((private, other));
        s.take_all();
        assert_eq!(s.idle_waits(), 1);
        s.close();
    }
}

#[test]
fn a_trim_goes_round_a_destroyed_stream_and_a_trim_that_waits_takes_its_memory() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    let held = s.take(16 * MIB, s.good);
    s.lose(16 * MIB);
    drop(held);
    let before = s.pool.stats().reserved_bytes;
    let released = s.pool.trim(0).expect("the others' memory goes");
    assert!(released >= 16 * MIB && released < before, "{released} of {before}");
    assert_eq!((s.idle_waits(), s.device.waits().count), (0, 0), "a trim never waits");
    s.pool.trim_and_wait(0).expect("all goes");
    assert_eq!((s.idle_waits(), s.pool.stats().reserved_bytes), (1, 0));
    s.close();
}

#[test]
fn maintenance_goes_round_a_destroyed_stream() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    let private = || {
        let private = s.pool.private_pool().expect("a private pool");
        let lease = private.allocate(8 * MIB, s.good, Owner::NONE).expect("memory");
        s.write(&lease, s.good, 1);
        (private, lease)
    };
    let (first, second) = (private(), private());
    drop(first);
    s.lose(8 * MIB);
    // The frames of the second wait for all that is queued anywhere.
    drop(second);
    s.device.finish_all();
    let before = s.pool.stats();
    while s.pool.maintain() {}
    let after = s.pool.stats();
    assert!(after.frames_released_bytes >= before.frames_released_bytes + 8 * MIB, "{after:?}");
    assert_eq!((after.failed_steps, s.idle_waits()), (0, 0));
    s.take_all();
    s.close();
}

#[test]
fn a_worker_goes_round_a_destroyed_stream() {
    let options = PoolOptions { maintenance: Maintenance::Worker, ..PoolOptions::default() };
    let s = Scene::with(MockOptions::default(), options);
    s.lose(16 * MIB);
    for _ in 0..20 {
        let private = s.pool.private_pool().expect("a private pool");
        drop(private.allocate(4 * MIB, s.good, Owner::NONE).expect("memory"));
        drop(private);
        drop(s.take(24 * MIB, s.good));
    }
    s.take_all();
    assert_eq!(s.pool.stats().failed_steps, 0);
    s.close();
}

#[test]
fn a_capture_elsewhere_is_not_disturbed() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    let capturing = s.device.make_stream();
    drop(s.take(MIB, capturing));
    s.lose(16 * MIB);
    s.device.begin_capture(capturing);
    let refused = s.pool.allocate(LIMIT, s.good, Owner::NONE);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    s.pool.trim_and_wait(0).expect("does nothing");
    assert_eq!(s.idle_waits(), 0);
    s.device.end_capture(capturing);
    s.take_all();
    assert_eq!(s.idle_waits(), 1);
    s.close();
}

/// It may begin between any two calls of the pool.
#[test]
fn a_capture_that_begins_meanwhile_is_not_disturbed() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    let capturing = s.device.make_stream();
    let held = s.take(MIB, capturing);
    s.lose(16 * MIB);
    let device = Arc::clone(&s.device);
    s.faulty.once_before(DeviceOp::Record, move || device.begin_capture(capturing));
    let refused = s.pool.allocate(LIMIT - 2 * MIB, s.good, Owner::NONE);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert_eq!(s.idle_waits(), 0);
    s.device.end_capture(capturing);
    drop(s.take(LIMIT - 2 * MIB, s.good));
    assert_eq!(s.idle_waits(), 1);
    drop(held);
    s.close();
}

#[test]
fn without_a_wait_for_the_device_the_memory_is_out_of_reach() {
    for kind in [DeviceErrorKind::NotSupported, DeviceErrorKind::NotReady] {
        let s = Scene::new(CrossStream::WaitOnDevice);
        s.lose(16 * MIB);
        s.faulty.fail_from(DeviceOp::WaitIdle, 1, kind);
        let refused = s.pool.allocate(LIMIT, s.good, Owner::NONE);
        assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
        s.pool.trim_and_wait(0).expect("what can go has gone");
        drop(s.take(40 * MIB, s.good));
        s.faulty.clear();
        s.take_all();
        s.close();
    }
}

#[test]
fn a_device_that_is_lost_is_everybodys_failure() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    s.lose(16 * MIB);
    for op in [DeviceOp::Record, DeviceOp::WaitIdle] {
        s.faulty.fail(op, 1, DeviceErrorKind::Deinitialized);
        let refused = s.pool.allocate(LIMIT, s.good, Owner::NONE);
        assert!(matches!(refused, Err(AllocError::Device(_))), "{op}: {refused:?}");
    }
    s.faulty.fail(DeviceOp::WaitIdle, 1, DeviceErrorKind::Failed);
    let refused = s.pool.allocate(LIMIT, s.good, Owner::NONE);
    assert!(matches!(refused, Err(AllocError::Device(_))), "work has failed: {refused:?}");
    s.take_all();
    s.close();
}

/// What a wait has shown is not asked again of a stream that does not answer.
#[test]
fn a_stream_that_never_says_how_far_it_is_can_be_waited_for() {
    for cross_stream in WAYS {
        let s = Scene::new(cross_stream);
        let lease = s.take(LIMIT, s.lost);
        s.write(&lease, s.lost, 1);
        lease.release(s.lost);
        s.faulty.fail_from(DeviceOp::Reached, 1, DeviceErrorKind::Failed);
        if cross_stream == CrossStream::WaitOnDevice {
            s.faulty.fail_from(DeviceOp::StreamWait, 1, DeviceErrorKind::Failed);
        }
        s.take_all();
        s.close();
    }
}

#[test]
fn a_pool_that_ends_takes_the_memory_of_destroyed_streams_along() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    s.lose(16 * MIB);
    let work_ends = s.device.now() + WORK;
    let device = Arc::clone(&s.device);
    s.close();
    assert!(device.now() >= work_ends);
}

#[test]
fn a_heap_goes_round_a_destroyed_stream() {
    let s = Scene::new(CrossStream::WaitOnDevice);
    let options = HeapOptions { chunk_len: 32 * MIB, ..HeapOptions::default() };
    let heap = Heap::new(s.pool.clone(), options, || PlacementKind::Tlsf.make()).expect("a heap");
    let block = heap.allocate(24 * MIB, s.good, Owner::NONE).expect("a block");
    block.used_on(s.lost);
    drop(block);
    s.device.destroy_stream(s.lost);
    for _ in 0..3 {
        drop(heap.allocate(24 * MIB, s.good, Owner::NONE).expect("a block"));
    }
    assert_eq!(s.idle_waits(), 0, "there was other memory");
    let all: Vec<_> =
        (0..2).map(|_| heap.allocate(30 * MIB, s.good, Owner::NONE).expect("a block")).collect();
    assert_eq!(s.idle_waits(), 1);
    drop((all, heap));
    s.close();
}

/// On a real driver to ask about a destroyed stream is a crash.
#[test]
fn the_device_is_not_asked_about_a_stream_that_is_not_watched() {
    for cross_stream in WAYS {
        let scene = Scene::new(cross_stream);
        scene.pool.watch_stream(scene.lost, false);
        let outliving = scene.take(32 * MIB, scene.lost);
        let freed = scene.take(16 * MIB, scene.lost);
        scene.write(&freed, scene.lost, 1);
        drop(freed);
        scene.device.destroy_stream(scene.lost);
        let refused = || scene.device.cost().of(DeviceOp::Record).calls;
        let before = refused();
        drop(outliving);
        // Fewer than there are beside what it had, then all.
        let first = scene.take(16 * MIB, scene.good);
        while scene.pool.maintain() {}
        assert_eq!(refused(), before, "{cross_stream:?}");
        let all = scene.take(48 * MIB, scene.good);
        scene.write(&all, scene.good, 2);
        drop((first, all));
        scene.pool.trim_and_wait(0).expect("a trim");
        assert_eq!(scene.pool.stats().reserved_bytes, 0, "{cross_stream:?}");
        scene.device.finish_all();
        drop(scene.pool);
        assert!(scene.device.races().is_empty(), "{cross_stream:?}");
    }
}

/// Its own requests tell that it lives, and how far it is.
#[test]
fn a_stream_that_is_not_watched_tells_of_itself() {
    let scene = Scene::new(CrossStream::WhenReached);
    scene.pool.watch_stream(scene.lost, false);
    drop(scene.take(40 * MIB, scene.lost));
    let held = scene.take(48 * MIB, scene.lost);
    scene.device.finish_all();
    drop(held);
    let held = scene.take(60 * MIB, scene.lost);
    drop(held);
    let waits = scene.pool.stats().host_waits;
    // As it lives, it need not be waited for once it is watched again.
    scene.pool.watch_stream(scene.lost, true);
    drop(scene.take(60 * MIB, scene.good));
    assert!(scene.pool.stats().host_waits <= waits + 1);
}

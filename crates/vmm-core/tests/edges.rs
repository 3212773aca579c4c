//! Sequences at the edges, each of which a pool once got wrong.
#![allow(missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::{
    AddrRange, AllocError, Clock, CrossStream, DeviceOp, Lease, Maintenance, Owner, Pool,
    PoolError, PoolOptions, Request, StreamId,
};
use vmm_mock::{Faulty, MockDevice, MockOptions};

const MIB: u64 = 1 << 20;

fn device(memory: u64) -> Arc<MockDevice> {
    Arc::new(MockDevice::new(MockOptions::with_memory(memory)))
}

fn by_hand() -> PoolOptions {
    PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() }
}

fn pool(device: &Arc<MockDevice>, options: PoolOptions) -> Pool<MockDevice> {
    Pool::new(Arc::clone(device), options).expect("a pool on the mock")
}

fn take(pool: &Pool<MockDevice>, len: u64, stream: StreamId) -> Lease<MockDevice> {
    pool.allocate(len, stream, Owner::NONE).expect("memory")
}

/// The time that device calls have taken, and the device's work while somebody waited.
fn time_of(device: &MockDevice) -> Duration {
    Duration::from_nanos(device.cost().total().nanos + device.now())
}

/// Queues work that reads the lease for so long.
fn use_for(device: &MockDevice, lease: &Lease<MockDevice>, nanos: u64) {
    device.fill(lease.addr(), 1, lease.len(), lease.stream()).expect("a fill");
    let range = AddrRange { addr: lease.addr(), len: lease.len() };
    device.launch_check(lease.stream(), nanos, range, 1).expect("work");
}

use vmm_core::VirtualMemoryDevice as _;

fn expect_clean(device: &MockDevice) {
    device.finish_all();
    assert_eq!(device.violations(), []);
    assert_eq!(device.races(), []);
    assert_eq!(device.mismatches(), []);
    assert!(device.leftovers().is_empty(), "{:?}", device.leftovers());
}

/// The plain search looks at some members of a bin only. What it overlooks, the ladder must take
/// without looking for it once more.
#[test]
fn an_extent_that_the_search_overlooks_is_taken() {
    let device = device(1 << 30);
    let pool = pool(&device, PoolOptions { cross_stream: CrossStream::WhenReached, ..by_hand() });
    let (stream, busy) = (device.make_stream(), device.make_stream());
    // Something stale, or nothing is looked for.
    let stale = take(&pool, 8 * MIB, busy);
    use_for(&device, &stale, 1_000_000_000);
    drop(stale);
    pool.trim(0).expect("a trim");
    let wide = take(&pool, 2 * MIB + (30 << 10), stream);
    let mut between = vec![take(&pool, MIB + 512, stream)];
    let mut narrow = Vec::new();
    for _ in 0..13 {
        narrow.push(take(&pool, 2 * MIB + 512, stream));
        between.push(take(&pool, MIB + 512, stream));
    }
    while let Some(rest) = pool.allocate_at_hand(Request::new(MIB + 512, stream)).expect("sane") {
        between.push(rest);
    }
    let place = wide.addr();
    drop((wide, narrow));
    let again = take(&pool, 2 * MIB + (20 << 10), stream);
    assert_eq!(again.addr(), place);
    drop((again, between, pool));
    expect_clean(&device);
}

#[test]
fn a_lease_may_outlive_its_stream() {
    let device = device(256 * MIB);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    let lease = take(&pool, 8 * MIB, stream);
    use_for(&device, &lease, 1_000);
    pool.forget_stream(stream).expect("a fence");
    device.destroy_stream(stream);
    drop(lease);
    pool.trim_and_wait(0).expect("a trim");
    drop(take(&pool, 200 * MIB, device.make_stream()));
    drop(pool);
    expect_clean(&device);
}

#[test]
fn regions_too_short_for_a_request_are_not_reserved_again_and_again() {
    for (reservation, most) in [(Some(2 * MIB), u64::MAX), (None, 64 * MIB)] {
        let options = MockOptions::with_memory(1 << 30);
        let max_reservation = options.max_reservation.min(most);
        let device = Arc::new(MockDevice::new(MockOptions { max_reservation, ..options }));
        let pool = pool(&device, PoolOptions { reservation, ..by_hand() });
        let stream = device.make_stream();
        match pool.allocate(100 * MIB, stream, Owner::NONE) {
            Ok(lease) => drop(lease),
            Err(AllocError::OutOfMemory(_)) => assert!(most < 100 * MIB),
            Err(error) => panic!("unexpected: {error}"),
        }
        drop(take(&pool, 16 * MIB, stream));
        drop(pool);
        expect_clean(&device);
    }
}

#[test]
fn a_reservation_beyond_all_bounds_is_cut() {
    let device = device(256 * MIB);
    drop(pool(&device, PoolOptions { reservation: Some(u64::MAX), ..by_hand() }));
    expect_clean(&device);
}

#[test]
fn memory_that_a_callback_frees_elsewhere_serves() {
    let device = device(256 * MIB);
    let pool = pool(&device, by_hand());
    device.other_use(240 * MIB);
    let other = Arc::clone(&device);
    pool.on_pressure(Arc::new(move |_| other.other_use(0)));
    drop(take(&pool, 64 * MIB, device.make_stream()));
}

#[test]
fn frames_on_their_way_out_make_room_on_a_full_device() {
    for options in [MockOptions::default(), MockOptions::without_aliases()] {
        let device = Arc::new(MockDevice::new(MockOptions { memory: 64 * MIB, ..options }));
        let pool =
            pool(&device, PoolOptions { cross_stream: CrossStream::WhenReached, ..by_hand() });
        let lease = take(&pool, 60 * MIB, device.make_stream());
        use_for(&device, &lease, 50_000_000);
        drop(lease);
        pool.trim(0).expect("a trim");
        drop(take(&pool, 62 * MIB, device.make_stream()));
        drop(pool);
        expect_clean(&device);
    }
}

#[test]
fn a_failed_request_is_no_peak() {
    let device = device(1 << 30);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    device.other_use(600 * MIB);
    let lease = take(&pool, 16 * MIB, stream);
    while pool.maintain() {}
    let before = pool.stats().reserved_bytes;
    assert!(pool.allocate(900 * MIB, stream, Owner::NONE).is_err());
    while pool.maintain() {}
    assert!(pool.stats().reserved_bytes <= before, "made ahead for a request that failed");
    drop(lease);
}

#[test]
fn callbacks_do_not_nest() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let device = device(256 * MIB);
    let pool = pool(&device, PoolOptions { limit: Some(16 * MIB), ..by_hand() });
    let stream = device.make_stream();
    let held = take(&pool, 14 * MIB, stream);
    let inner = pool.clone();
    pool.on_pressure(Arc::new(move |_| {
        CALLS.fetch_add(1, Ordering::Relaxed);
        assert!(inner.allocate(8 * MIB, stream, Owner::NONE).is_err());
    }));
    assert!(pool.allocate(8 * MIB, stream, Owner::NONE).is_err());
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
    drop(held);
}

#[test]
fn a_capture_is_not_broken_by_forgetting_its_stream() {
    let device = device(256 * MIB);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    drop(take(&pool, 8 * MIB, stream));
    device.begin_capture(stream);
    assert_eq!(pool.forget_stream(stream), Err(PoolError::Capturing));
    device.end_capture(stream);
    pool.forget_stream(stream).expect("the capture has ended");
    drop(pool);
    expect_clean(&device);
}

#[test]
fn a_pool_dropped_during_a_capture_unmaps_nothing_in_use() {
    let device = device(256 * MIB);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    let lease = take(&pool, 8 * MIB, stream);
    use_for(&device, &lease, 50_000_000);
    drop(lease);
    device.begin_capture(stream);
    let ended = Arc::clone(&device);
    let capturer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        ended.end_capture(stream);
    });
    drop(pool);
    capturer.join().expect("no panic");
    expect_clean(&device);
}

/// A driver gives the handle of a destroyed stream to a new one. A lease of the old stream that is
/// released on the new one was used there.
#[test]
fn a_release_on_a_stream_with_an_old_handle_counts() {
    for is_known in [false, true] {
        let device = self::device(1 << 30);
        let pool = self::pool(&device, PoolOptions { limit: Some(64 * MIB), ..by_hand() });
        let (handle, other) = (StreamId(77), StreamId(78));
        let lease = take(&pool, 32 * MIB, handle);
        let range = AddrRange { addr: lease.addr(), len: lease.len() };
        pool.forget_stream(handle).expect("nobody captures");
        if is_known {
            drop(take(&pool, MIB, handle));
        }
        device.fill(range.addr, 1, range.len, handle).expect("a fill");
        device.launch_check(handle, 1_000_000, range, 1).expect("work");
        lease.release(handle);
        let again = take(&pool, 32 * MIB, other);
        device.fill(again.addr(), 2, again.len(), other).expect("a fill");
        drop((again, pool));
        expect_clean(&device);
    }
}

/// A stream that was destroyed and not forgotten is its user's mistake, but not the others'.
#[test]
fn a_stream_that_cannot_be_asked_disturbs_no_other() {
    let device = device(1 << 30);
    let pool = pool(&device, PoolOptions { limit: Some(64 * MIB), ..by_hand() });
    let (lost, good) = (device.make_stream(), device.make_stream());
    let _held = take(&pool, 8 * MIB, lost);
    device.destroy_stream(lost);
    drop(take(&pool, 32 * MIB, good));
    take(&pool, 40 * MIB, good);
}

/// A callback that panics is no reason never to call it again.
#[test]
fn a_callback_may_panic() {
    let device = device(1 << 30);
    let pool = pool(&device, PoolOptions { limit: Some(64 * MIB), ..by_hand() });
    let calls = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&calls);
    pool.on_pressure(Arc::new(move |_| {
        seen.fetch_add(1, Ordering::Relaxed);
        panic!("a callback that panics");
    }));
    let _all = take(&pool, 64 * MIB, StreamId(1));
    for _ in 0..2 {
        let attempt = || pool.allocate(MIB, StreamId(1), Owner::NONE);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt)).is_err());
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

/// Whenever the pool waits, another thread queues more work and releases memory that it uses.
fn work_during_waits(pool: &Pool<Faulty<MockDevice>>, stream: StreamId, waits: &Arc<AtomicU64>) {
    let (again, count) = (pool.clone(), waits.clone());
    pool.device().once_before(DeviceOp::Wait, move || {
        if count.fetch_add(1, Ordering::Relaxed) < 1_000 {
            again.device().inner().launch(stream, 1_000_000, &[]).unwrap();
            again.allocate(3 * MIB, stream, Owner::NONE).unwrap().release(stream);
            work_during_waits(&again, stream, &count);
        }
    });
}

/// A trim waits for what was queued before it, not for what others go on queueing.
#[test]
fn a_trim_that_waits_ends_while_others_work() {
    let mock = device(1 << 30);
    let (stream, other) = (mock.make_stream(), mock.make_stream());
    let pool = Pool::new(Arc::new(Faulty::new(mock.clone())), by_hand()).unwrap();
    for stream in [stream, other] {
        mock.launch(stream, 1_000_000, &[]).unwrap();
        pool.allocate(16 * MIB, stream, Owner::NONE).unwrap().release(stream);
    }
    let waits = Arc::new(AtomicU64::new(0));
    work_during_waits(&pool, other, &waits);
    pool.trim_and_wait(0).unwrap();
    let waited = waits.load(Ordering::Relaxed);
    assert!((1..100).contains(&waited), "{waited} waits");
    pool.device().once_before(DeviceOp::Wait, || ());
}

/// While a request grows beyond the target, idle memory of others goes: both were there at once.
#[test]
fn the_peak_counts_what_goes_while_something_is_made() {
    let mock = device(1 << 30);
    let (first, second) = (mock.make_stream(), mock.make_stream());
    let options =
        PoolOptions { cross_stream: CrossStream::Never, target: Some(64 * MIB), ..by_hand() };
    let pool = Pool::new(Arc::new(Faulty::<MockDevice>::new(mock)), options).unwrap();
    drop(pool.allocate(48 * MIB, first, Owner::NONE).unwrap());
    let most = Arc::new(AtomicU64::new(0));
    let (again, seen) = (pool.clone(), Arc::clone(&most));
    pool.device().once_before(DeviceOp::Map, move || {
        seen.store(again.device().frame_bytes(), Ordering::Relaxed);
        while again.maintain() {}
    });
    let lease = pool.allocate(48 * MIB, second, Owner::NONE).unwrap();
    let stats = pool.stats().counters;
    assert_eq!(most.load(Ordering::Relaxed), 96 * MIB);
    assert_eq!((stats.reserved_bytes, stats.peak_reserved_bytes), (64 * MIB, 96 * MIB));
    drop(lease);
}

/// What a program needed before it gave memory back is not made again ahead of need.
#[test]
fn memory_that_was_trimmed_comes_back_with_need_alone() {
    let device = device(1 << 30);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    drop(take(&pool, 256 * MIB, stream));
    device.finish_all();
    pool.trim_and_wait(0).expect("a trim");
    assert_eq!(pool.stats().reserved_bytes, 0);
    let small = take(&pool, 4 * MIB, stream);
    while pool.maintain() {}
    let reserved = pool.stats().reserved_bytes;
    assert!(reserved <= 8 * MIB, "{reserved} bytes for 4 MiB");
    drop((small, pool));
    expect_clean(&device);
}

/// Where frames have become longer, short ones are exchanged, but not that of short leases, which would
/// come back as it was, again and again.
#[test]
fn frames_of_short_leases_are_not_exchanged() {
    let device = device(8 << 30);
    let pool = pool(&device, by_hand());
    let stream = device.make_stream();
    let small = take(&pool, 512, stream);
    let mut long: Vec<_> = (0..256).map(|_| take(&pool, 4 * MIB, stream)).collect();
    for _ in 0..20 {
        // Every second one makes room for a lease that needs as many frames in a row.
        long.sort_by_key(|lease| std::cmp::Reverse(lease.addr()));
        let mut index = 0;
        long.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        drop(take(&pool, 512 * MIB, stream));
        long.extend((0..128).map(|_| take(&pool, 4 * MIB, stream)));
    }
    let before = pool.stats();
    assert!(before.frames_moved > 400, "{:?}", before.counters);
    device.finish_all();
    while pool.maintain() {}
    // Nothing that is idle is too much.
    while let Some(more) = pool.allocate_at_hand(Request::new(2 * MIB, stream)).expect("sane") {
        long.push(more);
    }
    drop(small);
    while pool.maintain() {}
    let released = pool.stats().frames_released - before.frames_released;
    assert!(released < 100, "{released} frames were exchanged");
    let misses = pool.stats().misses;
    let small = take(&pool, 512, stream);
    assert_eq!(pool.stats().misses, misses);
    drop((small, long, pool));
    expect_clean(&device);
}

/// What moves, failures and waits for the device take is all there, and nothing of what is at hand.
#[test]
fn the_time_of_misses_is_what_their_calls_and_waits_take() {
    let device = device(256 * MIB);
    let timed = Arc::clone(&device);
    let clock = Clock::new(move || time_of(&timed));
    let pool = pool(&device, PoolOptions { clock, limit: Some(128 * MIB), ..by_hand() });
    let time_in = |work: &mut dyn FnMut()| {
        let (now, before) = (time_of(&device), pool.stats().miss_ns);
        work();
        (time_of(&device) - now, Duration::from_nanos(pool.stats().miss_ns - before))
    };
    let (first, other) = (device.make_stream(), device.make_stream());
    let mut held = None;
    let (took, counted) = time_in(&mut || held = Some(take(&pool, 96 * MIB, first)));
    assert!(counted > Duration::from_micros(100), "{counted:?} for 96 MiB");
    assert_eq!(counted, took);

    let (_, counted) = time_in(&mut || drop(held.take()));
    assert_eq!(counted, Duration::ZERO);
    let (_, counted) = time_in(&mut || held = Some(take(&pool, 96 * MIB, first)));
    assert_eq!(counted, Duration::ZERO, "it is at hand");

    let (took, counted) =
        time_in(&mut || assert!(pool.allocate(96 * MIB, other, Owner::NONE).is_err()));
    assert_eq!(counted, took, "of a failure");

    let lease = held.take().expect("held");
    use_for(&device, &lease, 5_000_000);
    drop(lease);
    let (took, counted) = time_in(&mut || drop(take(&pool, 96 * MIB, other)));
    assert_eq!(counted, took, "with a wait on the device: {:?}", pool.stats());
    drop(pool);
    expect_clean(&device);
}

/// A wait for frames on their way out ends, also where what they give back does not suffice.
#[test]
fn who_waits_for_frames_on_their_way_out_gets_an_answer() {
    let device = device(256 * MIB);
    // No fence is reached at once.
    device.set_lag(1_000_000);
    let pool = pool(&device, PoolOptions { limit: Some(64 * MIB), ..by_hand() });
    let (first, second) = (device.make_stream(), device.make_stream());
    let held = take(&pool, 32 * MIB, first);
    let gone = take(&pool, 32 * MIB, first);
    use_for(&device, &gone, 5_000_000);
    drop(gone);
    // Its work is not over, so that its frames are only on their way.
    assert_eq!(pool.trim(32 * MIB).expect("a trim"), 0);
    let refused = pool.allocate(40 * MIB, second, Owner::NONE);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    assert!(pool.stats().host_waits <= 2, "{:?}", pool.stats());
    drop(take(&pool, 32 * MIB, second));
    drop((held, pool));
    expect_clean(&device);
}

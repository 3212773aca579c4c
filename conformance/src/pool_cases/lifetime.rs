//! The ends of pools, leases, streams and devices, in any order.

use super::scene::{PoolScene, WORK, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmm_core::device::{DeviceErrorKind, DeviceOp};
use vmm_core::{CrossStream, Maintenance, Pool, PoolOptions};
use vmm_mock::Faulty;

pub(super) fn leases_may_outlive_the_pool<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    for maintenance in [Maintenance::UserLoop, Maintenance::Worker, Maintenance::Inline] {
        let pool = s.pool(PoolOptions { maintenance, ..s.options(16 * s.page) })?;
        let lease = take::<H>(&pool, 2 * s.page, stream)?;
        let share = lease.share(vmm_core::Owner::NONE);
        let zero = take::<H>(&pool, 0, stream)?;
        let second = pool.clone();
        drop(pool);
        drop(second);
        s.write(&lease, stream, 1)?;
        s.expect(&share, stream, 1)?;
        drop(lease);
        share.used_on(other);
        // The last handle goes on another thread.
        std::thread::scope(|scope| {
            scope.spawn(move || drop((share, zero)));
        });
        s.expect_nothing_left()?;
    }
    s.close()
}

pub(super) fn a_pool_that_is_dropped_waits_for_its_work<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    for _ in 0..3 {
        let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
        let (a, b) = (take::<H>(&pool, 2 * s.page, stream)?, take::<H>(&pool, s.page, stream)?);
        s.write(&a, stream, 1)?;
        b.used_on(other);
        s.order(stream, other)?;
        h.work(other, WORK, &[Use::Write(whole::<H>(&b), 2)])?;
        drop((a, b));
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

/// rmm#2366, cudarc#160: the driver has shut down first.
pub(super) fn a_lost_device_lets_everything_be_dropped<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Leftovers)?;
    let stream = s.stream()?;
    let faulty = Arc::new(Faulty::<H::Device>::new(Arc::clone(h.device())));
    let pool = Pool::new(Arc::clone(&faulty), s.options(16 * s.page))?;
    let lease = pool.allocate(2 * s.page, stream, vmm_core::Owner::NONE)?;
    let freed = pool.allocate(2 * s.page, stream, vmm_core::Owner::NONE)?;
    drop(freed);
    for op in DeviceOp::ALL {
        faulty.fail_from(op, 1, DeviceErrorKind::Deinitialized);
    }
    let refused = pool.allocate(12 * s.page, stream, vmm_core::Owner::NONE);
    ensure!(refused.is_err(), "memory of a lost device");
    drop(lease);
    let _ = pool.trim(0);
    let _ = pool.trim_and_wait(0);
    while pool.maintain() {}
    pool.validate();
    // What the driver took with it is none of the pool's business: dropping must do no more than end.
    let before = h.leftovers();
    drop(pool);
    ensure_eq!(h.leftovers(), before, "what lives on a device that is lost");
    // Only the simulated driver lives on; the real one would have released all of this.
    h.forget_leftovers()?;
    s.faulty.forget_frames();
    s.close()
}

pub(super) fn forgotten_streams_are_not_named_again<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    for cross_stream in [CrossStream::WaitOnDevice, CrossStream::WhenReached, CrossStream::Never] {
        let pool = s.limited(16 * s.page, cross_stream)?;
        let keeper = s.stream()?;
        let gone = h.make_stream()?;
        let lease = take::<H>(&pool, 4 * s.page, gone)?;
        let used = take::<H>(&pool, 4 * s.page, keeper)?;
        s.write(&lease, gone, 1)?;
        s.order(keeper, gone)?;
        h.work(gone, WORK, &[Use::Write(whole::<H>(&used), 1)])?;
        used.used_on(gone);
        drop((lease, used));
        pool.forget_stream(gone)?;
        h.destroy_stream(gone)?;
        maintain::<H>(&pool)?;
        let all = take::<H>(&pool, 16 * s.page, keeper)?;
        s.write(&all, keeper, 2)?;
        drop(all);
        maintain::<H>(&pool)?;
        pool.trim_and_wait(0)?;
        ensure_eq!(pool.stats().reserved_bytes, 0, "bytes of an empty pool");
        ensure_eq!(h.refusals(), 0, "calls refused with {cross_stream:?}");
        drop(pool);
        ensure_eq!(h.refusals(), 0, "calls refused with {cross_stream:?}");
    }
    s.close()
}

/// More streams than a small number can count, one at a time.
pub(super) fn streams_can_come_and_go_without_end<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Strict)?;
    let pool = s.limited(4 * s.page, CrossStream::WaitOnDevice)?;
    for round in 0..70_000 {
        if round % 100 == 0 {
            h.synchronize()?;
        }
        let stream = h.make_stream()?;
        drop(take::<H>(&pool, 512, stream)?);
        pool.forget_stream(stream)?;
        h.destroy_stream(stream)?;
    }
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop(pool);
    s.close()
}

/// kvcached#371
pub(super) fn a_callback_may_use_the_pool<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let cache = Arc::new(std::sync::Mutex::new(Vec::new()));
    for _ in 0..8 {
        cache.lock().expect("no panic under the lock").push(take::<H>(&pool, s.page, stream)?);
    }
    let called = Arc::new(AtomicU64::new(0));
    // A weak hold, as a callback that owned the pool would keep it for ever.
    let (kept, counter, inside) = (Arc::downgrade(&cache), Arc::clone(&called), pool.stats());
    let same = std::sync::Mutex::new(Some(pool.clone()));
    let same = Arc::new(same);
    let reached = Arc::clone(&same);
    pool.on_pressure(Arc::new(move |pressure| {
        counter.fetch_add(1, Ordering::Relaxed);
        let Some(pool) = reached.lock().expect("no panic under the lock").clone() else { return };
        assert_eq!(pressure.limit, inside.limit);
        let _ = (pool.stats(), pool.snapshot(), pool.trim(0), pool.maintain());
        if let Some(cache) = kept.upgrade() {
            cache.lock().expect("no panic under the lock").truncate(4);
        }
    }));
    let lease = take::<H>(&pool, 4 * s.page, stream)?;
    ensure_eq!(called.load(Ordering::Relaxed), 1, "calls of the callback");
    let refused = take::<H>(&pool, 4 * s.page, stream);
    ensure!(refused.is_err(), "the callback had nothing to give");
    ensure_eq!(called.load(Ordering::Relaxed), 2, "calls of the callback");
    *same.lock().expect("no panic under the lock") = None;
    cache.lock().expect("no panic under the lock").clear();
    drop(lease);
    drop(pool);
    s.close()
}

//! Device calls that fail.

use super::private::private_script;
use super::scene::{FaultyPool, MIB, PoolScene, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::time::Duration;
use vmm_core::device::{DeviceErrorKind, DeviceOp, FrameKind};
use vmm_core::units::StreamId;
use vmm_core::{AllocError, Clock, CrossStream, PoolError, PoolOptions};

/// Errors that any call may end with, as far as a pool is concerned.
const KINDS: [DeviceErrorKind; 3] =
    [DeviceErrorKind::OutOfMemory, DeviceErrorKind::NotReady, DeviceErrorKind::Failed];

/// pytorch#188008
pub(super) fn a_failed_growth_is_undone<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let grow = |pool: &FaultyPool<H>| take::<H>(pool, 5 * s.page, stream);
    let ops = [DeviceOp::Map, DeviceOp::MakeFrame, DeviceOp::SetAccess];
    let counts = {
        let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
        // As below, for it may leave a part of a frame to the next one.
        let _kept = take::<H>(&pool, s.page, stream)?;
        let before = ops.map(|op| s.faulty.units(op));
        grow(&pool)?;
        let mut counts = ops.map(|op| s.faulty.units(op));
        counts.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
        counts
    };
    ensure!(counts[1] > 0, "no frame was made");
    let each = ops.into_iter().zip(counts);
    for (op, k) in each.flat_map(|(op, count)| (1..=count).map(move |k| (op, k))) {
        let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
        let kept = take::<H>(&pool, s.page, stream)?;
        s.write(&kept, stream, 1)?;
        let before = pool.stats();
        let faults = s.faulty.faults();
        s.faulty.fail(op, k, DeviceErrorKind::Failed);
        match grow(&pool) {
            Err(AllocError::Device(error)) => ensure_eq!(error.op, op, "the call in the error"),
            other => return Err(Stop::Failed(format!("{op} failed and it ends in {other:?}"))),
        }
        ensure_eq!(s.faulty.faults(), faults + 1, "faults");
        let after = pool.stats();
        ensure_eq!(after.reserved_bytes, before.reserved_bytes, "reserved after {op} {k} failed");
        ensure_eq!(after.live_bytes, before.live_bytes, "live after {op} {k} failed");
        s.audit(&pool)?;
        let lease = grow(&pool)?;
        s.write(&lease, stream, 2)?;
        s.expect(&kept, stream, 1)?;
        s.expect(&lease, stream, 2)?;
        drop((kept, lease));
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

/// A growth fails and cannot be unmapped: its addresses are mapped and of no use to anybody.
pub(super) fn what_could_not_be_undone_is_not_used<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Aliases)?;
    let stream = s.stream()?;
    let pool = s.limited(8 * s.page + s.edges(4), CrossStream::WaitOnDevice)?;
    // Every other page is free, so that a long lease needs a move.
    let mut kept = Vec::new();
    let pieces = [0; 8].map(|_| take::<H>(&pool, s.page, stream));
    for (i, piece) in pieces.into_iter().enumerate() {
        kept.extend((i % 2 == 0).then_some(piece?));
    }
    s.faulty.fail(DeviceOp::SetAccess, 1, DeviceErrorKind::Failed);
    s.faulty.fail(DeviceOp::Unmap, 1, DeviceErrorKind::Failed);
    ensure!(take::<H>(&pool, 4 * s.page, stream).is_err(), "no access was given");
    s.faulty.clear();
    s.audit(&pool)?;
    for byte in 0..3 {
        let long = take::<H>(&pool, 4 * s.page, stream)?;
        s.write(&long, stream, byte)?;
        s.expect(&long, stream, byte)?;
        drop(long);
        let pieces = [0; 4].map(|_| take::<H>(&pool, s.page, stream));
        for piece in pieces {
            s.write(&piece?, stream, byte)?;
        }
    }
    drop(kept);
    drop(pool);
    s.close()
}

/// Something of everything that a pool does. Errors are the caller's affair.
fn script<H: Harness>(
    s: &PoolScene<'_, H>,
    pool: &FaultyPool<H>,
    first: StreamId,
    second: StreamId,
) -> Result<(), Stop> {
    let brief = s.stream()?;
    let mut errors = Vec::new();
    let mut kept = Vec::new();
    let mut allocate = |len, stream, byte: u8, keep: bool| -> Result<(), Stop> {
        match take::<H>(pool, len, stream) {
            Ok(lease) => {
                s.write(&lease, stream, byte)?;
                s.expect(&lease, stream, byte)?;
                if keep {
                    kept.push((lease, stream, byte));
                } else {
                    lease.used_on(first);
                }
            }
            Err(AllocError::TooLarge { .. }) => {
                return Err(Stop::Failed(format!("{len} bytes are not too large")));
            }
            Err(error) => errors.push(error),
        }
        pool.validate();
        Ok(())
    };
    let page = s.page;
    allocate(3 * page, first, 1, false)?;
    allocate(2 * page, first, 2, true)?;
    allocate(5 * page, second, 3, false)?;
    allocate(4 << 10, second, 4, true)?;
    // More than is free in one piece, so that frames move.
    allocate(9 * page, first, 5, false)?;
    allocate(7 * page, second, 6, false)?;
    private_script(s, pool, first, second)?;
    while pool.maintain() {}
    s.harness.synchronize()?;
    let _ = pool.trim(6 * page);
    pool.validate();
    allocate(8 * page, second, 7, false)?;
    allocate(page, brief, 9, false)?;
    let _ = pool.forget_stream(brief);
    let _ = pool.trim_and_wait(0);
    pool.validate();
    allocate(3 * page, first, 8, true)?;
    for (lease, stream, byte) in &kept {
        s.expect(lease, *stream, *byte)?;
    }
    Ok(())
}

/// A pool whose clock makes every pause end at once.
fn hurried<H: Harness>(s: &PoolScene<'_, H>) -> Result<FaultyPool<H>, PoolError> {
    let ticks = std::sync::atomic::AtomicU64::new(0);
    let clock = Clock::new(move || {
        Duration::from_secs(ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    });
    s.pool(PoolOptions { clock, ..s.options(14 * s.page) })
}

fn every_call_fails<H: Harness>(h: &H, for_good: bool) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (first, second) = (s.stream()?, s.stream()?);
    let counts = {
        let before = DeviceOp::ALL.map(|op| s.faulty.units(op));
        let pool = hurried(&s)?;
        script(&s, &pool, first, second)?;
        let mut counts = DeviceOp::ALL.map(|op| s.faulty.units(op));
        counts.iter_mut().zip(before).for_each(|(count, before)| *count -= before);
        counts
    };
    s.harness.synchronize()?;
    for (op, count) in DeviceOp::ALL.into_iter().zip(counts) {
        // Short granules make for hundreds of frames, of which many go by one call: it fails as a whole,
        // whichever of them is refused.
        for k in (1..=count).step_by(usize::try_from(count.div_ceil(12)).unwrap_or(1).max(1)) {
            for kind in KINDS {
                let faults = s.faulty.faults();
                if for_good {
                    s.faulty.fail_from(op, k, kind);
                } else {
                    s.faulty.fail(op, k, kind);
                }
                let context = |stop| match stop {
                    Stop::Failed(why) => Stop::Failed(format!("{op} {k} fails, {kind:?}: {why}")),
                    other => other,
                };
                one_fault(&s, first, second).map_err(context)?;
                // What comes behind an earlier error may not be reached any more.
                let hit = s.faulty.faults() > faults;
                ensure!(hit || k > 1, "{op} was never called");
            }
        }
    }
    s.close()
}

/// Runs the script with the fault that is set, and checks that it has done no harm.
fn one_fault<H: Harness>(s: &PoolScene<'_, H>, first: StreamId, second: StreamId) -> CaseResult {
    match hurried(s) {
        Err(_) => s.faulty.clear(),
        Ok(pool) => {
            script(s, &pool, first, second)?;
            s.faulty.clear();
            s.harness.synchronize()?;
            s.audit(&pool)?;
            // As if nothing had happened.
            let all = take::<H>(&pool, 14 * s.page, second)?;
            s.write(&all, second, 9)?;
            s.expect(&all, second, 9)?;
            drop(all);
            maintain::<H>(&pool)?;
            pool.trim_and_wait(0)?;
            ensure_eq!(pool.stats().reserved_bytes, 0, "bytes of an empty pool");
            s.audit(&pool)?;
        }
    }
    s.harness.synchronize()?;
    ensure_eq!(s.harness.refusals(), 0, "calls refused");
    ensure_eq!(s.harness.complaints(), Vec::<String>::new(), "complaints of the device");
    s.expect_nothing_left()
}

/// HAMi-core#307
pub(super) fn every_device_call_may_fail_once<H: Harness>(h: &H) -> CaseResult {
    every_call_fails(h, false)
}

pub(super) fn every_device_call_may_fail_for_good<H: Harness>(h: &H) -> CaseResult {
    every_call_fails(h, true)
}

/// pytorch#192330
pub(super) fn a_refused_kind_of_frame_falls_back<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::RdmaFrames)?;
    let stream = s.stream()?;
    for op in [DeviceOp::MakeFrame, DeviceOp::Map, DeviceOp::SetAccess] {
        for kind in [DeviceErrorKind::Failed, DeviceErrorKind::NotSupported] {
            let options = PoolOptions { frame_kind: FrameKind::Rdma, ..s.options(16 * s.page) };
            let pool = s.pool(options)?;
            ensure_eq!(pool.stats().frame_kind, FrameKind::Rdma, "the kind that was asked for");
            let refuses = move |call: &vmm_mock::FaultyCall| {
                (call.op == op && call.kind == Some(FrameKind::Rdma)).then_some(kind)
            };
            s.faulty.fail_when(refuses);
            let faults = s.faulty.faults();
            let lease = take::<H>(&pool, 3 * s.page, stream)?;
            s.write(&lease, stream, 1)?;
            s.expect(&lease, stream, 1)?;
            let more = take::<H>(&pool, 4 * s.page, stream)?;
            ensure_eq!(s.faulty.faults(), faults + 1, "attempts with frames that are refused");
            ensure_eq!(pool.stats().frame_kind, FrameKind::Device, "the kind that is used");
            s.audit(&pool)?;
            s.faulty.clear();
            drop((lease, more));
            drop(pool);
            s.expect_nothing_left()?;
        }
    }
    s.close()
}

/// The forks of llama.cpp
pub(super) fn a_busy_device_is_asked_again<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    for k in 1..=3 {
        s.faulty.fail(DeviceOp::SetAccess, k, DeviceErrorKind::NotReady);
    }
    let lease = take::<H>(&pool, 3 * s.page, stream)?;
    let calls = s.faulty.calls(DeviceOp::SetAccess);
    ensure_eq!(calls, 4, "attempts");
    s.faulty.fail_from(DeviceOp::SetAccess, 1, DeviceErrorKind::NotReady);
    let before = pool.stats().reserved_bytes;
    match take::<H>(&pool, 3 * s.page, stream) {
        Err(AllocError::Device(error)) => {
            ensure_eq!(error.kind, DeviceErrorKind::NotReady, "{error}");
        }
        other => return Err(Stop::Failed(format!("always busy, and {other:?}"))),
    }
    ensure!(s.faulty.calls(DeviceOp::SetAccess) - calls < 100, "the retry has no bound");
    ensure_eq!(pool.stats().reserved_bytes, before, "reserved after the failure");
    s.audit(&pool)?;
    s.faulty.clear();
    let next = take::<H>(&pool, 3 * s.page, stream)?;
    drop((lease, next));
    drop(pool);
    s.close()
}

/// llama.cpp#4680
pub(super) fn large_reservations_may_be_refused<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    s.faulty.fail_when(|call| {
        let large = call.op == DeviceOp::Reserve && call.len > 256 * MIB;
        large.then_some(DeviceErrorKind::OutOfAddresses)
    });
    let mut options = s.options(0);
    options.limit = None;
    let pool = s.pool(options)?;
    ensure!(s.faulty.faults() > 0, "no reservation was large");
    // More than one reservation holds.
    let mut leases = Vec::new();
    for _ in 0..4 {
        leases.push(take::<H>(&pool, 100 * MIB, stream)?);
    }
    for (i, lease) in leases.iter().enumerate() {
        let byte = u8::try_from(i).unwrap_or(0);
        h.work(stream, Duration::from_micros(10), &[Use::Write(whole::<H>(lease), byte)])?;
    }
    for (i, lease) in leases.iter().enumerate() {
        s.expect(lease, stream, u8::try_from(i).unwrap_or(0))?;
    }
    s.audit(&pool)?;
    drop(leases);
    drop(pool);
    // If none can be had at all, that is an error and nothing is left.
    s.faulty.fail_from(DeviceOp::Reserve, 1, DeviceErrorKind::OutOfAddresses);
    ensure!(s.pool(s.options(16 * s.page)).is_err(), "a pool without addresses");
    s.faulty.clear();
    s.faulty.fail(DeviceOp::Reserve, 2, DeviceErrorKind::Failed);
    ensure!(s.pool(s.options(16 * s.page)).is_err(), "a pool with half of its addresses");
    s.faulty.clear();
    s.close()
}

/// pytorch#192269
pub(super) fn many_streams_share_the_addresses<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let mut options = s.options(0);
    options.limit = None;
    let pool = s.pool(options)?;
    let start = pool.stats().address_bytes;
    let mut leases = Vec::new();
    for _ in 0..200 {
        leases.push(take::<H>(&pool, 4 << 10, s.stream()?)?);
    }
    let stats = pool.stats();
    // Plain frames bring their addresses with them.
    let start = if stats.remapping { start } else { stats.reserved_bytes };
    ensure_eq!(stats.address_bytes, start, "addresses for 200 streams");
    ensure!(stats.reserved_bytes <= 4 * s.page, "{} bytes for 200 leases", stats.reserved_bytes);
    drop(leases);
    drop(pool);
    s.close()
}

//! A stream captures a graph: no call may break that.

use super::scene::{PoolScene, maintain, take};
use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use vmm_core::CrossStream;
use vmm_core::device::{DeviceErrorKind, DeviceOp};

/// Calls that are illegal during a capture, on the capturing stream or at all.
pub(super) const FORBIDDEN: [DeviceOp; 7] = [
    DeviceOp::Record,
    DeviceOp::Reached,
    DeviceOp::Wait,
    DeviceOp::StreamWait,
    DeviceOp::Unmap,
    DeviceOp::ReleaseFrame,
    DeviceOp::FreeRegion,
];

/// pytorch#159594
pub(super) fn a_capture_can_run_out_of_memory<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let held = take::<H>(&pool, 4 * s.page, stream)?;
    let free = take::<H>(&pool, 2 * s.page, other)?;
    s.write(&free, other, 1)?;
    free.used_on(stream);
    drop(free);
    h.begin_capture(stream)?;
    let before = FORBIDDEN.map(|op| s.faulty.units(op));
    let captured = take::<H>(&pool, 2 * s.page, stream)?;
    let refused = take::<H>(&pool, 4 * s.page, stream);
    let during = FORBIDDEN.map(|op| s.faulty.units(op));
    h.end_capture(stream)?;
    ensure!(refused.is_err(), "more than the limit");
    ensure_eq!(during, before, "calls of {FORBIDDEN:?}");
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop((held, captured));
    let after = take::<H>(&pool, 8 * s.page, stream)?;
    drop(after);
    drop(pool);
    s.close()
}

/// pytorch#193982
pub(super) fn a_release_during_a_capture_asks_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let lease = take::<H>(&pool, 2 * s.page, other)?;
    let shared = lease.share(vmm_core::Owner::NONE);
    lease.used_on(stream);
    h.begin_capture(stream)?;
    let before = DeviceOp::ALL.map(|op| s.faulty.calls(op));
    lease.release(stream);
    drop(shared);
    ensure_eq!(DeviceOp::ALL.map(|op| s.faulty.calls(op)), before, "calls of a release");
    h.end_capture(stream)?;
    let again = take::<H>(&pool, 8 * s.page, stream)?;
    drop(again);
    drop(pool);
    s.close()
}

/// The undoing of a growth must not do what a capture forbids.
pub(super) fn a_growth_that_fails_in_a_capture_breaks_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let stream = s.stream()?;
    for (op, k) in [(DeviceOp::MakeFrame, 2), (DeviceOp::Map, 1), (DeviceOp::SetAccess, 1)] {
        for kind in [DeviceErrorKind::OutOfMemory, DeviceErrorKind::Failed] {
            let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
            let first = take::<H>(&pool, s.page, stream)?;
            h.begin_capture(stream)?;
            s.faulty.fail(op, k, kind);
            let _ = take::<H>(&pool, 8 * s.page, stream);
            s.faulty.clear();
            h.end_capture(stream)?;
            ensure_eq!(h.refusals(), 0, "calls refused after {op} failed with {kind:?}");
            drop(first);
            maintain::<H>(&pool)?;
            s.audit(&pool)?;
            drop(take::<H>(&pool, 16 * s.page, stream)?);
            drop(pool);
            s.expect_nothing_left()?;
        }
    }
    s.close()
}

/// The stream that captures need not be one that the pool has seen.
pub(super) fn a_capture_on_an_unknown_stream_is_not_broken<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let (stream, unknown) = (s.stream()?, s.stream()?);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    drop(take::<H>(&pool, 8 * s.page, stream)?);
    h.synchronize()?;
    h.begin_capture(unknown)?;
    let _ = pool.trim(0);
    maintain::<H>(&pool)?;
    h.end_capture(unknown)?;
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop(pool);
    s.close()
}

pub(super) fn maintenance_respects_a_capture<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let pieces = [0; 4].map(|_| take::<H>(&pool, 2 * s.page, stream));
    for (i, piece) in pieces.into_iter().enumerate() {
        let piece = piece?;
        s.write(&piece, stream, 1)?;
        if i % 2 == 0 {
            piece.used_on(other);
        }
    }
    pool.set_limit(Some(8 * s.page));
    let moved = take::<H>(&pool, 7 * s.page, stream)?;
    h.synchronize()?;
    h.begin_capture(stream)?;
    drop(moved);
    maintain::<H>(&pool)?;
    let released = pool.trim(0)?;
    let waited = pool.trim_and_wait(0)?;
    h.end_capture(stream)?;
    ensure_eq!(h.refusals(), 0, "calls refused");
    ensure_eq!((released, waited), (0, 0), "bytes released during a capture");
    pool.trim_and_wait(0)?;
    ensure_eq!(pool.stats().reserved_bytes, 0, "bytes after the capture");
    drop(pool);
    s.close()
}

//! A pool on a device that cannot map.

use super::scene::{PoolScene, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::device::{DeviceErrorKind, DeviceOp};
use vmm_core::units::DeviceOrdinal;
use vmm_core::{AllocError, Clock, CrossStream, PoolError, PoolOptions};

/// vkd3d-proton#2262
pub(super) fn a_pool_without_remapping_says_so<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let can = s.device.capabilities();
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    ensure_eq!(pool.stats().remapping, can.remapping, "what the figures say of the device");
    let lease = take::<H>(&pool, 3 * s.page, stream)?;
    s.write(&lease, stream, 1)?;
    s.expect(&lease, stream, 1)?;
    if !can.remapping {
        let peers = vec![DeviceOrdinal(1)];
        let refused = s.pool(PoolOptions { peers, ..s.options(16 * s.page) });
        ensure!(matches!(refused, Err(PoolError::NotSupported { .. })), "peers: {refused:?}");
        let calls = [DeviceOp::Reserve, DeviceOp::Map, DeviceOp::SetAccess, DeviceOp::Unmap];
        ensure_eq!(calls.map(|op| s.faulty.calls(op)), [0; 4], "calls of {calls:?}");
    }
    drop(lease);
    drop(pool);
    s.close()
}

/// Several leases to a frame, of short ones and of long ones.
pub(super) fn plain_frames_are_shared<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::NoRemapping)?;
    let stream = s.stream()?;
    let pool = s.limited(1400 * s.page, CrossStream::WaitOnDevice)?;
    for len in [4 << 10, s.page] {
        let before = pool.stats();
        let mut leases = Vec::new();
        for byte in 0..64 {
            let lease = take::<H>(&pool, len, stream)?;
            h.work(stream, Duration::from_micros(1), &[Use::Write(whole::<H>(&lease), byte)])?;
            leases.push(lease);
        }
        for (byte, lease) in (0..).zip(&leases) {
            s.expect(lease, stream, byte)?;
        }
        let made = pool.stats().frames - before.frames;
        ensure!(made <= 16, "{made} frames for 64 leases of {len} bytes");
        let again = pool.stats().frames_made;
        drop(leases);
        drop(take::<H>(&pool, 2 * len, stream)?);
        ensure_eq!(pool.stats().frames_made, again, "a frame was made where two leases were");
    }
    s.audit(&pool)?;
    drop(pool);
    s.close()
}

/// Nothing moves, so what is idle is released for what is wanted; never more than is of use.
pub(super) fn idle_plain_frames_make_room<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::NoRemapping)?;
    let stream = s.stream()?;
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let mut held = Vec::new();
    for byte in 0..4 {
        let lease = take::<H>(&pool, 4 * s.page, stream)?;
        s.write(&lease, stream, byte)?;
        held.push(lease);
    }
    // Two frames of four pages are idle: not enough, and so they stay.
    held.truncate(2);
    match take::<H>(&pool, 9 * s.page, stream) {
        Err(AllocError::OutOfMemory(facts)) => {
            ensure_eq!(facts.largest_possible, 8 * s.page, "what is possible");
        }
        other => return Err(Stop::Failed(format!("9 pages of 8: {other:?}"))),
    }
    ensure_eq!(pool.stats().frames_released, 0, "frames released in vain");
    let wide = take::<H>(&pool, 7 * s.page, stream)?;
    s.write(&wide, stream, 9)?;
    ensure_eq!(pool.stats().frames_released, 2, "frames released");
    // One of one page would do, but then there is room for it anyway.
    let narrow = take::<H>(&pool, s.page, stream)?;
    ensure_eq!(pool.stats().frames_released, 2, "frames released");
    for (byte, lease) in (0..).zip(&held) {
        s.expect(lease, stream, byte)?;
    }
    s.expect(&wide, stream, 9)?;
    s.audit(&pool)?;
    // A frame that cannot be released serves where it is.
    drop((wide, narrow));
    h.synchronize()?;
    s.faulty.fail_from(DeviceOp::ReleaseFrame, 1, DeviceErrorKind::Failed);
    ensure!(take::<H>(&pool, 8 * s.page, stream).is_err(), "no frame could go");
    drop(take::<H>(&pool, 7 * s.page, stream)?);
    s.audit(&pool)?;
    s.faulty.clear();
    drop(take::<H>(&pool, 8 * s.page, stream)?);
    drop(held);
    drop(pool);
    s.close()
}

/// What is above the target goes in time, by whole frames; a trim lets all go that is idle.
pub(super) fn plain_memory_goes_when_it_is_not_needed<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::NoRemapping)?;
    let stream = s.stream()?;
    let seconds = Arc::new(AtomicU64::new(0));
    let hand = Arc::clone(&seconds);
    let options = PoolOptions {
        target: Some(4 * s.page),
        time_to_live: Duration::from_secs(10),
        clock: Clock::new(move || Duration::from_secs(hand.load(Ordering::Relaxed))),
        ..s.options(32 * s.page)
    };
    let pool = s.pool(options)?;
    let leases = [0; 4].map(|_| take::<H>(&pool, 4 * s.page, stream));
    maintain::<H>(&pool)?;
    ensure_eq!(pool.stats().reserved_bytes, 16 * s.page, "made ahead, or gone while in use");
    let [kept, a, b, c] = leases;
    let kept = kept?;
    s.write(&kept, stream, 1)?;
    drop((a?, b?, c?));
    h.synchronize()?;
    for _ in 0..4 {
        seconds.fetch_add(11, Ordering::Relaxed);
        maintain::<H>(&pool)?;
        s.audit(&pool)?;
    }
    ensure_eq!(pool.stats().reserved_bytes, 4 * s.page, "bytes long after they were needed");
    s.expect(&kept, stream, 1)?;
    drop(kept);
    pool.trim_and_wait(0)?;
    let stats = pool.stats();
    ensure_eq!(
        (stats.reserved_bytes, stats.frames, stats.address_bytes),
        (0, 0, 0),
        "what is left"
    );
    drop(pool);
    s.close()
}

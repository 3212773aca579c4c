//! Free memory is found again: by other streams, after waits, between other leases.

use super::scene::{PoolScene, WORK, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use vmm_core::{CrossStream, Maintenance, PoolOptions};

/// pytorch#189504
pub(super) fn a_miss_waits_and_searches_again<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    for cross_stream in [CrossStream::WhenReached, CrossStream::Never, CrossStream::WaitOnDevice] {
        let (first, second) = (s.stream()?, s.stream()?);
        let pool = s.limited(4 * s.page, cross_stream)?;
        let lease = take::<H>(&pool, 4 * s.page, first)?;
        s.order(first, second)?;
        s.write(&lease, second, 1)?;
        lease.used_on(second);
        drop(lease);
        let again = take::<H>(&pool, 4 * s.page, first)?;
        let stats = pool.stats();
        ensure!(stats.reserved_bytes <= 4 * s.page, "the limit was passed: {stats:?}");
        ensure!(stats.host_waits <= 2, "{} waits for one fence", stats.host_waits);
        s.write(&again, first, 2)?;
        s.expect(&again, first, 2)?;
        drop(again);
        drop(pool);
    }
    s.close()
}

/// pytorch#147168
pub(super) fn memory_stays_bounded_without_synchronisation<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.need_no_unmap()?;
    let (first, second) = (s.stream()?, s.stream()?);
    let mut options = s.options(0);
    options.limit = None;
    let pool = s.pool(options)?;
    for round in 0..100 {
        let lease = take::<H>(&pool, 4 * s.page, first)?;
        s.write(&lease, first, round)?;
        s.order(first, second)?;
        lease.used_on(second);
        s.expect(&lease, second, round)?;
        drop(lease);
    }
    let stats = pool.stats();
    ensure!(stats.peak_reserved_bytes <= 9 * s.page, "{} bytes", stats.peak_reserved_bytes);
    ensure_eq!(stats.host_waits, 0, "waits of the host");
    drop(pool);
    s.close()
}

/// As before, where streams do not wait for each other, but the work of each round is soon over.
pub(super) fn memory_whose_work_is_over_is_found_without_a_wait<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (first, second) = (s.stream()?, s.stream()?);
    for cross_stream in [CrossStream::WaitOnDevice, CrossStream::WhenReached] {
        let options = PoolOptions { cross_stream, limit: None, ..s.options(0) };
        let pool = s.pool(options)?;
        for round in 0..100 {
            let lease = take::<H>(&pool, 4 * s.page, first)?;
            s.write(&lease, first, round)?;
            s.order(first, second)?;
            lease.used_on(second);
            s.expect(&lease, second, round)?;
            drop(lease);
            h.synchronize()?;
        }
        let stats = pool.stats();
        let peak = stats.peak_reserved_bytes;
        ensure!(peak <= 9 * s.page, "{peak} bytes for one lease at a time, {cross_stream:?}");
        ensure_eq!(stats.host_waits, 0, "waits of the host, {cross_stream:?}");
        drop(pool);
    }
    s.close()
}

/// rmm#2489
pub(super) fn merged_neighbours_keep_the_later_fence<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.need_no_unmap()?;
    let (a, b, c) = (s.stream()?, s.stream()?, s.stream()?);
    let pool = s.limited(4 * s.page, CrossStream::WaitOnDevice)?;
    let parts = [0, 1, 2, 3].map(|_| take::<H>(&pool, s.page, a));
    let [p0, p1, p2, p3] = parts;
    let (p0, p1, p2, p3) = (p0?, p1?, p2?, p3?);
    // Two neighbours go at once, two while a long write is under way.
    drop((p0, p2));
    s.write(&p1, a, 1)?;
    s.write(&p3, a, 1)?;
    drop((p1, p3));
    let taken = take::<H>(&pool, 4 * s.page, b)?;
    h.work(b, WORK / 10, &[Use::Write(whole::<H>(&taken), 2)])?;
    drop(taken);
    let taken = take::<H>(&pool, 4 * s.page, c)?;
    h.work(c, WORK / 50, &[Use::Write(whole::<H>(&taken), 3)])?;
    h.synchronize()?;
    s.expect(&taken, c, 3)?;
    h.synchronize()?;
    drop(taken);
    drop(pool);
    s.close()
}

/// pytorch#147168, in its comments
pub(super) fn one_slow_stream_does_not_hold_up_the_others<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    // A release of a plain frame may wait for all work, and so for what is held up here.
    s.device.need(Need::Remapping)?;
    let (slow, quick, taker) = (s.stream()?, s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page + s.edges(7), CrossStream::WhenReached)?;
    // The first to be released is the last to be done.
    let held = take::<H>(&pool, s.page, slow)?;
    h.occupy(slow, &[Use::Read(whole::<H>(&held))])?;
    held.used_on(quick);
    drop(held);
    let near = [0; 7].map(|_| take::<H>(&pool, s.page, quick));
    for lease in near {
        let lease = lease?;
        s.write(&lease, quick, 1)?;
        lease.used_on(taker);
        drop(lease);
    }
    h.synchronize_stream(quick)?;
    h.synchronize_stream(taker)?;
    let again = take::<H>(&pool, 7 * s.page, taker)?;
    ensure_eq!(pool.stats().host_waits, 0, "waits of the host");
    s.write(&again, taker, 2)?;
    s.expect(&again, taker, 2)?;
    h.synchronize_stream(taker)?;
    h.let_go()?;
    drop(again);
    drop(pool);
    s.close()
}

/// pytorch#35901
pub(super) fn big_leases_fit_after_small_ones<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let pool = s.limited(60 * s.page, CrossStream::WaitOnDevice)?;
    let big = take::<H>(&pool, 40 * s.page, stream)?;
    s.write(&big, stream, 1)?;
    drop(big);
    let mut small = Vec::new();
    for i in 0..20_u8 {
        let lease = take::<H>(&pool, 2 * s.page, stream)?;
        s.write(&lease, stream, i)?;
        small.push(lease);
    }
    let mut i = 0;
    small.retain(|_| {
        i += 1;
        i % 2 == 0
    });
    // Frames longer than a granule hold back what lies beside a live lease in the same frame: at
    // most one at each end of each of the ten.
    let longest = pool.snapshot().frames.iter().map(|frame| frame.len).max().unwrap_or(0);
    let held_back = if longest == s.device.granule { 0 } else { 20 * longest };
    let big = take::<H>(&pool, 40 * s.page - held_back, stream)?;
    s.write(&big, stream, 99)?;
    for (i, lease) in small.iter().enumerate() {
        s.expect(lease, stream, u8::try_from(2 * i + 1).unwrap_or(0))?;
    }
    s.expect(&big, stream, 99)?;
    s.audit(&pool)?;
    drop((big, small));
    drop(pool);
    s.close()
}

/// pytorch#106660
pub(super) fn a_long_free_run_is_not_spent_on_a_short_lease<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let mut options = s.options(0);
    options.limit = None;
    let pool = s.pool(options)?;
    let long = 64 * s.page;
    drop(take::<H>(&pool, long, stream)?);
    let short = take::<H>(&pool, 10 << 10, stream)?;
    let again = take::<H>(&pool, long, stream)?;
    let reserved = pool.stats().reserved_bytes;
    // One frame for the short one, and one per cent that a pool without a limit may have ahead.
    let most = long + long / 50 + 2 * s.page;
    ensure!(reserved <= most, "{reserved} bytes reserved for {long} and a little");
    drop((short, again));
    drop(pool);
    s.close()
}

/// Whatever short leases were there before: once all is free, all can be had in one piece.
pub(super) fn released_short_leases_pin_no_frame<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (first, second) = (s.stream()?, s.stream()?);
    for ahead in [false, true] {
        for streams in [[first, first], [first, second]] {
            let pool = s.limited(4 * s.page, CrossStream::WaitOnDevice)?;
            if ahead {
                maintain::<H>(&pool)?;
            }
            let mut short = Vec::new();
            for i in 0..20 {
                short.push(take::<H>(&pool, 40 << 10, streams[i % 2])?);
            }
            drop(short);
            let facts = format!("made ahead: {ahead}, streams {streams:?}");
            for stream in [second, first] {
                match take::<H>(&pool, 4 * s.page, stream) {
                    Ok(lease) => s.write(&lease, stream, 1)?,
                    Err(error) => return Err(format!("{facts}: {error}").into()),
                }
            }
            // Without aliases a frame can only move when its work is over.
            if s.device.capabilities().aliases {
                ensure_eq!(pool.stats().host_waits, 0, "waits of the host, {facts}");
            }
            drop(pool);
            s.expect_nothing_left()?;
        }
    }
    s.close()
}

/// Frames move to a new address while work at their old one is still queued.
pub(super) fn moved_frames_carry_no_work_with_them<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let limit = 8 * s.page + s.edges(4);
    let pool = s.limited(limit, CrossStream::WaitOnDevice)?;
    for round in 0..6_u8 {
        // Pieces with others between them, so that the next long one needs a move.
        let mut pieces = Vec::new();
        for _ in 0..8 {
            pieces.push(take::<H>(&pool, s.page, stream)?);
        }
        let mut kept = Vec::new();
        for (i, piece) in pieces.into_iter().enumerate() {
            s.write(&piece, stream, round)?;
            if i % 2 == usize::from(round % 2) {
                kept.push(piece);
            }
        }
        let long = take::<H>(&pool, 4 * s.page, stream)?;
        s.write(&long, stream, 100 + round)?;
        for lease in &kept {
            s.expect(lease, stream, round)?;
        }
        s.expect(&long, stream, 100 + round)?;
        ensure!(pool.stats().reserved_bytes <= limit, "the limit was passed");
        drop((kept, long));
        maintain::<H>(&pool)?;
        s.audit(&pool)?;
        if round % 3 == 2 {
            h.synchronize()?;
            maintain::<H>(&pool)?;
            s.audit(&pool)?;
        }
    }
    pool.trim_and_wait(0)?;
    let stats = pool.stats();
    ensure_eq!((stats.stale_bytes, stats.mappings), (0, 0), "stale bytes and mappings");
    drop(pool);
    s.close()
}

pub(super) fn trimming_releases_what_is_idle_and_nothing_else<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    // As above.
    s.device.need(Need::Remapping)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    let kept = take::<H>(&pool, 4 * s.page, stream)?;
    let gone = take::<H>(&pool, 8 * s.page, stream)?;
    let used = take::<H>(&pool, 8 * s.page, other)?;
    s.write(&kept, stream, 1)?;
    s.write(&gone, stream, 2)?;
    h.synchronize()?;
    h.occupy(other, &[Use::Read(whole::<H>(&used))])?;
    drop((gone, used));
    let released = pool.trim(0)?;
    s.audit(&pool)?;
    // A queued unbind is over only when the device says so, and trim does not wait for that.
    let queued = s.device.capabilities().queued_binds;
    ensure!(queued || released >= 7 * s.page, "{released} bytes released of 8 idle pages");
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved >= 12 * s.page, "{reserved} bytes, and 12 pages are in use");
    h.let_go()?;
    h.synchronize()?;
    pool.trim(0)?;
    h.synchronize()?;
    pool.trim(0)?;
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved <= 5 * s.page, "{reserved} bytes for 4 pages");
    s.expect(&kept, stream, 1)?;
    h.synchronize()?;
    drop(kept);
    pool.trim_and_wait(0)?;
    ensure_eq!(pool.stats().reserved_bytes, 0, "bytes of an empty pool");
    s.audit(&pool)?;
    drop(take::<H>(&pool, 8 * s.page, stream)?);
    drop(pool);
    s.close()
}

/// A pool that makes its limit ahead of need would undo a trim at once, or keep it from its end.
pub(super) fn what_a_trim_released_is_not_made_again<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    drop(take::<H>(&pool, s.page, stream)?);
    maintain::<H>(&pool)?;
    let ahead = pool.stats().reserved_bytes;
    ensure!(ahead >= 31 * s.page, "{ahead} bytes ahead of need, of a limit of 32 pages");
    for keep in [12 * s.page, 0] {
        pool.trim_and_wait(keep)?;
        // Queued unbinds are over when the device says so.
        h.synchronize()?;
        pool.trim_and_wait(keep)?;
        maintain::<H>(&pool)?;
        let kept = pool.stats().reserved_bytes;
        ensure!(kept <= keep, "{kept} bytes, {keep} were to be kept");
    }
    drop(take::<H>(&pool, 2 * s.page, stream)?);
    maintain::<H>(&pool)?;
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved >= 31 * s.page, "{reserved} bytes, after memory was short");
    pool.trim_and_wait(0)?;
    pool.set_limit(Some(16 * s.page));
    maintain::<H>(&pool)?;
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved >= 15 * s.page, "{reserved} bytes under a new limit");
    // The same beside the worker: a trim that it kept going would not come back.
    let options = PoolOptions { maintenance: Maintenance::Worker, ..s.options(32 * s.page) };
    let busy = s.pool(options)?;
    for _ in 0..10 {
        drop(take::<H>(&busy, s.page, stream)?);
        busy.trim_and_wait(0)?;
    }
    drop((pool, busy));
    s.close()
}

/// Frames that a trim has sent away, but that queued work still uses, are not lost to whoever asks
/// for memory next.
pub(super) fn memory_on_its_way_out_serves_a_request<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    for taker in [stream, other] {
        for steps in [0, 1, 3] {
            let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
            let lease = take::<H>(&pool, 8 * s.page, stream)?;
            s.write(&lease, stream, 1)?;
            drop(lease);
            pool.trim(0)?;
            for _ in 0..steps {
                pool.maintain();
            }
            match take::<H>(&pool, 8 * s.page, taker) {
                Ok(again) => {
                    s.write(&again, taker, 2)?;
                    s.expect(&again, taker, 2)?;
                }
                Err(error) => return Err(format!("after a trim, {steps} steps: {error}").into()),
            }
            s.audit(&pool)?;
            drop(pool);
            s.expect_nothing_left()?;
        }
    }
    s.close()
}

pub(super) fn maintenance_comes_to_an_end<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(24 * s.page, CrossStream::WaitOnDevice)?;
    maintain::<H>(&pool)?;
    let leases = [3, 1, 5, 2].map(|pages| take::<H>(&pool, pages * s.page, stream));
    for lease in leases {
        s.write(&lease?, stream, 1)?;
    }
    maintain::<H>(&pool)?;
    h.synchronize()?;
    maintain::<H>(&pool)?;
    ensure!(pool.stats().reserved_bytes <= 24 * s.page, "the limit was passed");
    s.audit(&pool)?;
    drop(pool);
    s.close()
}

//! What a pool says about itself, and what it does in its own time.

use super::scene::{PoolScene, maintain, take};
use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::{AllocError, Clock, CrossStream, PoolOptions, Request};

/// An error that names a size which would succeed must be right about it.
pub(super) fn the_largest_possible_request_succeeds<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let limit = 16 * s.page + s.edges(8);
    for pages in [1, 3, 8, 15] {
        let pool = s.limited(limit, CrossStream::WaitOnDevice)?;
        let owner = pool.owner("the holder");
        let mut held = Vec::new();
        for i in 0..8 {
            held.push(pool.allocate(2 * s.page, if i % 3 == 0 { other } else { stream }, owner)?);
        }
        let mut i = 0;
        held.retain(|_| {
            i += 1;
            2 * i > pages + 1
        });
        held.push(pool.allocate(4 << 10, other, owner)?);
        let request = limit;
        let Err(AllocError::OutOfMemory(facts)) = take::<H>(&pool, request, stream) else {
            return Err(Stop::Failed("the whole limit beside other leases".to_owned()));
        };
        let live = pool.stats().live_bytes;
        ensure_eq!(facts.owners.first(), Some(&("the holder".to_owned(), live)), "owners");
        ensure!(facts.largest_possible < request, "{} would succeed", facts.largest_possible);
        if facts.largest_possible > 0 {
            match take::<H>(&pool, facts.largest_possible, stream) {
                Ok(lease) => s.write(&lease, stream, 1)?,
                Err(error) => return Err(format!("{pages} pages free: {error}").into()),
            }
        }
        ensure!(
            facts.largest_possible + live + 2 * s.page + s.edges(8) >= request,
            "much more was free"
        );
        drop(held);
        drop(pool);
        h.synchronize()?;
    }
    s.close()
}

pub(super) fn a_snapshot_agrees_with_the_figures<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    let owner = pool.owner("somebody");
    let mut held = Vec::new();
    for i in 0..40_u64 {
        let len = if i % 4 == 0 { s.page + i } else { 700 * (i + 1) };
        let lease = pool.allocate(len, if i % 2 == 0 { stream } else { other }, owner)?;
        if i % 5 == 0 {
            lease.used_on(other);
        } else {
            held.push(lease);
        }
    }
    let (shot, stats) = (pool.snapshot(), pool.stats());
    ensure_eq!(shot.stats, stats, "the figures in the snapshot");
    let live: u64 = shot.leases.iter().filter(|l| l.count > 0).map(|l| l.len).sum();
    ensure_eq!(live, stats.live_bytes, "bytes of all leases");
    let requested: u64 = held.iter().map(vmm_core::Lease::len).sum();
    ensure_eq!(stats.requested_bytes, requested, "bytes asked for");
    ensure_eq!(stats.live_leases, held.len() as u64, "leases");
    let frames: u64 = shot.frames.iter().map(|frame| frame.len).sum();
    ensure_eq!(frames, stats.reserved_bytes, "bytes of all frames");
    for lease in &held {
        let view = shot.leases.iter().find(|view| view.addr == lease.addr());
        let view = view.ok_or_else(|| format!("{lease:?} is not in the snapshot"))?;
        let said = (view.requested, view.owner.as_str(), view.stream, view.count);
        ensure_eq!(said, (lease.len(), "somebody", lease.stream(), 1), "a lease");
        let inside = |m: &&vmm_core::MappingView| m.range.addr <= view.addr;
        ensure!(shot.mappings.iter().any(|m| inside(&m)), "{lease:?} has no memory");
    }
    let in_a_region = |range: vmm_core::AddrRange| {
        shot.regions.iter().any(|r| r.addr <= range.addr && range.end() <= r.end())
    };
    ensure!(shot.mappings.iter().all(|m| in_a_region(m.range)), "a mapping outside all regions");
    s.audit(&pool)?;
    drop(held);
    drop(pool);
    s.close()
}

/// Memory that was not needed for a while goes back, down to the target.
pub(super) fn idle_memory_leaves_after_its_time<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
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
    drop(take::<H>(&pool, 16 * s.page, stream)?);
    h.synchronize()?;
    maintain::<H>(&pool)?;
    let early = pool.stats().reserved_bytes;
    ensure!(early >= 16 * s.page, "memory went within its time: {early} bytes are left");
    // A window of time each to notice, to unmap and, where that takes the device some time, to release.
    for _ in 0..6 {
        h.synchronize()?;
        seconds.fetch_add(11, Ordering::Relaxed);
        maintain::<H>(&pool)?;
        s.audit(&pool)?;
    }
    let late = pool.stats().reserved_bytes;
    ensure!(late <= 5 * s.page, "{late} bytes long after they were needed");
    ensure_eq!(pool.stats().host_waits, 0, "waits of maintenance");
    drop(pool);
    s.close()
}

/// Steps that the user runs: what they touch is out of reach, and all is well in between.
pub(super) fn steps_can_be_run_by_hand<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    // Frames are made ahead of need only where they can move later.
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let mut leases = Vec::new();
    for round in 0..40_u8 {
        let Some(step) = pool.begin_step() else { break };
        if let Some(lease) = pool.allocate_at_hand(Request::new(4 << 10, stream))? {
            s.write(&lease, stream, round)?;
            if round % 3 != 0 {
                leases.push((lease, round));
            }
        }
        let outcome = step.run(&*s.faulty);
        ensure!(outcome.succeeded(), "a step failed: {outcome:?}");
        pool.validate();
        pool.finish_step(outcome);
        s.audit(&pool)?;
        ensure!(pool.stats().reserved_bytes <= 16 * s.page, "the limit was passed");
        if round % 2 == 0
            && let Some(lease) = pool.allocate_at_hand(Request::new(s.page, stream))?
        {
            s.write(&lease, stream, round)?;
            leases.push((lease, round));
        }
    }
    ensure!(!leases.is_empty(), "the steps made nothing that is at hand");
    for (lease, round) in &leases {
        s.expect(lease, stream, *round)?;
    }
    drop(leases);
    drop(pool);
    s.close()
}

/// A thread that finds no memory waits for the step of another, not for ever and not in vain.
pub(super) fn a_miss_waits_for_a_step_of_another_thread<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Strict)?;
    s.device.need(Need::Remapping)?;
    let stream = s.stream()?;
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let Some(step) = pool.begin_step() else {
        return Err(Stop::Failed("nothing to do in an empty pool with a limit".to_owned()));
    };
    let all = std::thread::scope(|scope| {
        let thread = scope.spawn(|| take::<H>(&pool, 8 * s.page, stream));
        std::thread::sleep(Duration::from_millis(20));
        pool.finish_step(step.run(&*s.faulty));
        thread.join()
    });
    let all = all.map_err(|_| Stop::Failed("the thread panicked".to_owned()))??;
    s.write(&all, stream, 1)?;
    drop(all);
    drop(pool);
    s.close()
}

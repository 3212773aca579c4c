//! Other devices that use memory of a pool: all of it, or single leases.

use super::scene::{FaultyLease, FaultyPool, PoolScene, maintain, take, whole};
use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vmm_core::device::{DeviceErrorKind, DeviceOp, VirtualMemoryDevice};
use vmm_core::units::{DeviceOrdinal, StreamId};
use vmm_core::{CrossStream, PoolError, PoolOptions, Request};

/// What a call that is made to fail says.
const FAILED: DeviceErrorKind = DeviceErrorKind::Failed;

/// Writes a lease and checks that each peer sees what was written.
fn peers_see<H: Harness>(
    s: &PoolScene<'_, H>,
    lease: &FaultyLease<H>,
    peers: &[DeviceOrdinal],
    byte: u8,
) -> CaseResult {
    s.device.device.fill(lease.addr(), byte, lease.len(), lease.stream())?;
    s.harness.synchronize()?;
    for peer in peers {
        let seen = s.harness.read_as_peer(*peer, whole::<H>(lease))?;
        ensure!(seen.iter().all(|found| *found == byte), "{peer:?} sees other bytes in {lease:?}");
    }
    Ok(())
}

/// Checks that no peer has access to a lease.
fn nobody_sees<H: Harness>(
    s: &PoolScene<'_, H>,
    lease: &FaultyLease<H>,
    peers: &[DeviceOrdinal],
) -> CaseResult {
    for peer in peers {
        let seen = s.harness.read_as_peer(*peer, whole::<H>(lease));
        ensure!(seen.is_err(), "{peer:?} sees {lease:?} and was given nothing");
    }
    Ok(())
}

pub(super) fn peers_of_the_options_use_all_memory<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.pool(PoolOptions { peers: peers.clone(), ..s.options(16 * s.page) })?;
    ensure_eq!(pool.snapshot().peers, peers, "peers in the snapshot");
    let before = s.faulty.calls(DeviceOp::SetAccess);
    let long = take::<H>(&pool, 3 * s.page, stream)?;
    ensure_eq!(s.faulty.calls(DeviceOp::SetAccess), before + 1, "calls that give access");
    peers_see(&s, &long, &peers, 1)?;
    maintain::<H>(&pool)?;
    let short = take::<H>(&pool, 4 << 10, stream)?;
    let later = take::<H>(&pool, 5 * s.page, stream)?;
    peers_see(&s, &short, &peers, 2)?;
    peers_see(&s, &later, &peers, 3)?;
    let shot = pool.snapshot();
    ensure!(shot.mappings.iter().all(|m| m.peers == peers.len()), "peers of mappings: {shot:?}");
    drop((long, short, later));
    drop(pool);
    s.close()
}

/// llama.cpp#4606, XLA
pub(super) fn a_peer_that_is_added_uses_all_memory<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(24 * s.page, CrossStream::WaitOnDevice)?;
    let old = take::<H>(&pool, 3 * s.page, stream)?;
    let short = take::<H>(&pool, 4 << 10, stream)?;
    let free = take::<H>(&pool, 2 * s.page, stream)?;
    nobody_sees(&s, &old, &peers)?;
    drop(free);
    for (i, peer) in peers.iter().enumerate() {
        pool.add_peer(*peer)?;
        ensure_eq!(pool.snapshot().peers, peers[..=i], "peers in the snapshot");
        peers_see(&s, &old, &peers[..=i], 1)?;
        peers_see(&s, &short, &peers[..=i], 2)?;
        nobody_sees(&s, &old, &peers[i + 1..])?;
        // Once is enough.
        let calls = s.faulty.calls(DeviceOp::SetAccess);
        pool.add_peer(*peer)?;
        ensure_eq!(s.faulty.calls(DeviceOp::SetAccess), calls, "calls for a peer that is known");
    }
    // What was free when they came, and what is made and moved afterwards.
    let mut leases = Vec::new();
    for pages in [2, 4, 1, 6] {
        leases.push(take::<H>(&pool, pages * s.page, stream)?);
    }
    maintain::<H>(&pool)?;
    leases.push(take::<H>(&pool, s.page, stream)?);
    for (byte, lease) in (10..).zip(&leases) {
        peers_see(&s, lease, &peers, byte)?;
    }
    s.audit(&pool)?;
    drop((old, short, leases));
    drop(pool);
    s.close()
}

/// Frames move, and go back to where they were, before a peer is added and afterwards.
pub(super) fn memory_keeps_its_peers_when_it_moves<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    // All in one piece, then in eight, of which every other gives way to a long one that needs a
    // move. A program that repeats this finds its stale mappings again.
    let round = |peers: &[DeviceOrdinal]| -> CaseResult {
        peers_see(&s, &take::<H>(&pool, 8 * s.page, stream)?, peers, 1)?;
        let mut kept = Vec::new();
        let pieces = [0; 8].map(|_| take::<H>(&pool, s.page, stream));
        for (i, piece) in pieces.into_iter().enumerate() {
            let piece = piece?;
            if i % 2 == 0 {
                peers_see(&s, &piece, peers, 2)?;
                kept.push(piece);
            }
        }
        peers_see(&s, &take::<H>(&pool, 4 * s.page, stream)?, peers, 3)?;
        for piece in &kept {
            peers_see(&s, piece, peers, 4)?;
        }
        pool.validate();
        Ok(())
    };
    round(&[])?;
    let before = pool.stats();
    ensure!(before.frames_moved > 0 && before.stale_bytes > 0, "nothing has moved: {before:?}");
    // What is stale now lacks the peers, and must not come back without.
    for peer in &peers {
        pool.add_peer(*peer)?;
    }
    for _ in 0..4 {
        round(&peers)?;
    }
    maintain::<H>(&pool)?;
    round(&peers)?;
    let after = pool.stats();
    ensure!(after.frames_moved > before.frames_moved, "nothing has moved since: {after:?}");
    ensure!(after.frames_recalled > before.frames_recalled, "nothing was recalled: {after:?}");
    s.audit(&pool)?;
    drop(pool);
    s.close()
}

/// One lease for peers, beside leases of others and without moving it.
pub(super) fn a_lease_can_be_shared_with_peers<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(24 * s.page, CrossStream::WaitOnDevice)?;
    let (mine, theirs) = (pool.owner("mine"), pool.owner("theirs"));
    let before = pool.allocate(2 * s.page, stream, theirs)?;
    let lease = pool.allocate(3 * s.page, stream, mine)?;
    let behind = pool.allocate(2 * s.page, stream, theirs)?;
    let place = whole::<H>(&lease);
    s.write(&lease, stream, 5)?;
    lease.grant(&[])?;
    lease.grant(&peers)?;
    ensure_eq!(whole::<H>(&lease), place, "the place of the lease");
    h.synchronize()?;
    for peer in &peers {
        let seen = h.read_as_peer(*peer, place)?;
        ensure!(seen.iter().all(|byte| *byte == 5), "{peer:?} sees other bytes");
    }
    // Frames are as long as a page here, so that nothing else lies in those of the lease.
    nobody_sees(&s, &before, &peers)?;
    nobody_sees(&s, &behind, &peers)?;
    let calls = s.faulty.calls(DeviceOp::SetAccess);
    lease.grant(&peers)?;
    lease.share(theirs).grant(&peers)?;
    ensure_eq!(s.faulty.calls(DeviceOp::SetAccess), calls, "calls for what was granted before");
    ensure!(pool.snapshot().peers.is_empty(), "the pool got peers by a lease");
    let later = take::<H>(&pool, 2 * s.page, stream)?;
    nobody_sees(&s, &later, &peers)?;
    let nothing = take::<H>(&pool, 0, stream)?;
    nothing.grant(&peers)?;
    drop((before, lease, behind, later, nothing));
    drop(pool);
    s.close()
}

/// A grant is dear, so frames that have one stay in place while others can move.
pub(super) fn shared_frames_move_last<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(12 * s.page, CrossStream::WaitOnDevice)?;
    let mut pieces = Vec::new();
    for _ in 0..12 {
        pieces.push(take::<H>(&pool, s.page, stream)?);
    }
    // Every other page becomes free, half of these with grants, which lie first.
    let mut kept = Vec::new();
    let mut shared = Vec::new();
    for (i, piece) in pieces.into_iter().enumerate() {
        if i % 2 == 0 {
            kept.push(piece);
        } else if i < 6 {
            piece.grant(&peers)?;
            shared.push(whole::<H>(&piece));
        }
    }
    let in_place = |pool: &FaultyPool<H>| {
        let shot = pool.snapshot();
        let current = |m: &&vmm_core::MappingView| !m.stale && shared.contains(&m.range);
        shot.mappings.iter().filter(current).filter(|m| m.peers == peers.len()).count()
    };
    ensure_eq!(in_place(&pool), 3, "shared frames in place");
    let moved = take::<H>(&pool, 3 * s.page, stream)?;
    ensure_eq!(in_place(&pool), 3, "shared frames in place, when others could move");
    nobody_sees(&s, &moved, &peers)?;
    // What they hold next is shared at no cost.
    let calls = s.faulty.calls(DeviceOp::SetAccess);
    let again = take::<H>(&pool, s.page, stream)?;
    again.grant(&peers)?;
    peers_see(&s, &again, &peers, 1)?;
    ensure_eq!(s.faulty.calls(DeviceOp::SetAccess), calls, "calls for a frame that is shared");
    drop(again);
    // Where nothing else is left they serve as all others do.
    let rest = take::<H>(&pool, 3 * s.page, stream)?;
    ensure_eq!(in_place(&pool), 0, "shared frames in place");
    nobody_sees(&s, &rest, &peers)?;
    rest.grant(&peers)?;
    peers_see(&s, &rest, &peers, 2)?;
    s.audit(&pool)?;
    drop((kept, moved, rest));
    drop(pool);
    long_shared_frames_move_last(&s, stream, &peers)?;
    s.close()
}

/// As before, where a shared frame alone would nearly do: without a limit frames differ in length.
fn long_shared_frames_move_last<H: Harness>(
    s: &PoolScene<'_, H>,
    stream: StreamId,
    peers: &[DeviceOrdinal],
) -> CaseResult {
    let pool = s.pool(PoolOptions { limit: None, ..s.options(0) })?;
    let mut kept = vec![take::<H>(&pool, 100 * s.page, stream)?];
    let shared = take::<H>(&pool, 4 * s.page, stream)?;
    shared.grant(peers)?;
    let place = whole::<H>(&shared);
    let mut pieces = Vec::new();
    for _ in 0..5 {
        kept.push(take::<H>(&pool, s.page, stream)?);
        pieces.push(take::<H>(&pool, s.page, stream)?);
    }
    kept.push(take::<H>(&pool, s.page, stream)?);
    drop((shared, pieces));
    let long = take::<H>(&pool, 5 * s.page, stream)?;
    nobody_sees(s, &long, peers)?;
    ensure!(pool.stats().frames_moved > 0, "nothing has moved");
    let shot = pool.snapshot();
    let stays = shot.mappings.iter().any(|m| m.range == place && !m.stale);
    ensure!(stays, "the shared frame has moved: {shot:?}");
    drop((kept, long));
    drop(pool);
    s.expect_nothing_left()
}

pub(super) fn a_refused_grant_changes_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peer = h.peers()[0];
    for k in [1, 2, 6] {
        let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
        let lease = take::<H>(&pool, 6 * s.page, stream)?;
        s.write(&lease, stream, 1)?;
        for to_pool in [false, true] {
            if to_pool {
                // What the lease has by now is not asked for again.
                drop(take::<H>(&pool, 6 * s.page, stream)?);
            }
            let give = || if to_pool { pool.add_peer(peer) } else { lease.grant(&[peer]) };
            let (before, faults) = (pool.stats(), s.faulty.faults());
            s.faulty.fail(DeviceOp::SetAccess, k, FAILED);
            match give() {
                Err(PoolError::Device(error)) => {
                    ensure_eq!(error.op, DeviceOp::SetAccess, "the call in the error");
                }
                other => {
                    return Err(Stop::Failed(format!("call {k} fails and it ends in {other:?}")));
                }
            }
            ensure_eq!(s.faulty.faults(), faults + 1, "faults");
            ensure!(pool.snapshot().peers.is_empty(), "a peer that could not be given access");
            let after = pool.stats();
            let figures = |stats: &vmm_core::Stats| (stats.live_bytes, stats.reserved_bytes);
            ensure_eq!(figures(&after), figures(&before), "live and reserved bytes");
            s.audit(&pool)?;
            // What is made now is not for the peer.
            let next = take::<H>(&pool, s.page, stream)?;
            s.write(&next, stream, 2)?;
            give()?;
            peers_see(&s, &lease, &[peer], 3)?;
        }
        ensure_eq!(pool.snapshot().peers, [peer], "peers at the end");
        drop(lease);
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

/// A peer is added while a step is under way that was decided on before.
pub(super) fn a_growth_under_way_does_not_miss_a_new_peer<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    for fails in [false, true] {
        let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
        let Some(step) = pool.begin_step() else {
            return Err(Stop::Failed("nothing to do in an empty pool with a limit".to_owned()));
        };
        let outcome = step.run(&*s.faulty);
        for peer in &peers {
            pool.add_peer(*peer)?;
        }
        if fails {
            s.faulty.fail(DeviceOp::SetAccess, 1, FAILED);
        }
        pool.finish_step(outcome);
        s.audit(&pool)?;
        let found = pool.allocate_at_hand(Request::new(4 << 10, stream))?;
        ensure_eq!(found.is_some(), !fails, "memory at hand");
        if let Some(lease) = found {
            peers_see(&s, &lease, &peers, 1)?;
        }
        let later = take::<H>(&pool, 3 * s.page, stream)?;
        peers_see(&s, &later, &peers, 2)?;
        drop(later);
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

/// Another thread moves idle frames and has their old mappings removed, just when a peer is given
/// access to these.
pub(super) fn a_mapping_stays_while_a_peer_is_let_in<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let mut kept = Vec::new();
    let pieces = [0; 8].map(|_| take::<H>(&pool, s.page, stream));
    for (i, piece) in pieces.into_iter().enumerate() {
        kept.extend((i % 2 == 0).then_some(piece?));
    }
    let (moved, len) = (Arc::new(AtomicU64::new(0)), 4 * s.page);
    let (other, count) = (pool.clone(), Arc::clone(&moved));
    s.faulty.once_before(DeviceOp::SetAccess, move || {
        drop(other.allocate(len, stream, vmm_core::Owner::NONE));
        while other.maintain() {}
        count.store(other.stats().frames_moved, Ordering::Relaxed);
    });
    pool.add_peer(peers[0])?;
    ensure!(moved.load(Ordering::Relaxed) > 0, "nothing has moved meanwhile");
    ensure_eq!(h.refusals(), 0, "calls refused");
    for lease in &kept {
        peers_see(&s, lease, &peers[..1], 1)?;
    }
    peers_see(&s, &take::<H>(&pool, 4 * s.page, stream)?, &peers[..1], 2)?;
    maintain::<H>(&pool)?;
    s.audit(&pool)?;
    drop(kept);
    drop(pool);
    s.close()
}

/// Threads allocate, frames move and go, and meanwhile peers are added.
pub(super) fn peers_can_be_added_at_any_moment<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    s.device.need(Need::Strict)?;
    let peers = h.peers();
    for round in 0..8 {
        let pool = s.limited(40 * s.page, CrossStream::WaitOnDevice)?;
        let streams = [s.stream()?, s.stream()?, s.stream()?];
        let page = s.page;
        let work = |stream| {
            let mut held = Vec::new();
            for i in 0..60_u64 {
                held.push(take::<H>(&pool, (1 + (i * 7 + round) % 5) * page, stream)?);
                if held.len() > 2 {
                    held.swap_remove(usize::try_from(i % 3).unwrap_or(0));
                }
                if i % 10 == 9 {
                    pool.maintain();
                    pool.trim(10 * page)?;
                }
                if i % 16 == 0 {
                    held[0].grant(&peers[..1])?;
                }
            }
            Ok::<_, Stop>(held)
        };
        let (added, held) = std::thread::scope(|scope| {
            let threads: Vec<_> =
                streams.iter().map(|stream| scope.spawn(|| work(*stream))).collect();
            let added: Vec<_> = peers.iter().map(|peer| pool.add_peer(*peer)).collect();
            let panicked = || Err(Stop::Failed("a thread panicked".to_owned()));
            let held: Vec<_> =
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect();
            (added, held)
        });
        for result in added {
            result?;
        }
        pool.validate();
        for held in held {
            for lease in held? {
                peers_see(&s, &lease, &peers, 3)?;
            }
        }
        ensure_eq!(h.refusals(), 0, "calls refused");
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

pub(super) fn a_capture_does_not_keep_peers_away<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Peers)?;
    s.device.need(Need::Capture)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let lease = take::<H>(&pool, 2 * s.page, stream)?;
    h.begin_capture(stream)?;
    let granted = lease.grant(&peers);
    let added: Vec<_> = peers.iter().map(|peer| pool.add_peer(*peer)).collect();
    let captured = take::<H>(&pool, 3 * s.page, stream);
    h.end_capture(stream)?;
    ensure_eq!(h.refusals(), 0, "calls refused");
    granted?;
    for result in added {
        result?;
    }
    peers_see(&s, &lease, &peers, 1)?;
    peers_see(&s, &captured?, &peers, 2)?;
    drop(lease);
    drop(pool);
    s.close()
}

/// Where there are no peers, and for one that there is not.
pub(super) fn peers_that_cannot_be_are_refused<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let can = s.device.capabilities();
    let nobody = DeviceOrdinal(u32::MAX);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let lease = take::<H>(&pool, 2 * s.page, stream)?;
    lease.grant(&[])?;
    for refused in [pool.add_peer(nobody), lease.grant(&[nobody])] {
        match refused {
            Err(PoolError::NotSupported { .. }) => ensure!(!can.peers, "the device has peers"),
            Err(PoolError::Device(error)) => {
                ensure_eq!(error.kind, DeviceErrorKind::NotSupported, "{error}");
                ensure!(can.peers, "the device was asked though it has no peers");
            }
            other => return Err(Stop::Failed(format!("a peer that there is not: {other:?}"))),
        }
    }
    ensure!(pool.snapshot().peers.is_empty(), "peers after refusals");
    // Nobody else suffers from it.
    let next = take::<H>(&pool, 3 * s.page, stream)?;
    s.write(&next, stream, 1)?;
    s.expect(&next, stream, 1)?;
    drop((lease, next));
    drop(pool);
    let options = PoolOptions { peers: vec![nobody], ..s.options(16 * s.page) };
    match s.pool(options) {
        Err(PoolError::NotSupported { .. }) => ensure!(!can.peers, "the device has peers"),
        Err(PoolError::Device(error)) => {
            ensure_eq!(error.kind, DeviceErrorKind::NotSupported, "{error}");
            ensure!(can.peers, "the device was asked though it has no peers");
        }
        other => {
            return Err(Stop::Failed(format!("a pool for a peer that there is not: {other:?}")));
        }
    }
    // An empty pool finds out as well, and grows as if nothing had been asked.
    let empty = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    ensure!(empty.add_peer(nobody).is_err(), "a peer of an empty pool that there is not");
    drop(take::<H>(&empty, s.page, stream)?);
    s.audit(&empty)?;
    drop(empty);
    s.close()
}

//! Private pools: memory that stays where it is and goes to nobody else, and comes back in the end.

use super::captures::FORBIDDEN;
use super::scene::{FaultyLease, FaultyPool, MIB, PoolScene, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::time::Duration;
use vmm_core::device::{AddrRange, DeviceOp};
use vmm_core::units::{DeviceAddr, StreamId};
use vmm_core::{AllocAtError, AllocError, CrossStream, Owner, PrivatePool};
use vmm_mock::Faulty;

/// A private pool on a device with faults.
pub(super) type FaultyPrivate<H> = PrivatePool<Faulty<<H as Harness>::Device>>;

fn take_private<H: Harness>(
    private: &FaultyPrivate<H>,
    len: u64,
    stream: StreamId,
) -> Result<FaultyLease<H>, AllocError> {
    private.allocate(len, stream, Owner::NONE)
}

/// Whether a range lies in the addresses of a private pool.
fn lies_in<H: Harness>(private: &FaultyPrivate<H>, range: AddrRange) -> bool {
    let snapshot = private.pool().snapshot();
    let mut views = snapshot.private_pools.iter().filter(|view| view.id == private.id());
    views.any(|view| {
        view.regions.iter().any(|region| region.addr <= range.addr && range.end() <= region.end())
    })
}

/// Where the frames of a private pool are mapped, stale mappings left out.
fn mapped<H: Harness>(private: &FaultyPrivate<H>) -> Vec<AddrRange> {
    let snapshot = private.pool().snapshot();
    let current = snapshot.mappings.iter().filter(|mapping| !mapping.stale);
    let mut ranges: Vec<_> = current
        .map(|mapping| mapping.range)
        .filter(|range| lies_in::<H>(private, *range))
        .collect();
    ranges.sort_by_key(|range| range.addr);
    ranges
}

/// Checks that an allocation failed for want of memory.
fn ensure_out_of_memory<T>(result: Result<T, AllocError>) -> CaseResult {
    match result {
        Err(AllocError::OutOfMemory(_)) => Ok(()),
        Err(other) => Err(other.into()),
        Ok(_) => Err("an allocation succeeded that there is no memory for".to_owned().into()),
    }
}

pub(super) fn a_private_pool_has_addresses_of_its_own<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(40 * s.page, CrossStream::WaitOnDevice)?;
    let privates = [pool.private_pool()?, pool.private_pool()?];
    ensure!(privates[0].id() != privates[1].id(), "two private pools have one id");
    let lens = [4 << 10, 3 * s.page, 100, s.page, MIB, 2 * s.page + 1];
    for round in 0..2_u8 {
        let mut leases = Vec::new();
        for (i, len) in lens.into_iter().enumerate() {
            let byte = 40 * round + 3 * u8::try_from(i).unwrap_or(0);
            leases.push((take::<H>(&pool, len, stream)?, None, byte));
            for (owner, private) in (0..2).zip(&privates) {
                let lease = take_private::<H>(private, len, stream)?;
                leases.push((lease, Some(usize::from(owner)), byte + 1 + owner));
            }
        }
        for (lease, _, byte) in &leases {
            s.write(lease, stream, *byte)?;
        }
        for (lease, owner, byte) in &leases {
            s.expect(lease, stream, *byte)?;
            for (number, private) in privates.iter().enumerate() {
                let inside = lies_in::<H>(private, whole::<H>(lease));
                ensure_eq!(inside, *owner == Some(number), "whether {lease:?} lies in {private:?}");
            }
        }
        let snapshot = pool.snapshot();
        for view in &snapshot.leases {
            let (_, owner, _) = leases
                .iter()
                .find(|(lease, ..)| lease.addr() == view.addr)
                .ok_or("a lease of the snapshot is nobody's")
                .map_err(str::to_owned)?;
            let expected = owner.map(|number| privates[number].id());
            ensure_eq!(view.private_pool, expected, "the private pool of a lease in the snapshot");
        }
        s.audit(&pool)?;
    }
    let stats = pool.stats();
    ensure_eq!(stats.private_pools, 2, "private pools");
    let views = pool.snapshot().private_pools;
    let reserved: u64 = views.iter().map(|view| view.reserved_bytes).sum();
    ensure_eq!(stats.private_reserved_bytes, reserved, "bytes of private pools");
    ensure!(reserved >= 2 * 6 * s.page, "private pools have {reserved} bytes for all their leases");
    drop(privates);
    drop(pool);
    s.close()
}

/// However little the others have.
pub(super) fn memory_of_a_private_pool_stays_where_it_is<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    for cross_stream in [CrossStream::WaitOnDevice, CrossStream::WhenReached, CrossStream::Never] {
        let pool = s.limited(10 * s.page, cross_stream)?;
        let private = pool.private_pool()?;
        let held = take_private::<H>(&private, s.page, stream)?;
        let free = take_private::<H>(&private, 4 * s.page, stream)?;
        s.write(&held, stream, 1)?;
        s.write(&free, stream, 2)?;
        let at = free.addr();
        drop(free);
        let before = mapped::<H>(&private);
        let ours = pool.stats().private_reserved_bytes;
        let rest = 10 * s.page - ours;
        h.synchronize()?;
        for taker in [stream, other] {
            ensure_out_of_memory(take::<H>(&pool, rest + s.page, taker))?;
            let all = take::<H>(&pool, rest, taker)?;
            s.write(&all, taker, 3)?;
            ensure_out_of_memory(take::<H>(&pool, 4 << 10, taker))?;
            drop(all);
            let another = pool.private_pool()?;
            ensure_out_of_memory(take_private::<H>(&another, rest + s.page, taker))?;
            drop(take_private::<H>(&another, s.page, taker)?);
        }
        h.synchronize()?;
        maintain::<H>(&pool)?;
        pool.trim_and_wait(0)?;
        let stats = pool.stats();
        ensure_eq!(stats.reserved_bytes, stats.private_reserved_bytes, "bytes after a trim");
        ensure_eq!(mapped::<H>(&private), before, "where the private pool is mapped");
        s.expect(&held, stream, 1)?;
        let calls = s.faulty.calls(DeviceOp::MakeFrame) + s.faulty.calls(DeviceOp::Map);
        let again = take_private::<H>(&private, 4 * s.page, stream)?;
        ensure_eq!(again.addr(), at, "the only free memory of the private pool");
        let now = s.faulty.calls(DeviceOp::MakeFrame) + s.faulty.calls(DeviceOp::Map);
        ensure_eq!(now, calls, "calls for memory that the private pool has");
        s.audit(&pool)?;
        drop((held, again, private));
        h.synchronize()?;
        pool.trim_and_wait(0)?;
        ensure_eq!(pool.stats().reserved_bytes, 0, "bytes after the release");
        drop(pool);
        s.expect_nothing_left()?;
    }
    s.close()
}

pub(super) fn a_released_private_pool_gives_its_memory_back<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let private = pool.private_pool()?;
    let clone = private.clone();
    let kept = take_private::<H>(&private, 4 * s.page, stream)?;
    let gone = take_private::<H>(&clone, 3 * s.page, other)?;
    s.write(&kept, stream, 1)?;
    s.write(&gone, other, 2)?;
    drop(gone);
    drop(private);
    ensure_eq!(pool.stats().private_pools, 1, "private pools while a clone lives");
    let before = DeviceOp::ALL.map(|op| s.faulty.calls(op));
    drop(clone);
    ensure_eq!(DeviceOp::ALL.map(|op| s.faulty.calls(op)), before, "calls of the release");
    ensure_eq!(pool.stats().private_pools, 0, "private pools");
    s.audit(&pool)?;
    let general = take::<H>(&pool, 3 * s.page, stream)?;
    s.write(&general, stream, 3)?;
    s.expect(&kept, stream, 1)?;
    s.expect(&general, stream, 3)?;
    drop(kept);
    let more = take::<H>(&pool, 4 * s.page, other)?;
    s.write(&more, other, 4)?;
    s.expect(&general, stream, 3)?;
    ensure_eq!(h.complaints(), Vec::<String>::new(), "complaints of the device");
    drop((general, more));
    pool.trim_and_wait(0)?;
    let stats = pool.stats();
    ensure_eq!((stats.reserved_bytes, stats.private_reserved_bytes), (0, 0), "bytes at the end");
    drop(pool);
    s.close()
}

/// A graph may have been launched on any stream, as its pool is not told.
pub(super) fn memory_of_a_released_private_pool_waits_for_all_streams<H: Harness>(
    h: &H,
) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    let (stream, launched) = (s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page, CrossStream::WhenReached)?;
    // The pool knows the stream.
    let known = take::<H>(&pool, 4 << 10, launched)?;
    let private = pool.private_pool()?;
    let lease = take_private::<H>(&private, 4 * s.page, stream)?;
    let range = whole::<H>(&lease);
    drop(lease);
    h.synchronize()?;
    // As the launch of a graph does.
    h.occupy(launched, &[Use::Write(range, 7)])?;
    drop(private);
    maintain::<H>(&pool)?;
    pool.trim(0)?;
    ensure!(
        pool.stats().reserved_bytes >= 4 * s.page,
        "memory that work still writes was released"
    );
    let beside = take::<H>(&pool, 2 * s.page, stream)?;
    s.write(&beside, stream, 1)?;
    s.expect(&beside, stream, 1)?;
    h.let_go()?;
    h.synchronize()?;
    ensure_eq!(h.complaints(), Vec::<String>::new(), "complaints of the device");
    drop(known);
    drop(take::<H>(&pool, 6 * s.page, stream)?);
    drop(beside);
    drop(pool);
    s.close()
}

/// pytorch#190348
pub(super) fn a_failed_capture_gives_its_memory_back<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let stream = s.stream()?;
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    for _ in 0..3 {
        let private = pool.private_pool()?;
        h.begin_capture(stream)?;
        let before = FORBIDDEN.map(|op| s.faulty.units(op));
        let lease = take_private::<H>(&private, 5 * s.page, stream)?;
        let short = take_private::<H>(&private, 4 << 10, stream)?;
        s.write(&lease, stream, 1)?;
        ensure_out_of_memory(take_private::<H>(&private, 5 * s.page, stream))?;
        let during = FORBIDDEN.map(|op| s.faulty.units(op));
        drop((lease, short));
        h.end_capture(stream)?;
        ensure_eq!(during, before, "calls of {FORBIDDEN:?}");
        drop(private);
        pool.trim_and_wait(0)?;
        ensure_eq!(pool.stats().reserved_bytes, 0, "bytes after a capture that failed");
        s.audit(&pool)?;
    }
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop(pool);
    s.close()
}

/// pytorch#193982
pub(super) fn a_private_release_during_a_capture_asks_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let private = pool.private_pool()?;
    let eager = take_private::<H>(&private, 2 * s.page, other)?;
    h.synchronize()?;
    h.begin_capture(stream)?;
    let captured = take_private::<H>(&private, 2 * s.page, stream)?;
    let shared = captured.share(Owner::NONE);
    eager.used_on(stream);
    captured.used_on(other);
    let before = DeviceOp::ALL.map(|op| s.faulty.calls(op));
    let forbidden = FORBIDDEN.map(|op| s.faulty.units(op));
    eager.release(stream);
    shared.release(stream);
    drop(captured);
    ensure_eq!(DeviceOp::ALL.map(|op| s.faulty.calls(op)), before, "calls of releases");
    // What is in use by two streams serves nobody before the capture has ended.
    let more = take_private::<H>(&private, 2 * s.page, stream)?;
    maintain::<H>(&pool)?;
    ensure_eq!(FORBIDDEN.map(|op| s.faulty.units(op)), forbidden, "calls of {FORBIDDEN:?}");
    h.end_capture(stream)?;
    h.synchronize()?;
    let reserved = pool.stats().private_reserved_bytes;
    let rest = [(); 2].map(|()| take_private::<H>(&private, 2 * s.page, stream));
    for lease in rest {
        lease?;
    }
    ensure_eq!(pool.stats().private_reserved_bytes, reserved, "bytes of the private pool");
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop((more, private));
    drop(pool);
    s.close()
}

pub(super) fn a_capture_uses_its_memory_again<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let stream = s.stream()?;
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    let private = pool.private_pool()?;
    let mut places = Vec::new();
    for capture in 0..3 {
        h.begin_capture(stream)?;
        let mut found = Vec::new();
        for len in [3 * s.page, 2 * s.page, 4 << 10, 3 * s.page, 5 * s.page, 8 << 10] {
            let lease = take_private::<H>(&private, len, stream)?;
            s.write(&lease, stream, 1)?;
            found.push(lease.addr());
        }
        h.end_capture(stream)?;
        let reserved = pool.stats().private_reserved_bytes;
        ensure!(reserved <= 12 * s.page, "capture {capture} has {reserved} bytes");
        places.push((found, reserved));
        s.audit(&pool)?;
    }
    ensure_eq!(places[1], places[2], "addresses and bytes of captures that are alike");
    // Work that is not captured follows the rules of streams.
    let other = s.stream()?;
    let lease = take_private::<H>(&private, 5 * s.page, other)?;
    s.write(&lease, other, 2)?;
    drop(lease);
    ensure_eq!(pool.stats().private_reserved_bytes, places[2].1, "bytes with another stream");
    ensure_eq!(h.refusals(), 0, "calls refused");
    drop(private);
    drop(pool);
    s.close()
}

pub(super) fn two_captures_at_once_have_memory_of_their_own<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    let streams = [s.stream()?, s.stream()?];
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    let privates = [pool.private_pool()?, pool.private_pool()?];
    h.begin_capture(streams[0])?;
    h.begin_capture(streams[1])?;
    let before = FORBIDDEN.map(|op| s.faulty.units(op));
    let mut kept = Vec::new();
    for len in [s.page, 3 * s.page, 4 << 10, 2 * s.page] {
        for (private, stream) in privates.iter().zip(streams) {
            let lease = take_private::<H>(private, len, stream)?;
            s.write(&lease, stream, 1)?;
            ensure!(lies_in::<H>(private, whole::<H>(&lease)), "{lease:?} lies elsewhere");
            kept.push(lease);
            if kept.len() % 3 == 0 {
                kept.pop();
            }
        }
    }
    ensure_eq!(FORBIDDEN.map(|op| s.faulty.units(op)), before, "calls of {FORBIDDEN:?}");
    h.end_capture(streams[1])?;
    h.end_capture(streams[0])?;
    ensure_eq!(h.refusals(), 0, "calls refused");
    s.audit(&pool)?;
    drop((kept, privates));
    pool.trim_and_wait(0)?;
    ensure_eq!(pool.stats().reserved_bytes, 0, "bytes at the end");
    drop(pool);
    s.close()
}

pub(super) fn a_capture_takes_no_memory_that_work_still_uses<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Capture)?;
    s.device.need(Need::Occupy)?;
    s.device.need(Need::Aliases)?;
    let (stream, busy) = (s.stream()?, s.stream()?);
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let private = pool.private_pool()?;
    for taker in [stream, busy] {
        let used = take::<H>(&pool, 8 * s.page, taker)?;
        h.occupy(taker, &[Use::Write(whole::<H>(&used), 1)])?;
        drop(used);
        h.begin_capture(stream)?;
        let before = FORBIDDEN.map(|op| s.faulty.units(op));
        ensure_out_of_memory(take_private::<H>(&private, 2 * s.page, stream))?;
        ensure_eq!(FORBIDDEN.map(|op| s.faulty.units(op)), before, "calls of {FORBIDDEN:?}");
        h.end_capture(stream)?;
        h.let_go()?;
        h.synchronize()?;
    }
    // A private pool is made before its capture, and learns how far the work is.
    let next = pool.private_pool()?;
    h.begin_capture(stream)?;
    let lease = take_private::<H>(&next, 6 * s.page, stream)?;
    s.write(&lease, stream, 1)?;
    h.end_capture(stream)?;
    ensure_eq!(pool.stats().reserved_bytes, 8 * s.page, "bytes with frames that moved in");
    ensure_eq!(h.refusals(), 0, "calls refused");
    s.audit(&pool)?;
    drop((lease, next, private));
    drop(take::<H>(&pool, 8 * s.page, stream)?);
    drop(pool);
    s.close()
}

/// As CUDA graph trees do.
pub(super) fn a_checkpoint_of_a_private_pool_can_be_restored<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(32 * s.page, CrossStream::WaitOnDevice)?;
    let (private, another) = (pool.private_pool()?, pool.private_pool()?);
    let lens = [3 * s.page, 700, 2 * s.page, 4 << 10, s.page, 512];
    let leases = lens.map(|len| take_private::<H>(&private, len, stream));
    let mut places = Vec::new();
    let mut kept = Vec::new();
    for (len, lease) in lens.into_iter().zip(leases) {
        let lease = lease?;
        places.push((lease.addr(), len));
        kept.push(lease);
    }
    let at = |addr: DeviceAddr, len, stream| private.allocate_at(addr, len, stream, Owner::NONE);
    let refused = |result: Result<FaultyLease<H>, AllocAtError>, what| match result {
        Err(AllocAtError::NotFree { .. }) => Ok(()),
        other => Err(Stop::Failed(format!("{what} ends in {other:?}"))),
    };
    for (addr, len) in &places {
        refused(at(*addr, *len, stream), "a range that is held")?;
        refused(another.allocate_at(*addr, *len, stream, Owner::NONE), "another's range")?;
    }
    for (round, stream) in [stream, stream, other].into_iter().enumerate() {
        kept.drain(..).for_each(drop);
        let before = pool.stats();
        let (map, make) = (s.faulty.calls(DeviceOp::Map), s.faulty.calls(DeviceOp::MakeFrame));
        for step in 0..places.len() {
            let (addr, len) = places[(5 * step + round) % places.len()];
            let lease = at(addr, len, stream).map_err(|error| error.to_string())?;
            ensure_eq!((lease.addr(), lease.len()), (addr, len), "the lease");
            h.work(stream, Duration::from_micros(50), &[Use::Write(whole::<H>(&lease), 9)])?;
            refused(at(addr, 512, stream), "a range that is held")?;
            kept.push(lease);
        }
        let now = (s.faulty.calls(DeviceOp::Map), s.faulty.calls(DeviceOp::MakeFrame));
        ensure_eq!(now, (map, make), "calls for memory that is there");
        ensure_eq!(pool.stats().reserved_bytes, before.reserved_bytes, "bytes");
        s.audit(&pool)?;
    }
    let end = kept[0].addr().offset(kept[0].len());
    drop(kept);
    refused(at(DeviceAddr(end.0 + 1), 512, stream), "an odd address")?;
    refused(at(DeviceAddr(512), 512, stream), "an address of nobody")?;
    refused(at(DeviceAddr(u64::MAX - 511), 4096, stream), "the end of all addresses")?;
    refused(at(places[0].0, u64::MAX, stream), "a range without end")?;
    ensure_eq!(h.complaints(), Vec::<String>::new(), "complaints of the device");
    drop((private, another));
    drop(pool);
    s.close()
}

pub(super) fn private_pools_come_and_go_without_end<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    drop(take::<H>(&pool, s.page, other)?);
    let mut settled = None;
    for cycle in 0..1_000_u64 {
        let private = pool.private_pool()?;
        ensure_eq!(private.id().number(), cycle + 1, "ids");
        let first = take_private::<H>(&private, (1 + cycle % 5) * s.page, stream)?;
        let second = take_private::<H>(&private, 4 << 10, stream)?;
        h.work(stream, Duration::from_micros(5), &[Use::Write(whole::<H>(&first), 1)])?;
        if cycle % 2 == 0 {
            drop((first, second, private));
        } else {
            drop((private, first, second));
        }
        if cycle % 3 == 0 {
            pool.maintain();
        }
        if cycle % 100 == 0 {
            s.audit(&pool)?;
        }
        if cycle == 100 {
            settled = Some(pool.stats());
        }
    }
    let (then, now) = (settled.ok_or_else(|| "no cycle".to_owned())?, pool.stats());
    // A page that is lost in each cycle makes 1.8 GiB. What is unmapped late, by a step of maintenance,
    // may cost a reservation.
    let more = now.address_bytes - then.address_bytes.min(now.address_bytes);
    ensure!(more <= 256 * MIB, "{more} bytes of addresses more after 1000 private pools");
    ensure!(now.reserved_bytes <= 16 * s.page, "{} bytes", now.reserved_bytes);
    ensure_eq!(now.private_pools, 0, "private pools");
    h.synchronize()?;
    drop(take::<H>(&pool, 16 * s.page, stream)?);
    maintain::<H>(&pool)?;
    pool.trim_and_wait(0)?;
    ensure_eq!(pool.stats().reserved_bytes, 0, "bytes at the end");
    drop(pool);
    s.close()
}

/// A private pool takes over from the last one where that was, by recall.
pub(super) fn private_pools_that_repeat_map_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Aliases)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    drop(take::<H>(&pool, s.page, other)?);
    let calls =
        || [DeviceOp::MakeFrame, DeviceOp::Map, DeviceOp::Unmap].map(|op| s.faulty.calls(op));
    let mut before = calls();
    for cycle in 0..8 {
        let private = pool.private_pool()?;
        let long = take_private::<H>(&private, 5 * s.page, stream)?;
        let short = take_private::<H>(&private, 4 << 10, stream)?;
        s.write(&long, stream, 1)?;
        s.expect(&long, stream, 1)?;
        drop((long, short, private));
        h.synchronize()?;
        if cycle < 2 {
            before = calls();
        }
        ensure_eq!(calls(), before, "calls of cycle {cycle}");
    }
    drop(pool);
    s.close()
}

pub(super) fn too_many_private_pools_are_refused<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(16 * s.page, CrossStream::WaitOnDevice)?;
    let mut privates = Vec::new();
    let most = loop {
        match pool.private_pool() {
            Ok(private) => privates.push(private),
            Err(vmm_core::PoolError::TooManyPrivatePools { most }) => break most,
            Err(other) => return Err(other.into()),
        }
    };
    ensure_eq!(privates.len(), most, "private pools that live at once");
    let lease = take_private::<H>(&privates[0], 4 << 10, stream)?;
    s.write(&lease, stream, 1)?;
    // Its lease keeps the first one's place.
    privates.remove(0);
    ensure!(pool.private_pool().is_err(), "a place that a lease still has was given away");
    privates.pop();
    let last = pool.private_pool()?;
    let second = take_private::<H>(&last, 4 << 10, stream)?;
    s.write(&second, stream, 2)?;
    s.expect(&lease, stream, 1)?;
    drop((lease, second, last));
    let again = pool.private_pool()?;
    drop(take_private::<H>(&again, s.page, stream)?);
    s.audit(&pool)?;
    drop((again, privates));
    drop(pool);
    s.close()
}

/// What a pool does in which private ones come and go; errors are the caller's affair.
pub(super) fn private_script<H: Harness>(
    s: &PoolScene<'_, H>,
    pool: &FaultyPool<H>,
    first: StreamId,
    second: StreamId,
) -> CaseResult {
    let Ok(private) = pool.private_pool() else { return Ok(()) };
    let mut kept = Vec::new();
    for (len, stream) in [(4 << 10, second), (s.page, first)] {
        if let Ok(lease) = take_private::<H>(&private, len, stream) {
            s.write(&lease, stream, 1)?;
            kept.push(lease);
        }
        pool.validate();
    }
    if let Some(lease) = kept.pop() {
        let place = whole::<H>(&lease);
        drop(lease);
        if let Ok(lease) = private.allocate_at(place.addr, place.len, second, Owner::NONE) {
            s.write(&lease, second, 2)?;
        }
        pool.validate();
    }
    drop(private);
    pool.validate();
    drop(kept);
    pool.validate();
    Ok(())
}

//! The protocol of a lease, as a graph of operators.

use super::scene::{FaultyPool, PoolScene, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use crate::scene::SHORT;
use vmm_core::device::{DeviceOp, VirtualMemoryDevice};
use vmm_core::units::StreamId;
use vmm_core::{CrossStream, Request};

/// What the graph leaves: three held-up streams that used the memory, which is retired.
struct Graph {
    streams: [StreamId; 3],
    len: u64,
}

/// Three operators, two edges:
///
/// ```text
/// op1: a = allocate(n, s1)      count 1
/// op2: a2 = a.share("op2")      count 2
/// op1 done: a.release(s1)       count 1
/// op3: a3 = a2.share("op3")     count 2
/// op2 done: a2.release(s2)      count 1
/// op3 done: a3.release(s3)      count 0 -> retired
/// ```
fn run_graph<H: Harness>(s: &PoolScene<'_, H>, pool: &FaultyPool<H>) -> Result<Graph, Stop> {
    let h = s.harness;
    let streams = [s.stream()?, s.stream()?, s.stream()?];
    let [s1, s2, s3] = streams;
    let len = 2 * s.page;
    let op1 = pool.owner("op1");
    let (op2, op3) = (pool.owner("op2"), pool.owner("op3"));
    let live = || pool.stats().live_leases;
    let a = pool.allocate(len, s1, op1)?;
    let range = whole::<H>(&a);
    h.occupy(s1, &[Use::Write(range, 1)])?;
    let a2 = a.share(op2);
    ensure_eq!(a2.addr(), a.addr(), "the address of a shared lease");
    s.order(s1, s2)?;
    a.release(s1);
    ensure_eq!(live(), 1, "leases after op1");
    h.occupy(s2, &[Use::Read(range)])?;
    let a3 = a2.share(op3);
    s.order(s2, s3)?;
    a2.release(s2);
    ensure_eq!(live(), 1, "leases after op2");
    h.occupy(s3, &[Use::Read(range)])?;
    a3.release(s3);
    ensure_eq!(live(), 0, "leases after op3");
    Ok(Graph { streams, len })
}

pub(super) fn memory_is_retired_until_every_user_is_done<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    let pool = s.limited(2 * s.page, CrossStream::WhenReached)?;
    let graph = run_graph(&s, &pool)?;
    ensure!(pool.stats().retired_bytes >= graph.len, "three streams use it: it is retired");
    let other = s.stream()?;
    for stream in graph.streams.into_iter().chain([other]) {
        let found = pool.allocate_at_hand(Request::new(graph.len, stream))?;
        ensure!(found.is_none(), "memory that three streams use was given to {stream:?}");
        ensure!(pool.trim(0)? == 0, "memory in use was released");
    }
    h.let_go()?;
    h.synchronize()?;
    let next = take::<H>(&pool, graph.len, other)?;
    ensure_eq!(pool.stats().frames_made, pool.stats().frames, "no frame was made twice");
    ensure_eq!(pool.stats().host_waits, 0, "waits of the host");
    s.write(&next, other, 9)?;
    s.expect(&next, other, 9)?;
    drop(next);
    drop(pool);
    s.close()
}

pub(super) fn another_stream_takes_retired_memory_without_a_host_wait<H: Harness>(
    h: &H,
) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    s.need_no_unmap()?;
    let pool = s.limited(2 * s.page, CrossStream::WaitOnDevice)?;
    let graph = run_graph(&s, &pool)?;
    let other = s.stream()?;
    let next = take::<H>(&pool, graph.len, other)?;
    ensure_eq!(pool.stats().host_waits, 0, "waits of the host");
    ensure!(pool.stats().device_waits > 0, "nothing orders the taker after the users");
    s.write(&next, other, 9)?;
    let fence = s.device.device.record(other)?;
    ensure!(!s.device.device.wait(fence, SHORT)?, "the taker does not wait for the users");
    h.let_go()?;
    h.synchronize()?;
    s.expect(&next, other, 9)?;
    h.synchronize()?;
    drop(next);
    drop(pool);
    s.close()
}

pub(super) fn the_same_stream_reuses_memory_at_once<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Occupy)?;
    let pool = s.limited(2 * s.page, CrossStream::WhenReached)?;
    let stream = s.stream()?;
    let first = take::<H>(&pool, 2 * s.page, stream)?;
    let range = whole::<H>(&first);
    h.occupy(stream, &[Use::Write(range, 1)])?;
    drop(first);
    let calls = s.faulty.units(DeviceOp::Map);
    for byte in 2..5 {
        let again = take::<H>(&pool, 2 * s.page, stream)?;
        ensure_eq!(whole::<H>(&again), range, "the memory");
        s.write(&again, stream, byte)?;
        s.expect(&again, stream, byte)?;
    }
    let stats = pool.stats();
    ensure_eq!((stats.host_waits, stats.device_waits), (0, 0), "waits");
    ensure_eq!(s.faulty.units(DeviceOp::Map), calls, "frames mapped");
    h.let_go()?;
    drop(pool);
    s.close()
}

pub(super) fn a_shared_lease_lives_until_its_last_user<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let pool = s.limited(8 * s.page, CrossStream::WaitOnDevice)?;
    let stream = s.stream()?;
    let first = take::<H>(&pool, s.page, stream)?;
    let range = whole::<H>(&first);
    let mut shares = vec![first.share(vmm_core::Owner::NONE), first];
    shares.push(shares[0].share(vmm_core::Owner::NONE));
    s.write(&shares[0], stream, 1)?;
    while let Some(share) = shares.pop() {
        let other = take::<H>(&pool, s.page, stream)?;
        let apart = other.addr() >= range.end() || whole::<H>(&other).end() <= range.addr;
        ensure!(apart, "a shared lease was given out again");
        s.write(&other, stream, 2)?;
        s.expect(&share, stream, 1)?;
        if shares.is_empty() {
            ensure_eq!(pool.stats().live_leases, 2, "leases with one share left");
        }
    }
    ensure_eq!(pool.stats().live_leases, 0, "leases at the end");
    drop(pool);
    s.close()
}

//! The limit, and a device that has less than it.

use super::scene::{PoolScene, maintain, take};
use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use vmm_core::device::VirtualMemoryDevice;
use vmm_core::{AllocError, CrossStream};

pub(super) fn the_limit_is_never_passed<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let limit = 10 * s.page + 512;
    let pool = s.limited(limit, CrossStream::WaitOnDevice)?;
    let mut leases = Vec::new();
    let refused = loop {
        maintain::<H>(&pool)?;
        match take::<H>(&pool, s.page, stream) {
            Ok(lease) => leases.push(lease),
            Err(error) => break error,
        }
        s.audit(&pool)?;
        ensure!(leases.len() <= 10, "11 pages in a limit of less");
    };
    ensure_eq!(leases.len(), 10, "pages that fitted");
    let AllocError::OutOfMemory(facts) = refused else {
        return Err(Stop::Failed(format!("not out of memory: {refused}")));
    };
    ensure_eq!((facts.requested, facts.limit), (s.page, Some(limit)), "facts of the error");
    ensure_eq!(facts.live, 10 * s.page, "live bytes in the error");
    ensure!(facts.device.is_none(), "the device was not asked for more");
    ensure!(pool.stats().peak_reserved_bytes <= limit, "the limit was passed");
    leases.pop();
    leases.push(take::<H>(&pool, s.page, stream)?);
    // A new limit counts at once.
    pool.set_limit(Some(limit + s.page));
    leases.push(take::<H>(&pool, s.page, stream)?);
    pool.set_limit(Some(s.page));
    ensure!(take::<H>(&pool, s.page, stream).is_err(), "growth beyond a lowered limit");
    drop(leases);
    h.synchronize()?;
    pool.trim_and_wait(s.page)?;
    ensure!(pool.stats().reserved_bytes <= s.page, "trimmed to a page");
    drop(pool);
    s.close()
}

pub(super) fn memory_that_others_take_is_out_of_memory<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::MemoryControl)?;
    let stream = s.stream()?;
    let pool = s.limited(64 * s.page, CrossStream::WaitOnDevice)?;
    let first = take::<H>(&pool, 4 * s.page, stream)?;
    s.write(&first, stream, 1)?;
    let free = h.device().memory_info()?.free;
    h.leave_free(3 * s.page)?;
    let refused = take::<H>(&pool, 8 * s.page, stream);
    let Err(AllocError::OutOfMemory(facts)) = refused else {
        return Err(Stop::Failed(format!("8 pages of 3: {refused:?}")));
    };
    ensure!(facts.device.is_some(), "the error does not say that the device refused");
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved <= 8 * s.page, "{reserved} bytes kept after a failure");
    // What is there can be had, together with what the pool has.
    let little = take::<H>(&pool, 3 * s.page, stream)?;
    drop(first);
    drop(little);
    let moved = take::<H>(&pool, 7 * s.page, stream)?;
    s.write(&moved, stream, 2)?;
    s.expect(&moved, stream, 2)?;
    h.leave_free(free)?;
    let rest = take::<H>(&pool, 8 * s.page, stream)?;
    drop((moved, rest));
    drop(pool);
    s.close()
}

//! Small, no, and impossible sizes.

use super::scene::{MIB, PoolScene, take};
use crate::harness::Harness;
use crate::outcome::{CaseResult, Stop, ensure, ensure_eq};
use vmm_core::device::{DeviceOp, VirtualMemoryDevice};
use vmm_core::{AllocError, CrossStream, Request};

/// pytorch#17120
pub(super) fn few_bytes_reserve_few_frames<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let mut options = s.options(0);
    options.limit = None;
    let pool = s.pool(options)?;
    let mut leases = Vec::new();
    for _ in 0..1000 {
        leases.push(take::<H>(&pool, 4 << 10, stream)?);
    }
    let need = 1000 * (4 << 10);
    let reserved = pool.stats().reserved_bytes;
    ensure!(reserved <= need + s.device.granule.max(2 * MIB), "{reserved} bytes for {need}");
    drop(leases);
    drop(pool);
    s.close()
}

/// cudarc#194, pytorch#159892
pub(super) fn no_bytes_need_no_device<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(4 * s.page, CrossStream::WaitOnDevice)?;
    let calls = || DeviceOp::ALL.map(|op| s.faulty.calls(op));
    let before = calls();
    let leases = [take::<H>(&pool, 0, stream)?, take::<H>(&pool, 0, stream)?];
    for lease in leases {
        ensure_eq!((lease.addr().0, lease.len()), (0, 0), "a lease of no bytes");
        ensure!(lease.is_empty(), "a lease of no bytes is not empty");
        lease.used_on(stream);
        lease.share(vmm_core::Owner::NONE).release(stream);
    }
    ensure!(pool.allocate_at_hand(Request::new(0, stream))?.is_some(), "no bytes are at hand");
    ensure_eq!(calls(), before, "device calls");
    // Also in a pool that has no memory left.
    let all = take::<H>(&pool, 4 * s.page, stream)?;
    take::<H>(&pool, 0, stream)?;
    drop(all);
    drop(pool);
    s.close()
}

/// The tests of `PyTorch`, VMA#300, burn#3510
pub(super) fn what_can_never_fit_is_too_large<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let limit = 8 * s.page;
    let pool = s.limited(limit, CrossStream::WaitOnDevice)?;
    let total = s.device.device.memory_info()?.total;
    let high = 1_u64 << 63;
    for len in [u64::MAX, u64::MAX - 511, high, high - 1, total + 1, total, limit + 1] {
        too_large(pool.allocate_with(Request::new(len, stream)), len, limit)?;
        too_large(pool.allocate(len, stream, vmm_core::Owner::NONE), len, limit)?;
    }
    for alignment in [1 << 62, 1 << 63, 3 << 20, 768] {
        let request = Request { alignment, ..Request::new(512, stream) };
        too_large(pool.allocate_with(request), 512, limit)?;
    }
    let stats = pool.stats();
    ensure_eq!(stats.reserved_bytes, 0, "bytes reserved for what cannot fit");
    ensure_eq!(stats.failures, 2 * 7 + 4, "failures that were counted");
    ensure_eq!(stats.live_leases, 0, "leases of what cannot fit");
    let all = take::<H>(&pool, limit, stream)?;
    s.audit(&pool)?;
    drop(all);
    drop(pool);
    s.close()
}

fn too_large<L>(result: Result<L, AllocError>, len: u64, limit: u64) -> CaseResult {
    match result {
        Err(AllocError::TooLarge { requested, largest_ever, .. }) => {
            ensure_eq!((requested, largest_ever), (len, limit), "the facts of the error");
            Ok(())
        }
        Err(other) => Err(Stop::Failed(format!("{len} bytes: {other}"))),
        Ok(_) => Err(Stop::Failed(format!("{len} bytes fit into {limit}"))),
    }
}

pub(super) fn alignments_are_kept<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    let stream = s.stream()?;
    let pool = s.limited(64 * s.page, CrossStream::WaitOnDevice)?;
    let mut leases = Vec::new();
    for len in [1, 511, 513, 4 << 10, 3 * MIB, 5 * MIB] {
        for alignment in [0, 1, 256, 512, 4 << 10, 64 << 10, MIB, 2 * MIB, 8 * MIB] {
            let lease = pool.allocate_with(Request { alignment, ..Request::new(len, stream) })?;
            let least = alignment.max(512);
            ensure_eq!(lease.addr().0 % least, 0, "{} aligned to {alignment}", lease.addr());
            ensure_eq!(lease.len(), len, "the length of the lease");
            if leases.len() < 12 {
                leases.push(lease);
            }
        }
    }
    s.audit(&pool)?;
    drop(leases);
    drop(pool);
    s.close()
}

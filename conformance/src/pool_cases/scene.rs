//! What pool cases have in common: pools on a device with faults, and leases at work.

use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use crate::scene::Scene;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{AddrRange, VirtualMemoryDevice};
use vmm_core::units::StreamId;
use vmm_core::{AllocError, CrossStream, Lease, Maintenance, Owner, Pool, PoolError, PoolOptions};
use vmm_mock::Faulty;

pub(super) const MIB: u64 = 1 << 20;

/// How long work takes that a pool may have to wait for.
pub(super) const WORK: Duration = Duration::from_millis(5);

/// A pool on a device with faults.
pub(super) type FaultyPool<H> = Pool<Faulty<<H as Harness>::Device>>;
/// A lease of it.
pub(super) type FaultyLease<H> = Lease<Faulty<<H as Harness>::Device>>;

/// The device of a pool case.
pub(super) struct PoolScene<'a, H: Harness> {
    pub(super) device: Scene<'a, H>,
    pub(super) harness: &'a H,
    /// What the pools of the case see. Faults are added here.
    pub(super) faulty: Arc<Faulty<H::Device>>,
    /// A length that a frame may have: at least 2 MiB, so that leases of it count as long.
    pub(super) page: u64,
}

impl<'a, H: Harness> PoolScene<'a, H> {
    pub(super) fn new(harness: &'a H) -> Result<Self, Stop> {
        let device = Scene::new(harness);
        let page = device.granule.max(2 * MIB);
        let faulty = Arc::new(Faulty::new(Arc::clone(harness.device())));
        Ok(Self { device, harness, faulty, page })
    }

    /// What so many pieces of free memory, of whole pages, may lose at their ends to frames that reach
    /// beyond them, in bytes. A pool with a limit of a few pages has frames that divide a page, unless
    /// the granule is fine.
    pub(super) fn edges(&self, pieces: u64) -> u64 {
        let longest = self.page / 16;
        if self.device.granule >= longest / 2 { 0 } else { 2 * pieces * longest }
    }

    /// Options of a pool that does nothing by itself and has a limit.
    pub(super) fn options(&self, limit: u64) -> PoolOptions {
        PoolOptions {
            limit: Some(limit),
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        }
    }

    pub(super) fn pool(&self, options: PoolOptions) -> Result<FaultyPool<H>, PoolError> {
        Pool::new(Arc::clone(&self.faulty), options)
    }

    /// A pool with a limit in which streams wait for each other in the given way.
    pub(super) fn limited(
        &self,
        limit: u64,
        cross_stream: CrossStream,
    ) -> Result<FaultyPool<H>, Stop> {
        Ok(self.pool(PoolOptions { cross_stream, ..self.options(limit) })?)
    }

    /// Rules out devices where memory that is in use may have to be unmapped before it serves others.
    pub(super) fn need_no_unmap(&self) -> CaseResult {
        if self.device.capabilities().remapping { self.device.need(Need::Aliases) } else { Ok(()) }
    }

    pub(super) fn stream(&self) -> Result<StreamId, Stop> {
        self.device.stream()
    }

    /// Orders later work of one stream after what is queued on another, as a user must whose work
    /// goes from stream to stream.
    pub(super) fn order(&self, first: StreamId, then: StreamId) -> CaseResult {
        let fence = self.device.device.record(first)?;
        Ok(self.device.device.stream_wait(then, fence)?)
    }

    /// Queues work of some time that writes a lease.
    pub(super) fn write(&self, lease: &FaultyLease<H>, stream: StreamId, byte: u8) -> CaseResult {
        Ok(self.harness.work(stream, WORK, &[Use::Write(whole::<H>(lease), byte)])?)
    }

    /// Queues work that expects a byte all over a lease.
    pub(super) fn expect(&self, lease: &FaultyLease<H>, stream: StreamId, byte: u8) -> CaseResult {
        let quick = Duration::from_micros(10);
        Ok(self.harness.work(stream, quick, &[Use::Expect(whole::<H>(lease), byte)])?)
    }

    /// Bytes of physical memory that the pools of this case have, by their calls. What the device
    /// says is free tells less: a driver takes memory for streams and kernels as it needs some.
    pub(super) fn taken(&self) -> u64 {
        self.faulty.frame_bytes()
    }

    /// Checks that the accounts of a pool and of the device agree.
    pub(super) fn audit(&self, pool: &FaultyPool<H>) -> CaseResult {
        pool.validate();
        ensure_eq!(pool.stats().reserved_bytes, self.taken(), "reserved and really taken");
        Ok(())
    }

    /// Checks that nothing is left once the last pool is gone.
    pub(super) fn expect_nothing_left(&self) -> CaseResult {
        let left = self.harness.leftovers();
        ensure!(left.is_empty(), "left on the device: {left:?}");
        ensure_eq!(self.taken(), 0, "bytes that are not free again");
        Ok(())
    }

    pub(super) fn close(self) -> CaseResult {
        self.harness.synchronize()?;
        self.expect_nothing_left()?;
        self.device.close()
    }
}

/// The range of a lease.
pub(super) fn whole<H: Harness>(lease: &FaultyLease<H>) -> AddrRange {
    AddrRange { addr: lease.addr(), len: lease.len() }
}

/// An allocation for nobody in particular.
pub(super) fn take<H: Harness>(
    pool: &FaultyPool<H>,
    len: u64,
    stream: StreamId,
) -> Result<FaultyLease<H>, AllocError> {
    pool.allocate(len, stream, Owner::NONE)
}

/// Runs maintenance until there is nothing to do.
pub(super) fn maintain<H: Harness>(pool: &FaultyPool<H>) -> CaseResult {
    for _ in 0..10_000 {
        if !pool.maintain() {
            return Ok(());
        }
    }
    Err("maintenance does not come to an end".to_owned().into())
}

impl From<AllocError> for Stop {
    fn from(error: AllocError) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<PoolError> for Stop {
    fn from(error: PoolError) -> Self {
        Self::Failed(error.to_string())
    }
}

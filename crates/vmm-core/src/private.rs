//! Private pools: memory that one user keeps apart, at addresses that nobody else gets.
//!
//! A captured graph uses the addresses it was captured with whenever it runs, without telling the
//! pool. So what it uses must stay mapped where it is, and must not go to anybody whose work the
//! graph could meet. Both hold for the memory of a private pool for as long as it lives.

use crate::arena::{DomainId, GENERAL, domain_of};
use crate::bins::UNIT;
use crate::device::{DeviceError, DeviceResult, VirtualMemoryDevice};
use crate::error::{AllocError, PoolError};
use crate::extent::{Extent, ExtentId, Kind, NONE};
use crate::lease::Lease;
use crate::options::CrossStream;
use crate::owner::Owner;
use crate::pool::{Pool, Request};
use crate::shared::Shared;
use crate::state::{LeaseId, State, Want};
use crate::tenancy::{MOST_PRIVATE_POOLS, PrivateId};
use crate::timeline::Point;
use crate::units::{DeviceAddr, StreamId};
use std::fmt;
use std::sync::Arc;

/// A part of a [`Pool`] that keeps its memory to itself: for graphs that are captured, or wherever
/// addresses must not be shared.
///
/// While it lives its frames stay mapped where they are, and serve allocations from it alone. The
/// limit, the accounts and the rules of streams are those of the pool. New frames are made as they
/// are needed, of little more than that, and idle frames of the pool come in; what the private pool
/// has free goes to nobody else.
///
/// # Graphs
///
/// Allocations on a stream that captures take what the private pool has free for that stream, idle
/// frames of the pool that no queued work uses, or new frames. They ask nothing of a capturing
/// stream. What is released during a capture is used again by what the stream captures later. After
/// the capture it is free for later captures and other allocations from the same private pool: the
/// program orders the graph's launches against these, and among each other, as it must for the
/// bytes they share.
///
/// # The end
///
/// Clones are the same private pool. When the last is dropped nothing can be allocated from it any
/// more, and its memory goes back to the pool as its leases end, once all work has passed that is
/// queued by then on any stream that the pool knows: launches of the graphs on other streams must
/// be over. No device call is made for that. Leases may outlive it.
pub struct PrivatePool<D: VirtualMemoryDevice + 'static> {
    tenant: Arc<Tenant<D>>,
}

/// What the clones of a private pool hold.
struct Tenant<D: VirtualMemoryDevice + 'static> {
    pool: Pool<D>,
    id: PrivateId,
    domain: DomainId,
}

impl<D: VirtualMemoryDevice + 'static> Drop for Tenant<D> {
    fn drop(&mut self) {
        // In a fork the memory is the parent's.
        let Some(mut state) = self.pool.shared().lock_unless_forked() else { return };
        state.end_tenancy(self.domain);
        state.validate_in_debug();
        drop(state);
        if !self.pool.shared().is_forked() {
            self.pool.wake_worker();
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Clone for PrivatePool<D> {
    fn clone(&self) -> Self {
        Self { tenant: self.tenant.clone() }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for PrivatePool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivatePool").field("id", &self.tenant.id).finish_non_exhaustive()
    }
}

/// Why [`PrivatePool::allocate_at`] gave no lease. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocAtError {
    /// Somebody holds a part of the range, work may still use it, or it is not the private pool's.
    #[error("{len} bytes at {addr} are not free in this private pool: {why}")]
    NotFree {
        /// Where the lease was to begin.
        addr: DeviceAddr,
        /// Bytes asked for.
        len: u64,
        /// What to look at.
        why: &'static str,
    },
    /// The device could not be asked how far its work is.
    #[error("{0}")]
    Device(#[from] DeviceError),
}

impl<D: VirtualMemoryDevice + 'static> PrivatePool<D> {
    /// Which private pool it is.
    #[must_use]
    pub fn id(&self) -> PrivateId {
        self.tenant.id
    }

    /// The pool that it is a part of.
    #[must_use]
    pub fn pool(&self) -> &Pool<D> {
        &self.tenant.pool
    }

    pub(crate) fn domain(&self) -> DomainId {
        self.tenant.domain
    }

    /// `len` bytes for work on `stream`, accounted to `owner`.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate(
        &self,
        len: u64,
        stream: StreamId,
        owner: Owner,
    ) -> Result<Lease<D>, AllocError> {
        self.allocate_with(Request { owner, ..Request::new(len, stream) })
    }

    /// Memory as the request says.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate_with(&self, request: Request) -> Result<Lease<D>, AllocError> {
        let pool = &self.tenant.pool;
        let obtained = pool.obtain(self.tenant.domain, &request, |_, _| {})?;
        Ok(pool.lease(obtained, request))
    }

    /// Memory that needs no device call and no wait; `None` if there is none at hand. So
    /// [`Pool::allocate_at_hand`] does for the pool.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`]. That there is none at hand is `Ok(None)`.
    pub fn allocate_at_hand(&self, request: Request) -> Result<Option<Lease<D>>, AllocError> {
        let Tenant { pool, domain, .. } = &*self.tenant;
        let obtained = pool.obtain_at_hand(*domain, &request, |_, _| {})?;
        Ok(obtained.map(|memory| pool.lease(memory, request)))
    }

    /// Exactly the free range of `len` bytes at `addr`: so leases can be put back where they were
    /// in memory that the private pool has had since, as the checkpoints of CUDA graph trees want.
    ///
    /// # Errors
    /// [`AllocAtError::NotFree`], and [`AllocAtError::Device`] if the device failed.
    pub fn allocate_at(
        &self,
        addr: DeviceAddr,
        len: u64,
        stream: StreamId,
        owner: Owner,
    ) -> Result<Lease<D>, AllocAtError> {
        let request = Request { owner, ..Request::new(len, stream) };
        let Tenant { pool, domain, .. } = &*self.tenant;
        let id = pool.shared().allocate_at(*domain, addr, &request, |_, _| {})?;
        Ok(pool.lease(id.map(|id| (id, addr.0)), request))
    }
}

impl<D: VirtualMemoryDevice + 'static> Pool<D> {
    /// A new private pool. It has no memory yet.
    ///
    /// # Errors
    /// [`PoolError::TooManyPrivatePools`] if 4094 others live or have leases, and
    /// [`PoolError::Device`] if the device is lost.
    pub fn private_pool(&self) -> Result<PrivatePool<D>, PoolError> {
        let (id, domain) = self.shared().begin_tenancy()?;
        Ok(PrivatePool { tenant: Arc::new(Tenant { pool: self.clone(), id, domain }) })
    }
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    fn begin_tenancy(&self) -> Result<(PrivateId, DomainId), PoolError> {
        let mut state = self.lock();
        if !self.capturing(&state)? {
            // A capture that comes next can use only what is known to be over, and cannot ask.
            state.poll(&*self.device, crate::timeline::READY, self.cross_stream())?;
        }
        let begun = state.begin_tenancy();
        state.validate_in_debug();
        begun.ok_or(PoolError::TooManyPrivatePools { most: MOST_PRIVATE_POOLS })
    }

    /// A lease, after `note` was called with it under the lock; `None` for a request of no bytes.
    pub(crate) fn allocate_at(
        &self,
        domain: DomainId,
        addr: DeviceAddr,
        request: &Request,
        note: impl FnOnce(&mut State, LeaseId),
    ) -> Result<Option<LeaseId>, AllocAtError> {
        let not_free = |why| AllocAtError::NotFree { addr, len: request.len, why };
        let Ok(want) = self.check(request) else {
            return Err(not_free("it is longer than the device's memory"));
        };
        let Some(want) = want else { return Ok(None) };
        if !addr.0.is_multiple_of(UNIT) {
            return Err(not_free("leases begin at multiples of 512"));
        }
        let mut state = self.lock();
        let slot = state.timelines.slot(request.stream);
        let want = Want { slot, domain, ..want };
        let found = match state.take_at(&want, addr.0) {
            None if !self.capturing_for(&state, slot)? => {
                state.poll(&*self.device, slot, self.cross_stream())?;
                if self.cross_stream() == CrossStream::WaitOnDevice {
                    state.end_retirements(&*self.device, &want, addr.0)?;
                    state.take_over(&*self.device, &want, addr.0)?;
                }
                state.take_at(&want, addr.0)
            }
            found => found,
        };
        if let Some(id) = found {
            note(&mut state, id);
        }
        state.validate_in_debug();
        let why = "it is held, in use by another stream, or not memory of the private pool";
        found.map(Some).ok_or_else(|| not_free(why))
    }
}

impl State {
    /// Makes a lease of exactly the range of a request that begins at `addr`, if it is free.
    fn take_at(&mut self, want: &Want, addr: u64) -> Option<LeaseId> {
        let free = self.free_range(want, addr)?;
        if free.iter().any(|id| !self.usable(*id, want.slot)) {
            return None;
        }
        let free: Vec<_> = free.iter().map(|id| (*id, self.extents[*id].addr)).collect();
        let mut whole = NONE;
        // Extents vanish when they are joined, so that addresses tell which are in already.
        for (id, begin) in &free {
            whole = if whole != NONE && *begin < self.extents[whole].end() {
                whole
            } else if free.len() == 1 || self.extents[*id].stream == want.slot {
                *id
            } else {
                self.reassign(*id, Point { stream: want.slot, epoch: 0 })
            };
        }
        Some(self.carve_at(whole, addr, want))
    }

    /// Makes the stream of a request wait on the device for those that may still use what was released in
    /// its range.
    fn end_retirements<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        addr: u64,
    ) -> DeviceResult<()> {
        let touches = |extent: &Extent| {
            domain_of(extent.arena) == want.domain
                && extent.addr < addr.saturating_add(want.len)
                && addr < extent.end()
        };
        let retired = self.retired.iter().copied();
        let inside: Vec<ExtentId> = retired.filter(|id| touches(&self.extents[*id])).collect();
        for id in inside {
            if self.order_after_retired(device, want.slot, id)? {
                self.retired.retain(|other| *other != id);
                self.end_retirement(id, self.timelines.now(want.slot));
            }
        }
        Ok(())
    }

    /// Makes the stream of a request wait on the device for those that its range is free for, and gives it
    /// the range; does neither where a stream fails.
    fn take_over<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        want: &Want,
        addr: u64,
    ) -> DeviceResult<()> {
        for id in self.free_range(want, addr).unwrap_or_default() {
            if !self.usable(id, want.slot)
                && !self.order_after(device, want.slot, self.last_use(id))?
            {
                return Ok(());
            }
        }
        // The range is looked for again, because what was handed over may have been joined.
        while let Some(id) = self
            .free_range(want, addr)
            .and_then(|free| free.into_iter().find(|id| !self.usable(*id, want.slot)))
        {
            self.reassign(id, self.timelines.now(want.slot));
        }
        Ok(())
    }

    /// The free extents that a range covers, by address; `None` if a part of it is not free.
    fn free_range(&self, want: &Want, addr: u64) -> Option<Vec<ExtentId>> {
        debug_assert_ne!(want.domain, GENERAL);
        let end = addr.checked_add(want.len)?;
        let arenas = &self.arenas.of(want.domain);
        let mut regions = arenas.iter().flat_map(|arena| arena.regions.iter());
        let (_, region) =
            regions.find(|(_, region)| region.base <= addr && end <= region.base + region.len)?;
        let mut found = Vec::new();
        let mut at = region.first;
        while at != NONE && self.extents[at].addr < end {
            let extent = &self.extents[at];
            if extent.end() > addr {
                found.push((extent.kind == Kind::Free).then_some(at)?);
            }
            at = extent.next;
        }
        Some(found)
    }
}

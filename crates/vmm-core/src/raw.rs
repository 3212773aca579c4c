//! Leases that are named by their addresses: for users that have nothing else to keep, such as
//! the interface for C.
//!
//! Such a lease lives until it was released as often as it was allocated and shared, or until the pool
//! is dropped, which does not wait for it; no [`Lease`] is dropped for it. [`Directory`](crate::directory)
//! finds it, under the lock that is taken anyway.
//!
//! [`Lease`]: crate::Lease

use crate::arena::GENERAL;
use crate::device::VirtualMemoryDevice;
use crate::error::{AllocError, NotALease, PoolError};
use crate::extent::{ExtentId, Kind};
use crate::owner::Owner;
use crate::pool::{Pool, Request};
use crate::private::{AllocAtError, PrivatePool};
use crate::state::{LeaseId, State};
use crate::timeline::StreamSlot;
use crate::units::{DeviceAddr, DeviceOrdinal, StreamId};

/// A lease that is named by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLease {
    /// Where it begins.
    pub addr: DeviceAddr,
    /// Bytes as they were asked for.
    pub len: u64,
    /// The stream that it was allocated for.
    pub stream: StreamId,
    /// Whom it is accounted to.
    pub owner: Owner,
    /// How many hold it; 0 once the last has let go.
    pub count: u32,
}

impl RawLease {
    /// One that nobody holds.
    #[cold]
    fn gone(addr: DeviceAddr) -> Self {
        Self { addr, len: 0, stream: StreamId(0), owner: Owner::NONE, count: 0 }
    }
}

impl State {
    /// Names a live lease by its address.
    #[inline]
    fn name(&mut self, id: LeaseId) {
        self.directory.insert(&self.extents, id.extent);
    }

    fn raw_view(&self, id: ExtentId) -> RawLease {
        let extent = &self.extents[id];
        RawLease {
            addr: DeviceAddr(extent.addr),
            len: extent.requested,
            stream: self.timelines.id(extent.stream),
            owner: Owner(extent.owner),
            count: extent.count,
        }
    }

    #[inline]
    fn raw_lease(&mut self, addr: DeviceAddr) -> Result<LeaseId, NotALease> {
        let extent = self.directory.get(&self.extents, addr.0).ok_or(NotALease { addr })?;
        Ok(LeaseId { extent, generation: self.extents[extent].generation })
    }

    #[inline]
    fn release_raw(
        &mut self,
        addr: DeviceAddr,
        slot: Option<StreamSlot>,
    ) -> Result<RawLease, NotALease> {
        let extents = &self.extents;
        let last = |id: ExtentId| extents[id].count == 1;
        let extent = self.directory.take_if(extents, addr.0, last).ok_or(NotALease { addr })?;
        let mut lease = self.raw_view(extent);
        lease.count -= 1;
        self.release(LeaseId { extent, generation: extents[extent].generation }, slot);
        Ok(lease)
    }

    /// Ends all leases that are named by their addresses; says how many there were.
    pub(crate) fn release_all_raw(&mut self) -> usize {
        let all: Vec<ExtentId> = self.directory.iter().collect();
        for id in &all {
            let addr = DeviceAddr(self.extents[*id].addr);
            while self.release_raw(addr, None).is_ok_and(|lease| lease.count > 0) {}
        }
        all.len()
    }

    /// Checks that what is named by its address is live. Looks at all places of the directory: not done
    /// after every operation.
    pub(crate) fn validate_directory(&self) {
        for id in self.directory.iter() {
            let extent = &self.extents[id];
            assert_eq!(extent.kind, Kind::Live, "a lease found by its address lives");
            assert_eq!(
                self.directory.last(&self.extents, extent.addr),
                Some(id),
                "a lease is found"
            );
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Pool<D> {
    /// As [`Pool::allocate_with`], for memory that is named by its address from then on. A request for
    /// no bytes gives address 0, which is no lease and is not released.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    #[inline]
    pub fn allocate_raw(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let obtained = self.obtain(GENERAL, request, State::name)?;
        Ok(DeviceAddr(obtained.map_or(0, |(_, addr)| addr)))
    }

    /// As [`Pool::allocate_raw`] if there is memory at hand: makes no device call whatever.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`]. That there is none at hand is `Ok(None)`.
    pub fn allocate_raw_at_hand(
        &self,
        request: &Request,
    ) -> Result<Option<DeviceAddr>, AllocError> {
        let obtained = self.obtain_at_hand(GENERAL, request, State::name)?;
        Ok(obtained.map(|memory| DeviceAddr(memory.map_or(0, |(_, addr)| addr))))
    }

    /// A further user of the lease at `addr`: it ends only after one release more.
    ///
    /// # Errors
    /// [`NotALease`], with nothing changed.
    ///
    /// # Panics
    /// If there are 2^32 users.
    pub fn share_raw(&self, addr: DeviceAddr) -> Result<(), NotALease> {
        self.hold(addr).map(drop)
    }

    fn hold(&self, addr: DeviceAddr) -> Result<LeaseId, NotALease> {
        let mut state = self.shared().lock();
        let id = state.raw_lease(addr)?;
        state.extents[id.extent].add_user();
        state.validate_in_debug();
        Ok(id)
    }

    /// Notes that work on a further stream uses the lease at `addr`, from now until its last release.
    ///
    /// # Errors
    /// [`NotALease`], with nothing changed.
    pub fn used_on_raw(&self, addr: DeviceAddr, stream: StreamId) -> Result<(), NotALease> {
        let mut state = self.shared().lock();
        let id = state.raw_lease(addr)?;
        let slot = state.timelines.slot(stream);
        state.note_use(id, slot);
        state.validate_in_debug();
        Ok(())
    }

    /// One user of the lease at `addr` lets go. Its work ends with what is queued on `stream` by now;
    /// without a stream, on the one that the lease was allocated for. Returns the lease as it is then.
    ///
    /// # Errors
    /// [`NotALease`], with nothing changed.
    #[inline]
    pub fn release_raw(
        &self,
        addr: DeviceAddr,
        stream: Option<StreamId>,
    ) -> Result<RawLease, NotALease> {
        // In a fork the memory is the parent's, and counts as released where its lock cannot be had.
        let Some(mut state) = self.shared().lock_unless_forked() else {
            return Ok(RawLease::gone(addr));
        };
        let slot = stream.map(|stream| state.timelines.slot(stream));
        let released = state.release_raw(addr, slot);
        state.validate_in_debug();
        released
    }

    /// Ends all leases that are named by their addresses, whoever holds them. Returns how many there were.
    pub fn release_all_raw(&self) -> usize {
        let Some(mut state) = self.shared().lock_unless_forked() else { return 0 };
        let count = state.release_all_raw();
        state.validate_in_debug();
        count
    }

    /// As [`Lease::grant`](crate::Lease::grant), for the lease at `addr`.
    ///
    /// # Errors
    /// [`PoolError::NotALease`], and those of [`Lease::grant`](crate::Lease::grant).
    pub fn grant_raw(&self, addr: DeviceAddr, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        // The device calls take long and are made without the lock: a hold of our own keeps the lease.
        let id = self.hold(addr)?;
        let granted = self.shared().grant(id, peers);
        self.release_raw(addr, None)?;
        granted
    }

    /// The live lease that is named by its address and that `addr` lies in, at its beginning or
    /// anywhere in it.
    #[must_use]
    pub fn find_raw(&self, addr: DeviceAddr) -> Option<RawLease> {
        let state = self.shared().lock();
        let id = state.directory.last(&state.extents, addr.0)?;
        let lease = state.raw_view(id);
        (addr.0 - lease.addr.0 < lease.len).then_some(lease)
    }
}

impl<D: VirtualMemoryDevice + 'static> PrivatePool<D> {
    /// As [`Pool::allocate_raw`], from the private pool.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate_raw(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let obtained = self.pool().obtain(self.domain(), request, State::name)?;
        Ok(DeviceAddr(obtained.map_or(0, |(_, addr)| addr)))
    }

    /// As [`PrivatePool::allocate_at`], for a lease that is named by its address. A request for no bytes
    /// does nothing. The range is aligned as it is: that of the request does not matter.
    ///
    /// # Errors
    /// As [`PrivatePool::allocate_at`].
    pub fn allocate_raw_at(&self, addr: DeviceAddr, request: &Request) -> Result<(), AllocAtError> {
        self.pool().shared().allocate_at(self.domain(), addr, request, State::name).map(drop)
    }
}

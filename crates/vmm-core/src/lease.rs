//! Leases: what users hold.

use crate::device::VirtualMemoryDevice;
use crate::error::PoolError;
use crate::mark::Mark;
use crate::owner::Owner;
use crate::pool::Pool;
use crate::state::LeaseId;
use crate::units::{DeviceAddr, DeviceOrdinal, StreamId};
use std::fmt;

/// One user's hold on a range of device memory.
///
/// The memory stays with the lease until the last of those who share it lets go. When that is, queued
/// work may still use it; the pool sees to it that whoever gets the memory next comes after that work.
///
/// Dropping a lease releases it on the stream that it was allocated on.
pub struct Lease<D: VirtualMemoryDevice + 'static> {
    pub(crate) pool: Pool<D>,
    pub(crate) id: Option<LeaseId>,
    pub(crate) addr: DeviceAddr,
    pub(crate) len: u64,
    pub(crate) stream: StreamId,
    pub(crate) owner: Owner,
}

impl<D: VirtualMemoryDevice + 'static> Lease<D> {
    /// Where the memory begins; zero for a lease of no bytes.
    #[must_use]
    pub fn addr(&self) -> DeviceAddr {
        self.addr
    }

    /// Bytes as they were asked for.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is a lease of no bytes, which has no memory.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream that the memory was allocated on.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// Who holds this.
    #[must_use]
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// A hold for another user of the same memory: it stays until that one has let go as well. The
    /// bytes stay accounted to whom they were allocated for.
    ///
    /// # Panics
    /// If there are 2^32 - 1 holds already.
    #[must_use]
    pub fn share(&self, owner: Owner) -> Self {
        if let Some(id) = self.id {
            self.pool.share(id);
        }
        Self {
            pool: self.pool.clone(),
            id: self.id,
            addr: self.addr,
            len: self.len,
            stream: self.stream,
            owner,
        }
    }

    /// Gives other devices access to this memory, before it returns. What shares a frame with it
    /// becomes accessible too, and stays so as long as it lies there. The memory keeps its place; asked
    /// again for what it has, the call costs nothing.
    ///
    /// # Errors
    /// [`PoolError::NotSupported`] where the device lacks
    /// [`Capabilities::peers`](crate::Capabilities::peers); [`PoolError::Device`] if the device refuses: a
    /// later call may succeed.
    pub fn grant(&self, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        match self.id {
            Some(id) => self.pool.grant(id, peers),
            None => self.pool.check_peers(peers),
        }
    }

    /// Notes that work on a further stream uses the memory, from now until the last release.
    pub fn used_on(&self, stream: StreamId) {
        if let Some(id) = self.id {
            self.pool.used_on(id, stream);
        }
    }

    /// Notes that work up to a mark uses the memory: whoever gets it next comes after that work.
    pub fn used_until(&self, mark: Mark) {
        if let Some(id) = self.id {
            self.pool.used_until(id, mark);
        }
    }

    /// Lets go. This user's work ends with what is queued on `stream` by now: a stream that lives. When
    /// the lease outlives its stream, drop it, or release it on another stream.
    pub fn release(mut self, stream: StreamId) {
        if let Some(id) = self.id.take() {
            // Also where the handle is that of the lease's own stream: it may be another stream's by now.
            self.pool.release(id, Some(stream));
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Drop for Lease<D> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            // By the pool's own note: the stream may be destroyed by now, and forgotten.
            self.pool.release(id, None);
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for Lease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

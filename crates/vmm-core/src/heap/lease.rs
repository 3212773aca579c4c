//! What users of a heap hold.

use super::home::Home;
use crate::device::VirtualMemoryDevice;
use crate::lease::Lease;
use crate::owner::Owner;
use crate::pool::Request;
use crate::units::{DeviceAddr, StreamId};
use std::fmt;
use std::sync::Arc;

/// A user's hold on a block of a [`Heap`](super::Heap), or on a lease of the pool that took its place.
///
/// As a [`Lease`], but it is not counted: those who share one put it into an [`Arc`]. Dropping it
/// releases it on the stream that it was allocated on.
pub struct HeapLease<D: VirtualMemoryDevice + 'static> {
    memory: Memory<D>,
    addr: DeviceAddr,
    len: u64,
    stream: StreamId,
    owner: Owner,
}

enum Memory<D: VirtualMemoryDevice + 'static> {
    Block(Arc<Home<D>>),
    Own(Lease<D>),
    Released,
}

impl<D: VirtualMemoryDevice + 'static> HeapLease<D> {
    pub(super) fn block(home: Arc<Home<D>>, addr: u64, request: &Request) -> Self {
        let Request { len, stream, owner, .. } = *request;
        Self { memory: Memory::Block(home), addr: DeviceAddr(addr), len, stream, owner }
    }

    pub(super) fn own(lease: Lease<D>) -> Self {
        let (addr, len, stream, owner) = (lease.addr(), lease.len(), lease.stream(), lease.owner());
        Self { memory: Memory::Own(lease), addr, len, stream, owner }
    }

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

    /// Whether it lies in a chunk of the heap. Otherwise it is a lease of the pool.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        matches!(self.memory, Memory::Block(_))
    }

    /// Notes that work on a further stream uses the memory, from now until the release.
    pub fn used_on(&self, stream: StreamId) {
        match &self.memory {
            Memory::Block(home) => home.used_on(self.addr.0, stream),
            Memory::Own(lease) => lease.used_on(stream),
            Memory::Released => {}
        }
    }

    /// Lets go. The user's work ends with what is queued on `stream` by now: a stream that lives. When
    /// the lease outlives its stream, drop it, or release it on another stream.
    pub fn release(mut self, stream: StreamId) {
        match std::mem::replace(&mut self.memory, Memory::Released) {
            Memory::Block(home) => home.release(self.addr.0, Some(stream)),
            Memory::Own(lease) => lease.release(stream),
            Memory::Released => {}
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Drop for HeapLease<D> {
    fn drop(&mut self) {
        // A lease of the pool sees to itself.
        if let Memory::Block(home) = &self.memory {
            home.release(self.addr.0, None);
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for HeapLease<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeapLease")
            .field("addr", &self.addr)
            .field("len", &self.len)
            .field("stream", &self.stream)
            .field("placed", &self.is_placed())
            .finish_non_exhaustive()
    }
}

//! Where a replay's tensors lie: in leases of the pool or of one of its private pools, or in blocks of a
//! heap over one of these.

use crate::settings::Placed;
use vmm_core::device::AddrRange;
use vmm_core::{
    AllocError, Heap, HeapLease, HeapOptions, Lease, Pool, PoolError, PrivatePool, Request,
    StreamId, VirtualMemoryDevice,
};

/// What serves allocations.
pub(crate) enum Source<D: VirtualMemoryDevice + 'static> {
    Pool(Pool<D>),
    Private(PrivatePool<D>),
    Heap(Heap<D>),
}

/// The placement of a replay, and what it takes to make sources.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sources {
    pub(crate) placement: Option<Placed>,
    pub(crate) peak_requested: u64,
    pub(crate) granule: u64,
}

impl Sources {
    /// The source of what is in no private pool.
    pub(crate) fn general<D: VirtualMemoryDevice + 'static>(
        self,
        pool: &Pool<D>,
    ) -> Result<Source<D>, PoolError> {
        let pool = pool.clone();
        match self.placement {
            None => Ok(Source::Pool(pool)),
            Some(placed) => {
                Heap::new(pool, self.options(placed), move || placed.kind.make()).map(Source::Heap)
            }
        }
    }

    /// The source of a private pool's tensors.
    pub(crate) fn private<D: VirtualMemoryDevice + 'static>(
        self,
        pool: &Pool<D>,
    ) -> Result<Source<D>, PoolError> {
        let private = pool.private_pool()?;
        match self.placement {
            None => Ok(Source::Private(private)),
            Some(placed) => {
                let (options, make) = (self.options(placed), move || placed.kind.make());
                Heap::in_private_pool(private, options, make).map(Source::Heap)
            }
        }
    }

    fn options(self, placed: Placed) -> HeapOptions {
        let chunk_len = placed.chunk.resolve(self.peak_requested, self.granule);
        // An odd length is rounded as that of any lease.
        HeapOptions {
            chunk_len: chunk_len.checked_next_multiple_of(HeapOptions::UNIT).unwrap_or(chunk_len),
            ..HeapOptions::default()
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Source<D> {
    pub(crate) fn allocate(&self, request: Request) -> Result<Memory<D>, AllocError> {
        match self {
            Self::Pool(pool) => pool.allocate_with(request).map(Memory::Lease),
            Self::Private(private) => private.allocate_with(request).map(Memory::Lease),
            Self::Heap(heap) => heap.allocate_with(request).map(Memory::Block),
        }
    }

    #[inline]
    pub(crate) fn allocate_at_hand(
        &self,
        request: Request,
    ) -> Result<Option<Memory<D>>, AllocError> {
        match self {
            Self::Pool(pool) => Ok(pool.allocate_at_hand(request)?.map(Memory::Lease)),
            Self::Private(private) => Ok(private.allocate_at_hand(request)?.map(Memory::Lease)),
            Self::Heap(heap) => Ok(heap.allocate_at_hand(request)?.map(Memory::Block)),
        }
    }
}

/// The memory of a tensor.
pub(crate) enum Memory<D: VirtualMemoryDevice + 'static> {
    Lease(Lease<D>),
    Block(HeapLease<D>),
}

impl<D: VirtualMemoryDevice + 'static> Memory<D> {
    /// Where it lies.
    pub(crate) fn range(&self) -> AddrRange {
        match self {
            Self::Lease(lease) => AddrRange { addr: lease.addr(), len: lease.len() },
            Self::Block(block) => AddrRange { addr: block.addr(), len: block.len() },
        }
    }

    pub(crate) fn stream(&self) -> StreamId {
        match self {
            Self::Lease(lease) => lease.stream(),
            Self::Block(block) => block.stream(),
        }
    }

    pub(crate) fn used_on(&self, stream: StreamId) {
        match self {
            Self::Lease(lease) => lease.used_on(stream),
            Self::Block(block) => block.used_on(stream),
        }
    }

    #[inline]
    pub(crate) fn release(self, stream: StreamId) {
        match self {
            Self::Lease(lease) => lease.release(stream),
            Self::Block(block) => block.release(stream),
        }
    }
}

//! A heap: blocks in leases of a pool, where a [placement](crate::placement) says.
//!
//! Each stream has a placement of its own, and chunks of its own: leases of the pool on that stream. So a
//! block that only its stream has used serves that stream again at once, by stream order, and what one
//! stream does takes no lock of another's. A chunk without blocks goes back to the pool, where all
//! streams can have it; the stream keeps one, or a block that comes and goes would take a chunk along.
//!
//! | event | what happens |
//! |---|---|
//! | the placement finds a place | a block, without a call of the pool |
//! | it finds none | blocks come back whose uses on other streams are over; then a further chunk |
//! | it can never serve the request, or only in more than a chunk | a lease of the pool alone |
//! | the pool can spare no chunk | all streams give back their empty chunks; then a lease alone |
//! | nor that | a wait on the host for retired blocks of the stream, one after the other |
//! | that does not help | a lease alone, for which the pool waits and calls back |
//! | a block is released that other streams have used | its place is retired until these uses are over |
//!
//! The pool's rules hold for chunks, so also for blocks: its limit, its order of streams, its callbacks.
//! Memory for captured graphs comes from a heap in a private pool ([`Heap::in_private_pool`]).
//!
//! No lock of a heap is held while the pool looks for memory, which may take long and call back.

mod all;
mod home;
mod lease;

pub(crate) use all::Heaps;
pub use lease::HeapLease;

use crate::arena::{DomainId, GENERAL};
use crate::bins::UNIT;
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::error::{AllocError, PoolError};
use crate::lease::Lease;
use crate::owner::Owner;
use crate::placement::{ChunkShape, Figures, Placement};
use crate::pool::{Pool, Request};
use crate::private::PrivatePool;
use crate::units::StreamId;
use all::KnowsStreams;
use home::Home;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// How a heap behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Bytes of each chunk, a multiple of [`Self::UNIT`]. What needs more gets a lease of its own. Default: 64 MiB.
    pub chunk_len: u64,
    /// How many chunks without blocks each stream keeps. Default: 1.
    pub kept_chunks: usize,
    /// Who chunks are accounted to. Leases of their own are accounted to whom the request says. Default:
    /// nobody in particular.
    pub owner: Owner,
}

impl HeapOptions {
    /// Every length of a chunk is a multiple of this many bytes.
    pub const UNIT: u64 = UNIT;
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self { chunk_len: 64 << 20, kept_chunks: 1, owner: Owner::NONE }
    }
}

/// A heap over a pool. Clones are the same heap. Blocks outlive it: when it has gone, a chunk goes back
/// to the pool with its last block.
///
/// ```
/// # use std::sync::Arc;
/// # use vmm_core::{Heap, HeapOptions, Owner, Pool, PoolOptions, StreamId, VirtualMemoryDevice};
/// use vmm_core::placement::PlacementKind;
/// # fn example<D: VirtualMemoryDevice + 'static>(device: Arc<D>, stream: StreamId) -> Result<(), Box<dyn std::error::Error>> {
/// let pool = Pool::new(device, PoolOptions::default())?;
/// let heap = Heap::new(pool, HeapOptions::default(), || PlacementKind::Buddy.make())?;
/// let block = heap.allocate(100_000, stream, Owner::NONE)?;
/// block.release(stream);
/// # Ok(())
/// # }
/// ```
pub struct Heap<D: VirtualMemoryDevice + 'static> {
    inner: Arc<Inner<D>>,
}

struct Inner<D: VirtualMemoryDevice + 'static> {
    source: Source<D>,
    options: HeapOptions,
    make: Box<dyn Fn() -> Box<dyn Placement> + Send + Sync>,
    homes: RwLock<HashMap<StreamId, Arc<Home<D>>>>,
}

/// Where chunks come from.
struct Source<D: VirtualMemoryDevice + 'static> {
    pool: Pool<D>,
    /// Whose memory they are, if not the general one's.
    private: Option<PrivatePool<D>>,
}

impl<D: VirtualMemoryDevice + 'static> Source<D> {
    fn domain(&self) -> DomainId {
        self.private.as_ref().map_or(GENERAL, PrivatePool::domain)
    }

    fn allocate(&self, request: Request) -> Result<Lease<D>, AllocError> {
        let obtained = self.pool.obtain(self.domain(), &request, |_, _| {})?;
        Ok(self.pool.lease(obtained, request))
    }

    fn allocate_at_hand(&self, request: Request) -> Result<Option<Lease<D>>, AllocError> {
        let obtained = self.pool.obtain_at_hand(self.domain(), &request, |_, _| {})?;
        Ok(obtained.map(|memory| self.pool.lease(memory, request)))
    }

    fn allocate_spare(&self, request: Request) -> DeviceResult<Option<Lease<D>>> {
        let obtained = self.pool.obtain_spare(self.domain(), &request)?;
        Ok(obtained.map(|memory| self.pool.lease(memory, request)))
    }
}

impl<D: VirtualMemoryDevice + 'static> Clone for Heap<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for Heap<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heap").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl<D: VirtualMemoryDevice + 'static> Drop for Inner<D> {
    fn drop(&mut self) {
        for home in self.homes.get_mut().values() {
            home.close();
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> KnowsStreams for Inner<D> {
    fn forget(&self, stream: StreamId) {
        let home = self.homes.write().remove(&stream);
        if let Some(home) = home {
            home.close();
        }
    }
}

impl<D: VirtualMemoryDevice + 'static> Heap<D> {
    /// A heap over a pool, without chunks. `make` gives each stream its placement.
    ///
    /// # Errors
    /// [`PoolError::Options`] for a length of chunks that no lease can have; [`PoolError::Device`] if the
    /// device cannot say how much memory it has.
    pub fn new(
        pool: Pool<D>,
        options: HeapOptions,
        make: impl Fn() -> Box<dyn Placement> + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        Self::over(Source { pool, private: None }, options, Box::new(make))
    }

    /// As [`Self::new`], with chunks from a private pool: for work that a graph captures. They stay
    /// where they are while the private pool lives, and what is released during a capture serves that
    /// capture again.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_private_pool(
        private: PrivatePool<D>,
        options: HeapOptions,
        make: impl Fn() -> Box<dyn Placement> + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        let source = Source { pool: private.pool().clone(), private: Some(private) };
        Self::over(source, options, Box::new(make))
    }

    fn over(
        source: Source<D>,
        options: HeapOptions,
        make: Box<dyn Fn() -> Box<dyn Placement> + Send + Sync>,
    ) -> Result<Self, PoolError> {
        if options.chunk_len == 0 || !options.chunk_len.is_multiple_of(UNIT) {
            return Err(PoolError::Options(
                "a chunk of a heap is a positive multiple of 512 bytes",
            ));
        }
        if options.chunk_len > source.pool.device().memory_info()?.total {
            return Err(PoolError::Options(
                "a chunk of a heap is longer than the device's memory: make it shorter",
            ));
        }
        let homes = RwLock::new(HashMap::new());
        let inner = Arc::new(Inner { source, options, make, homes });
        let weak: Weak<dyn KnowsStreams> = Arc::downgrade(&inner) as _;
        inner.source.pool.shared().heaps.add(weak);
        Ok(Self { inner })
    }

    /// The pool below.
    #[must_use]
    pub fn pool(&self) -> &Pool<D> {
        &self.inner.source.pool
    }

    /// `len` bytes for work on `stream`. `owner` is noted in the block; see [`HeapOptions::owner`].
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate(
        &self,
        len: u64,
        stream: StreamId,
        owner: Owner,
    ) -> Result<HeapLease<D>, AllocError> {
        self.allocate_with(Request { owner, ..Request::new(len, stream) })
    }

    /// Memory as the request says.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate_with(&self, request: Request) -> Result<HeapLease<D>, AllocError> {
        let home = self.home(request.stream);
        match home.take(request.len, request.alignment) {
            Some(addr) => Ok(HeapLease::block(home, addr, &request)),
            None => self.allocate_slow(home, request),
        }
    }

    /// Memory as the request says if a chunk that the stream has holds it, or, for what is to have a lease
    /// of its own, if the pool has it at hand: makes no device call whatever.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`]. That there is none at hand is `Ok(None)`.
    pub fn allocate_at_hand(&self, request: Request) -> Result<Option<HeapLease<D>>, AllocError> {
        let home = self.home(request.stream);
        if let Some(addr) = home.take(request.len, request.alignment) {
            return Ok(Some(HeapLease::block(home, addr, &request)));
        }
        if self.shape(&home, &request).is_some() {
            return Ok(None);
        }
        Ok(self.inner.source.allocate_at_hand(request)?.map(HeapLease::own))
    }

    /// What is free somewhere serves first, then what others let go of by themselves, and only then the
    /// pool waits and calls back.
    #[cold]
    fn allocate_slow(
        &self,
        home: Arc<Home<D>>,
        request: Request,
    ) -> Result<HeapLease<D>, AllocError> {
        let source = &self.inner.source;
        let shape = self.shape(&home, &request);
        if let Some(shape) = shape {
            let addr = match home.settle()? {
                true => home.take(request.len, request.alignment),
                false => None,
            };
            let addr = match addr {
                Some(addr) => Some(addr),
                None => self.take_in_new_chunk(&home, &request, shape)?,
            };
            if let Some(addr) = addr {
                return Ok(HeapLease::block(home, addr, &request));
            }
        }
        if let Some(lease) = self.spare(request)? {
            return Ok(HeapLease::own(lease));
        }
        if shape.is_some()
            && let Some(addr) = Self::await_place(&home, &request)?
        {
            return Ok(HeapLease::block(home, addr, &request));
        }
        match source.allocate(request) {
            // Those who were called back may have released blocks.
            Err(error @ AllocError::OutOfMemory(_)) => {
                let addr = home.take(request.len, request.alignment).ok_or(error)?;
                Ok(HeapLease::block(home, addr, &request))
            }
            result => result.map(HeapLease::own),
        }
    }

    /// A place in the chunks that there are, after the pool had no memory to spare: others may have
    /// released something meanwhile, or what uses a retired block ends.
    fn await_place(home: &Home<D>, request: &Request) -> DeviceResult<Option<u64>> {
        loop {
            let placed = home.take(request.len, request.alignment);
            if placed.is_some() || !home.await_retired()? {
                return Ok(placed);
            }
        }
    }

    /// The chunk that a request needs; `None` if it is to have a lease of its own.
    fn shape(&self, home: &Home<D>, request: &Request) -> Option<ChunkShape> {
        let shape = home.chunk_for(request.len, request.alignment)?;
        (shape.len <= self.inner.options.chunk_len).then_some(shape)
    }

    /// A place in a further chunk, if the pool can spare one.
    fn take_in_new_chunk(
        &self,
        home: &Home<D>,
        request: &Request,
        shape: ChunkShape,
    ) -> DeviceResult<Option<u64>> {
        let HeapOptions { chunk_len: len, owner, .. } = self.inner.options;
        let Request { stream, .. } = *request;
        let chunk = self.spare(Request { len, alignment: shape.alignment, stream, owner })?;
        Ok(chunk.and_then(|chunk| home.add_chunk(chunk, request.len, request.alignment)))
    }

    /// A lease that the pool can spare, if need be after the heap has given back what it does not need.
    fn spare(&self, request: Request) -> DeviceResult<Option<Lease<D>>> {
        let source = &self.inner.source;
        let lease = source.allocate_spare(request)?;
        if lease.is_some() || self.trim()? == 0 {
            return Ok(lease);
        }
        source.allocate_spare(request)
    }

    /// Gives all chunks without blocks back to the pool, which keeps the memory: see [`Pool::trim`].
    /// Blocks whose uses on other streams are over count as gone. Never waits. Returns the bytes of the
    /// chunks.
    ///
    /// # Errors
    /// If the device could not be asked how far its work is.
    pub fn trim(&self) -> DeviceResult<u64> {
        let homes: Vec<Arc<Home<D>>> = self.inner.homes.read().values().cloned().collect();
        homes.iter().map(|home| home.trim()).sum()
    }

    /// The sums of the figures of all streams, leases of their own left out; of `largest`, the most.
    /// Retired blocks count as blocks.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let homes: Vec<Arc<Home<D>>> = self.inner.homes.read().values().cloned().collect();
        homes.iter().map(|home| home.figures()).fold(Figures::default(), |sum, one| Figures {
            chunks: sum.chunks + one.chunks,
            chunk_bytes: sum.chunk_bytes + one.chunk_bytes,
            blocks: sum.blocks + one.blocks,
            requested: sum.requested + one.requested,
            placed: sum.placed + one.placed,
            largest: sum.largest.max(one.largest),
        })
    }

    fn home(&self, stream: StreamId) -> Arc<Home<D>> {
        if let Some(home) = self.inner.homes.read().get(&stream) {
            return home.clone();
        }
        let Inner { source, options, make, homes } = &*self.inner;
        // Made before the lock is taken: it is the user's code.
        let home = Arc::new(Home::new(source.pool.clone(), stream, options, make()));
        homes.write().entry(stream).or_insert(home).clone()
    }
}

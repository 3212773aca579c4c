//! `PyTorch`'s caching allocator, native and with expandable segments.
//!
//! Written from the behaviour of `c10/cuda/CUDACachingAllocator.cpp` in `PyTorch` 2.11.
//!
//! A request is rounded up to 512 bytes. Up to 1 MiB it is *small*. It takes the shortest free block
//! of its stream and kind that holds it, and cuts off what is left over if that is worth it. Without
//! a block, the native allocator takes a segment from `cudaMalloc`: 2 MiB for small requests, 20 MiB
//! below 10 MiB, else as long as the request. The expandable one maps pages, 2 or 20 MiB each, behind
//! what is mapped already. When that fails it gives back what it caches, and tries again.
//!
//! *Guarantees*: free neighbours in a segment merge; memory goes to the stream that it was
//! allocated for only; a segment goes back whole, and only if nothing in it is live. *Cost*: a call
//! for each segment or page, and a wait for the whole device whenever one is given back.
//!
//! *Left out*: `roundup_power2_divisions` by interval, memory pools that users make with an allocator
//! of their own, and limits on the length of expandable segments. When a graph was destroyed a trace
//! tells only by memory of its pool that was given back: until then that stays.

mod blocks;
mod expandable;
mod options;
mod release;

pub use options::TorchOptions;

use crate::driver::Driver;
use crate::model::{BlockId, Model, Release, Request};
use blocks::{Block, BlockPool, Blocks, Id, State};
use options::{LARGE_SEGMENT, MIN_BLOCK, SMALL, segment_len};

/// The model.
#[derive(Debug)]
pub(crate) struct CachingAllocator {
    options: TorchOptions,
    is_expandable: bool,
    blocks: Blocks,
    /// Expandable segments made so far.
    segments: u64,
}

impl CachingAllocator {
    /// The allocator with plain segments.
    pub(crate) fn native(options: TorchOptions) -> Self {
        Self { options, is_expandable: false, blocks: Blocks::default(), segments: 0 }
    }

    /// The allocator with `expandable_segments:True`.
    pub(crate) fn expandable(options: TorchOptions) -> Self {
        Self { is_expandable: true, ..Self::native(options) }
    }

    /// Index of the pool for a block of this length.
    fn pool(&mut self, graph_pool: u16, len: u64) -> usize {
        let index = usize::from(graph_pool) * 2 + usize::from(len > SMALL);
        let pools = &mut self.blocks.pools;
        while pools.len() <= index {
            pools.push(BlockPool {
                is_small: pools.len().is_multiple_of(2),
                is_private: pools.len() >= 2,
                ..BlockPool::default()
            });
        }
        // Who asks has graphs.
        pools[index].is_ended = false;
        index
    }

    /// Takes the block that fits best out of its pool.
    fn find_free(&mut self, pool: usize, stream: u16, len: u64) -> Option<Id> {
        self.blocks.pools[pool].searches += 1;
        let mut fitting = self.blocks.pools[pool]
            .free
            .range((stream, len, 0, 0)..)
            .take_while(|&&(of, ..)| of == stream)
            .map(|&(.., id)| id);
        let mut found = fitting.next()?;
        if self.is_expandable {
            // A block at the edge of mapped memory counts with what it can grow to: the edge is the
            // last place to take from.
            for next in fitting {
                if self.could_be(next) >= self.could_be(found) {
                    break;
                }
                found = next;
            }
        }
        let (max_split, found_len) = (self.options.max_split(), self.blocks.get(found).len);
        let too_long = if len < max_split {
            found_len >= max_split
        } else {
            found_len >= len.saturating_add(LARGE_SEGMENT)
        };
        if too_long {
            return None;
        }
        self.blocks.leave(found);
        Some(found)
    }

    /// The bytes that a free block would have if all unmapped memory behind it were mapped.
    fn could_be(&self, id: Id) -> u64 {
        let block = self.blocks.get(id);
        let behind = block.next.map(|next| self.blocks.get(next));
        block.len + behind.filter(|next| next.state == State::Unmapped).map_or(0, |next| next.len)
    }

    /// A block of new memory, in no index.
    fn grow(&mut self, driver: &mut Driver, pool: usize, stream: u16, len: u64) -> Option<Id> {
        let segment = segment_len(len);
        if !driver.has_room(segment) {
            return None;
        }
        if self.is_expandable {
            return self.expand(driver, pool, stream, len);
        }
        let addr = driver.malloc(segment)?;
        Some(self.blocks.insert(Block {
            addr,
            len: segment,
            stream,
            pool: index(pool),
            state: State::Free,
            is_expandable: false,
            prev: None,
            next: None,
            since: 0,
        }))
    }

    /// Whether to keep what is left of a block of `whole` bytes that serves `len`.
    fn should_split(&self, pool: usize, whole: u64, len: u64) -> bool {
        let rest = whole - len;
        if self.blocks.pools[pool].is_small || self.is_expandable {
            rest >= MIN_BLOCK
        } else {
            len < self.options.max_split() && rest > SMALL
        }
    }
}

impl Model for CachingAllocator {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        let len = self.options.rounded(request.len);
        let pool = self.pool(request.pool, len);
        let stream = request.stream;
        let id = match self.find_free(pool, stream, len) {
            Some(id) => id,
            None => {
                self.collect_garbage(driver);
                match self.grow(driver, pool, stream, len) {
                    Some(id) => id,
                    None => self.grow_by_releasing(driver, pool, stream, len)?,
                }
            }
        };
        if self.should_split(pool, self.blocks.get(id).len, len) {
            let rest = self.blocks.cut(id, len);
            self.blocks.enter(rest, State::Free);
        }
        self.blocks.enter(id, State::Live);
        Some(id.into())
    }

    fn release(&mut self, _driver: &mut Driver, Release { block, .. }: Release) {
        let block = id(block);
        self.blocks.leave(block);
        self.blocks.merge(block, State::Free);
        self.blocks.enter(block, State::Free);
    }

    fn end_pool(&mut self, pool: u16) {
        let halves = usize::from(pool) * 2;
        self.blocks.pools.iter_mut().skip(halves).take(2).for_each(|half| half.is_ended = true);
    }

    fn release_cached(&mut self, driver: &mut Driver) {
        self.release_all(driver);
    }

    fn defers_frees(&self) -> bool {
        true
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        let block = self.blocks.get(id(block));
        (block.addr, block.len)
    }
}

/// Pools are two for each of at most 65536 of the trace.
fn index(pool: usize) -> u32 {
    u32::try_from(pool).expect("a trace has at most 65536 pools")
}

/// This model's blocks are named by their index.
fn id(block: BlockId) -> Id {
    Id::try_from(block).expect("a block that this model has given out")
}

//! What every model does.

use crate::driver::Driver;

/// A block that a model has given out, by its place in the model's table or its address.
pub(crate) type BlockId = u64;

/// What the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// Bytes, at least 1.
    pub(crate) len: u64,
    /// Index of the stream that uses it first.
    pub(crate) stream: u16,
    /// Index of the pool of a captured graph; 0 for none.
    pub(crate) pool: u16,
    /// Nanoseconds since the trace's first event.
    pub(crate) now_ns: u64,
}

/// What the program gives back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// The block.
    pub(crate) block: BlockId,
    /// Nanoseconds since the trace's first event.
    pub(crate) now_ns: u64,
    /// Whether another stream still uses it. Never for models that defer frees.
    pub(crate) is_in_use: bool,
}

/// An allocator, as far as its memory and its driver calls go. It is told events in their order.
pub(crate) trait Model {
    /// Serves a request; `None` if there is no memory, after all that the allocator does about it.
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId>;

    /// Takes a block back.
    fn release(&mut self, driver: &mut Driver, release: Release);

    /// Takes note that the program has destroyed the graphs of a pool, so that its memory may go.
    /// Models that do not keep pools apart have nothing to note.
    fn end_pool(&mut self, _pool: u16) {}

    /// Gives cached memory back to the driver, as `torch.cuda.empty_cache` does.
    fn release_cached(&mut self, driver: &mut Driver);

    /// Whether a block that another stream still uses comes back only when that use is over.
    fn defers_frees(&self) -> bool;

    /// Where a block lies: its address and its length, the allocator's rounding included.
    fn range(&self, block: BlockId) -> (u64, u64);

    /// Bytes held that the driver does not see: none for all but models of a fixed arena.
    fn reserved(&self, driver: &Driver) -> u64 {
        driver.reserved
    }
}

//! The part of a heap that belongs to one stream: its placement, its chunks, and its lock.

use super::HeapOptions;
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::lease::Lease;
use crate::mark::Mark;
use crate::placement::{ChunkShape, Figures, Placement};
use crate::pool::Pool;
use crate::units::StreamId;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};

pub(super) struct Home<D: VirtualMemoryDevice + 'static> {
    pool: Pool<D>,
    stream: StreamId,
    kept_chunks: usize,
    state: Mutex<State<D>>,
}

/// Uses of a block on other streams than its own. Most have none.
type Uses<T = Mark> = SmallVec<[T; 2]>;

struct State<D: VirtualMemoryDevice + 'static> {
    placement: Box<dyn Placement>,
    /// By base.
    chunks: BTreeMap<u64, Chunk<D>>,
    /// How many of them have no live block.
    idle: usize,
    /// Of live blocks that have any, by address: they go on until the release.
    uses: HashMap<u64, Uses>,
    /// Blocks that were released and that other streams may still use.
    retired: Vec<(u64, Uses)>,
    /// The heap or the stream has gone: nothing is allocated here any more.
    closed: bool,
}

struct Chunk<D: VirtualMemoryDevice + 'static> {
    lease: Lease<D>,
    /// Blocks that somebody holds.
    live: usize,
}

/// Chunks on their way to the pool. They are dropped without the lock, for the last lease of a pool
/// takes the pool down, which waits.
type Outgoing<D> = SmallVec<[Lease<D>; 1]>;

impl<D: VirtualMemoryDevice + 'static> Home<D> {
    pub(super) fn new(
        pool: Pool<D>,
        stream: StreamId,
        options: &HeapOptions,
        placement: Box<dyn Placement>,
    ) -> Self {
        let state = State {
            placement,
            chunks: BTreeMap::new(),
            idle: 0,
            uses: HashMap::new(),
            retired: Vec::new(),
            closed: false,
        };
        Self { pool, stream, kept_chunks: options.kept_chunks, state: Mutex::new(state) }
    }

    /// The lock; `None` in a fork where another thread of the parent held it, who never lets go there.
    fn lock_unless_forked(&self) -> Option<MutexGuard<'_, State<D>>> {
        let contended = || (!self.pool.shared().is_forked()).then(|| self.state.lock());
        self.state.try_lock().or_else(contended)
    }

    /// A block in the chunks that there are.
    pub(super) fn take(&self, len: u64, alignment: u64) -> Option<u64> {
        self.state.lock().take(len, alignment)
    }

    pub(super) fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        self.state.lock().placement.chunk_for(len, alignment)
    }

    /// A block after a further chunk has come; `None` if the placement serves it even so not.
    pub(super) fn add_chunk(&self, lease: Lease<D>, len: u64, alignment: u64) -> Option<u64> {
        let mut outgoing = Outgoing::new();
        let mut state = self.state.lock();
        let base = lease.addr().0;
        if state.placement.add(base..base + lease.len()).is_err() {
            outgoing.push(lease);
        } else {
            state.chunks.insert(base, Chunk { lease, live: 0 });
            state.idle += 1;
        }
        let placed = state.take(len, alignment);
        if state.chunks.get(&base).is_some_and(|chunk| chunk.live == 0) {
            self.review(&mut state, base, &mut outgoing);
        }
        drop(state);
        placed
    }

    /// Lets blocks end whose uses on other streams are over; says whether there were any.
    pub(super) fn settle(&self) -> DeviceResult<bool> {
        self.state.lock().settle(&self.pool)
    }

    /// Waits on the host until a use of a retired block is over; `false` if there is none to wait for.
    pub(super) fn await_retired(&self) -> DeviceResult<bool> {
        let marks = self.state.lock().retired_marks();
        let waited = !marks.is_empty() && self.pool.wait_for_any(&marks)?;
        Ok(self.settle()? || waited)
    }

    pub(super) fn used_on(&self, addr: u64, stream: StreamId) {
        let mut state = self.state.lock();
        // The handle of a stream that has gone may be another's by now.
        if stream != self.stream || state.closed {
            note(state.uses.entry(addr).or_default(), self.pool.mark(stream));
        }
    }

    /// Ends a block. Its user's work ends with what is queued by now on `stream`, or on the stream that
    /// this belongs to.
    pub(super) fn release(&self, addr: u64, stream: Option<StreamId>) {
        // Destructors run in forks too: what is released there is the parent's.
        let Some(mut state) = self.lock_unless_forked() else { return };
        let mut outgoing = Outgoing::new();
        let elsewhere = stream.filter(|stream| *stream != self.stream || state.closed);
        let uses = if elsewhere.is_none() && state.uses.is_empty() {
            Uses::new()
        } else if self.pool.shared().is_forked() {
            return;
        } else {
            self.end_uses(&mut state, addr, elsewhere)
        };
        let base = state.end(addr, uses);
        if state.chunks[&base].live == 0 {
            self.review(&mut state, base, &mut outgoing);
        }
        drop(state);
    }

    /// The uses of a block on other streams, which end with what is queued there by now.
    fn end_uses(&self, state: &mut State<D>, addr: u64, last: Option<StreamId>) -> Uses {
        let mut uses = state.uses.remove(&addr).unwrap_or_default();
        uses.iter_mut().for_each(|mark| *mark = self.pool.mark_again(*mark));
        if let Some(stream) = last {
            note(&mut uses, self.pool.mark(stream));
        }
        uses
    }

    /// Sends a chunk without live blocks away unless it is one to keep.
    fn review(&self, state: &mut State<D>, base: u64, outgoing: &mut Outgoing<D>) {
        if state.closed || state.idle > self.kept_chunks {
            outgoing.push(state.send_away(base));
        }
    }

    /// Gives chunks without blocks back to the pool; returns their bytes.
    pub(super) fn trim(&self) -> DeviceResult<u64> {
        let mut state = self.state.lock();
        state.settle(&self.pool)?;
        let outgoing = state.send_idle_away();
        drop(state);
        Ok(outgoing.iter().map(Lease::len).sum())
    }

    /// From now on each chunk goes with its last live block.
    pub(super) fn close(&self) {
        // In a fork the chunks are the parent's, and the pool's lock may be held for ever.
        if self.pool.shared().is_forked() {
            return;
        }
        let mut state = self.state.lock();
        state.closed = true;
        let outgoing = state.send_idle_away();
        drop(state);
        drop(outgoing);
    }

    pub(super) fn figures(&self) -> Figures {
        self.state.lock().placement.figures()
    }
}

/// Adds a use that goes on to those of a block, unless it has one of the same stream.
fn note(uses: &mut Uses, mark: Mark) {
    if !uses.iter().any(|known| known.is_of_same_stream(mark)) {
        uses.push(mark);
    }
}

impl<D: VirtualMemoryDevice + 'static> State<D> {
    fn take(&mut self, len: u64, alignment: u64) -> Option<u64> {
        let addr = self.placement.allocate(len, alignment)?.addr;
        let (_, chunk) = self.chunk_of(addr);
        chunk.live += 1;
        if chunk.live == 1 {
            self.idle -= 1;
        }
        Some(addr)
    }

    fn chunk_of(&mut self, addr: u64) -> (u64, &mut Chunk<D>) {
        let (base, chunk) =
            self.chunks.range_mut(..=addr).next_back().expect("blocks lie in chunks");
        (*base, chunk)
    }

    /// Ends a live block, or retires it until its uses are over; says which chunk it lies in.
    fn end(&mut self, addr: u64, uses: Uses) -> u64 {
        if uses.is_empty() {
            let block = self.placement.release(addr);
            debug_assert!(block.is_some(), "a block that somebody held");
        } else {
            self.retired.push((addr, uses));
        }
        let (base, chunk) = self.chunk_of(addr);
        chunk.live -= 1;
        if chunk.live == 0 {
            self.idle += 1;
        }
        base
    }

    fn retired_marks(&self) -> Vec<Mark> {
        self.retired.iter().flat_map(|(_, uses)| uses).copied().collect()
    }

    fn settle(&mut self, pool: &Pool<D>) -> DeviceResult<bool> {
        let before = self.retired.len();
        if before == 0 {
            return Ok(false);
        }
        let mut passed = pool.passed(&self.retired_marks())?.into_iter();
        let placement = &mut self.placement;
        self.retired.retain(|(addr, uses)| {
            let of_block: Uses<bool> = passed.by_ref().take(uses.len()).collect();
            let over = of_block.iter().all(|one| *one);
            if over {
                placement.release(*addr);
            }
            !over
        });
        Ok(self.retired.len() < before)
    }

    fn send_idle_away(&mut self) -> Outgoing<D> {
        let idle = self.chunks.iter().filter(|(_, chunk)| chunk.live == 0);
        let idle: Vec<u64> = idle.map(|(base, _)| *base).collect();
        idle.into_iter().map(|base| self.send_away(base)).collect()
    }

    /// Takes out a chunk without live blocks. From now on the pool waits for the uses of those that
    /// are retired.
    fn send_away(&mut self, base: u64) -> Lease<D> {
        let Chunk { lease, .. } = self.chunks.remove(&base).expect("a chunk");
        self.idle -= 1;
        let end = base + lease.len();
        let placement = &mut self.placement;
        self.retired.retain(|(addr, uses)| {
            let inside = (base..end).contains(addr);
            if inside {
                uses.iter().for_each(|mark| lease.used_until(*mark));
                placement.release(*addr);
            }
            !inside
        });
        let removed = self.placement.remove(base);
        debug_assert!(removed, "a chunk without blocks is taken back");
        lease
    }
}

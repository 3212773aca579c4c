//! RMM's `arena_memory_resource`: first fit in one range that is taken at the start.
//!
//! A request is rounded up to a size class, 256 bytes apart up to 2 KiB and then four to a power of
//! two. Up to 1 MiB it is served from *superblocks* that its stream has taken from the range; above,
//! from a superblock of its own. Everywhere the lowest address that fits is taken.
//!
//! *Guarantees*: free neighbours in a superblock merge, and empty superblocks in the range. *Cost*: no
//! call of the driver after the start, but a release of more than 1 MiB waits for its stream, and a
//! request that finds nothing waits for the device while empty superblocks return from streams.
//!
//! *Reserved* is the limit where there is one, for RMM takes the whole range at once; without a limit
//! it is the end of the highest block ever used: the shortest range that would have done. *Not
//! checked*: there are no recordings of it here. *Left out*: arenas by thread, and one size class that
//! RMM's table has at 54 KiB, off its pattern.

use crate::driver::Driver;
use crate::model::{BlockId, Model, Release, Request};
use crate::run::GRANULE;
use std::collections::{BTreeMap, HashMap};

/// The shortest superblock, and the longest request that shares one, in bytes.
const SUPERBLOCK: u64 = 1 << 20;

/// The range where there is no limit: RMM's bound for one superblock.
const ENDLESS: u64 = 1 << 40;

/// A piece of the range that serves requests.
#[derive(Debug)]
struct Superblock {
    len: u64,
    /// Free blocks: address and length.
    free: BTreeMap<u64, u64>,
    /// No free block is longer. May be above the truth; then a search puts it right.
    longest: u64,
}

impl Superblock {
    fn empty(addr: u64, len: u64) -> Self {
        Self { len, free: BTreeMap::from([(addr, len)]), longest: len }
    }

    fn is_empty(&self) -> bool {
        self.free.len() == 1 && self.free.values().next() == Some(&self.len)
    }

    /// The lowest free block that fits: address and length.
    fn find(&mut self, len: u64) -> Option<(u64, u64)> {
        if self.longest < len {
            return None;
        }
        let found = self.free.iter().find(|&(_, &free)| free >= len).map(|(&a, &free)| (a, free));
        if found.is_none() {
            self.longest = self.free.values().copied().max().unwrap_or(0);
        }
        found
    }

    /// Takes the lowest block that fits.
    fn first_fit(&mut self, len: u64) -> Option<u64> {
        let (addr, found) = self.find(len)?;
        self.free.remove(&addr);
        if found > len {
            self.free.insert(addr + len, found - len);
        }
        Some(addr)
    }

    fn release(&mut self, addr: u64, len: u64) {
        let (mut addr, mut len) = (addr, len);
        if let Some(after) = self.free.remove(&(addr + len)) {
            len += after;
        }
        if let Some((&before, &free)) = self.free.range(..addr).next_back()
            && before + free == addr
        {
            addr = before;
            len += free;
        }
        self.free.insert(addr, len);
        self.longest = self.longest.max(len);
    }
}

/// Superblocks by address.
type Superblocks = BTreeMap<u64, Superblock>;

/// Takes the lowest block that fits in any of them.
fn first_fit(superblocks: &mut Superblocks, len: u64) -> Option<u64> {
    superblocks.values_mut().find_map(|superblock| superblock.first_fit(len))
}

/// The superblock that holds an address, if these have it.
fn holder(superblocks: &mut Superblocks, block: u64) -> Option<(u64, &mut Superblock)> {
    let (&addr, superblock) = superblocks.range_mut(..=block).next_back()?;
    (block < addr + superblock.len).then_some((addr, superblock))
}

/// The model.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The range, and the longer blocks in use.
    global: Superblocks,
    /// Of each stream.
    streams: Vec<Superblocks>,
    /// Length and stream of each block in use.
    live: HashMap<u64, (u64, u16)>,
    limit: Option<u64>,
    /// End of the highest block ever used.
    end: u64,
}

impl Arena {
    /// An arena of so many bytes.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let len = limit.unwrap_or(ENDLESS);
        Self {
            global: BTreeMap::from([(0, Superblock::empty(0, len))]),
            streams: Vec::new(),
            live: HashMap::new(),
            limit,
            end: 0,
        }
    }

    /// Takes the lowest superblock out of the range in which a block fits, cut to what is needed.
    fn acquire(&mut self, len: u64) -> Option<(u64, Superblock)> {
        let mut superblocks = self.global.iter_mut();
        let addr = superblocks.find_map(|(&addr, block)| block.find(len).map(|_| addr))?;
        let superblock = self.global.remove(&addr)?;
        let wanted = len.max(SUPERBLOCK);
        if superblock.is_empty() && superblock.len >= wanted + SUPERBLOCK {
            let rest = Superblock::empty(addr + wanted, superblock.len - wanted);
            self.global.insert(addr + wanted, rest);
            return Some((addr, Superblock::empty(addr, wanted)));
        }
        Some((addr, superblock))
    }

    /// Returns a superblock to the range; an empty one merges with empty neighbours.
    fn restore(&mut self, addr: u64, superblock: Superblock) {
        if !superblock.is_empty() {
            self.global.insert(addr, superblock);
            return;
        }
        let (mut start, mut len) = (addr, superblock.len);
        if self.global.get(&(start + len)).is_some_and(Superblock::is_empty)
            && let Some(next) = self.global.remove(&(start + len))
        {
            len += next.len;
        }
        if let Some((&before, previous)) = self.global.range(..start).next_back()
            && previous.is_empty()
            && before + previous.len == start
        {
            start = before;
            len += previous.len;
        }
        self.global.insert(start, Superblock::empty(start, len));
    }

    fn serve(&mut self, stream: u16, len: u64) -> Option<u64> {
        let of_stream = &mut self.streams[usize::from(stream)];
        if len <= SUPERBLOCK
            && let Some(addr) = first_fit(of_stream, len)
        {
            return Some(addr);
        }
        let (start, mut superblock) = self.acquire(len)?;
        let addr = superblock.first_fit(len);
        let home = if len > SUPERBLOCK {
            &mut self.global
        } else {
            &mut self.streams[usize::from(stream)]
        };
        home.insert(start, superblock);
        addr
    }

    /// Returns all empty superblocks of streams to the range.
    fn defragment(&mut self) {
        for stream in 0..self.streams.len() {
            let of_stream = std::mem::take(&mut self.streams[stream]);
            for (addr, superblock) in of_stream {
                if superblock.is_empty() {
                    self.restore(addr, superblock);
                } else {
                    self.streams[stream].insert(addr, superblock);
                }
            }
        }
    }
}

impl Model for Arena {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        let (len, stream) = (size_class(request.len), request.stream);
        if self.streams.len() <= usize::from(stream) {
            self.streams.resize_with(usize::from(stream) + 1, BTreeMap::new);
        }
        let addr = self.serve(stream, len).or_else(|| {
            driver.wait();
            self.defragment();
            self.serve(stream, len)
        })?;
        self.end = self.end.max(addr + len);
        self.live.insert(addr, (len, stream));
        Some(addr)
    }

    fn release(&mut self, driver: &mut Driver, Release { block, .. }: Release) {
        let Some((len, stream)) = self.live.remove(&block) else { return };
        if len > SUPERBLOCK {
            driver.wait();
        }
        if let Some((_, superblock)) = holder(&mut self.streams[usize::from(stream)], block) {
            superblock.release(block, len);
        } else if let Some((addr, superblock)) = holder(&mut self.global, block) {
            superblock.release(block, len);
            if let Some(superblock) = self.global.remove(&addr) {
                self.restore(addr, superblock);
            }
        }
    }

    /// The arena has no such call.
    fn release_cached(&mut self, _driver: &mut Driver) {}

    fn defers_frees(&self) -> bool {
        false
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        (block, self.live.get(&block).map_or(0, |&(len, _)| len))
    }

    fn reserved(&self, _driver: &Driver) -> u64 {
        self.limit.unwrap_or_else(|| self.end.next_multiple_of(GRANULE))
    }
}

/// The length that a request is rounded up to.
fn size_class(len: u64) -> u64 {
    if len <= 2048 {
        return len.max(1).next_multiple_of(256);
    }
    // Four classes between a power of two, not included, and the next, included.
    let floor = 1_u64 << (len - 1).ilog2();
    len.next_multiple_of(floor / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let cases = [(1, 256), (2048, 2048), (2049, 2560), (4096, 4096), (4097, 5120)];
        for (len, class) in cases {
            assert_eq!(size_class(len), class, "{len}");
        }
        assert_eq!(size_class((100 << 20) + 1), 112 << 20);
    }
}

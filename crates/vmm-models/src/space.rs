//! Where a driver puts plain allocations: the lowest hole that holds them, or behind the last.

use std::collections::BTreeMap;

/// Addresses in pages of 2 MiB.
const PAGE: u64 = 2 << 20;

/// Free addresses below the end of those given out. `cudaMalloc` says nothing of its order; this one
/// is as good as another and always the same.
#[derive(Debug)]
pub(crate) struct Space {
    /// Start and length of the holes.
    holes: BTreeMap<u64, u64>,
    end: u64,
}

impl Default for Space {
    fn default() -> Self {
        // Zero stays the address of nothing.
        Self { holes: BTreeMap::new(), end: PAGE }
    }
}

impl Space {
    /// An address for `len` bytes.
    pub(crate) fn take(&mut self, len: u64) -> u64 {
        let len = len.next_multiple_of(PAGE);
        let found = self.holes.iter().find(|&(_, &hole)| hole >= len).map(|(&addr, &l)| (addr, l));
        let Some((addr, hole)) = found else {
            let addr = self.end;
            self.end += len;
            return addr;
        };
        self.holes.remove(&addr);
        if hole > len {
            self.holes.insert(addr + len, hole - len);
        }
        addr
    }

    /// Takes an address back.
    pub(crate) fn give_back(&mut self, addr: u64, len: u64) {
        let (mut start, mut len) = (addr, len.next_multiple_of(PAGE));
        if let Some(after) = self.holes.remove(&(start + len)) {
            len += after;
        }
        if let Some((&before, &hole)) = self.holes.range(..start).next_back()
            && before + hole == start
        {
            start = before;
            len += hole;
        }
        if start + len == self.end {
            self.holes.remove(&start);
            self.end = start;
        } else {
            self.holes.insert(start, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_merge_and_serve_again() {
        let mut space = Space::default();
        let addrs: Vec<u64> = (0..4).map(|_| space.take(PAGE)).collect();
        assert!(addrs.is_sorted_by(|a, b| a + PAGE == *b));
        space.give_back(addrs[0], PAGE);
        space.give_back(addrs[2], PAGE);
        assert_eq!(space.take(2 * PAGE), addrs[3] + PAGE, "no hole is long enough");
        space.give_back(addrs[1], PAGE);
        assert_eq!(space.take(3 * PAGE - 1), addrs[0], "three holes are one");
        assert_eq!(space.take(1), addrs[3] + 3 * PAGE);
    }
}

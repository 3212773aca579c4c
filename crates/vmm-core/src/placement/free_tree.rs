//! Free ranges in the order of their addresses, and the first from some address on that is long enough.
//!
//! A treap (Seidel and Aragon, *Randomized search trees*, Algorithmica 16, 1996) in which each node knows
//! the longest range below it. A node's priority is a hash of its first address: all runs make the same tree.

use super::front;
use std::cmp::Ordering;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    addr: u64,
    len: u64,
    /// The longest range of this node and those below it.
    longest: u64,
    priority: u64,
    left: u32,
    right: u32,
}

#[derive(Debug)]
pub(super) struct FreeTree {
    nodes: Vec<Node>,
    unused: Vec<u32>,
    root: u32,
}

impl Default for FreeTree {
    fn default() -> Self {
        Self { nodes: Vec::new(), unused: Vec::new(), root: NONE }
    }
}

/// The mixing function of Steele, Lea and Flood's `SplitMix64` (OOPSLA 2014).
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl FreeTree {
    /// Adds a range that touches or overlaps no other; it is not joined with any.
    pub(super) fn insert(&mut self, addr: u64, len: u64) {
        let node = Node { addr, len, longest: len, priority: mix(addr), left: NONE, right: NONE };
        let new = if let Some(id) = self.unused.pop() {
            self.nodes[id as usize] = node;
            id
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 free ranges")
        };
        let (left, right) = self.split(self.root, addr);
        let left = self.join(left, new);
        self.root = self.join(left, right);
    }

    /// Takes out the range at `addr`, and says how long it was.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn remove(&mut self, addr: u64) -> u64 {
        let (left, rest) = self.split(self.root, addr);
        let (gone, right) = self.split(rest, addr + 1);
        assert_ne!(gone, NONE, "a free range at {addr:#x}");
        self.root = self.join(left, right);
        self.unused.push(gone);
        self.nodes[gone as usize].len
    }

    /// Makes `len` bytes at `new_addr` of the range at `addr`. It keeps its place among the others, so no
    /// node moves.
    ///
    /// # Panics
    /// If there is none.
    pub(super) fn change(&mut self, addr: u64, new_addr: u64, len: u64) {
        self.change_below(self.root, addr, new_addr, len);
    }

    fn change_below(&mut self, at: u32, addr: u64, new_addr: u64, len: u64) {
        assert_ne!(at, NONE, "a free range at {addr:#x}");
        let node = &mut self.nodes[at as usize];
        match addr.cmp(&node.addr) {
            Ordering::Equal => (node.addr, node.len) = (new_addr, len),
            Ordering::Less => {
                let left = node.left;
                self.change_below(left, addr, new_addr, len);
            }
            Ordering::Greater => {
                let right = node.right;
                self.change_below(right, addr, new_addr, len);
            }
        }
        self.update(at);
    }

    /// The last range that begins below `addr`.
    pub(super) fn before(&self, addr: u64) -> Option<(u64, u64)> {
        let (mut at, mut found) = (self.root, None);
        while at != NONE {
            let node = &self.nodes[at as usize];
            if node.addr < addr {
                found = Some((node.addr, node.len));
                at = node.right;
            } else {
                at = node.left;
            }
        }
        found
    }

    /// The range that begins at `addr`.
    pub(super) fn at(&self, addr: u64) -> Option<u64> {
        let mut at = self.root;
        while at != NONE {
            let node = &self.nodes[at as usize];
            at = match addr.cmp(&node.addr) {
                Ordering::Equal => return Some(node.len),
                Ordering::Less => node.left,
                Ordering::Greater => node.right,
            };
        }
        None
    }

    /// The first range at or above `from` that holds `len` bytes at this alignment.
    pub(super) fn first(&self, from: u64, len: u64, alignment: u64) -> Option<(u64, u64)> {
        self.first_below(self.root, from, len, alignment)
    }

    fn first_below(&self, at: u32, from: u64, len: u64, alignment: u64) -> Option<(u64, u64)> {
        let node = self.nodes.get(at as usize).filter(|node| node.longest >= len)?;
        let right = || self.first_below(node.right, from, len, alignment);
        if node.addr < from {
            return right();
        }
        let fits = node.len >= len && front(node.addr, alignment) <= node.len - len;
        self.first_below(node.left, from, len, alignment)
            .or_else(|| fits.then_some((node.addr, node.len)))
            .or_else(right)
    }

    /// The length of the longest range; zero without one.
    pub(super) fn longest(&self) -> u64 {
        self.longest_of(self.root)
    }

    fn longest_of(&self, at: u32) -> u64 {
        self.nodes.get(at as usize).map_or(0, |node| node.longest)
    }

    fn update(&mut self, at: u32) {
        let node = &self.nodes[at as usize];
        let below = self.longest_of(node.left).max(self.longest_of(node.right));
        let node = &mut self.nodes[at as usize];
        node.longest = node.len.max(below);
    }

    /// Parts a tree into what begins below `addr`, and the rest.
    fn split(&mut self, at: u32, addr: u64) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let Node { addr: own, left, right, .. } = self.nodes[at as usize];
        if own < addr {
            let (middle, above) = self.split(right, addr);
            self.nodes[at as usize].right = middle;
            self.update(at);
            (at, above)
        } else {
            let (below, middle) = self.split(left, addr);
            self.nodes[at as usize].left = middle;
            self.update(at);
            (below, at)
        }
    }

    /// Makes one tree of two of which all of the first lies below the second.
    fn join(&mut self, first: u32, second: u32) -> u32 {
        if first == NONE {
            return second;
        }
        if second == NONE {
            return first;
        }
        if self.nodes[first as usize].priority > self.nodes[second as usize].priority {
            let right = self.nodes[first as usize].right;
            self.nodes[first as usize].right = self.join(right, second);
            self.update(first);
            first
        } else {
            let left = self.nodes[second as usize].left;
            self.nodes[second as usize].left = self.join(first, left);
            self.update(second);
            second
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The same questions to the tree and to a map, after each of many changes.
    #[test]
    fn agrees_with_a_map() {
        let (mut tree, mut map) = (FreeTree::default(), BTreeMap::new());
        for step in 0..4_000_u64 {
            let addr = mix(step) % 256 * 4096;
            if let Some(len) = map.remove(&addr) {
                if step % 2 == 0 {
                    assert_eq!(tree.remove(addr), len);
                } else {
                    // Its end stays, and then its beginning, as a block is cut off or joins.
                    tree.change(addr, addr + 512, len + 512);
                    tree.change(addr + 512, addr, len + 1024);
                    map.insert(addr, len + 1024);
                }
            } else {
                let len = 512 * (1 + mix(!step) % 8);
                map.insert(addr, len);
                tree.insert(addr, len);
            }
            let (from, len) = (mix(step << 20) % (1 << 20), 512 * (1 + mix(step << 40) % 9));
            for alignment in [512, 8192, 1 << 16] {
                let fits = |(addr, own): &(&u64, &u64)| front(**addr, alignment) + len <= **own;
                let first = map.range(from..).find(fits).map(|(addr, len)| (*addr, *len));
                assert_eq!(tree.first(from, len, alignment), first);
            }
            let before = map.range(..from).next_back().map(|(addr, len)| (*addr, *len));
            assert_eq!(tree.before(from), before);
            assert_eq!(tree.at(addr), map.get(&addr).copied());
            assert_eq!(tree.longest(), map.values().max().copied().unwrap_or(0));
        }
    }
}

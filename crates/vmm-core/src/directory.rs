//! Which lease begins at an address, for users that name leases by their addresses.
//!
//! Addresses are looked up directly, page by page of 2 MiB, without hashing single leases. A page has
//! at most two beginnings of leases longer than 1 MiB; for shorter ones it gets a table with a place
//! for each unit, once the first of them begins there. Pages are gathered in leaves of 8 GiB. Both
//! stay once they are made: 16 KiB for each 2 MiB that short leases ever lay in, 64 KiB a leaf.

use crate::bins::UNIT;
use crate::extent::{ExtentId, Extents, NONE};

const PAGE_SHIFT: u32 = 21;
const LEAF_SHIFT: u32 = 33;
const PAGES: usize = 1 << (LEAF_SHIFT - PAGE_SHIFT);
const UNITS: usize = 1 << (PAGE_SHIFT - UNIT.ilog2());

/// The longest lease that goes into the table of units: of longer ones no three begin in one page.
const SHORT: u64 = 1 << (PAGE_SHIFT - 1);

#[derive(Clone, Debug)]
struct Page {
    short: Option<Box<[ExtentId; UNITS]>>,
    long: [ExtentId; 2],
}

#[derive(Debug)]
struct Leaf {
    key: u64,
    pages: Box<[Page]>,
}

/// The live leases that are named by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// A hash table with linear probing: at most half of it is in use, and nothing is removed.
    leaves: Vec<Option<Leaf>>,
    leaf_count: usize,
}

impl Page {
    const EMPTY: Self = Self { short: None, long: [NONE; 2] };

    /// Where the lease that begins at `addr` is kept.
    #[inline]
    fn place(&mut self, extents: &Extents, addr: u64) -> Option<&mut ExtentId> {
        let begins_at = |id: ExtentId| id != NONE && extents[id].addr == addr;
        let [first, second] = self.long;
        if begins_at(first) {
            Some(&mut self.long[0])
        } else if begins_at(second) {
            Some(&mut self.long[1])
        } else {
            self.short.as_mut().map(|short| &mut short[unit(addr)]).filter(|id| **id != NONE)
        }
    }

    /// The last lease that begins at or before `addr`, an address of this page.
    fn last(&self, extents: &Extents, addr: u64) -> Option<ExtentId> {
        let long = self.long.iter().copied().filter(|id| *id != NONE && extents[*id].addr <= addr);
        let short = self
            .short
            .iter()
            .flat_map(|short| short[..=unit(addr)].iter().rev().copied().find(|id| *id != NONE));
        long.chain(short).max_by_key(|id| extents[*id].addr)
    }
}

impl Leaf {
    fn new(key: u64) -> Self {
        Self { key, pages: vec![Page::EMPTY; PAGES].into_boxed_slice() }
    }
}

#[inline]
fn page(addr: u64) -> usize {
    (addr >> PAGE_SHIFT) as usize % PAGES
}

#[inline]
fn unit(addr: u64) -> usize {
    (addr / UNIT) as usize % UNITS
}

impl Directory {
    /// The place of a leaf, or the empty one where it would be.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    fn search(&self, key: u64) -> usize {
        let mask = self.leaves.len() - 1;
        let mut at = key as usize & mask;
        while self.leaves[at].as_ref().is_some_and(|leaf| leaf.key != key) {
            at = (at + 1) & mask;
        }
        at
    }

    #[inline]
    fn page_mut(&mut self, addr: u64) -> Option<&mut Page> {
        if self.leaves.is_empty() {
            return None;
        }
        let at = self.search(addr >> LEAF_SHIFT);
        self.leaves[at].as_mut().map(|leaf| &mut leaf.pages[page(addr)])
    }

    #[cold]
    fn add_leaf(&mut self, key: u64) {
        if 2 * (self.leaf_count + 1) > self.leaves.len() {
            let len = (2 * self.leaves.len()).max(8);
            let old = std::mem::take(&mut self.leaves);
            self.leaves.resize_with(len, || None);
            for leaf in old.into_iter().flatten() {
                let at = self.search(leaf.key);
                self.leaves[at] = Some(leaf);
            }
        }
        let at = self.search(key);
        self.leaves[at] = Some(Leaf::new(key));
        self.leaf_count += 1;
    }

    /// Keeps the live extent of a lease.
    #[inline]
    pub(crate) fn insert(&mut self, extents: &Extents, id: ExtentId) {
        let (addr, len) = (extents[id].addr, extents[id].len);
        if self.page_mut(addr).is_none() {
            self.add_leaf(addr >> LEAF_SHIFT);
        }
        let page = self.page_mut(addr).expect("a page of a leaf that was made");
        if len <= SHORT {
            page.short.get_or_insert_with(|| Box::new([NONE; UNITS]))[unit(addr)] = id;
        } else {
            let place = page.long.iter_mut().find(|id| **id == NONE);
            *place.expect("at most two leases that long begin in a page") = id;
        }
    }

    /// The extent of the lease that begins at `addr`.
    #[inline]
    pub(crate) fn get(&mut self, extents: &Extents, addr: u64) -> Option<ExtentId> {
        self.place(extents, addr).map(|place| *place)
    }

    /// As [`Self::get`]; forgets the lease if `ends` says so.
    #[inline]
    pub(crate) fn take_if(
        &mut self,
        extents: &Extents,
        addr: u64,
        ends: impl FnOnce(ExtentId) -> bool,
    ) -> Option<ExtentId> {
        let place = self.place(extents, addr)?;
        let id = *place;
        if ends(id) {
            *place = NONE;
        }
        Some(id)
    }

    #[inline]
    fn place(&mut self, extents: &Extents, addr: u64) -> Option<&mut ExtentId> {
        if !addr.is_multiple_of(UNIT) {
            return None;
        }
        self.page_mut(addr)?.place(extents, addr)
    }

    /// The last lease that begins at or before `addr`.
    pub(crate) fn last(&self, extents: &Extents, addr: u64) -> Option<ExtentId> {
        let mut bound = addr;
        loop {
            let key = bound >> LEAF_SHIFT;
            let leaves = self.leaves.iter().flatten();
            let leaf = leaves.filter(|leaf| leaf.key <= key).max_by_key(|leaf| leaf.key)?;
            if leaf.key < key {
                bound = ((leaf.key + 1) << LEAF_SHIFT) - 1;
            }
            let pages = leaf.pages[..=page(bound)].iter().rev();
            // Only the first page that is looked at may have leases behind the bound.
            let bounds = std::iter::once(bound).chain(std::iter::repeat(u64::MAX));
            if let Some(id) = pages.zip(bounds).find_map(|(page, at)| page.last(extents, at)) {
                return Some(id);
            }
            bound = (leaf.key << LEAF_SHIFT).checked_sub(1)?;
        }
    }

    /// All leases, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = ExtentId> {
        let pages = self.leaves.iter().flatten().flat_map(|leaf| leaf.pages.iter());
        let ids = pages.flat_map(|page| {
            page.long.iter().chain(page.short.iter().flat_map(|short| short.iter()))
        });
        ids.copied().filter(|id| *id != NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Extent;
    use std::collections::BTreeMap;

    /// Leases of 512 bytes to 64 GiB come and go at addresses up to 2^50; what is found is what an
    /// ordered map finds.
    #[test]
    fn finds_what_an_ordered_map_finds() {
        let (mut extents, mut directory) = (Extents::default(), Directory::default());
        let mut model: BTreeMap<u64, ExtentId> = BTreeMap::new();
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        for _ in 0..20_000 {
            // Few bases, so that leases crowd in some pages and leaves, and others lie far away.
            let addr = (below(3) << 49) + (below(4) << 32) + (below(5) << 20) + below(40) * UNIT;
            let shift = below(28);
            let len = (1 + below(1 << shift)) * UNIT;
            let known = model.range(..=addr).next_back().map(|(_, id)| *id);
            assert_eq!(directory.last(&extents, addr + below(UNIT)), known);
            if model.contains_key(&addr) {
                assert_eq!(directory.get(&extents, addr), known);
                assert_eq!(directory.get(&extents, addr + 1), None);
                assert_eq!(directory.take_if(&extents, addr, |_| true), known);
                extents.remove(model.remove(&addr).unwrap());
            } else {
                assert_eq!(directory.get(&extents, addr), None);
                let before_ends = known.is_none_or(|id| extents[id].end() <= addr);
                let next = model.range(addr..).next();
                if before_ends && next.is_none_or(|(next, _)| addr + len <= *next) {
                    let id = extents.add(Extent { addr, len, ..Extent::default() });
                    directory.insert(&extents, id);
                    model.insert(addr, id);
                }
            }
        }
        assert!(model.len() > 50, "{}", model.len());
        let mut all: Vec<u64> = directory.iter().map(|id| extents[id].addr).collect();
        all.sort_unstable();
        assert_eq!(all, model.keys().copied().collect::<Vec<_>>());
    }
}

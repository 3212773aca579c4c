//! A region: a reserved range of addresses, and which mapping lies under each of its pages.

use crate::arena::ArenaId;
use crate::extent::ExtentId;
use crate::frame::MappingId;

/// A region's place in the table of its arena. Sixteen bits, so that an extent stays small.
pub(crate) type RegionId = u16;

/// Which region of which arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionRef {
    pub(crate) arena: ArenaId,
    pub(crate) region: RegionId,
}

const NO_MAPPING: MappingId = MappingId::MAX;

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// The extent with the lowest address.
    pub(crate) first: ExtentId,
    granule: u64,
    /// The mapping under each page, as far up as pages were ever used.
    pages: Vec<MappingId>,
}

impl Region {
    pub(crate) fn new(base: u64, len: u64, granule: u64, first: ExtentId) -> Self {
        Self { base, len, first, granule, pages: Vec::new() }
    }

    fn page(&self, addr: u64) -> usize {
        usize::try_from((addr - self.base) / self.granule).expect("fewer than 2^64 pages")
    }

    pub(crate) fn set_mapping(&mut self, addr: u64, len: u64, mapping: Option<MappingId>) {
        let (from, to) = (self.page(addr), self.page(addr + len));
        if self.pages.len() < to {
            self.pages.resize(to, NO_MAPPING);
        }
        self.pages[from..to].fill(mapping.unwrap_or(NO_MAPPING));
    }

    pub(crate) fn mapping_at(&self, addr: u64) -> Option<MappingId> {
        self.pages.get(self.page(addr)).copied().filter(|id| *id != NO_MAPPING)
    }
}

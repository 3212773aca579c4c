//! A region: a reserved range of addresses, and which mapping lies under each of its pages.

use crate::arena::ArenaId;
use crate::extent::{Extent, ExtentId};
use crate::frame::MappingId;
use crate::state::State;

/// A region's place in the table of its arena. Sixteen bits, so that an extent stays small.
pub(crate) type RegionId = u16;

/// Which region of which arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionRef {
    pub(crate) arena: ArenaId,
    pub(crate) region: RegionId,
}

/// Reservations of one arena: a device that refuses long ones is not asked for ever shorter ones
/// without end.
const MOST_RESERVATIONS: usize = 255;

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

impl State {
    /// Whether an arena may get a region of `len` bytes when the pool may hold `cap` in all.
    pub(crate) fn may_reserve(&self, arena: ArenaId, len: u64, cap: u64) -> bool {
        let regions = self.arenas[arena].regions.len();
        regions < MOST_RESERVATIONS && self.address_bytes().saturating_add(len) <= cap
    }

    /// Adds a region of free addresses to an arena.
    pub(crate) fn add_region(&mut self, arena: ArenaId, base: u64, len: u64) {
        let first = self.extents.add(Extent { addr: base, len, arena, ..Extent::default() });
        let region = Region::new(base, len, self.budget.granule, first);
        let arena = &mut self.arenas[arena];
        arena.add_region(&mut self.extents, region);
        arena.set_void(&mut self.extents, first);
    }
}

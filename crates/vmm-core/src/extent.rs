//! Extents: the pieces that a region is cut into, in the order of their addresses.
//!
//! | kind | backed by a frame | who may use it | becomes |
//! |---|---|---|---|
//! | `Void` | no | nobody | `Pending` when frames are mapped here |
//! | `Pending` | perhaps | nobody: a step is under way | `Free` or `Live`, or as before if the step fails |
//! | `Free` | yes | the stream it names; any, if that is `READY` | `Live`, `Pending` |
//! | `Live` | yes | the users of its lease | `Free`, `Retired` |
//! | `Retired` | yes | nobody before its uses are over | `Free` |
//! | `Dead` | yes, but these bytes have their current address elsewhere | nobody | `Void`; `Free` when taken back |
//!
//! Every byte of a frame is in exactly one extent that is neither `Dead` nor `Void`.

use crate::arena::ArenaId;
use crate::region::RegionId;
use crate::timeline::{READY, StreamSlot};
use std::ops::{Index, IndexMut};

pub(crate) type ExtentId = u32;
pub(crate) const NONE: ExtentId = ExtentId::MAX;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Void,
    Pending,
    Free,
    Live,
    Retired,
    Dead,
    /// An unused place of the table.
    Unused,
}

#[derive(Clone, Debug)]
pub(crate) struct Extent {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    /// Neighbours by address within the region.
    pub(crate) prev: ExtentId,
    pub(crate) next: ExtentId,
    /// Links of the bin, of the list of voids, or of unused places.
    pub(crate) bin_prev: ExtentId,
    pub(crate) bin_next: ExtentId,
    /// `Free`: the last use, with `stream`.
    pub(crate) epoch: u64,
    /// `Live`, `Retired`: bytes asked for.
    pub(crate) requested: u64,
    /// `Live`: users that have not let go.
    pub(crate) count: u32,
    /// Raised whenever a lease begins here, so that an old handle is recognised.
    pub(crate) generation: u32,
    /// `Live`: the name it is accounted to.
    pub(crate) owner: u32,
    /// `Live`, `Retired`: uses on streams other than `stream`, a chain in [`crate::uses::Uses`].
    pub(crate) uses: u32,
    /// `Free`: who may take it. `Live`: where it was allocated.
    pub(crate) stream: StreamSlot,
    pub(crate) kind: Kind,
    pub(crate) arena: ArenaId,
    pub(crate) region: RegionId,
}

// Each byte matters on the hot path: among a million leases their cache lines are cold.
const _: () = assert!(size_of::<Extent>() == 80);

impl Default for Extent {
    fn default() -> Self {
        Self {
            addr: 0,
            len: 0,
            prev: NONE,
            next: NONE,
            bin_prev: NONE,
            bin_next: NONE,
            epoch: 0,
            requested: 0,
            count: 0,
            generation: 0,
            owner: 0,
            uses: NONE,
            stream: READY,
            kind: Kind::Void,
            arena: 0,
            region: 0,
        }
    }
}

impl Extent {
    /// Notes one more user of a lease.
    ///
    /// # Panics
    /// If there are 2^32 - 1 already.
    pub(crate) fn add_user(&mut self) {
        self.count = self.count.checked_add(1).expect("fewer than 2^32 users of one lease");
    }

    /// An extent that is alike, but in no bin and never used: to become a piece of this one.
    #[inline]
    fn piece(&self) -> Self {
        Self {
            addr: self.addr,
            len: self.len,
            prev: self.prev,
            next: self.next,
            epoch: self.epoch,
            stream: self.stream,
            kind: self.kind,
            arena: self.arena,
            region: self.region,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.len
    }

    /// Where in this extent a lease of this alignment would begin.
    pub(crate) fn aligned(&self, alignment: u64) -> Option<u64> {
        self.addr.checked_add(self.front(alignment))
    }

    /// Bytes before the first address of this alignment, a power of two.
    #[inline]
    pub(crate) fn front(&self, alignment: u64) -> u64 {
        self.addr.wrapping_neg() & (alignment - 1)
    }

    #[inline]
    pub(crate) fn fits(&self, len: u64, alignment: u64) -> bool {
        len <= self.len && self.front(alignment) <= self.len - len
    }
}

/// All extents, and the order of their addresses.
#[derive(Debug)]
pub(crate) struct Extents {
    table: Vec<Extent>,
    unused: ExtentId,
    in_use: usize,
}

impl Default for Extents {
    fn default() -> Self {
        Self { table: Vec::new(), unused: NONE, in_use: 0 }
    }
}

impl Index<ExtentId> for Extents {
    type Output = Extent;
    #[inline]
    fn index(&self, id: ExtentId) -> &Extent {
        &self.table[id as usize]
    }
}

impl IndexMut<ExtentId> for Extents {
    #[inline]
    fn index_mut(&mut self, id: ExtentId) -> &mut Extent {
        &mut self.table[id as usize]
    }
}

impl Extents {
    /// Adds an extent that is linked to no other. Keeps the generation of its place.
    #[inline]
    pub(crate) fn add(&mut self, extent: Extent) -> ExtentId {
        if self.unused == NONE {
            self.lengthen();
        }
        let id = self.unused;
        let place = &mut self.table[id as usize];
        self.unused = place.bin_next;
        self.in_use += 1;
        *place = Extent { generation: place.generation, ..extent };
        id
    }

    /// Adds an unused place.
    #[cold]
    fn lengthen(&mut self) {
        self.unused = ExtentId::try_from(self.table.len()).expect("fewer than 2^32 extents");
        self.table.push(Extent { kind: Kind::Unused, ..Extent::default() });
    }

    /// Cuts an extent in two; `id` keeps the first `len` bytes, the answer has the rest and is
    /// otherwise alike, but in no bin. The caller sees to the bin of `id`.
    pub(crate) fn split(&mut self, id: ExtentId, len: u64) -> ExtentId {
        let left = &mut self[id];
        debug_assert!(0 < len && len < left.len);
        let next = left.next;
        let right = Extent { addr: left.addr + len, len: left.len - len, prev: id, ..left.piece() };
        left.len = len;
        let right = self.add(right);
        self[id].next = right;
        if next != NONE {
            self[next].prev = right;
        }
        right
    }

    /// Cuts an extent in two; `id` keeps all but the first `len` bytes, the answer has these and is
    /// otherwise alike, but in no bin. The caller sees to the bin of `id` and the start of the region.
    #[inline]
    pub(crate) fn split_front(&mut self, id: ExtentId, len: u64) -> ExtentId {
        let right = &mut self[id];
        debug_assert!(0 < len && len < right.len);
        let prev = right.prev;
        let left = Extent { len, next: id, ..right.piece() };
        right.addr += len;
        right.len -= len;
        let left = self.add(left);
        self[id].prev = left;
        if prev != NONE {
            self[prev].next = left;
        }
        left
    }

    /// Joins an extent with the one behind it, which vanishes and is in no bin. The caller sees to the
    /// bin of `id`.
    #[inline]
    pub(crate) fn join_next(&mut self, id: ExtentId) {
        let gone = self[id].next;
        let (len, next) = (self[gone].len, self[gone].next);
        self[id].len += len;
        self[id].next = next;
        if next != NONE {
            self[next].prev = id;
        }
        self.vacate(gone);
    }

    /// Joins an extent with the one before it, which vanishes and is in no bin. The caller sees to the
    /// bin of `id` and the start of the region.
    #[inline]
    pub(crate) fn join_prev(&mut self, id: ExtentId) {
        let gone = self[id].prev;
        let (addr, len, prev) = (self[gone].addr, self[gone].len, self[gone].prev);
        let right = &mut self[id];
        right.addr = addr;
        right.len += len;
        right.prev = prev;
        if prev != NONE {
            self[prev].next = id;
        }
        self.vacate(gone);
    }

    /// Removes an extent that is alone in its region, and in no bin.
    pub(crate) fn remove(&mut self, id: ExtentId) {
        debug_assert_eq!((self[id].prev, self[id].next), (NONE, NONE));
        self.vacate(id);
    }

    #[inline]
    fn vacate(&mut self, id: ExtentId) {
        self.in_use -= 1;
        let unused = self.unused;
        let place = &mut self[id];
        place.kind = Kind::Unused;
        place.bin_next = unused;
        self.unused = id;
    }

    pub(crate) fn get(&self, id: ExtentId) -> Option<&Extent> {
        self.table.get(id as usize)
    }

    pub(crate) fn count(&self) -> usize {
        self.in_use
    }

    /// All extents in use, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExtentId, &Extent)> {
        (0..).zip(&self.table).filter(|(_, extent)| extent.kind != Kind::Unused)
    }
}

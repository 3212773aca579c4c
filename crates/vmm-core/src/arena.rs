//! An arena: regions of addresses for leases of one range of lengths, and where they are free.
//!
//! Two arenas keep short leases from pinning the frames of long ones.

use crate::bins::Bins;
use crate::extent::{ExtentId, Extents, Kind, NONE};
use crate::region::Region;
use crate::timeline::{READY, StreamSlot};

pub(crate) type ArenaId = u8;
/// Leases up to [`SMALL_MAX`].
pub(crate) const SMALL: ArenaId = 0;
/// All longer ones.
pub(crate) const LARGE: ArenaId = 1;
/// The longest lease of the small arena, in bytes.
pub(crate) const SMALL_MAX: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Arena {
    pub(crate) regions: Vec<Region>,
    /// Free extents by who may take them; `None` for streams that never released here.
    bins: Vec<Option<Box<Bins>>>,
    voids: ExtentId,
}

impl Arena {
    pub(crate) fn new() -> Self {
        Self { regions: Vec::new(), bins: vec![None], voids: NONE }
    }

    /// Puts a `Free` extent into the bins of its stream.
    #[inline]
    pub(crate) fn insert(&mut self, extents: &mut Extents, id: ExtentId) {
        let slot = extents[id].stream as usize;
        if let Some(Some(bins)) = self.bins.get_mut(slot) {
            bins.insert(extents, id);
        } else {
            self.insert_first(extents, id, slot);
        }
    }

    #[cold]
    fn insert_first(&mut self, extents: &mut Extents, id: ExtentId, slot: usize) {
        if self.bins.len() <= slot {
            self.bins.resize_with(slot + 1, || None);
        }
        self.bins[slot].get_or_insert_with(|| Box::new(Bins::new())).insert(extents, id);
    }

    /// Takes a `Free` extent out of its bins.
    #[inline]
    pub(crate) fn remove(&mut self, extents: &mut Extents, id: ExtentId) {
        let slot = extents[id].stream as usize;
        self.bins[slot].as_mut().expect("bins of a free extent").remove(extents, id);
    }

    fn bins_of(&self, slot: StreamSlot) -> Option<&Bins> {
        self.bins.get(slot as usize)?.as_deref()
    }

    /// The shortest extent for a lease of `slot`: its own or ready memory.
    #[inline]
    pub(crate) fn find(
        &self,
        extents: &Extents,
        slot: StreamSlot,
        len: u64,
        alignment: u64,
    ) -> Option<ExtentId> {
        let find = |slot| self.bins_of(slot).and_then(|bins| bins.find(extents, len, alignment));
        match (find(slot), find(READY)) {
            (Some(own), Some(ready)) if extents[ready].len < extents[own].len => Some(ready),
            (own, ready) => own.or(ready),
        }
    }

    /// Free extents of a stream of at least `len` bytes, shortest bins first.
    pub(crate) fn free<'a>(
        &'a self,
        extents: &'a Extents,
        slot: StreamSlot,
        len: u64,
    ) -> impl Iterator<Item = ExtentId> + 'a {
        self.bins_of(slot).into_iter().flat_map(move |bins| bins.at_least(extents, len))
    }

    pub(crate) fn has_free(&self, slot: StreamSlot) -> bool {
        self.bins_of(slot).is_some_and(|bins| !bins.is_empty())
    }

    /// Makes an extent a `Void`, joined with void neighbours.
    pub(crate) fn set_void(&mut self, extents: &mut Extents, mut id: ExtentId) {
        let (prev, next) = (extents[id].prev, extents[id].next);
        if next != NONE && extents[next].kind == Kind::Void {
            self.unlink_void(extents, next);
            extents.join_next(id);
        }
        if prev != NONE && extents[prev].kind == Kind::Void {
            self.unlink_void(extents, prev);
            extents.join_next(prev);
            id = prev;
        }
        let head = self.voids;
        let extent = &mut extents[id];
        extent.kind = Kind::Void;
        extent.stream = READY;
        extent.epoch = 0;
        extent.bin_prev = NONE;
        extent.bin_next = head;
        if head != NONE {
            extents[head].bin_prev = id;
        }
        self.voids = id;
    }

    /// Takes a `Void` out of the list.
    pub(crate) fn unlink_void(&mut self, extents: &mut Extents, id: ExtentId) {
        let (prev, next) = (extents[id].bin_prev, extents[id].bin_next);
        if next != NONE {
            extents[next].bin_prev = prev;
        }
        if prev == NONE {
            self.voids = next;
        } else {
            extents[prev].bin_next = next;
        }
    }

    pub(crate) fn voids<'a>(&self, extents: &'a Extents) -> impl Iterator<Item = ExtentId> + 'a {
        let mut at = self.voids;
        std::iter::from_fn(move || {
            let id = (at != NONE).then_some(at)?;
            at = extents[id].bin_next;
            Some(id)
        })
    }
}

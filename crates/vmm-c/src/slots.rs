//! Leases by the address at which they begin: a hash table with linear probing.
//!
//! One slot is one cache line and holds everything that an allocation writes and a release reads,
//! so that each costs one line that nobody has touched for long. A release closes the gap that it
//! leaves: there are no marks of removed entries that would pile up, and no heap allocation once
//! the table has its size.

use crate::table::Lease;
use std::mem::{replace, take};

/// Addresses of leases are multiples of this, as a power of two.
const UNIT_SHIFT: u32 = 9;

/// Slots at first, as a power of two.
const FIRST_BITS: u32 = 4;

/// A lease that somebody holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    /// How many hold it.
    pub(crate) count: u32,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(Option<Held>);

const _: () = assert!(size_of::<Slot>() == 64);

impl Slot {
    #[inline]
    fn addr(&self) -> Option<u64> {
        self.0.as_ref().map(|held| held.lease.addr().0)
    }
}

#[derive(Debug)]
pub(crate) struct Slots {
    /// At most three quarters are in use, so that every search ends at an empty one.
    slots: Vec<Slot>,
    /// 64 minus the power of two that their number is.
    shift: u32,
    used: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self::with_bits(FIRST_BITS)
    }
}

impl Slots {
    fn with_bits(bits: u32) -> Self {
        let slots = std::iter::repeat_with(Slot::default).take(1 << bits).collect();
        Self { slots, shift: 64 - bits, used: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Held> {
        self.slots.iter().filter_map(|slot| slot.0.as_ref())
    }

    /// Takes out all leases.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Held> + use<> {
        take(self).slots.into_iter().filter_map(|slot| slot.0)
    }

    /// Where the search for an address begins. Fibonacci hashing (Knuth, volume 3, section 6.4):
    /// addresses next to each other come to lie far from each other.
    #[inline]
    fn home(&self, addr: u64) -> usize {
        let mixed = (addr >> UNIT_SHIFT).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift;
        // It is below the number of slots.
        usize::try_from(mixed).unwrap_or(0)
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }

    /// The slot of an address, or the empty one where it would be put.
    #[inline]
    fn search(&self, addr: u64) -> usize {
        let mut at = self.home(addr);
        while self.slots[at].addr().is_some_and(|found| found != addr) {
            at = self.next(at);
        }
        at
    }

    /// The slot of the lease at `addr`.
    #[inline]
    pub(crate) fn find(&mut self, addr: u64) -> Option<Occupied<'_>> {
        let at = self.search(addr);
        self.slots[at].0.is_some().then_some(Occupied { slots: self, at })
    }

    pub(crate) fn get(&self, addr: u64) -> Option<&Held> {
        self.slots[self.search(addr)].0.as_ref()
    }

    /// # Panics
    /// If there is a lease at its address.
    #[inline]
    pub(crate) fn insert(&mut self, held: Held) {
        if self.used >= self.slots.len() / 4 * 3 {
            self.grow();
        }
        let at = self.search(held.lease.addr().0);
        assert!(self.slots[at].0.is_none(), "a live address was given out again");
        self.slots[at].0 = Some(held);
        self.used += 1;
    }

    #[cold]
    fn grow(&mut self) {
        let larger = Self::with_bits(64 - self.shift + 1);
        for slot in replace(self, larger).slots {
            if let Some(held) = slot.0 {
                self.insert(held);
            }
        }
    }

    /// Moves back what would not be found any more behind an empty slot (Knuth's algorithm R).
    #[inline]
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut at = gap;
        loop {
            at = self.next(at);
            let Some(addr) = self.slots[at].addr() else { return };
            // It may move to the gap if the gap lies between its home and where it is.
            let from_home = at.wrapping_sub(self.home(addr)) & mask;
            let from_gap = at.wrapping_sub(gap) & mask;
            if from_home >= from_gap {
                self.slots[gap].0 = self.slots[at].0.take();
                gap = at;
            }
        }
    }
}

/// A slot with a lease, found and not searched for again.
#[derive(Debug)]
pub(crate) struct Occupied<'a> {
    slots: &'a mut Slots,
    at: usize,
}

impl Occupied<'_> {
    #[inline]
    pub(crate) fn held(&mut self) -> &mut Held {
        self.slots.slots[self.at].0.as_mut().expect("the slot is occupied")
    }

    #[inline]
    pub(crate) fn remove(self) -> Held {
        let held = self.slots.slots[self.at].0.take().expect("the slot is occupied");
        self.slots.used -= 1;
        self.slots.close_gap(self.at);
        held
    }
}

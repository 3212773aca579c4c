//! Reserved ranges of addresses.

use std::collections::BTreeMap;
use vmm_core::device::AddrRange;
use vmm_core::units::DeviceAddr;

/// Where addresses begin. Not zero, and far above what a host pointer's low half can show.
const FLOOR: u64 = 1 << 40;

#[derive(Debug)]
struct Region {
    len: u64,
    /// When the last unbind in it is done, in logical nanoseconds.
    unbound_at: u64,
}

/// The reservations of a device.
///
/// Invariant: reserved ranges lie within `FLOOR..ceiling` and do not overlap.
#[derive(Debug)]
pub(crate) struct Addresses {
    reserved: BTreeMap<u64, Region>,
    ceiling: u64,
    /// Where the next search begins: an address that was given back returns as late as possible, so
    /// that a stale one is noticed.
    cursor: u64,
}

impl Addresses {
    /// `granule` shifts the first address, so that no alignment beyond it is met by luck.
    pub(crate) fn new(space: u64, granule: u64) -> Self {
        let ceiling = FLOOR.checked_add(space).expect("address space beyond 2^64");
        Self { reserved: BTreeMap::new(), ceiling, cursor: FLOOR + granule.min(space / 2) }
    }

    pub(crate) fn reserve(&mut self, len: u64, alignment: u64) -> Option<DeviceAddr> {
        let base = self
            .gap(self.cursor, self.ceiling, len, alignment)
            .or_else(|| self.gap(FLOOR, self.ceiling, len, alignment))?;
        self.reserved.insert(base, Region { len, unbound_at: 0 });
        self.cursor = base + len;
        Some(DeviceAddr(base))
    }

    /// The lowest gap of `len` bytes at or above `from`.
    fn gap(&self, from: u64, ceiling: u64, len: u64, alignment: u64) -> Option<u64> {
        let align = |addr: u64| addr.checked_next_multiple_of(alignment);
        let before = self.reserved.range(..from).next_back();
        let mut start = align(before.map_or(from, |(base, region)| from.max(base + region.len)))?;
        for (base, region) in self.reserved.range(from..) {
            if start.checked_add(len)? <= *base {
                return Some(start);
            }
            start = align(start.max(base + region.len))?;
        }
        (start.checked_add(len)? <= ceiling).then_some(start)
    }

    /// Whether the range lies within one reservation.
    pub(crate) fn contains(&self, range: AddrRange) -> bool {
        self.region_of(range.addr).is_some_and(|(base, region)| {
            range.addr.0.checked_add(range.len).is_some_and(|end| end <= base + region.len)
        })
    }

    fn region_of(&self, addr: DeviceAddr) -> Option<(u64, &Region)> {
        let (base, region) = self.reserved.range(..=addr.0).next_back()?;
        (addr.0 < base + region.len).then_some((*base, region))
    }

    /// Notes that an unbind in the region around `addr` is done at `at`.
    pub(crate) fn unbinds_until(&mut self, addr: DeviceAddr, at: u64) {
        if let Some((_, region)) = self.reserved.range_mut(..=addr.0).next_back() {
            region.unbound_at = region.unbound_at.max(at);
        }
    }

    /// The caller has checked that nothing is mapped in the region.
    pub(crate) fn release(&mut self, range: AddrRange, now: u64) -> Result<(), &'static str> {
        match self.reserved.get(&range.addr.0) {
            None => Err("no reservation begins here"),
            Some(region) if region.len != range.len => Err("a reservation is freed whole"),
            Some(region) if region.unbound_at > now => Err("an unbind in the region is not done"),
            Some(_) => {
                self.reserved.remove(&range.addr.0);
                Ok(())
            }
        }
    }

    /// All reservations.
    pub(crate) fn iter(&self) -> impl Iterator<Item = AddrRange> + '_ {
        self.reserved
            .iter()
            .map(|(base, region)| AddrRange { addr: DeviceAddr(*base), len: region.len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 4096;

    fn range(addr: DeviceAddr, len: u64) -> AddrRange {
        AddrRange { addr, len }
    }

    #[test]
    fn reservations_are_aligned_and_disjoint() {
        let mut addresses = Addresses::new(1 << 30, G);
        let a = addresses.reserve(3 * G, G).unwrap();
        let b = addresses.reserve(G, 64 * G).unwrap();
        let c = addresses.reserve(G, G).unwrap();
        assert_eq!(b.0 % (64 * G), 0);
        assert!(a.offset(3 * G) <= b && b.offset(G) <= c);
    }

    #[test]
    fn a_freed_address_comes_back_only_when_the_rest_is_used() {
        let mut addresses = Addresses::new(4 * G, G);
        let a = addresses.reserve(G, G).unwrap();
        addresses.release(range(a, G), 0).unwrap();
        let others: Vec<_> = (0..2).map(|_| addresses.reserve(G, G).unwrap()).collect();
        assert!(!others.contains(&a));
        let rest: Vec<_> = (0..2).map(|_| addresses.reserve(G, G).unwrap()).collect();
        assert!(rest.contains(&a));
        assert_eq!(addresses.reserve(G, G), None);
    }

    #[test]
    fn a_reservation_is_freed_whole_and_once() {
        let mut addresses = Addresses::new(1 << 30, G);
        let a = addresses.reserve(2 * G, G).unwrap();
        assert!(addresses.release(range(a, G), 0).is_err());
        assert!(addresses.release(range(a.offset(G), G), 0).is_err());
        addresses.release(range(a, 2 * G), 0).unwrap();
        assert!(addresses.release(range(a, 2 * G), 0).is_err());
    }

    #[test]
    fn a_range_across_two_reservations_is_in_neither() {
        let mut addresses = Addresses::new(1 << 30, G);
        let a = addresses.reserve(G, G).unwrap();
        let b = addresses.reserve(G, G).unwrap();
        assert_eq!(a.offset(G), b);
        assert!(addresses.contains(range(a, G)));
        assert!(!addresses.contains(range(a, 2 * G)));
        assert!(!addresses.contains(range(DeviceAddr(u64::MAX), 2)));
    }
}

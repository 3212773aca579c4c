//! Which lease lies at an address.
//!
//! C names a lease by its address, so each allocation puts the lease into this table and the last
//! release takes it out. Both are on the hot path; finding the lease around an address in its
//! middle is not, and must not make them slower.
//!
//! Addresses are divided into pages of 2 MiB and the pages among shards, each with a lock of its
//! own, so that threads rarely meet. A shard has its leases by address ([`Slots`]) and bitmaps of
//! where they begin ([`Begins`]). Where no lease begins in a page before an address, the set of all
//! pages in use leads to the page below.
//!
//! Order of locks: shard, then pages in use, or shard, then pool. Nothing takes two shards but
//! [`Table::validate`], in ascending order.

use crate::begins::{Begins, page_end, page_of};
use crate::pages::PageSet;
use crate::slots::{Held, Slots};
use parking_lot::Mutex;
use std::collections::HashMap;
use vmm_core::{Owner, Snapshot, StreamId};

/// A lease of this interface.
pub(crate) type Lease = vmm_core::Lease<crate::device::AnyDevice>;

/// Many more than threads that allocate at once.
const SHARDS: usize = 32;

/// An address at which no lease is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotALease;

/// What is at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) base: u64,
    pub(crate) len: u64,
    pub(crate) owner: Owner,
    pub(crate) count: u32,
}

#[derive(Debug)]
pub(crate) struct Table {
    shards: Box<[Shard]>,
    /// Pages in which a lease begins, and some in which one did.
    in_use: Mutex<PageSet>,
}

/// Alone on its cache lines, and on those that are fetched along with them.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Leases>);

#[derive(Debug, Default)]
struct Leases {
    held: Slots,
    begins: Begins,
}

impl Held {
    fn found(&self) -> Found {
        let lease = &self.lease;
        Found { base: lease.addr().0, len: lease.len(), owner: lease.owner(), count: self.count }
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            shards: std::iter::repeat_with(Shard::default).take(SHARDS).collect(),
            in_use: Mutex::default(),
        }
    }

    #[inline]
    fn shard(&self, addr: u64) -> &Mutex<Leases> {
        // Not by the multiplier of the tables in a shard: its pages would all begin their search at
        // the same place. This one is that of Degski's hash.
        let mixed = page_of(addr).wrapping_mul(0xd6e8_feb8_6659_fd93) >> (64 - SHARDS.ilog2());
        &self.shards[usize::try_from(mixed).unwrap_or(0) % SHARDS].0
    }

    /// Keeps a lease that has memory.
    ///
    /// # Panics
    /// If there is one at its address: the pool would have given out live memory.
    #[inline]
    pub(crate) fn insert(&self, lease: Lease) {
        let addr = lease.addr().0;
        let mut leases = self.shard(addr).lock();
        leases.held.insert(Held { lease, count: 1 });
        leases.begins.insert(addr, &self.in_use);
    }

    /// One user of the lease at `addr` lets go. Its work ends with what is queued on `stream`.
    #[inline]
    pub(crate) fn release(&self, addr: u64, stream: StreamId) -> Result<(), NotALease> {
        let mut leases = self.shard(addr).lock();
        let mut found = leases.held.find(addr).ok_or(NotALease)?;
        let held = found.held();
        if held.count > 1 {
            held.count -= 1;
            // A hold of its own, made late: it says where this user's work ends.
            held.lease.share(Owner::NONE).release(stream);
            return Ok(());
        }
        // Out of the table first: as soon as the pool has the address, another thread may get it.
        let held = found.remove();
        leases.begins.remove(addr);
        drop(leases);
        held.lease.release(stream);
        Ok(())
    }

    /// A further user of the lease at `addr`.
    pub(crate) fn share(&self, addr: u64) -> Result<(), NotALease> {
        let mut leases = self.shard(addr).lock();
        let mut found = leases.held.find(addr).ok_or(NotALease)?;
        let held = found.held();
        held.count = held.count.checked_add(1).expect("fewer than 2^32 users of one lease");
        Ok(())
    }

    /// A hold on the lease at `addr` for the caller, beside those of its users.
    pub(crate) fn hold(&self, addr: u64) -> Result<Lease, NotALease> {
        self.with(addr, |lease| lease.share(Owner::NONE))
    }

    /// Calls `body` with the lease at `addr`, which stays meanwhile. `body` must not use the table.
    pub(crate) fn with<T>(
        &self,
        addr: u64,
        body: impl FnOnce(&Lease) -> T,
    ) -> Result<T, NotALease> {
        let leases = self.shard(addr).lock();
        leases.held.get(addr).map(|held| body(&held.lease)).ok_or(NotALease)
    }

    /// The lease that `addr` lies in, at its beginning or behind it.
    pub(crate) fn find(&self, addr: u64) -> Option<Found> {
        let mut last = addr;
        loop {
            {
                let mut leases = self.shard(last).lock();
                if let Some(base) = leases.begins.last(last, &self.in_use) {
                    return leases.held.get(base).map(Held::found).filter(|f| addr - base < f.len);
                }
            }
            last = page_end(self.in_use.lock().before(page_of(last))?);
        }
    }

    /// Takes out all leases.
    pub(crate) fn drain(&self) -> Vec<Lease> {
        let shards = self.shards.iter();
        shards
            .flat_map(|shard| {
                let mut leases = shard.0.lock();
                leases.begins.clear(&self.in_use);
                leases.held.drain().map(|held| held.lease).collect::<Vec<_>>()
            })
            .collect()
    }

    /// Checks the table by itself and against its pool, of which `snapshot` is taken meanwhile.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn validate(&self, snapshot: impl FnOnce() -> Snapshot) {
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.lock()).collect();
        let in_use = self.in_use.lock();
        // Leases enter the pool before the table and leave it after, so the pool has all of these,
        // and perhaps others.
        let snapshot = snapshot();
        let live: HashMap<u64, u64> = snapshot
            .leases
            .iter()
            .filter(|lease| lease.count > 0)
            .map(|lease| (lease.addr.0, lease.requested))
            .collect();
        for leases in &shards {
            let begins = leases.begins.validate(&in_use);
            assert_eq!(begins, leases.held.len(), "begins of leases, and leases");
            for held in leases.held.iter() {
                let addr = held.lease.addr().0;
                let found = leases.held.get(addr).is_some_and(|found| std::ptr::eq(found, held));
                assert!(found, "a lease is found by its address");
                assert!(leases.begins.contains(addr), "a lease begins there");
                assert!(held.count > 0, "somebody holds a lease");
                assert_eq!(live.get(&addr), Some(&held.lease.len()), "the pool has the lease");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::AnyDevice;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use vmm_core::{Maintenance, Pool, PoolOptions};
    use vmm_cuda::VirtualMemory;

    const STREAM: StreamId = StreamId(1);

    fn pool() -> Pool<AnyDevice> {
        let device = Arc::new(AnyDevice::mock(64 << 30, VirtualMemory::Auto));
        let options = PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() };
        Pool::new(device, options).unwrap()
    }

    /// The numbers of Marsaglia's xorshift (2003).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    /// Leases of 512 bytes to 256 MiB come and go; each address is looked for in a plain map as
    /// well.
    #[test]
    fn finds_what_an_ordered_map_finds() {
        let (pool, table) = (pool(), Table::new());
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let mut numbers = Numbers(7);
        let check = |addr: u64, model: &BTreeMap<u64, u64>| {
            let expected =
                model.range(..=addr).next_back().filter(|(base, len)| addr - *base < **len);
            let found = table.find(addr).map(|found| (found.base, found.len));
            assert_eq!(found, expected.map(|(base, len)| (*base, *len)), "{addr:#x}");
        };
        for round in 0..20_000 {
            let any = |numbers: &mut Numbers, model: &BTreeMap<u64, u64>| {
                let at = usize::try_from(numbers.below(model.len() as u64)).unwrap();
                model.iter().nth(at).map(|(base, len)| (*base, *len)).unwrap()
            };
            if model.len() < 100 && numbers.below(2) == 0 {
                let shift = 9 + numbers.below(19);
                let len = 1 + numbers.below(1 << shift);
                let lease = pool.allocate(len, STREAM, Owner::NONE).unwrap();
                assert_eq!(model.insert(lease.addr().0, len), None);
                table.insert(lease);
            } else if !model.is_empty() {
                let (base, len) = any(&mut numbers, &model);
                if numbers.below(3) == 0 {
                    model.remove(&base);
                    assert_eq!(table.release(base, STREAM), Ok(()));
                    assert_eq!(table.release(base, STREAM), Err(NotALease));
                } else {
                    check(base + numbers.below(2 * len), &model);
                    check(base.saturating_sub(numbers.below(len)), &model);
                }
            }
            if round % 1_000 == 0 {
                table.validate(|| pool.snapshot());
            }
        }
        check(0, &model);
        check(u64::MAX, &model);
        let held = table.drain();
        assert_eq!(held.len(), model.len());
        table.validate(|| pool.snapshot());
        assert!(model.keys().all(|base| table.find(*base).is_none()));
    }

    #[test]
    fn every_user_must_let_go() {
        let (pool, table) = (pool(), Table::new());
        let lease = pool.allocate(1000, STREAM, Owner::NONE).unwrap();
        let addr = lease.addr().0;
        table.insert(lease);
        table.share(addr).unwrap();
        assert_eq!(table.find(addr + 999).map(|found| found.count), Some(2));
        assert_eq!(table.find(addr + 1000), None);
        table.release(addr, STREAM).unwrap();
        assert_eq!(pool.stats().live_leases, 1);
        table.release(addr, StreamId(2)).unwrap();
        assert_eq!(pool.stats().live_leases, 0);
    }

    /// What a user that lets go early has queued is waited for, though others let go later.
    #[test]
    fn the_work_of_every_user_counts() {
        let (pool, table) = (pool(), Table::new());
        let AnyDevice::Mock(device) = &**pool.device() else { panic!("a mock") };
        let lease = pool.allocate(1 << 20, STREAM, Owner::NONE).unwrap();
        let addr = lease.addr().0;
        table.insert(lease);
        table.share(addr).unwrap();
        device.launch(StreamId(2), 1_000_000, &[]).unwrap();
        table.release(addr, StreamId(2)).unwrap();
        table.release(addr, STREAM).unwrap();
        assert_eq!(pool.stats().retired_bytes, 1 << 20, "stream 2 still uses it");
        device.finish_all();
        pool.trim(u64::MAX).unwrap();
        assert_eq!(pool.stats().retired_bytes, 0);
    }

    #[test]
    #[should_panic(expected = "a live address was given out again")]
    fn an_address_is_not_held_twice() {
        // Two mock devices give out the same addresses.
        let (one, other, table) = (pool(), pool(), Table::new());
        table.insert(one.allocate(512, STREAM, Owner::NONE).unwrap());
        table.insert(other.allocate(512, STREAM, Owner::NONE).unwrap());
    }
}

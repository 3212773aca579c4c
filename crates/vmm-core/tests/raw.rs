//! Leases that are named by their addresses.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use support::Random;
use vmm_core::{DeviceAddr, Maintenance, NotALease, Owner, Pool, PoolOptions, Request, StreamId};
use vmm_mock::{MockDevice, MockOptions};

const STREAM: StreamId = StreamId(1);
const OTHER: StreamId = StreamId(2);

fn pool() -> Pool<MockDevice> {
    let device = Arc::new(MockDevice::new(MockOptions::default()));
    let options = PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() };
    Pool::new(device, options).unwrap()
}

fn allocate(pool: &Pool<MockDevice>, len: u64) -> DeviceAddr {
    pool.allocate_raw(&Request::new(len, STREAM)).unwrap()
}

/// Leases of 512 bytes to 256 MiB come and go beside others that have no name; each address is looked
/// for in a plain map as well.
#[test]
fn finds_what_an_ordered_map_finds() {
    let pool = pool();
    let mut model: BTreeMap<u64, u64> = BTreeMap::new();
    let mut nameless = Vec::new();
    let mut random = Random(7);
    let check = |addr: u64, model: &BTreeMap<u64, u64>| {
        let expected = model.range(..=addr).next_back().filter(|(base, len)| addr - *base < **len);
        let found = pool.find_raw(DeviceAddr(addr)).map(|found| (found.addr.0, found.len));
        assert_eq!(found, expected.map(|(base, len)| (*base, *len)), "{addr:#x}");
    };
    for round in 0..10_000 {
        if model.len() < 100 && random.below(2) == 0 {
            let shift = 9 + random.below(19);
            let len = 1 + random.below(1 << shift);
            nameless.push(pool.allocate(len, STREAM, Owner::NONE).unwrap());
            assert_eq!(model.insert(allocate(&pool, len).0, len), None);
            nameless.truncate(20);
        } else if !model.is_empty() {
            let at = usize::try_from(random.below(model.len() as u64)).unwrap();
            let (base, len) = model.iter().nth(at).map(|(base, len)| (*base, *len)).unwrap();
            if random.below(3) == 0 {
                model.remove(&base);
                let addr = DeviceAddr(base);
                assert_eq!(pool.release_raw(addr, Some(STREAM)).unwrap().len, len);
                assert_eq!(pool.release_raw(addr, Some(STREAM)), Err(NotALease { addr }));
            } else {
                check(base + random.below(2 * len), &model);
                check(base.saturating_sub(random.below(len)), &model);
            }
        }
        if round % 1_000 == 0 {
            pool.validate();
        }
    }
    check(0, &model);
    check(u64::MAX, &model);
    let lease = &nameless[0];
    assert_eq!(pool.find_raw(lease.addr()), None, "a lease of another kind has no name");
    assert!(pool.release_raw(lease.addr(), None).is_err());
    assert_eq!(pool.release_all_raw(), model.len());
    pool.validate();
    assert!(model.keys().all(|base| pool.find_raw(DeviceAddr(*base)).is_none()));
    drop(nameless);
    assert_eq!(pool.stats().live_bytes, 0);
}

#[test]
fn every_user_must_let_go() {
    let pool = pool();
    let addr = allocate(&pool, 1000);
    pool.share_raw(addr).unwrap();
    assert_eq!(pool.find_raw(addr.offset(999)).map(|found| found.count), Some(2));
    assert_eq!(pool.find_raw(addr.offset(1000)), None);
    assert_eq!(pool.release_raw(addr, None).unwrap().count, 1);
    assert_eq!(pool.stats().live_leases, 1);
    assert_eq!(pool.release_raw(addr, Some(OTHER)).unwrap().count, 0);
    assert_eq!(pool.stats().live_leases, 0);
    assert_eq!(pool.share_raw(addr), Err(NotALease { addr }));
    assert_eq!(pool.used_on_raw(addr, OTHER), Err(NotALease { addr }));
    assert!(pool.grant_raw(addr, &[]).is_err());
}

/// What a user that lets go early has queued is waited for, though others let go later.
#[test]
fn the_work_of_every_user_counts() {
    let pool = pool();
    let addr = allocate(&pool, 1 << 20);
    pool.share_raw(addr).unwrap();
    for stream in [STREAM, OTHER] {
        pool.device().launch(stream, 1_000_000, &[]).unwrap();
    }
    pool.release_raw(addr, Some(OTHER)).unwrap();
    pool.release_raw(addr, None).unwrap();
    assert_eq!(pool.stats().retired_bytes, 1 << 20, "two streams still use it");
    let more = allocate(&pool, 64 << 20);
    pool.release_raw(more, None).unwrap();
    let stats = pool.stats();
    assert_eq!((stats.peak_live_bytes, stats.peak_active_bytes), (64 << 20, 65 << 20));
    let most = stats.peak_frames;
    assert_eq!(most, stats.frames, "none is gone yet");
    pool.reset_peaks();
    assert_eq!(pool.stats().peak_active_bytes, 1 << 20);
    pool.device().finish_all();
    pool.trim(u64::MAX).unwrap();
    assert_eq!(pool.stats().retired_bytes, 0);
    pool.trim(0).unwrap();
    let stats = pool.stats();
    assert!(stats.frames < most && stats.peak_frames == most, "{stats:?}");
    pool.reset_peaks();
    assert_eq!(pool.stats().peak_frames, stats.frames);
}

/// Those that nobody has released end with the call, also shared ones.
#[test]
fn all_can_be_ended_at_once() {
    let pool = pool();
    let addrs: Vec<DeviceAddr> = (0..10).map(|i| allocate(&pool, 300 << (2 * i))).collect();
    pool.share_raw(addrs[3]).unwrap();
    assert_eq!(pool.release_all_raw(), 10);
    assert_eq!(pool.release_all_raw(), 0);
    assert_eq!(pool.stats().live_leases, 0);
    pool.validate();
}

#[test]
fn no_bytes_are_no_lease() {
    let pool = pool();
    assert_eq!(allocate(&pool, 0), DeviceAddr(0));
    assert_eq!(pool.allocate_raw_at_hand(&Request::new(0, STREAM)).unwrap(), Some(DeviceAddr(0)));
    assert_eq!(pool.allocate_raw_at_hand(&Request::new(1, STREAM)).unwrap(), None);
    assert!(pool.release_raw(DeviceAddr(0), None).is_err());
}

#[test]
fn peaks_can_begin_anew() {
    let pool = pool();
    let (long, short) = (allocate(&pool, 10 << 20), allocate(&pool, 700));
    pool.release_raw(long, None).unwrap();
    let before = pool.stats();
    assert_eq!((before.peak_live_bytes, before.peak_requested_bytes), (10486784, 10486460));
    pool.trim_and_wait(0).unwrap();
    pool.reset_peaks();
    let now = pool.stats();
    assert_eq!((now.peak_live_bytes, now.peak_requested_bytes), (1024, 700));
    assert_eq!(now.peak_reserved_bytes, now.reserved_bytes);
    assert!(now.reserved_bytes < before.peak_reserved_bytes);
    pool.release_raw(short, None).unwrap();
    assert_eq!(pool.stats().peak_live_bytes, 1024);
}

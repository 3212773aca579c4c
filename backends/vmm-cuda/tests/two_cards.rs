//! Two cards: memory that one lends to the other, and that neither takes the other's fences or memory.

mod common;

use common::checks::LONG;
use common::{Cards, in_context};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::{DeviceOrdinal, StreamId};
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions};
use vmm_cuda::kernels::{Contents, Gate, Mismatches};
use vmm_cuda::{CudaDevice, CudaOptions};

struct Pair {
    _cards: Cards,
    devices: [Arc<CudaDevice>; 2],
    streams: [StreamId; 2],
}

fn pair() -> Option<Pair> {
    let cards = Cards::take(2)?;
    let devices = [0, 1].map(|ordinal| cards.open(CudaOptions::of_device(ordinal)));
    let streams = devices.each_ref().map(|device| device.make_stream().expect("a stream"));
    Some(Pair { _cards: cards, devices, streams })
}

fn range(lease: &Lease<CudaDevice>) -> AddrRange {
    AddrRange { addr: lease.addr(), len: lease.len() }
}

fn pools(devices: &[Arc<CudaDevice>; 2], peers: bool) -> [Pool<CudaDevice>; 2] {
    [0, 1].map(|n| {
        let page = devices[n].properties().granule;
        // No worker, so that a trimmed pool stays so.
        let (limit, maintenance) = (Some(64 * page), Maintenance::UserLoop);
        let mut options = PoolOptions { limit, maintenance, ..PoolOptions::default() };
        if peers {
            options.peers = vec![devices[1 - n].ordinal()];
        }
        Pool::new(Arc::clone(&devices[n]), options).expect("a pool")
    })
}

/// A kernel of the other card reads and writes leases of several owners, made before and after the pool
/// grew.
#[test]
fn peers_use_all_leases() {
    let Some(Pair { devices, streams, .. }) = pair() else { return };
    if devices[0].peers() != [DeviceOrdinal(1)] {
        println!("skipped: the two cards cannot reach each other's memory");
        return;
    }
    let page = devices[0].properties().granule;
    let [pool, _] = pools(&devices, true);
    let owners = ["one", "two", "three"].map(|name| pool.owner(name));
    let lease = |n: u64, owner| pool.allocate(n * page, streams[0], owner).expect("memory");
    let mut leases = vec![lease(1, owners[0]), lease(2, owners[1])];
    leases.push(lease(40, owners[2]));
    let checks = devices.each_ref().map(|device| Contents::new(device).expect("kernels"));
    for (seed, lease) in (0..).zip(&leases) {
        checks[0].fill(range(lease), seed, streams[0]).expect("a fill");
    }
    devices[0].synchronize_stream(streams[0]).expect("no failure");
    for (seed, lease) in (0..).zip(&leases) {
        checks[1].check(range(lease), seed, streams[1]).expect("a check");
        checks[1].fill(range(lease), seed + 100, streams[1]).expect("a fill");
    }
    devices[1].synchronize_stream(streams[1]).expect("no failure");
    for (seed, lease) in (0..).zip(&leases) {
        checks[0].check(range(lease), seed + 100, streams[0]).expect("a check");
    }
    devices[0].synchronize_stream(streams[0]).expect("no failure");
    for (n, checks) in checks.iter().enumerate() {
        assert_eq!(checks.mismatches().expect("counters"), Mismatches::default(), "card {n}");
    }
}

/// Whatever device is current: memory of device 0 stays while work of device 0 uses it.
#[test]
fn a_trim_looks_at_its_own_device() {
    let Some(Pair { devices, streams, .. }) = pair() else { return };
    let [pool, _] = pools(&devices, false);
    let page = devices[0].properties().granule;
    let gate = Gate::new(&devices[0]).expect("kernels");
    let lease = pool.allocate(8 * page, streams[0], Owner::NONE).expect("memory");
    gate.hold(streams[0]).expect("a kernel");
    devices[0].fill(lease.addr(), 1, lease.len(), streams[0]).expect("a fill");
    let held = pool.stats().reserved_bytes;
    drop(lease);
    in_context(&devices[1], || {
        pool.trim(0).expect("no failure");
        assert_eq!(pool.stats().reserved_bytes, held, "work still uses all of it");
        gate.open();
        pool.trim_and_wait(0).expect("no failure");
        assert_eq!(pool.stats().reserved_bytes, 0);
    });
    devices[0].synchronize().expect("the work had its memory to the end");
}

/// A fence belongs to the device of its stream, whatever device is current.
#[test]
fn fences_belong_to_their_device() {
    let Some(Pair { devices, streams, .. }) = pair() else { return };
    let gate = Gate::new(&devices[0]).expect("kernels");
    gate.hold(streams[0]).expect("a kernel");
    let legacy = CudaDevice::stream_id(std::ptr::null_mut());
    in_context(&devices[1], || {
        let held = devices[0].record(streams[0]).expect("a fence");
        let (here, there) = (
            devices[0].record(legacy).expect("a fence"),
            devices[1].record(legacy).expect("a fence"),
        );
        assert!(devices[0].wait(here, LONG).expect("a wait"));
        assert!(devices[1].wait(there, LONG).expect("a wait"));
        assert!(!devices[0].wait(held, Duration::from_millis(1)).expect("a wait"));
        gate.open();
        assert!(devices[0].wait(held, LONG).expect("a wait"));
    });
}

/// One thread uses a pool on each card, and copies between them.
#[test]
fn copies_between_pools() {
    let Some(Pair { devices, streams, .. }) = pair() else { return };
    if devices[0].peers().is_empty() || devices[1].peers().is_empty() {
        println!("skipped: the two cards cannot reach each other's memory");
        return;
    }
    // As much as takes long enough to measure, and less on a card that is nearly full.
    let free = devices.each_ref().map(|device| device.memory_info().expect("a look").free);
    let len = (1 << 30).min(free[0].min(free[1]) / 4 / (2 << 20) * (2 << 20));
    let rooms = devices.each_ref().map(|device| {
        let base = device.reserve(len, device.properties().granule).expect("addresses");
        let frame = device.make_frame(len, FrameKind::Device).expect("memory");
        let range = AddrRange { addr: base, len };
        device.map(&[Mapping { range, frame }], &[]).expect("a mapping");
        device.set_access(range, &device.peers()).expect("access");
        range
    });
    let checks = devices.each_ref().map(|device| Contents::new(device).expect("kernels"));
    checks[0].fill(rooms[0], 11, streams[0]).expect("a fill");
    devices[0].copy(rooms[1].addr, rooms[0].addr, len, streams[0]).expect("a copy");
    devices[0].synchronize_stream(streams[0]).expect("no failure");
    let rounds = 8_u32;
    let start = Instant::now();
    for _ in 0..rounds {
        devices[0].copy(rooms[1].addr, rooms[0].addr, len, streams[0]).expect("a copy");
    }
    devices[0].synchronize_stream(streams[0]).expect("no failure");
    let seconds = start.elapsed().as_secs_f64() / f64::from(rounds);
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let speed = len as f64 / 1e9 / seconds;
    println!("{} MiB from card 0 to card 1: {speed:.1} GB/s", len >> 20);
    checks[1].check(rooms[1], 11, streams[1]).expect("a check");
    devices[1].synchronize_stream(streams[1]).expect("no failure");
    assert_eq!(checks[1].mismatches().expect("counters"), Mismatches::default());
    let pools = pools(&devices, true);
    let leases =
        [0, 1].map(|n| pools[n].allocate(1 << 20, streams[n], Owner::NONE).expect("memory"));
    checks[0].fill(range(&leases[0]), 5, streams[0]).expect("a fill");
    devices[0].copy(leases[1].addr(), leases[0].addr(), 1 << 20, streams[0]).expect("a copy");
    devices[0].synchronize_stream(streams[0]).expect("no failure");
    checks[1].check(range(&leases[1]), 5, streams[1]).expect("a check");
    devices[1].synchronize_stream(streams[1]).expect("no failure");
    assert_eq!(checks[1].mismatches().expect("counters"), Mismatches::default());
    drop((leases, pools));
    let _ = devices.each_ref().map(|device| device.remove_leftovers().expect("all of it"));
}

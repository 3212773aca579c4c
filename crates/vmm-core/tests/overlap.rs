//! No two users share a byte of physical memory, whatever moves: checked from the snapshot, apart from
//! what the pool itself believes.
//!
//! Users are the leases, and the graphs with all addresses that their captures were given, also those
//! released since. All these must lie on mappings that are current.

mod support;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use support::{MIB, Random};
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions, PrivatePool, Snapshot, StreamId};
use vmm_mock::{MockDevice, MockOptions};

/// Many short leases, and long ones of which few are very long.
fn len(random: &mut Random) -> u64 {
    if random.below(5) < 2 {
        512 + random.below(900_000)
    } else {
        MIB + random.below(40 * MIB) * random.below(MIB) / MIB
    }
}

struct Graph {
    _private: PrivatePool<MockDevice>,
    _outputs: Vec<Lease<MockDevice>>,
    ranges: Vec<Range<u64>>,
}

fn range(lease: &Lease<MockDevice>) -> Range<u64> {
    lease.addr().0..lease.addr().0 + lease.len()
}

/// Captures a graph, in a private pool of its own, whose memory is used several times.
fn capture(pool: &Pool<MockDevice>, stream: StreamId, random: &mut Random) -> Graph {
    let private = pool.private_pool().expect("few private pools");
    pool.device().begin_capture(stream);
    let (mut outputs, mut scratch, mut ranges) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..12 {
        if let Ok(lease) = private.allocate(len(random) / 2, stream, Owner::NONE) {
            ranges.push(range(&lease));
            let kept = if random.below(5) == 0 { &mut outputs } else { &mut scratch };
            kept.push(lease);
        }
        if random.below(3) > 0 && !scratch.is_empty() {
            scratch.remove(0).release(stream);
        }
    }
    drop(scratch);
    pool.device().end_capture(stream);
    Graph { _private: private, _outputs: outputs, ranges }
}

/// Bytes of frames under addresses.
fn physical(shot: &Snapshot, range: Range<u64>) -> Vec<(usize, Range<u64>)> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let under = |m: &&vmm_core::MappingView| m.range.addr.0 <= at && at < m.range.end().0;
        let mapping = shot.mappings.iter().find(under).expect("memory under a user");
        assert!(!mapping.stale, "the memory at {at:#x} has moved on under its user");
        let (base, end) = (mapping.range.addr.0, mapping.range.end().0.min(range.end));
        found.push((mapping.frame, at - base..end - base));
        at = end;
    }
    found
}

fn check(pool: &Pool<MockDevice>, leases: &[Lease<MockDevice>], graphs: &[Graph]) {
    let shot = pool.snapshot();
    // By frame; ranges of one graph may overlap each other, of different users not.
    let mut users: HashMap<usize, Vec<(usize, Range<u64>)>> = HashMap::new();
    let all = leases.iter().map(|lease| vec![range(lease)]);
    let all = all.chain(graphs.iter().map(|graph| graph.ranges.clone()));
    for (user, ranges) in all.enumerate() {
        for (frame, bytes) in ranges.into_iter().flat_map(|range| physical(&shot, range)) {
            let others = users.entry(frame).or_default();
            let shared = others.iter().find(|(other, taken)| {
                *other != user && bytes.start < taken.end && taken.start < bytes.end
            });
            assert_eq!(shared, None, "user {user} has bytes {bytes:?} of frame {frame} too");
            others.push((user, bytes));
        }
    }
}

fn run(seed: u64, options: PoolOptions) {
    let device =
        Arc::new(MockDevice::new(MockOptions { memory: 4 << 30, ..MockOptions::default() }));
    let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
    let (stream, capturing) = (device.make_stream(), device.make_stream());
    let mut random = Random(seed);
    let (mut leases, mut graphs): (Vec<Lease<MockDevice>>, Vec<Graph>) = (Vec::new(), Vec::new());
    for _ in 0..1_500 {
        match random.below(200) {
            0..90 => {
                let live: u64 = leases.iter().map(Lease::len).sum();
                let len = len(&mut random).min((300 * MIB).saturating_sub(live));
                if let Ok(lease) = pool.allocate(len, stream, Owner::NONE) {
                    device.launch(stream, 20_000, &[]).expect("work");
                    leases.push(lease);
                }
            }
            90..180 if !leases.is_empty() => {
                let at = random.index(leases.len());
                device.launch(stream, 20_000, &[]).expect("work");
                leases.swap_remove(at).release(stream);
            }
            180..186 => device.advance(random.below(1_000_000)),
            186..192 => {
                let _ = (0..3).all(|_| pool.maintain());
            }
            192..194 if graphs.len() < 6 => {
                device.finish_all();
                pool.trim(0).expect("no failure");
                graphs.push(capture(&pool, capturing, &mut random));
            }
            194 if !graphs.is_empty() => {
                device.finish_all();
                graphs.remove(0);
            }
            _ => {}
        }
        check(&pool, &leases, &graphs);
    }
}

#[test]
fn nobody_shares_physical_memory() {
    for seed in 1..8 {
        let level = Some(400 * MIB);
        let by_hand = PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() };
        run(seed, PoolOptions { target: level, ..by_hand.clone() });
        run(seed, PoolOptions { limit: level, ..by_hand.clone() });
        run(seed, by_hand);
        run(seed, PoolOptions { target: level, ..PoolOptions::default() });
    }
}

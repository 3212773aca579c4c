//! Random operations against a simple model: what is live, where, and with which bytes.
//!
//! Each lease is filled on its stream when it is made and checked on the device when it is released, so that
//! a page with two owners, an unmap that came too early and a missing order between streams all show.
#![allow(missing_docs)]

mod support;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::*;
use vmm_mock::{Faulty, MockDevice, MockOptions};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 256 * MIB;

#[derive(Clone, Debug)]
enum Op {
    Allocate { len: u64, alignment: u32, stream: usize },
    Share { pick: usize },
    UsedOn { pick: usize, stream: usize },
    Release { pick: usize, stream: usize },
    Advance { nanos: u64 },
    Maintain,
    Trim { keep: u64 },
    Grant { pick: usize, peer: u32 },
    AddPeer { peer: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        1..64_000_u64,
        (1..2048_u64).prop_map(|k| k * 512),
        (1..80_u64).prop_map(|k| k * (MIB / 2)),
        (MIB..48 * MIB),
    ];
    prop_oneof![
        6 => (len, 9..22_u32, 0..3_usize).prop_map(|(len, alignment, stream)| Op::Allocate { len, alignment, stream }),
        1 => any::<usize>().prop_map(|pick| Op::Share { pick }),
        1 => (any::<usize>(), 0..3_usize).prop_map(|(pick, stream)| Op::UsedOn { pick, stream }),
        6 => (any::<usize>(), 0..3_usize).prop_map(|(pick, stream)| Op::Release { pick, stream }),
        2 => (0..3_000_000_u64).prop_map(|nanos| Op::Advance { nanos }),
        2 => Just(Op::Maintain),
        1 => (0..MEMORY).prop_map(|keep| Op::Trim { keep }),
        1 => (any::<usize>(), 1..4_u32).prop_map(|(pick, peer)| Op::Grant { pick, peer }),
        1 => (1..40_u32).prop_map(|peer| Op::AddPeer { peer }),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    limit: Option<u64>,
    target: Option<u64>,
    cross_stream: CrossStream,
    device: Device,
    granule: u64,
    /// Nanoseconds from the recording of a fence until it is reached, at the soonest.
    lag: u64,
    /// Before each such call another thread maintains the pool.
    meanwhile: Option<DeviceOp>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Device {
    Immediate,
    Queued,
    WithoutAliases,
    WithoutRemapping,
}

fn setting() -> impl Strategy<Value = Setting> {
    (
        prop_oneof![Just(None), Just(Some(64 * MIB)), Just(Some(100 * MIB + 12345))],
        prop_oneof![Just(None), Just(Some(48 * MIB)), Just(Some(PoolOptions::NO_TARGET))],
        prop_oneof![
            Just(CrossStream::WaitOnDevice),
            Just(CrossStream::WhenReached),
            Just(CrossStream::Never)
        ],
        prop_oneof![
            Just(Device::Immediate),
            Just(Device::Queued),
            Just(Device::WithoutAliases),
            Just(Device::WithoutRemapping)
        ],
        prop_oneof![Just(2 * MIB), Just(64 << 10)],
        prop_oneof![Just(0), Just(1_000_000)],
        prop_oneof![
            2 => Just(None),
            1 => Just(Some(DeviceOp::MakeFrame)),
            1 => Just(Some(DeviceOp::Map)),
            1 => Just(Some(DeviceOp::Unmap)),
        ],
    )
        .prop_map(|(limit, target, cross_stream, device, granule, lag, meanwhile)| Setting {
            limit,
            target,
            cross_stream,
            device,
            granule,
            lag,
            meanwhile,
        })
}

struct Held {
    peers: Vec<DeviceOrdinal>,
    leases: Vec<Lease<Faulty<MockDevice>>>,
    byte: u8,
    range: AddrRange,
}

/// Maintains the pool before each call of `op`, as another thread might, and notes the most bytes of frames.
fn maintain_before(op: DeviceOp, pool: &Pool<Faulty<MockDevice>>, most: &Arc<AtomicU64>) {
    let (again, most) = (pool.clone(), most.clone());
    pool.device().once_before(op, move || {
        again.maintain();
        most.fetch_max(again.device().frame_bytes(), Ordering::Relaxed);
        maintain_before(op, &again, &most);
    });
}

fn run(setting: Setting, ops: &[Op]) {
    let options = match setting.device {
        Device::Immediate => MockOptions::default(),
        Device::Queued => MockOptions::queued_binds(),
        Device::WithoutAliases => MockOptions::without_aliases(),
        Device::WithoutRemapping => MockOptions::without_remapping(),
    };
    let has_peers = options.capabilities.peers;
    let device = Arc::new(MockDevice::new(MockOptions {
        memory: MEMORY,
        granule: setting.granule,
        ..options
    }));
    device.set_lag(setting.lag);
    let clock = device.clone();
    let pool = Pool::new(
        Arc::new(Faulty::new(device.clone())),
        PoolOptions {
            limit: setting.limit,
            target: setting.target,
            cross_stream: setting.cross_stream,
            maintenance: Maintenance::UserLoop,
            time_to_live: Duration::from_millis(5),
            clock: Clock::new(move || Duration::from_nanos(clock.now())),
            ..PoolOptions::default()
        },
    )
    .expect("a pool on the mock");
    let streams: Vec<StreamId> = (0..3).map(|_| device.make_stream()).collect();
    let mut live: BTreeMap<u64, Held> = BTreeMap::new();
    let mut peers: Vec<DeviceOrdinal> = Vec::new();
    let mut byte = 0_u8;
    let most = Arc::new(AtomicU64::new(0));
    if let Some(op) = setting.meanwhile {
        maintain_before(op, &pool, &most);
    }
    for op in ops {
        match *op {
            Op::Allocate { len, alignment, stream } => {
                let stream = streams[stream];
                let request = Request { alignment: 1 << alignment, ..Request::new(len, stream) };
                match pool.allocate_with(request) {
                    Ok(lease) => {
                        let addr = lease.addr().0;
                        assert_eq!(addr % (1 << alignment), 0, "alignment");
                        let below = live.range(..addr + len).next_back();
                        assert!(
                            below.is_none_or(|(_, h)| h.range.end().0 <= addr),
                            "live leases overlap"
                        );
                        byte = byte.wrapping_add(1);
                        device
                            .fill(lease.addr(), byte, len, stream)
                            .expect("a fill of a fresh lease");
                        let range = AddrRange { addr: lease.addr(), len };
                        let (leases, peers) = (vec![lease], Vec::new());
                        live.insert(addr, Held { leases, byte, range, peers });
                    }
                    Err(AllocError::OutOfMemory(facts)) => {
                        let stats = pool.stats();
                        assert_eq!((facts.requested, facts.live), (len, stats.live_bytes));
                        let bound = setting.limit.unwrap_or(MEMORY);
                        // Where nothing moves, much can be free in pieces.
                        let moves = setting.device != Device::WithoutRemapping;
                        let taken = stats.live_bytes + len + (1 << alignment);
                        assert!(taken > bound / 2 || !moves, "{facts}");
                    }
                    Err(error) => panic!("unexpected: {error}"),
                }
            }
            Op::Share { pick } => {
                if let Some(held) = pick_from(&mut live, pick) {
                    let again = held.leases[0].share(Owner::NONE);
                    held.leases.push(again);
                }
            }
            Op::UsedOn { pick, stream } => {
                if let Some(held) = pick_from(&mut live, pick) {
                    let stream = streams[stream];
                    let home = device.record(held.leases[0].stream()).expect("a fence");
                    device.stream_wait(stream, home).expect("an order between streams");
                    held.leases[0].used_on(stream);
                    device
                        .launch_check(stream, 700_000, held.range, held.byte)
                        .expect("work on a live lease");
                }
            }
            Op::Release { pick, stream } => {
                if let Some(held) = pick_from(&mut live, pick) {
                    let stream = streams[stream];
                    let home = device.record(held.leases[0].stream()).expect("a fence");
                    device.stream_wait(stream, home).expect("an order between streams");
                    device
                        .launch_check(stream, 400_000, held.range, held.byte)
                        .expect("work on a live lease");
                    held.leases.pop().expect("a lease").release(stream);
                    let at = held.range.addr.0;
                    if held.leases.is_empty() {
                        live.remove(&at);
                    }
                }
            }
            Op::Advance { nanos } => device.advance(nanos),
            Op::Maintain => {
                pool.maintain();
            }
            Op::Trim { keep } => {
                pool.trim(keep).expect("a trim");
            }
            Op::Grant { pick, peer } => {
                if let Some(held) = pick_from(&mut live, pick) {
                    let peer = DeviceOrdinal(peer);
                    assert_eq!(held.leases[0].grant(&[peer]).is_ok(), has_peers);
                    held.peers.extend(has_peers.then_some(peer));
                }
            }
            // Most of them name no peer: with all peers in, grants to leases would do nothing.
            Op::AddPeer { peer } => {
                let known = (1..4).contains(&peer).then_some(DeviceOrdinal(peer));
                let before = most.load(Ordering::Relaxed);
                assert!(known.is_none_or(|peer| pool.add_peer(peer).is_ok() == has_peers));
                // It is tried with a frame that is none of the pool's.
                most.store(before, Ordering::Relaxed);
                peers.extend(known.filter(|_| has_peers));
            }
        }
        for held in live.values() {
            for peer in held.peers.iter().chain(&peers) {
                assert!(
                    device.peer_has_access(*peer, held.range),
                    "{peer:?} lacks {:?}",
                    held.range
                );
            }
        }
        pool.validate();
        let stats = pool.stats();
        let most = most.fetch_max(pool.device().frame_bytes(), Ordering::Relaxed);
        // Frames of a growth that the device then refused do not count.
        let counted = stats.peak_reserved_bytes >= most || stats.failed_steps > 0;
        assert!(counted, "the peak was {most}");
        if let Some(limit) = setting.limit {
            assert!(stats.reserved_bytes <= limit, "the limit is never passed");
        }
        assert!(stats.live_bytes <= stats.reserved_bytes);
    }
    pool.validate();
    if let Some(op) = setting.meanwhile {
        pool.device().once_before(op, || ());
    }
    drop(live);
    pool.trim_and_wait(0).expect("a trim");
    assert_eq!(pool.stats().reserved_bytes, 0, "everything goes");
    drop(pool);
    device.finish_all();
    assert_eq!(device.mismatches(), []);
    assert_eq!(device.races(), []);
    assert_eq!(device.violations(), []);
    assert!(device.leftovers().is_empty(), "{:?}", device.leftovers());
}

fn pick_from(live: &mut BTreeMap<u64, Held>, pick: usize) -> Option<&mut Held> {
    let count = live.len();
    (count > 0).then(|| live.values_mut().nth(pick % count)).flatten()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(192), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_operations_agree_with_the_model(setting in setting(), ops in prop::collection::vec(op(), 1..250)) {
        run(setting, &ops);
    }
}

//! Heaps of every placement over a pool, with the bytes of each block checked on the device.
//!
//! Each block is filled on its stream when it is made and checked on the stream that uses it last, so that
//! a place that serves again too early, or a chunk that leaves too early, shows as wrong bytes or as a race.
#![allow(missing_docs)]

mod support;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use vmm_core::placement::{Figures, PlacementKind};
use vmm_core::*;
use vmm_mock::{Faulty, MockDevice, MockOptions};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 192 * MIB;

#[derive(Clone, Debug)]
enum Op {
    Allocate { len: u64, alignment: u32, stream: usize, at_hand: bool },
    UsedOn { pick: usize, stream: usize },
    Release { pick: usize, stream: usize },
    Drop { pick: usize },
    ForgetStream { stream: usize },
    Advance { nanos: u64 },
    Maintain,
    Trim,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        4 => 1..64_000_u64,
        3 => (1..2048_u64).prop_map(|k| k * 512),
        2 => (1..12_u64).prop_map(|k| k * (MIB / 2)),
        1 => Just(0),
    ];
    let alignment = prop_oneof![5 => Just(9_u32), 1 => 0..22_u32];
    prop_oneof![
        10 => (len, alignment, 0..3_usize, any::<bool>())
            .prop_map(|(len, alignment, stream, at_hand)| Op::Allocate { len, alignment, stream, at_hand }),
        2 => (any::<usize>(), 0..3_usize).prop_map(|(pick, stream)| Op::UsedOn { pick, stream }),
        6 => (any::<usize>(), 0..3_usize).prop_map(|(pick, stream)| Op::Release { pick, stream }),
        2 => any::<usize>().prop_map(|pick| Op::Drop { pick }),
        1 => (0..3_usize).prop_map(|stream| Op::ForgetStream { stream }),
        3 => (0..3_000_000_u64).prop_map(|nanos| Op::Advance { nanos }),
        1 => Just(Op::Maintain),
        1 => Just(Op::Trim),
    ]
}

struct Held {
    lease: HeapLease<MockDevice>,
    range: AddrRange,
    byte: u8,
    /// Where it was used last.
    stream: StreamId,
}

struct Test {
    device: Arc<MockDevice>,
    pool: Pool<MockDevice>,
    heap: Heap<MockDevice>,
    streams: Vec<StreamId>,
    live: BTreeMap<u64, Held>,
    byte: u8,
}

impl Test {
    fn new(options: MockOptions, limit: Option<u64>, kind: PlacementKind, chunk_len: u64) -> Self {
        let device = Arc::new(MockDevice::new(MockOptions { memory: MEMORY, ..options }));
        let maintenance = Maintenance::UserLoop;
        let options = PoolOptions { limit, maintenance, ..PoolOptions::default() };
        let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
        let options = HeapOptions { chunk_len, ..HeapOptions::default() };
        let heap = Heap::new(pool.clone(), options, move || kind.make()).expect("a heap");
        let streams = (0..3).map(|_| device.make_stream()).collect();
        Self { device, pool, heap, streams, live: BTreeMap::new(), byte: 0 }
    }

    fn allocate(&mut self, len: u64, alignment: u64, stream: StreamId, at_hand: bool) {
        let request = Request { alignment, ..Request::new(len, stream) };
        let lease = if at_hand {
            let calls = self.device.total_calls();
            let lease = self.heap.allocate_at_hand(request).expect("a request that may be served");
            assert_eq!(self.device.total_calls(), calls, "at hand means without the device");
            lease
        } else {
            match self.heap.allocate_with(request) {
                Ok(lease) => Some(lease),
                Err(AllocError::OutOfMemory(facts)) => {
                    assert_eq!(facts.requested, len, "the error speaks of the request");
                    None
                }
                Err(error) => panic!("unexpected: {error}"),
            }
        };
        let Some(lease) = lease.filter(|_| len > 0) else { return };
        let range = AddrRange { addr: lease.addr(), len };
        assert_eq!(range.addr.0 % alignment, 0, "alignment");
        let below = self.live.range(..range.end().0).next_back();
        assert!(below.is_none_or(|(_, held)| held.range.end() <= range.addr), "overlap");
        self.byte = self.byte.wrapping_add(1);
        self.device.fill(range.addr, self.byte, len, stream).expect("work on a fresh block");
        self.live.insert(range.addr.0, Held { lease, range, byte: self.byte, stream });
    }

    /// Work on a block that is ordered behind what used it last.
    fn work(device: &MockDevice, held: &mut Held, stream: StreamId) {
        let last = device.record(held.stream).expect("a fence");
        device.stream_wait(stream, last).expect("an order between streams");
        device.launch_check(stream, 500_000, held.range, held.byte).expect("work on a live block");
        held.stream = stream;
    }

    fn pick(&self, pick: usize) -> Option<u64> {
        self.live.keys().nth(pick.checked_rem(self.live.len())?).copied()
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Allocate { len, alignment, stream, at_hand } => {
                self.allocate(len, 1 << alignment, self.streams[stream], at_hand);
            }
            Op::UsedOn { pick, stream } => {
                let Some(addr) = self.pick(pick) else { return };
                let held = self.live.get_mut(&addr).expect("a live block");
                held.lease.used_on(self.streams[stream]);
                Self::work(&self.device, held, self.streams[stream]);
            }
            Op::Release { pick, stream } => {
                let Some(addr) = self.pick(pick) else { return };
                let mut held = self.live.remove(&addr).expect("a live block");
                Self::work(&self.device, &mut held, self.streams[stream]);
                held.lease.release(self.streams[stream]);
            }
            Op::Drop { pick } => {
                let Some(addr) = self.pick(pick) else { return };
                drop(self.live.remove(&addr));
            }
            Op::ForgetStream { stream } => {
                let old = std::mem::replace(&mut self.streams[stream], self.device.make_stream());
                let new = self.streams[stream];
                // Work of blocks that outlive the stream goes on behind it elsewhere.
                for held in self.live.values_mut().filter(|held| held.stream == old) {
                    held.lease.used_on(new);
                    Self::work(&self.device, held, new);
                }
                self.pool.forget_stream(old).expect("no capture");
                self.device.destroy_stream(old);
            }
            Op::Advance { nanos } => self.device.advance(nanos),
            Op::Maintain => {
                self.pool.maintain();
            }
            Op::Trim => {
                self.heap.trim().expect("a device without faults");
            }
        }
        let figures = self.heap.figures();
        assert!(figures.requested <= figures.placed && figures.placed <= figures.chunk_bytes);
    }

    /// All must go, with the heap before its blocks or behind them.
    fn end(mut self, heap_first: bool) {
        if heap_first {
            let heap = std::mem::replace(&mut self.heap, Self::empty_heap(&self.pool));
            drop(heap);
        }
        let addrs: Vec<u64> = self.live.keys().copied().collect();
        for (addr, stream) in addrs.into_iter().zip(self.streams.iter().cycle()) {
            let mut held = self.live.remove(&addr).expect("a live block");
            Self::work(&self.device, &mut held, *stream);
            held.lease.release(*stream);
        }
        drop(self.heap);
        assert_eq!(self.pool.stats().live_bytes, 0, "every chunk goes back");
        self.pool.trim_and_wait(0).expect("a device without faults");
        assert_eq!(self.pool.stats().reserved_bytes, 0, "all memory goes back");
        drop(self.pool);
        self.device.finish_all();
        assert_eq!(self.device.mismatches(), []);
        assert_eq!(self.device.races(), []);
        assert_eq!(self.device.violations(), []);
        assert!(self.device.leftovers().is_empty(), "{:?}", self.device.leftovers());
    }

    fn empty_heap(pool: &Pool<MockDevice>) -> Heap<MockDevice> {
        let make = || PlacementKind::Bump.make();
        Heap::new(pool.clone(), HeapOptions { chunk_len: MIB, ..HeapOptions::default() }, make)
            .expect("a heap")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(96), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn blocks_keep_their_bytes_and_all_goes_back(
        kind in (0..PlacementKind::ALL.len()).prop_map(|index| PlacementKind::ALL[index]),
        device in 0..3,
        limit in prop_oneof![Just(None), Just(Some(48 * MIB)), Just(Some(12 * MIB))],
        chunk_len in prop_oneof![Just(2 * MIB), Just(6 * MIB + 512), Just(16 * MIB)],
        heap_first in any::<bool>(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let options = match device {
            0 => MockOptions::default(),
            1 => MockOptions::queued_binds(),
            _ => MockOptions::without_remapping(),
        };
        let mut test = Test::new(options, limit, kind, chunk_len);
        ops.iter().for_each(|op| test.step(op));
        test.end(heap_first);
    }
}

/// A heap of best fit with chunks of 4 MiB.
fn small() -> Test {
    Test::new(MockOptions::default(), Some(32 * MIB), PlacementKind::BestFit, 4 * MIB)
}

fn lease(test: &Test, len: u64, stream: usize) -> HeapLease<MockDevice> {
    test.heap.allocate(len, test.streams[stream], Owner::NONE).expect("memory is far from short")
}

#[test]
fn one_empty_chunk_stays_and_others_go_back() {
    let test = small();
    let leases: Vec<_> = (0..12).map(|_| lease(&test, MIB, 0)).collect();
    assert!(leases.iter().all(HeapLease::is_placed));
    assert_eq!(test.heap.figures().chunks, 3);
    assert_eq!(test.pool.stats().live_bytes, 12 * MIB);
    drop(leases);
    assert_eq!((test.heap.figures().chunks, test.pool.stats().live_bytes), (1, 4 * MIB));
    let calls = test.pool.stats().allocations;
    for _ in 0..10 {
        lease(&test, 4 * MIB, 0).release(test.streams[0]);
    }
    assert_eq!(test.pool.stats().allocations, calls, "the pool is not asked again");
    assert_eq!(test.heap.trim().expect("a trim"), 4 * MIB);
    assert_eq!((test.heap.figures(), test.pool.stats().live_bytes), (Figures::default(), 0));
    test.end(false);
}

#[test]
fn what_needs_more_than_a_chunk_has_a_lease_of_its_own() {
    let test = small();
    let (long, none) = (lease(&test, 4 * MIB + 1, 0), lease(&test, 0, 0));
    assert!(!long.is_placed() && !none.is_placed() && none.is_empty());
    assert_eq!(test.heap.figures().chunks, 0);
    assert_eq!(test.pool.stats().live_bytes, 4 * MIB + 512);
    drop((long, none));
    test.end(false);
}

#[test]
fn a_block_used_elsewhere_serves_again_once_that_is_over() {
    let test = small();
    let (home, other) = (test.streams[0], test.streams[1]);
    let first = lease(&test, 4 * MIB, 0);
    let addr = first.addr();
    let range = AddrRange { addr, len: 4 * MIB };
    test.device.launch(other, 1_000_000, &[vmm_mock::Access::write(range, 1)]).expect("work");
    first.used_on(other);
    first.used_on(other);
    first.release(home);
    assert_eq!(test.heap.figures().blocks, 1, "it is retired");
    let second = lease(&test, 4 * MIB, 0);
    assert_ne!(second.addr(), addr, "its place is still in use");
    test.device.advance(2_000_000);
    // Both chunks are in use or full, so that the next block asks what is over.
    let third = lease(&test, 4 * MIB, 0);
    assert_eq!(third.addr(), addr, "its place serves again");
    drop((second, third));
    // By a release on another stream, too.
    let fourth = lease(&test, MIB, 0);
    test.device.launch(other, 1_000_000, &[]).expect("work");
    let addr = fourth.addr();
    fourth.release(other);
    assert_ne!(lease(&test, MIB, 0).addr(), addr);
    test.end(false);
}

#[test]
fn the_host_waits_for_retired_blocks_before_an_allocation_fails() {
    let test = Test::new(MockOptions::default(), Some(4 * MIB), PlacementKind::BestFit, 4 * MIB);
    let (first, kept) = (lease(&test, 2 * MIB, 0), lease(&test, MIB, 0));
    let addr = first.addr();
    test.device.launch(test.streams[1], 1_000_000, &[]).expect("work");
    first.release(test.streams[1]);
    let second = lease(&test, 2 * MIB, 0);
    assert_eq!((second.addr(), test.pool.stats().host_waits), (addr, 1));
    let error = test.heap.allocate(2 * MIB, test.streams[0], Owner::NONE);
    assert!(matches!(error, Err(AllocError::OutOfMemory(_))));
    assert_eq!(test.pool.stats().host_waits, 1, "there is nothing to wait for");
    drop((second, kept));
    test.end(false);
}

#[test]
fn what_a_stream_released_alone_serves_it_at_once() {
    let test = small();
    let home = test.streams[0];
    let first = lease(&test, MIB, 0);
    let addr = first.addr();
    test.device.launch(home, 1_000_000, &[]).expect("work");
    first.used_on(home);
    first.release(home);
    assert_eq!(lease(&test, MIB, 0).addr(), addr);
    assert_ne!(lease(&test, MIB, 1).addr(), addr, "another stream has chunks of its own");
    test.end(true);
}

#[test]
fn where_no_chunk_fits_a_request_has_a_lease_of_its_own_before_it_fails() {
    let test = Test::new(MockOptions::default(), Some(6 * MIB), PlacementKind::FirstFit, 4 * MIB);
    let first = lease(&test, 3 * MIB, 0);
    let second = lease(&test, 2 * MIB, 0);
    assert!(first.is_placed() && !second.is_placed());
    let before = (test.heap.figures(), test.pool.stats().live_bytes);
    let error = test.heap.allocate(3 * MIB, test.streams[0], Owner::NONE).expect_err("no memory");
    assert!(matches!(error, AllocError::OutOfMemory(facts) if facts.requested == 3 * MIB));
    assert_eq!((test.heap.figures(), test.pool.stats().live_bytes), before, "nothing has changed");
    drop((first, second));
    // The empty chunk that the first stream kept makes room for one of another stream.
    assert_eq!(test.heap.figures().chunk_bytes, 4 * MIB);
    let other = lease(&test, 4 * MIB, 1);
    assert!(other.is_placed());
    assert_eq!(test.heap.figures().chunk_bytes, 4 * MIB);
    drop(other);
    test.end(false);
}

#[test]
fn nothing_is_waited_or_called_for_a_chunk_that_has_no_room() {
    let test = Test::new(MockOptions::default(), Some(12 * MIB), PlacementKind::BestFit, 8 * MIB);
    test.pool.on_pressure(Arc::new(|_| panic!("memory is not short")));
    let full = lease(&test, 8 * MIB, 0);
    // Memory that queued work of another stream still uses.
    let other = test.pool.allocate(2 * MIB, test.streams[1], Owner::NONE).expect("memory");
    test.device.launch(test.streams[1], 1_000_000, &[]).expect("work");
    other.used_on(test.streams[2]);
    drop(other);
    let short = lease(&test, MIB, 0);
    assert!(full.is_placed() && !short.is_placed());
    assert_eq!((test.pool.stats().host_waits, test.device.now()), (0, 0));
    drop((full, short));
    test.end(false);
}

#[test]
fn a_limit_below_a_chunk_leaves_leases_of_their_own() {
    let test = Test::new(MockOptions::default(), Some(6 * MIB), PlacementKind::Buddy, 8 * MIB);
    let block = lease(&test, 5 * MIB, 0);
    assert!(!block.is_placed());
    let error = test.heap.allocate(7 * MIB, test.streams[0], Owner::NONE).expect_err("too long");
    assert!(matches!(error, AllocError::TooLarge { requested, .. } if requested == 7 * MIB));
    drop(block);
    test.end(false);
}

#[test]
fn wrong_options_and_requests_are_refused() {
    let test = small();
    for chunk_len in [0, 1000, MEMORY + 512, u64::MAX / 512 * 512] {
        let options = HeapOptions { chunk_len, ..HeapOptions::default() };
        let heap = Heap::new(test.pool.clone(), options, || PlacementKind::Bump.make());
        assert!(matches!(heap, Err(PoolError::Options(_))), "chunks of {chunk_len}");
    }
    let wrong = [(MIB, 3_000), (u64::MAX, 512), (MIB, 1 << 63)];
    for (len, alignment) in wrong {
        let request = Request { alignment, ..Request::new(len, test.streams[0]) };
        let error = test.heap.allocate_with(request).expect_err("never served");
        assert!(matches!(error, AllocError::TooLarge { requested, .. } if requested == len));
    }
    test.end(false);
}

#[test]
fn captured_work_has_its_blocks_in_a_private_pool() {
    let test = small();
    let stream = test.streams[0];
    let private = test.pool.private_pool().expect("a private pool");
    let options = HeapOptions { chunk_len: 2 * MIB, ..HeapOptions::default() };
    let heap = Heap::in_private_pool(private.clone(), options, || PlacementKind::Tlsf.make())
        .expect("a heap");
    test.device.begin_capture(stream);
    let mut addrs = Vec::new();
    for byte in 0..4 {
        let block = heap.allocate(MIB, stream, Owner::NONE).expect("memory");
        addrs.push(block.addr());
        test.device.fill(block.addr(), byte, MIB, stream).expect("captured work");
        let range = AddrRange { addr: block.addr(), len: MIB };
        test.device.launch_check(stream, 1_000, range, byte).expect("captured work");
        block.release(stream);
    }
    let graph = test.device.end_capture(stream);
    assert!(addrs.iter().all(|addr| *addr == addrs[0]), "the capture uses its memory again");
    // Others fill all the memory there is; the graph's stays where it is.
    let outside = test.pool.allocate(28 * MIB, stream, Owner::NONE).expect("memory");
    test.device.fill(outside.addr(), 9, outside.len(), stream).expect("work");
    for _ in 0..3 {
        test.device.launch_graph(&graph, stream).expect("a launch");
    }
    test.device.finish_all();
    drop((outside, graph, heap, private));
    test.end(false);
}

#[test]
fn threads_share_a_heap() {
    const ROUNDS: usize = 300;
    // Room for all blocks that the threads hold at once to lie in chunks of their own.
    let limit = Some(128 * MIB);
    let test = Test::new(MockOptions::default(), limit, PlacementKind::BestFit, 4 * MIB);
    let (sender, receiver) = std::sync::mpsc::sync_channel::<HeapLease<MockDevice>>(8);
    std::thread::scope(|scope| {
        let (heap, device, streams) = (&test.heap, &test.device, &test.streams);
        scope.spawn(move || {
            for round in 0..ROUNDS {
                let len = 1 + (round as u64 * 7919) % MIB;
                let block = heap.allocate(len, streams[0], Owner::NONE).expect("memory");
                device.fill(block.addr(), 1, len, streams[0]).expect("work");
                // Handed to the other thread, or kept for a moment.
                if round % 2 == 0 {
                    sender.send(block).expect("a receiver");
                }
            }
        });
        scope.spawn(move || {
            for block in receiver {
                let fence = device.record(streams[0]).expect("a fence");
                device.stream_wait(streams[1], fence).expect("an order");
                let range = AddrRange { addr: block.addr(), len: block.len() };
                device.launch_check(streams[1], 1_000, range, 1).expect("work");
                block.release(streams[1]);
                let own = heap.allocate(1_000, streams[1], Owner::NONE).expect("memory");
                device.fill(own.addr(), 2, 1_000, streams[1]).expect("work");
                device.advance(2_000);
            }
        });
    });
    test.end(false);
}

#[test]
fn a_mark_is_passed_when_the_work_before_it_is_over() {
    let test = small();
    let (pool, device) = (&test.pool, &test.device);
    let stream = test.streams[0];
    device.launch(stream, 1_000, &[]).expect("work");
    let first = pool.mark(stream);
    assert_eq!(pool.passed(&[first]), Ok(vec![false]));
    device.advance(1_000);
    device.launch(stream, 1_000, &[]).expect("work");
    let second = pool.mark_again(first);
    assert_eq!(pool.passed(&[first, second, first]), Ok(vec![true, false, true]));
    // While a stream captures, nothing new is learnt.
    device.begin_capture(test.streams[1]);
    let _ = pool.mark(test.streams[1]);
    device.advance(1_000);
    let calls = device.cost().of(DeviceOp::Record).calls;
    assert_eq!(pool.passed(&[second]), Ok(vec![false]));
    assert_eq!(device.cost().of(DeviceOp::Record).calls, calls, "a capture forbids it");
    device.end_capture(test.streams[1]);
    assert_eq!(pool.passed(&[second]), Ok(vec![true]));
    test.end(false);
}

#[test]
fn marks_outlive_streams_and_are_not_confused_with_those_of_later_ones() {
    let test = small();
    let (pool, device) = (&test.pool, &test.device);
    let stream = device.make_stream();
    device.launch(stream, 1_000_000, &[]).expect("work");
    let mark = pool.mark(stream);
    pool.forget_stream(stream).expect("no capture");
    device.destroy_stream(stream);
    assert_eq!(pool.passed(&[mark]), Ok(vec![false]));
    assert_eq!(pool.mark_again(mark), mark, "nothing is queued there any more");
    device.advance(1_000_000);
    assert_eq!(pool.passed(&[mark]), Ok(vec![true]));
    // Many streams come and go, until their places in the pool's tables are others', which work.
    let marks: Vec<Mark> = (0..200)
        .map(|_| {
            let stream = device.make_stream();
            let mark = pool.mark(stream);
            assert_eq!(pool.passed(&[mark]), Ok(vec![true]));
            pool.forget_stream(stream).expect("no capture");
            assert_eq!(pool.passed(&[pool.mark_again(mark)]), Ok(vec![true]));
            device.destroy_stream(stream);
            mark
        })
        .collect();
    let busy = |_| {
        let stream = device.make_stream();
        device.launch(stream, 1_000_000, &[]).expect("work");
        pool.mark(stream)
    };
    let unreached: Vec<Mark> = (0..200).map(busy).collect();
    assert_eq!(pool.passed(&unreached), Ok(vec![false; 200]));
    assert_eq!(pool.passed(&marks), Ok(vec![true; 200]));
    assert_eq!(pool.mark_again(marks[100]), marks[100]);
    // A lease takes note of what is over, and of what is not.
    let lease = pool.allocate(MIB, test.streams[0], Owner::NONE).expect("memory");
    marks.iter().for_each(|mark| lease.used_until(*mark));
    lease.used_until(mark);
    let other = pool.allocate(MIB, test.streams[0], Owner::NONE).expect("memory");
    other.used_until(unreached[0]);
    other.release(test.streams[0]);
    lease.release(test.streams[0]);
    assert_eq!(pool.stats().retired_bytes, MIB);
    test.end(false);
}

/// A block outlives its stream, whose handle is another's by then: what that does with the block counts.
fn check_reused_handle(end: impl Fn(HeapLease<MockDevice>, StreamId)) {
    // Without streams of its own making the mock takes any handle.
    let device = Arc::new(MockDevice::new(MockOptions::with_memory(MEMORY)));
    let options = PoolOptions {
        limit: Some(4 * MIB),
        cross_stream: CrossStream::WhenReached,
        maintenance: Maintenance::UserLoop,
        ..PoolOptions::default()
    };
    let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
    let options = HeapOptions { chunk_len: 4 * MIB, ..HeapOptions::default() };
    let heap = Heap::new(pool.clone(), options, || PlacementKind::Buddy.make()).expect("a heap");
    let (reused, other) = (StreamId(7), StreamId(8));
    let block = heap.allocate(MIB, reused, Owner::NONE).expect("memory");
    assert_eq!((heap.figures().chunks, heap.trim()), (1, Ok(0)));
    pool.forget_stream(reused).expect("no capture");
    assert_eq!(heap.figures().chunks, 0, "heaps forget it with their pool");
    device.launch(reused, 1_000_000, &[]).expect("work of the new stream");
    end(block, reused);
    assert_eq!(pool.stats().live_bytes, 0, "the chunk goes with its last block");
    let _next = pool.allocate(4 * MIB, other, Owner::NONE).expect("memory");
    assert_eq!((pool.stats().host_waits, device.now()), (1, 1_000_000), "after that work");
}

#[test]
fn a_later_stream_of_the_same_handle_is_another_one() {
    check_reused_handle(|block, stream| block.release(stream));
    check_reused_handle(|block, stream| block.used_on(stream));
}

#[test]
fn a_pressure_callback_may_release_blocks() {
    let test = Test::new(MockOptions::default(), Some(8 * MIB), PlacementKind::Buddy, 4 * MIB);
    let held = Arc::new(Mutex::new(vec![lease(&test, 4 * MIB, 0), lease(&test, 4 * MIB, 0)]));
    let released = held.clone();
    test.pool.on_pressure(Arc::new(move |_| released.lock().expect("no panic").clear()));
    let other = lease(&test, 4 * MIB, 1);
    assert!(held.lock().expect("no panic").is_empty());
    assert_eq!(test.heap.figures().chunk_bytes, 4 * MIB, "one was kept, and one went back");
    drop(other);
    test.end(false);
}

#[test]
fn a_call_that_the_device_refuses_changes_nothing() {
    let device = Arc::new(Faulty::new(MockDevice::new(MockOptions::with_memory(MEMORY))));
    let maintenance = Maintenance::UserLoop;
    let options = PoolOptions { maintenance, ..PoolOptions::default() };
    let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
    let options = HeapOptions { chunk_len: 4 * MIB, ..HeapOptions::default() };
    let heap = Heap::new(pool.clone(), options, || PlacementKind::Tiers.make()).expect("a heap");
    let (home, other) = (device.inner().make_stream(), device.inner().make_stream());
    let allocate = |len| heap.allocate(len, home, Owner::NONE);

    device.fail(DeviceOp::MakeFrame, 1, DeviceErrorKind::Failed);
    assert!(matches!(allocate(MIB), Err(AllocError::Device(_))));
    assert_eq!((heap.figures(), pool.stats().live_bytes), (Figures::default(), 0));

    let block = allocate(4 * MIB).expect("memory");
    let addr = block.addr();
    block.release(other);
    let before = (heap.figures(), pool.stats().live_bytes);
    assert_eq!((before.0.blocks, before.1), (1, 4 * MIB));
    device.fail(DeviceOp::IsCapturing, 1, DeviceErrorKind::Deinitialized);
    assert!(matches!(allocate(4 * MIB), Err(AllocError::Device(_))));
    device.fail(DeviceOp::Record, 1, DeviceErrorKind::Deinitialized);
    assert!(heap.trim().is_err());
    assert_eq!((heap.figures(), pool.stats().live_bytes), before, "nothing has changed");
    assert_eq!(allocate(4 * MIB).expect("memory").addr(), addr, "its use is over");

    drop((heap, pool));
    assert!(device.inner().leftovers().is_empty());
}

//! When a heap makes its pool wait and call back: not before all that costs nothing has been tried, and
//! once.
#![allow(missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use support::MIB;
use vmm_core::placement::PlacementKind;
use vmm_core::*;
use vmm_mock::MockDevice;

struct Test {
    device: Arc<MockDevice>,
    pool: Pool<MockDevice>,
    heap: Heap<MockDevice>,
    streams: [StreamId; 3],
    calls: Arc<AtomicU64>,
}

impl Test {
    /// Best fit in chunks over a pool on a device of 192 MiB.
    fn new(limit: Option<u64>, chunk_len: u64) -> Self {
        let (device, pool) = support::quiet_pool(192 * MIB, limit);
        let options = HeapOptions { chunk_len, ..HeapOptions::default() };
        let make = || PlacementKind::BestFit.make();
        let heap = Heap::new(pool.clone(), options, make).expect("a heap");
        let calls = Arc::new(AtomicU64::new(0));
        let counted = calls.clone();
        pool.on_pressure(Arc::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let streams = [(); 3].map(|()| device.make_stream());
        Self { device, pool, heap, streams, calls }
    }

    fn allocate(&self, len: u64) -> Result<HeapLease<MockDevice>, AllocError> {
        self.heap.allocate(len, self.streams[0], Owner::NONE)
    }

    /// Callbacks, waits and failures up to now.
    fn pressure(&self) -> (u64, u64, u64) {
        let stats = self.pool.stats();
        (self.calls.load(Ordering::Relaxed), stats.host_waits, stats.failures)
    }

    /// Memory that two streams still use for a millisecond.
    fn retire(&self, len: u64) {
        let lease = self.pool.allocate(len, self.streams[1], Owner::NONE).expect("memory");
        lease.used_on(self.streams[2]);
        for stream in &self.streams[1..] {
            self.device.launch(*stream, 1_000_000, &[]).expect("work");
        }
    }
}

#[test]
fn a_device_that_is_full_for_chunks_is_not_for_short_blocks() {
    let test = Test::new(None, 64 * MIB);
    let _held = test.pool.allocate(150 * MIB, test.streams[0], Owner::NONE).expect("memory");
    test.retire(4 * MIB);
    let blocks: Vec<_> = (0..5).map(|_| test.allocate(MIB).expect("32 MiB are left")).collect();
    assert!(blocks.iter().all(|block| !block.is_placed()));
    assert_eq!(test.pressure(), (0, 0, 0));
}

#[test]
fn what_a_private_pool_keeps_leaves_no_room_for_chunks() {
    let test = Test::new(Some(64 * MIB), 32 * MIB);
    let private = test.pool.private_pool().expect("the first");
    drop(private.allocate(40 * MIB, test.streams[0], Owner::NONE).expect("memory"));
    let blocks: Vec<_> = (0..5).map(|_| test.allocate(MIB).expect("24 MiB are left")).collect();
    assert!(blocks.iter().all(|block| !block.is_placed()));
    assert_eq!(test.pressure(), (0, 0, 0));
}

#[test]
fn empty_chunks_go_before_anybody_is_called() {
    let test = Test::new(Some(64 * MIB), 32 * MIB);
    test.allocate(MIB).expect("memory").release(test.streams[0]);
    assert_eq!(test.heap.figures().chunks, 1);
    test.retire(2 * MIB);
    let long = test.allocate(50 * MIB).expect("the chunk makes room");
    assert_eq!((long.is_placed(), test.heap.figures().chunks), (false, 0));
    assert_eq!(test.pressure(), (0, 0, 0));
}

#[test]
fn own_retired_blocks_are_waited_for_before_anybody_is_called() {
    let test = Test::new(Some(4 * MIB), 4 * MIB);
    let first = test.allocate(2 * MIB).expect("memory");
    let _kept = test.allocate(MIB).expect("memory");
    test.device.launch(test.streams[1], 1_000_000, &[]).expect("work");
    first.release(test.streams[1]);
    assert!(test.allocate(2 * MIB).expect("the first one ends").is_placed());
    assert_eq!(test.pressure(), (0, 1, 0));
}

#[test]
fn a_failure_is_one() {
    let test = Test::new(None, 64 * MIB);
    let _held = test.pool.allocate(190 * MIB, test.streams[0], Owner::NONE).expect("memory");
    assert!(matches!(test.allocate(4 * MIB), Err(AllocError::OutOfMemory(_))));
    assert_eq!(test.pressure(), (1, 0, 1));
}

#[test]
fn what_can_never_be_is_refused_without_a_wait() {
    let test = Test::new(Some(8 * MIB), 4 * MIB);
    let block = test.allocate(MIB).expect("memory");
    test.device.launch(test.streams[1], 1_000_000, &[]).expect("work");
    block.release(test.streams[1]);
    assert!(matches!(test.allocate(9 * MIB), Err(AllocError::TooLarge { .. })));
    assert_eq!(test.pressure(), (0, 0, 1));
}

/// What is at hand is in the chunks that there are, or a lease for what no chunk holds.
#[test]
fn at_hand_takes_no_further_chunk() {
    let test = Test::new(Some(64 * MIB), 4 * MIB);
    drop(test.pool.allocate(16 * MIB, test.streams[0], Owner::NONE).expect("memory"));
    let at_hand = |len| test.heap.allocate_at_hand(Request::new(len, test.streams[0]));
    assert!(at_hand(MIB).expect("no failure").is_none());
    let _block = test.allocate(MIB).expect("memory");
    assert!(at_hand(MIB).expect("no failure").is_some_and(|lease| lease.is_placed()));
    assert!(at_hand(5 * MIB).expect("no failure").is_some_and(|lease| !lease.is_placed()));
    assert_eq!(test.heap.figures().chunks, 1);
}

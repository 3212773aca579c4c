//! Host time of placements, by themselves and in a heap.
//!
//! One of 1 000 live blocks ends, picked at random, and one of another length begins: the time is for
//! both. There are chunks enough that no placement ever lacks one. Clocks and neighbours of a machine
//! differ: compare ratios.
//!
//! ```text
//! cargo bench -p vmm-core --bench placement
//! ```

#[expect(dead_code, reason = "the hot path's measurements use all of it")]
mod support;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use support::{Numbers, empty_pool};
use vmm_core::placement::{Placement, PlacementKind};
use vmm_core::{Heap, HeapLease, HeapOptions, Owner, StreamId};
use vmm_mock::MockDevice;

const STREAM: StreamId = StreamId(1);
const LIVE: usize = 1_000;
const LENS: usize = 1_024;
const CHUNK: u64 = 64 << 20;

/// Exponents of the shortest and the longest length: short ones, and all that every placement serves.
const RANGES: [(&str, u32, u32); 2] = [("512B-64KiB", 9, 16), ("512B-1MiB", 9, 20)];

fn lens(from: u32, to: u32) -> Vec<u64> {
    let mut numbers = Numbers::new(2);
    (0..LENS).map(|_| numbers.len(from, to)).collect()
}

/// A block, with as many chunks as that takes.
fn place(placement: &mut dyn Placement, top: &mut u64, len: u64) -> u64 {
    loop {
        if let Some(block) = placement.allocate(len, 512) {
            return block.addr;
        }
        placement.add(*top..*top + CHUNK).expect("a chunk of its own");
        *top += CHUNK;
    }
}

fn placements(c: &mut Criterion) {
    for (range, from, to) in RANGES {
        let mut group = c.benchmark_group(format!("placement/{range}"));
        let lens = lens(from, to);
        for kind in PlacementKind::ALL {
            let mut placement = kind.make();
            let mut top = CHUNK;
            let mut live: Vec<u64> =
                lens[..LIVE].iter().map(|len| place(&mut *placement, &mut top, *len)).collect();
            let mut numbers = Numbers::new(3);
            let mut replace = || {
                let at = numbers.below(LIVE);
                black_box(placement.release(live[at]));
                live[at] = place(&mut *placement, &mut top, lens[numbers.below(LENS)]);
            };
            (0..100_000).for_each(|_| replace());
            group.bench_function(BenchmarkId::from_parameter(kind), |b| b.iter(&mut replace));
        }
        group.finish();
    }
}

fn heaps(c: &mut Criterion) {
    for (range, from, to) in RANGES {
        let mut group = c.benchmark_group(format!("heap/{range}"));
        let lens = lens(from, to);
        for kind in PlacementKind::ALL {
            let options = HeapOptions { chunk_len: CHUNK, ..HeapOptions::default() };
            let heap = Heap::new(empty_pool(), options, move || kind.make()).expect("a heap");
            let lease = |len| heap.allocate(len, STREAM, Owner::NONE).expect("memory");
            let mut live: Vec<Option<HeapLease<MockDevice>>> =
                lens[..LIVE].iter().map(|len| Some(lease(*len))).collect();
            let mut numbers = Numbers::new(3);
            let mut replace = || {
                let at = numbers.below(LIVE);
                drop(live[at].take());
                live[at] = Some(lease(lens[numbers.below(LENS)]));
            };
            (0..100_000).for_each(|_| replace());
            group.bench_function(BenchmarkId::from_parameter(kind), |b| b.iter(&mut replace));
        }
        group.finish();
    }
}

criterion_group! {
    name = placement;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = placements, heaps
}
criterion_main!(placement);

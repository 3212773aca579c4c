//! Host time of the hot path: allocations that memory at hand serves, and releases.
//!
//! The backend is the mock device, and every measurement checks that none of its operations missed
//! or called it. All times are for one pair unless a group says otherwise. Clocks and neighbours of
//! a machine differ: compare ratios, and see `examples/pairs.rs` for counts of instructions.
//!
//! ```text
//! cargo bench -p vmm-core --bench hot_path
//! ```

mod support;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};
use support::{
    HitsOnly, LIVE_LENS, Layout, MockLease, MockPool, Numbers, empty_pool, lease, make_memory,
    populated,
};
use vmm_core::{Owner, StreamId};

const STREAM: StreamId = StreamId(1);
const OTHER_STREAM: StreamId = StreamId(2);

/// Lengths that a measurement takes in turn.
const LENS: usize = 1024;

fn pair(pool: &MockPool, len: u64, stream: StreamId) {
    black_box(lease(pool, black_box(len), stream)).release(stream);
}

fn lens(from: u32, to: u32) -> Vec<u64> {
    let mut numbers = Numbers::new(2);
    (0..LENS).map(|_| numbers.len(from, to)).collect()
}

/// One length over and over, alone in the pool.
fn sizes(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair_by_size");
    for shift in [9, 12, 15, 18, 20, 21, 23, 26] {
        let len = 1_u64 << shift;
        let pool = empty_pool();
        make_memory(&pool, 4 * len, len, STREAM);
        let watch = HitsOnly::begin(&pool);
        group.bench_function(BenchmarkId::from_parameter(human(len)), |b| {
            b.iter(|| pair(&pool, len, STREAM));
        });
        watch.end(&pool);
    }
    group.finish();
}

/// Lengths in turn beside many live leases: the cost of a pair must not grow with their number.
fn live_leases(c: &mut Criterion) {
    for layout in [Layout::Packed, Layout::Scattered] {
        let mut group = c.benchmark_group(format!("pair_by_live_leases/{layout:?}"));
        for count in [1, 1_000, 100_000, 1_000_000] {
            let (pool, live) = populated(count, layout, STREAM);
            let lens = lens(LIVE_LENS.0, LIVE_LENS.1);
            let mut lens = lens.iter().cycle();
            let watch = HitsOnly::begin(&pool);
            group.bench_function(BenchmarkId::from_parameter(count), |b| {
                b.iter(|| pair(&pool, *lens.next().expect("a cycle"), STREAM));
            });
            watch.end(&pool);
            drop(live);
        }
        group.finish();
    }
}

/// One of 1 000 live leases ends, picked at random, and one of another length begins.
fn random_sizes(c: &mut Criterion) {
    const LIVE: usize = 1_000;
    let mut group = c.benchmark_group("replace_one_of_1000");
    for (name, from, to) in [("512B-64KiB", 9, 16), ("512B-64MiB", 9, 26), ("2MiB-64MiB", 21, 26)] {
        let pool = empty_pool();
        let lens = lens(from, to);
        // Four times what is live: room enough that fragmentation makes nothing miss.
        let bytes = |short: bool| {
            let of_this_length = |len: &&u64| (**len <= support::LONGEST_SHORT) == short;
            let sum: u64 = lens.iter().filter(of_this_length).sum();
            4 * sum
        };
        make_memory(&pool, bytes(true), support::LONGEST_SHORT, STREAM);
        make_memory(&pool, bytes(false), u64::MAX, STREAM);
        let mut live: Vec<Option<MockLease>> =
            lens[..LIVE].iter().map(|len| Some(lease(&pool, *len, STREAM))).collect();
        let mut numbers = Numbers::new(3);
        let mut replace = || {
            let at = numbers.below(LIVE);
            drop(live[at].take());
            live[at] = Some(lease(&pool, lens[numbers.below(LENS)], STREAM));
        };
        // The first rounds cut the memory into the pieces that later ones find.
        (0..100_000).for_each(|_| replace());
        let watch = HitsOnly::begin(&pool);
        group.bench_function(name, |b| b.iter(&mut replace));
        watch.end(&pool);
    }
    group.finish();
}

/// Several threads on one pool, each with a stream of its own or all with the same.
fn threads(c: &mut Criterion) {
    const LEN: u64 = 64 << 10;
    for (name, own_streams) in [("own_streams", true), ("one_stream", false)] {
        let mut group = c.benchmark_group(format!("pair_by_threads/{name}"));
        for count in [1_u32, 2, 4] {
            let pool = empty_pool();
            let streams: Vec<StreamId> = (0..count)
                .map(|thread| StreamId(if own_streams { 1 + u64::from(thread) } else { 1 }))
                .collect();
            let stock: Vec<MockLease> =
                streams.iter().map(|stream| lease(&pool, 4 * LEN, *stream)).collect();
            drop(stock);
            let watch = HitsOnly::begin(&pool);
            group.throughput(Throughput::Elements(u64::from(count)));
            group.bench_function(BenchmarkId::from_parameter(count), |b| {
                b.iter_custom(|rounds| pairs_of_threads(&pool, &streams, LEN, rounds));
            });
            watch.end(&pool);
        }
        group.finish();
    }
}

/// The time in which every stream's thread does `rounds` pairs, beside the others.
fn pairs_of_threads(pool: &MockPool, streams: &[StreamId], len: u64, rounds: u64) -> Duration {
    let ready = Barrier::new(streams.len() + 1);
    thread::scope(|scope| {
        for stream in streams {
            let ready = &ready;
            scope.spawn(move || {
                ready.wait();
                (0..rounds).for_each(|_| pair(pool, len, *stream));
                ready.wait();
            });
        }
        ready.wait();
        let start = Instant::now();
        ready.wait();
        start.elapsed()
    })
}

/// A further user comes and goes; the memory stays where it is.
fn share(c: &mut Criterion) {
    let pool = empty_pool();
    let held = lease(&pool, 1 << 20, STREAM);
    let owner = pool.owner("reader");
    let watch = HitsOnly::begin(&pool);
    c.bench_function("share_release", |b| {
        b.iter(|| black_box(held.share(black_box(owner))).release(STREAM));
    });
    watch.end(&pool);
}

/// Pairs in which a second stream uses the memory too. It is retired then, and comes back when the
/// pool next looks at its fences; that look is not measured.
fn cross_stream(c: &mut Criterion) {
    const LEN: u64 = 64 << 10;
    const BATCH: u64 = 1_000;
    type Operation<'a> = &'a dyn Fn(&MockPool);
    let mut group = c.benchmark_group("pair_across_streams");
    let released_elsewhere = |pool: &MockPool| {
        black_box(lease(pool, LEN, STREAM)).release(OTHER_STREAM);
    };
    let used_elsewhere = |pool: &MockPool| {
        let lease = lease(pool, LEN, STREAM);
        lease.used_on(OTHER_STREAM);
        black_box(lease).release(STREAM);
    };
    let shared_elsewhere = |pool: &MockPool| {
        let lease = lease(pool, LEN, STREAM);
        let second = lease.share(Owner::NONE);
        lease.release(STREAM);
        black_box(second).release(OTHER_STREAM);
    };
    let cases: [(&str, Operation); 3] = [
        ("release_on_another", &released_elsewhere),
        ("used_on_another", &used_elsewhere),
        ("share_and_release_on_another", &shared_elsewhere),
    ];
    for (name, operation) in cases {
        let pool = empty_pool();
        make_memory(&pool, 2 * BATCH * LEN, LEN, STREAM);
        settle(&pool);
        group.bench_function(name, |b| {
            b.iter_custom(|rounds| {
                let mut time = Duration::ZERO;
                let mut left = rounds;
                while left > 0 {
                    let batch = left.min(BATCH);
                    let watch = HitsOnly::begin(&pool);
                    let start = Instant::now();
                    (0..batch).for_each(|_| operation(&pool));
                    time += start.elapsed();
                    watch.end(&pool);
                    settle(&pool);
                    left -= batch;
                }
                time
            });
        });
    }
    group.finish();
}

/// Lets all work end and the pool learn of it: what was retired is free afterwards.
fn settle(pool: &MockPool) {
    let released = pool.trim(u64::MAX).expect("a device without faults");
    pool.device().finish_all();
    let released_then = pool.trim(u64::MAX).expect("a device without faults");
    assert_eq!((released, released_then), (0, 0), "trim was to keep all");
}

fn human(len: u64) -> String {
    if len < 1 << 10 {
        format!("{len}B")
    } else if len < 1 << 20 {
        format!("{}KiB", len >> 10)
    } else {
        format!("{}MiB", len >> 20)
    }
}

criterion_group! {
    name = hot_path;
    config = Criterion::default()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = sizes, live_leases, random_sizes, threads, share, cross_stream
}
criterion_main!(hot_path);

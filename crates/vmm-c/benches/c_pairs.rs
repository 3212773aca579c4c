//! Host time of an allocation and a release through the C interface, beside the same through the
//! Rust one.
//!
//! What C adds is the table from addresses to leases, a check of arguments, and a second lock. Both
//! pools are on the mock device, and every measurement checks that no operation missed. Compare `c`
//! with `rust` of the same run: clocks differ from run to run.
//!
//! ```text
//! cargo bench -p vmm-c --bench c_pairs
//! ```

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::ffi::c_void;
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};
use vmm::{
    vmm_allocate, vmm_device_kind_t, vmm_find, vmm_lease_t, vmm_maintenance_t, vmm_pool_create,
    vmm_pool_destroy, vmm_pool_options_t, vmm_pool_t, vmm_release, vmm_stats, vmm_stats_t,
    vmm_status_t,
};
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_mock::{MockDevice, MockOptions};

/// Physical memory of the mock device in bytes: more than any measurement needs.
const MEMORY: u64 = 1 << 40;

/// The longest lease that shares its frames with short ones, in bytes.
const LONGEST_SHORT: u64 = 1 << 20;

/// Lengths that a measurement takes in turn.
const LENS: usize = 1024;

/// One of the two interfaces.
trait Interface: Sync {
    /// What holds a lease.
    type Held;
    fn allocate(&self, len: u64, stream: u64) -> Self::Held;
    fn release(&self, held: Self::Held, stream: u64);
    fn misses(&self) -> u64;
}

struct InRust(Pool<MockDevice>);

impl InRust {
    fn new() -> Self {
        let device = Arc::new(MockDevice::new(MockOptions::with_memory(MEMORY)));
        let options = PoolOptions {
            limit: Some(MEMORY / 2),
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        Self(Pool::new(device, options).expect("the mock device has all that a pool needs"))
    }
}

impl Interface for InRust {
    type Held = Lease<MockDevice>;

    fn allocate(&self, len: u64, stream: u64) -> Self::Held {
        self.0.allocate(len, StreamId(stream), Owner::NONE).expect("memory is far from short")
    }

    fn release(&self, held: Self::Held, stream: u64) {
        held.release(StreamId(stream));
    }

    fn misses(&self) -> u64 {
        self.0.stats().misses
    }
}

struct InC(*mut vmm_pool_t);

// SAFETY: every function of the interface but the destruction may be called by any thread.
unsafe impl Send for InC {}
// SAFETY: as for `Send`.
unsafe impl Sync for InC {}

impl InC {
    fn new() -> Self {
        let options = vmm_pool_options_t {
            size: size_of::<vmm_pool_options_t>(),
            device_kind: vmm_device_kind_t::VMM_DEVICE_MOCK as u32,
            device_ordinal: 0,
            mock_memory: MEMORY,
            limit: MEMORY / 2,
            target: 0,
            reservation: 0,
            time_to_live_ns: 0,
            cross_stream: 0,
            maintenance: vmm_maintenance_t::VMM_MAINTENANCE_USER_LOOP as u32,
            frame_kind: 0,
            virtual_memory: 0,
            peers: std::ptr::null(),
            peer_count: 0,
        };
        let mut pool = null_mut();
        // SAFETY: options with their size and a place for the pool.
        let status = unsafe { vmm_pool_create(&raw const options, &raw mut pool) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        Self(pool)
    }
}

impl Drop for InC {
    fn drop(&mut self) {
        // SAFETY: the pool was made in `new`, and whoever could use it borrows `self`.
        unsafe { vmm_pool_destroy(self.0) };
    }
}

/// A handle on a stream, as C has it.
fn handle(stream: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(stream).expect("64 bits"))
}

impl Interface for InC {
    type Held = *mut c_void;

    fn allocate(&self, len: u64, stream: u64) -> Self::Held {
        let mut ptr = null_mut();
        // SAFETY: the pool lives as long as `self`, and `ptr` can be written.
        let status = unsafe { vmm_allocate(self.0, len, 0, handle(stream), 0, &raw mut ptr) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        ptr
    }

    fn release(&self, held: Self::Held, stream: u64) {
        // SAFETY: the pool lives as long as `self`.
        let status = unsafe { vmm_release(self.0, held, handle(stream)) };
        assert_eq!(status, vmm_status_t::VMM_OK);
    }

    fn misses(&self) -> u64 {
        // SAFETY: all fields are integers.
        let mut stats: vmm_stats_t = unsafe { std::mem::zeroed() };
        stats.size = size_of::<vmm_stats_t>();
        // SAFETY: the pool lives as long as `self`, and the size is set.
        let status = unsafe { vmm_stats(self.0, &raw mut stats) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        stats.misses
    }
}

/// The numbers of Steele, Lea and Flood's `SplitMix64` (OOPSLA 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound as u64)).expect("below a usize")
    }

    /// A length in bytes of `1 << from` to `1 << to`, each power of two as likely as the next.
    fn len(&mut self, from: u32, to: u32) -> u64 {
        let octave = u64::from(from) + self.next() % u64::from(to - from);
        (1 << octave) + self.next() % (1 << octave)
    }
}

/// Makes `bytes` of memory for leases of at most `longest` bytes on `stream`.
fn make_memory<I: Interface>(pool: &I, bytes: u64, longest: u64, stream: u64) {
    let len = if longest <= LONGEST_SHORT { LONGEST_SHORT } else { 64 * LONGEST_SHORT };
    let held: Vec<I::Held> = (0..bytes.div_ceil(len)).map(|_| pool.allocate(len, stream)).collect();
    held.into_iter().for_each(|held| pool.release(held, stream));
}

fn no_miss<I: Interface>(pool: &I, measure: impl FnOnce()) {
    let before = pool.misses();
    measure();
    assert_eq!(pool.misses(), before, "allocations missed");
}

/// One length over and over, alone in the pool.
fn sizes(c: &mut Criterion) {
    let mut group = c.benchmark_group("pair_by_size");
    let mut one = |name: &str, len: u64, pair: &mut dyn FnMut()| {
        group.bench_function(BenchmarkId::new(name, len), |b| b.iter(&mut *pair));
    };
    for shift in [9, 15, 20, 21, 26] {
        let len = 1 << shift;
        let rust = InRust::new();
        make_memory(&rust, 4 * len, len, 1);
        no_miss(&rust, || {
            one("rust", len, &mut || rust.release(rust.allocate(black_box(len), 1), 1));
        });
        let c = InC::new();
        make_memory(&c, 4 * len, len, 1);
        no_miss(&c, || one("c", len, &mut || c.release(c.allocate(black_box(len), 1), 1)));
    }
    group.finish();
}

/// One of `live` leases ends, picked at random, and one of another length begins.
fn random_sizes(c: &mut Criterion) {
    for (live, from, to) in [(1_000, 9, 16), (1_000, 9, 26), (1_000, 21, 26), (100_000, 9, 16)] {
        let mut group = c.benchmark_group(format!("replace_one_of_{live}/2^{from}-2^{to}"));
        let mut numbers = Numbers(2);
        let lens: Vec<u64> = (0..LENS).map(|_| numbers.len(from, to)).collect();
        replace(&InRust::new(), live, &lens, |step| {
            group.bench_function("rust", |b| b.iter(&mut *step));
        });
        replace(&InC::new(), live, &lens, |step| {
            group.bench_function("c", |b| b.iter(&mut *step));
        });
        group.finish();
    }
}

fn replace<I: Interface>(
    pool: &I,
    live: usize,
    lens: &[u64],
    measure: impl FnOnce(&mut dyn FnMut()),
) {
    // Four times what is live: room enough that fragmentation makes nothing miss.
    let rounds = live.div_ceil(lens.len()) as u64;
    let bytes = |short: bool| {
        let sum: u64 = lens.iter().filter(|len| (**len <= LONGEST_SHORT) == short).sum();
        4 * sum * rounds
    };
    make_memory(pool, bytes(true), LONGEST_SHORT, 1);
    make_memory(pool, bytes(false), u64::MAX, 1);
    let mut held: Vec<Option<I::Held>> =
        (0..live).map(|at| Some(pool.allocate(lens[at % LENS], 1))).collect();
    let mut numbers = Numbers(3);
    let mut step = || {
        let at = numbers.below(live);
        if let Some(old) = held[at].take() {
            pool.release(old, 1);
        }
        held[at] = Some(pool.allocate(lens[numbers.below(LENS)], 1));
    };
    // The first rounds cut the memory into the pieces that later ones find.
    (0..200_000).for_each(|_| step());
    no_miss(pool, || measure(&mut step));
    held.into_iter().flatten().for_each(|held| pool.release(held, 1));
}

/// Two threads, each with a stream of its own.
fn threads(c: &mut Criterion) {
    const LEN: u64 = 64 << 10;
    let mut group = c.benchmark_group("pair_by_two_threads");
    group.throughput(Throughput::Elements(2));
    let rust = InRust::new();
    group.bench_function("rust", |b| b.iter_custom(|rounds| two_threads(&rust, LEN, rounds)));
    let c = InC::new();
    group.bench_function("c", |b| b.iter_custom(|rounds| two_threads(&c, LEN, rounds)));
    group.finish();
}

fn two_threads<I: Interface>(pool: &I, len: u64, rounds: u64) -> Duration {
    let ready = Barrier::new(3);
    thread::scope(|scope| {
        for stream in [1, 2] {
            let ready = &ready;
            scope.spawn(move || {
                pool.release(pool.allocate(LONGEST_SHORT, stream), stream);
                ready.wait();
                (0..rounds).for_each(|_| pool.release(pool.allocate(len, stream), stream));
                ready.wait();
            });
        }
        ready.wait();
        let start = Instant::now();
        ready.wait();
        start.elapsed()
    })
}

/// From an address in the middle of a lease to its beginning.
fn find(c: &mut Criterion) {
    let mut group = c.benchmark_group("find_in_the_middle");
    for (live, from, to) in [(1_000, 9, 16), (100_000, 9, 16), (1_000, 21, 30)] {
        let pool = InC::new();
        let mut numbers = Numbers(4);
        let held: Vec<(*mut c_void, u64)> = (0..live)
            .map(|_| {
                let len = numbers.len(from, to);
                (pool.allocate(len, 1), len)
            })
            .collect();
        // SAFETY: integers and a pointer.
        let mut lease: vmm_lease_t = unsafe { std::mem::zeroed() };
        lease.size = size_of::<vmm_lease_t>();
        group.bench_function(format!("{live} of 2^{from}-2^{to}"), |b| {
            b.iter(|| {
                let (base, len) = held[numbers.below(live)];
                let offset = numbers.below(usize::try_from(len).expect("64 bits"));
                let inside = base.wrapping_byte_add(offset);
                // SAFETY: the pool lives, and the size is set.
                let status = unsafe { vmm_find(pool.0, inside, &raw mut lease) };
                assert!(status == vmm_status_t::VMM_OK && lease.base == base);
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = c_pairs;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1));
    targets = sizes, random_sizes, threads, find
}
criterion_main!(c_pairs);

//! What the measurements of the hot path share: pools whose memory is made already, and numbers
//! without a pattern that are the same in every run.

use std::sync::Arc;
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_mock::{MockDevice, MockOptions};

/// A pool on the mock device.
pub(crate) type MockPool = Pool<MockDevice>;

/// A lease of such a pool.
pub(crate) type MockLease = Lease<MockDevice>;

/// The longest lease that shares its frames with short ones, in bytes.
pub(crate) const LONGEST_SHORT: u64 = 1 << 20;

/// Physical memory of the mock device in bytes: more than any measurement needs.
const MEMORY: u64 = 1 << 40;

/// The numbers of Steele, Lea and Flood's `SplitMix64` (OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    /// The numbers that begin at `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("64 bits or fewer");
        usize::try_from(self.next() % bound).expect("below a usize")
    }

    /// A length in bytes of `1 << from` to `1 << to`, each power of two as likely as the next.
    pub(crate) fn len(&mut self, from: u32, to: u32) -> u64 {
        let octave = u64::from(from) + self.next() % u64::from(to - from);
        (1 << octave) + self.next() % (1 << octave)
    }
}

/// A pool that does no maintenance by itself and has no memory yet.
pub(crate) fn empty_pool() -> MockPool {
    let device = Arc::new(MockDevice::new(MockOptions::with_memory(MEMORY)));
    let options = PoolOptions {
        limit: Some(MEMORY / 2),
        maintenance: Maintenance::UserLoop,
        ..PoolOptions::default()
    };
    Pool::new(device, options).expect("the mock device has all that a pool needs")
}

/// A lease of `len` bytes for work on `stream`.
pub(crate) fn lease(pool: &MockPool, len: u64, stream: StreamId) -> MockLease {
    pool.allocate(len, stream, Owner::NONE).expect("memory is far from short")
}

/// Makes `bytes` of memory for leases of at most `longest` bytes on `stream`; it lies in one piece.
pub(crate) fn make_memory(pool: &MockPool, bytes: u64, longest: u64, stream: StreamId) {
    let len = if longest <= LONGEST_SHORT { LONGEST_SHORT } else { 64 * LONGEST_SHORT };
    let leases: Vec<MockLease> =
        (0..bytes.div_ceil(len)).map(|_| lease(pool, len, stream)).collect();
    drop(leases);
}

/// How the live leases of a pool lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Side by side, with free memory behind them.
    Packed,
    /// As a program leaves them that let go of half of its leases at random.
    Scattered,
}

/// Exponents of the shortest and the longest length in [`populated`].
pub(crate) const LIVE_LENS: (u32, u32) = (9, 16);

/// A pool with `count` live leases of 512 bytes to 64 KiB on `stream`, and as much free memory.
pub(crate) fn populated(
    count: usize,
    layout: Layout,
    stream: StreamId,
) -> (MockPool, Vec<MockLease>) {
    let pool = empty_pool();
    let mut numbers = Numbers::new(1);
    let (from, to) = LIVE_LENS;
    let lens: Vec<u64> = (0..2 * count).map(|_| numbers.len(from, to)).collect();
    let bytes: u64 = lens.iter().map(|len| len.next_multiple_of(512)).sum();
    make_memory(&pool, bytes + LONGEST_SHORT, LONGEST_SHORT, stream);
    let made = if layout == Layout::Packed { count } else { 2 * count };
    let mut leases: Vec<MockLease> =
        lens[..made].iter().map(|len| lease(&pool, *len, stream)).collect();
    while leases.len() > count {
        let gone = numbers.below(leases.len());
        drop(leases.swap_remove(gone));
    }
    (pool, leases)
}

/// Notes that a pool made no device call since [`HitsOnly::begin`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct HitsOnly {
    misses: u64,
    device_calls: u64,
}

impl HitsOnly {
    /// Begins to watch.
    pub(crate) fn begin(pool: &MockPool) -> Self {
        Self { misses: pool.stats().misses, device_calls: pool.device().total_calls() }
    }

    /// Ends the watch.
    ///
    /// # Panics
    /// If an allocation missed, or the device was called: then the time is not that of the hot path.
    pub(crate) fn end(self, pool: &MockPool) {
        let since = pool.stats().misses - self.misses;
        assert_eq!(since, 0, "allocations missed");
        let since = pool.device().total_calls() - self.device_calls;
        assert_eq!(since, 0, "the device was called");
    }
}

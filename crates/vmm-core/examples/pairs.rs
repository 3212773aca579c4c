//! Allocates and releases, over and over, beside many live leases: for counting instructions.
//!
//! ```text
//! pairs [LIVE] [PAIRS] [packed|scattered] [same|replace]
//! ```
//!
//! `same` (the default) releases each lease at once. `replace` ends one of the live leases, picked at
//! random, and begins another, so that it also shows what the host's cold memory costs. Prints the
//! nanoseconds per pair: the best and the middle of ten rounds, or of as many as `ROUNDS` says.
//!
//! What one round of 100 000 pairs executes, and which caches it misses:
//!
//! ```text
//! ROUNDS=1 valgrind --tool=callgrind --cache-sim=yes --toggle-collect='*pairs_measured*' \
//!     target/release/examples/pairs 1000000 100000 scattered
//! ```

#[path = "../benches/support/mod.rs"]
mod support;

use std::env;
use std::hint::black_box;
use std::time::{Duration, Instant};
use support::{HitsOnly, LIVE_LENS, Layout, MockLease, MockPool, Numbers, lease, populated};
use vmm_core::StreamId;

const STREAM: StreamId = StreamId(1);

/// Rounds that are timed.
const ROUNDS: usize = 10;

/// Lengths that the pairs take in turn; a power of two.
const LENS: usize = 1024;

/// What is measured, and nothing else: its name is known to the command above.
#[inline(never)]
fn pairs_measured(pool: &MockPool, lens: &[u64], pairs: usize) {
    for len in lens.iter().cycle().take(pairs) {
        black_box(lease(pool, *len, STREAM)).release(STREAM);
    }
}

/// As [`pairs_measured`], but each pair ends another lease than it begins.
#[inline(never)]
fn replace_pairs_measured(
    pool: &MockPool,
    lens: &[u64],
    victims: &[usize],
    live: &mut [Option<MockLease>],
) {
    for (len, victim) in lens.iter().cycle().zip(victims) {
        drop(live[*victim].take());
        live[*victim] = Some(lease(pool, *len, STREAM));
    }
}

fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default| {
        args.get(index)
            .map_or(default, |text: &String| text.parse().expect("a number of leases or pairs"))
    };
    let (count, pairs) = (number(0, 1_000), number(1, 1_000_000).max(1));
    let named = |name: &str| args.iter().any(|arg| arg == name);
    let layout = if named("packed") { Layout::Packed } else { Layout::Scattered };
    let replaces = named("replace");
    let rounds = env::var("ROUNDS").map_or(ROUNDS, |text| text.parse().expect("a number"));

    let (pool, live) = populated(count, layout, STREAM);
    let mut live: Vec<Option<MockLease>> = live.into_iter().map(Some).collect();
    let mut numbers = Numbers::new(2);
    let (from, to) = LIVE_LENS;
    let lens: Vec<u64> = (0..LENS).map(|_| numbers.len(from, to)).collect();
    let mut victims = vec![0; if replaces { pairs } else { 0 }];

    let watch = HitsOnly::begin(&pool);
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..rounds {
        victims.fill_with(|| numbers.below(count));
        let start = Instant::now();
        if replaces {
            replace_pairs_measured(&pool, &lens, &victims, &mut live);
        } else {
            pairs_measured(&pool, &lens, pairs);
        }
        times.push(start.elapsed());
    }
    watch.end(&pool);
    times.sort_unstable();
    let per_pair = |time: Duration| time.as_secs_f64() * 1e9 / pairs as f64;
    let (best, middle) = (per_pair(times[0]), per_pair(times[rounds / 2]));
    println!(
        "{count} live leases, {layout:?}: {best:.1} ns per pair at best, {middle:.1} ns in the middle"
    );
}

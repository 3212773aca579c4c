//! Programs of ever other lengths, without a level: how long memory moves for them.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use support::MIB;
use vmm_core::{Clock, Counters, Lease, Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_mock::{MockDevice, MockOptions};

const STREAM: StreamId = StreamId(1);

/// An encoder that infers: what its layers need follows a batch and a length that are others each time.
struct Encoder {
    pool: Pool<MockDevice>,
    /// Microseconds that its own work has taken; device calls take time beside that.
    clock: Arc<AtomicU64>,
    seed: u64,
}

impl Encoder {
    fn new() -> Self {
        let device =
            Arc::new(MockDevice::new(MockOptions { memory: 8 << 30, ..MockOptions::default() }));
        let clock = Arc::new(AtomicU64::new(0));
        let (now, calls) = (Arc::clone(&clock), Arc::clone(&device));
        let elapsed = move || {
            let calls = Duration::from_nanos(calls.cost().total().nanos);
            calls + Duration::from_micros(now.load(Ordering::Relaxed))
        };
        let options = PoolOptions {
            maintenance: Maintenance::UserLoop,
            clock: Clock::new(elapsed),
            ..PoolOptions::default()
        };
        Self { pool: Pool::new(device, options).expect("a pool"), clock, seed: 1 }
    }

    fn lease(&self, len: u64) -> Lease<MockDevice> {
        self.pool.allocate(len, STREAM, Owner::NONE).expect("8 GiB suffice")
    }

    /// From 0 to below `end`.
    fn random(&mut self, end: u64) -> u64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % end
    }

    /// One inference, `micros` after the last, and what the pool does meanwhile.
    fn infer(&mut self, micros: u64) {
        let tokens = (1 + self.random(32)) * (8 + self.random(504));
        let x = tokens * 1536;
        let mut input = self.lease(x);
        for _ in 0..12 {
            let heads = self.lease(3 * x);
            let split = self.lease(3 * x);
            drop(heads);
            let attended = self.lease(x);
            drop(split);
            let sum = self.lease(x);
            drop(attended);
            let wide = self.lease(4 * x);
            let active = self.lease(4 * x);
            drop(wide);
            let output = self.lease(x);
            drop((active, sum));
            input = output;
        }
        drop(input);
        self.clock.fetch_add(micros, Ordering::Relaxed);
        self.pool.device().finish_all();
        while self.pool.maintain() {}
    }

    /// The figures of so many inferences, `micros` apart.
    fn run(&mut self, inferences: u32, micros: u64) -> Counters {
        (0..inferences).for_each(|_| self.infer(micros));
        self.pool.stats().counters
    }
}

#[test]
fn a_program_of_short_steps_soon_moves_little() {
    let mut encoder = Encoder::new();
    let learnt = encoder.run(400, 3000);
    let later = encoder.run(400, 3000);
    assert!(learnt.frames_moved > 1000, "there is nothing to learn: {learnt:?}");
    // Two frames an inference take a thirtieth of its time; without slack there are five.
    let moved = later.frames_moved - learnt.frames_moved;
    assert!(moved < 2 * 400, "{moved} after {}", learnt.frames_moved);
    let ratio = later.peak_reserved_bytes * 100 / later.peak_live_bytes;
    assert!((101..=116).contains(&ratio), "{ratio} % of the peak");
}

#[test]
fn a_program_that_computes_keeps_tight_memory() {
    let mut encoder = Encoder::new();
    let figures = encoder.run(100, 200_000);
    assert!(figures.frames_moved > 100, "it moves: {figures:?}");
    let above = figures.peak_reserved_bytes - figures.peak_live_bytes;
    assert!(above * 100 < figures.peak_live_bytes * 11, "{} MiB above the peak", above / MIB);
}

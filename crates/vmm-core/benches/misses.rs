//! Host time of a miss that needs no device call but a fence: memory that another stream has released,
//! and is done with, beside many streams and private pools that have nothing to do with it.
//!
//! The device cannot capture here, so that it is the pool that is measured: where it can, each stream
//! is asked once a miss.
//!
//! ```text
//! cargo bench -p vmm-core --bench misses
//! ```

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::sync::Arc;
use vmm_core::{Capabilities, Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_mock::{MockDevice, MockOptions};

/// Bytes of the leases that miss: all memory that the general arena has.
const LEN: u64 = 64 << 20;

/// Takes memory and releases it, on two streams in turn: what the one has released the other misses.
fn miss_twice(pool: &Pool<MockDevice>) {
    for stream in [1, 2].map(StreamId) {
        let lease = pool.allocate(black_box(LEN), stream, Owner::NONE).expect("memory");
        lease.release(stream);
    }
}

fn misses(c: &mut Criterion) {
    let mut group = c.benchmark_group("miss_by_streams_and_private_pools");
    for (streams, private_pools) in [(2, 0), (32, 0), (32, 500), (128, 0), (128, 1500)] {
        let options = MockOptions::default();
        let capabilities = Capabilities { capture: false, ..options.capabilities };
        let device = Arc::new(MockDevice::new(MockOptions { capabilities, ..options }));
        let options = PoolOptions {
            target: Some(LEN),
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        let pool = Pool::new(device, options).expect("a pool on the mock");
        let stream = |number: u64| StreamId(1 + number % streams);
        let live: Vec<_> = (0..private_pools)
            .map(|number| {
                let private = pool.private_pool().expect("a private pool");
                let lease = private.allocate(1 << 20, stream(number), Owner::NONE);
                (private, lease.expect("memory"))
            })
            .collect();
        for stream in (0..streams).map(stream) {
            pool.allocate(LEN, stream, Owner::NONE).expect("memory").release(stream);
        }
        miss_twice(&pool);
        let before = pool.stats();
        let name = BenchmarkId::from_parameter(format!("{streams}x{private_pools}"));
        let mut pairs = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                pairs += 1;
                miss_twice(&pool);
            });
        });
        let after = pool.stats();
        assert_eq!(after.misses - before.misses, 2 * pairs, "each of them missed");
        assert_eq!(after.frames_made, before.frames_made, "and none needed new memory");
        drop(live);
    }
    group.finish();
}

criterion_group!(benches, misses);
criterion_main!(benches);

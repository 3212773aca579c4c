//! What several test programs need.
#![allow(dead_code, reason = "each takes a part")]

use std::sync::Arc;
use vmm_core::{Maintenance, Pool, PoolOptions};
use vmm_mock::{MockDevice, MockOptions};

pub(crate) const MIB: u64 = 1 << 20;

/// How many random programs to run: `VMM_MODEL_CASES`, or so many. 20,000 of them and a release build
/// make for a thorough run.
pub(crate) fn cases(usual: u32) -> u32 {
    let asked = std::env::var("VMM_MODEL_CASES").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Numbers that are the same in every run, by splitmix64.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub(crate) fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).expect("an index")
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

/// A mock device of so many bytes, and a pool on it that does nothing by itself.
pub(crate) fn quiet_pool(memory: u64, limit: Option<u64>) -> (Arc<MockDevice>, Pool<MockDevice>) {
    let device = Arc::new(MockDevice::new(MockOptions { memory, ..MockOptions::default() }));
    let maintenance = Maintenance::UserLoop;
    let options = PoolOptions { limit, maintenance, ..PoolOptions::default() };
    let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
    (device, pool)
}

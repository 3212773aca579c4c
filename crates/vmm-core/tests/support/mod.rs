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

/// A mock device of so many bytes, and a pool on it that does nothing by itself.
pub(crate) fn quiet_pool(memory: u64, limit: Option<u64>) -> (Arc<MockDevice>, Pool<MockDevice>) {
    let device = Arc::new(MockDevice::new(MockOptions { memory, ..MockOptions::default() }));
    let maintenance = Maintenance::UserLoop;
    let options = PoolOptions { limit, maintenance, ..PoolOptions::default() };
    let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
    (device, pool)
}

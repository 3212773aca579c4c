//! A process with a pool in a static ends in order, whatever it still holds.

use std::process::Command;
use std::sync::{Arc, OnceLock};
use vmm_core::units::StreamId;
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions};
use vmm_mock::{MockDevice, MockOptions};

/// Set in the processes that are to end.
const CHILD: &str = "VMM_TEST_CHILD";

static POOL: OnceLock<(Pool<MockDevice>, Lease<MockDevice>)> = OnceLock::new();

thread_local! {
    static LEASE: OnceLock<Lease<MockDevice>> = const { OnceLock::new() };
}

fn pool(maintenance: Maintenance) -> Pool<MockDevice> {
    let device = Arc::new(MockDevice::new(MockOptions::default()));
    let options = PoolOptions { limit: Some(64 << 20), maintenance, ..PoolOptions::default() };
    Pool::new(device, options).expect("a pool on the mock")
}

/// Does nothing in the ordinary run.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let pool = pool(if what == "worker" { Maintenance::Worker } else { Maintenance::UserLoop });
    let lease = || pool.allocate(3 << 20, StreamId(1), Owner::NONE).expect("memory");
    LEASE.with(|kept| kept.set(lease()).expect("set once"));
    assert!(POOL.set((pool.clone(), lease())).is_ok(), "set once");
    if what == "exit" {
        std::process::exit(0);
    }
}

#[test]
fn a_process_ends_in_order_with_a_pool_in_a_static() {
    let program = std::env::current_exe().expect("the path of this test");
    for round in 0..30 {
        for what in ["worker", "user loop", "exit"] {
            let mut command = Command::new(&program);
            let output = command.args(["--exact", "child"]).env(CHILD, what).output();
            let output = output.expect("a process");
            assert!(output.status.success(), "{what}, round {round}: {output:?}");
        }
    }
}

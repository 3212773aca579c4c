//! What holds for every model, whatever the program does.

use crate::costs::Costs;
use crate::driver::Driver;
use crate::model::{BlockId, Model, Release, Request};
use crate::policy::Policy;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

/// What the largest of RMM's ranges below holds; random programs need less.
const RANGE: u64 = 4 << 30;

fn policies() -> impl Iterator<Item = Policy> {
    [
        "native",
        "native:max_split_size=24MiB:roundup_power2_divisions=4:garbage_collection_threshold=0.5",
        "expandable",
        "async",
        "rmm-pool",
        "rmm-arena",
        "cudamalloc",
    ]
    .into_iter()
    .map(|text| text.parse().expect("a policy"))
}

/// A step of a program.
#[derive(Clone, Copy, Debug)]
enum Op {
    Allocate {
        len: u64,
        stream: u16,
        pool: u16,
    },
    /// Of the blocks in use, counted round.
    Release {
        which: usize,
        is_in_use: bool,
    },
    ReleaseCached,
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    // As many short ones as long ones, with odd lengths and with equal ones.
    let len = prop_oneof![1..4096_u64, (1..64_u64).prop_map(|n| n * 65_536), 1..40 * MIB];
    prop_oneof![
        8 => (len, 0..3_u16, 0..2_u16)
            .prop_map(|(len, stream, pool)| Op::Allocate { len, stream, pool }),
        6 => (any::<usize>(), prop::bool::weighted(0.1))
            .prop_map(|(which, is_in_use)| Op::Release { which, is_in_use }),
        1 => Just(Op::ReleaseCached),
        1 => (0..20_000_000_u64).prop_map(Op::Wait),
    ]
}

/// A model, and what a program knows of it.
struct Program {
    model: Box<dyn Model>,
    driver: Driver,
    now_ns: u64,
    /// Blocks in use and their address and length.
    live: Vec<(BlockId, u64, u64)>,
    /// The same by address.
    ranges: BTreeMap<u64, u64>,
}

impl Program {
    fn new(policy: &Policy, limit: Option<u64>) -> Self {
        let costs = Costs::h200();
        Self {
            model: policy.model(limit, &costs),
            driver: Driver::new(costs, limit),
            now_ns: 0,
            live: Vec::new(),
            ranges: BTreeMap::new(),
        }
    }

    fn step(&mut self, op: Op) {
        self.driver.begin();
        match op {
            Op::Allocate { len, stream, pool } => {
                self.allocate(len, stream, pool);
            }
            Op::Release { which, is_in_use } if !self.live.is_empty() => {
                let (block, addr, _) = self.live.swap_remove(which % self.live.len());
                self.ranges.remove(&addr);
                let is_in_use = is_in_use && !self.model.defers_frees();
                let release = Release { block, now_ns: self.now_ns, is_in_use };
                self.model.release(&mut self.driver, release);
            }
            Op::Release { .. } => {}
            Op::ReleaseCached => self.model.release_cached(&mut self.driver),
            Op::Wait(ns) => self.now_ns += ns,
        }
        self.check();
    }

    fn allocate(&mut self, len: u64, stream: u16, pool: u16) -> bool {
        let request = Request { len, stream, pool, now_ns: self.now_ns };
        let Some(block) = self.model.allocate(&mut self.driver, request) else { return false };
        let (addr, held) = self.model.range(block);
        assert!(held >= len, "{held} bytes for {len}");
        let before = self.ranges.range(..addr + held).next_back();
        let overlap = before.filter(|&(&other, &other_len)| other + other_len > addr);
        assert_eq!(overlap, None, "a block at {addr} of {held} bytes");
        self.live.push((block, addr, held));
        self.ranges.insert(addr, held);
        true
    }

    fn release_all(&mut self) {
        while !self.live.is_empty() {
            self.step(Op::Release { which: 0, is_in_use: false });
        }
        // Past every lag.
        self.now_ns += 1_000_000_000;
    }

    fn check(&self) {
        let live: u64 = self.ranges.values().sum();
        let reserved = self.model.reserved(&self.driver);
        assert!(live <= reserved, "{live} bytes in use, {reserved} reserved");
        assert!(self.driver.limit().is_none_or(|limit| reserved <= limit), "{reserved} reserved");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_two_live_blocks_overlap_and_the_limit_holds(
        ops in proptest::collection::vec(op(), 1..300),
        limit in proptest::option::of((1..400_u64).prop_map(|mib| mib * MIB)),
    ) {
        for policy in policies() {
            let mut program = Program::new(&policy, limit);
            for &op in &ops {
                program.step(op);
            }
        }
    }

    #[test]
    fn freed_memory_merges_and_can_be_given_back(
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        // Pools that streams share are asked for one only: memory of several need not merge there.
        let alone = |op, policy: &Policy| match (op, policy) {
            (op, Policy::Native(_) | Policy::Expandable(_) | Policy::CudaMalloc) => op,
            (Op::Allocate { len, .. }, _) => Op::Allocate { len, stream: 0, pool: 0 },
            (Op::Release { which, .. }, _) => Op::Release { which, is_in_use: false },
            (op, _) => op,
        };
        for policy in policies() {
            let policy = match policy {
                Policy::RmmPool { .. } => Policy::RmmPool { initial: RANGE },
                other => other,
            };
            let limit = (policy == Policy::RmmArena).then_some(RANGE);
            let mut program = Program::new(&policy, limit);
            for &op in &ops {
                program.step(alone(op, &policy));
            }
            program.release_all();
            program.model.end_pool(1);
            match policy {
                Policy::RmmPool { .. } | Policy::RmmArena => {
                    let reserved = program.model.reserved(&program.driver);
                    prop_assert!(program.allocate(RANGE, 0, 0), "{policy}");
                    // A pool that nobody has asked for anything has nothing yet.
                    let after = program.model.reserved(&program.driver);
                    prop_assert!(reserved == 0 || after == reserved, "{policy}");
                }
                _ => {
                    program.step(Op::ReleaseCached);
                    prop_assert_eq!(program.driver.reserved, 0, "{}", policy);
                }
            }
        }
    }

    #[test]
    fn the_same_program_gives_the_same_addresses(
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        for policy in policies() {
            let run = || {
                let mut program = Program::new(&policy, Some(200 * MIB));
                ops.iter().for_each(|&op| program.step(op));
                (program.live, program.driver.calls, program.driver.peak_reserved)
            };
            prop_assert_eq!(run(), run(), "{}", policy);
        }
    }
}

#[test]
fn a_request_that_fails_leaves_a_model_that_works() {
    for policy in policies() {
        let mut program = Program::new(&policy, Some(64 * MIB));
        assert!(!program.allocate(65 * MIB, 0, 0), "{policy}");
        assert!(program.allocate(20 * MIB, 0, 0), "{policy}");
        assert!(!program.allocate(63 * MIB, 0, 0), "{policy}");
        assert!(program.allocate(4 * MIB, 0, 0), "{policy}");
        program.check();
    }
}

#[test]
fn requests_beyond_every_device_fail_and_nothing_overflows() {
    for policy in policies() {
        let mut program = Program::new(&policy, None);
        for shorter in 0..20 {
            program.allocate((1 << 48) - (shorter << 40), 0, 0);
            program.release_all();
        }
        assert!(program.allocate(MIB, 0, 0), "{policy}");
        program.check();
    }
}

#[test]
fn the_pool_of_a_graph_keeps_its_memory() {
    for policy in ["native", "expandable"].map(|text| text.parse::<Policy>().expect("a policy")) {
        let mut program = Program::new(&policy, None);
        assert!(program.allocate(20 * MIB, 0, 1));
        assert!(program.allocate(20 * MIB, 0, 1));
        program.step(Op::Release { which: 0, is_in_use: false });
        program.step(Op::ReleaseCached);
        assert_eq!(program.driver.reserved, 40 * MIB, "{policy}: the graph may run");
        assert!(program.allocate(20 * MIB, 0, 0));
        assert_eq!(program.driver.reserved, 60 * MIB, "{policy}: the program's own memory");
        program.release_all();
        program.step(Op::ReleaseCached);
        assert_eq!(program.driver.reserved, 40 * MIB, "{policy}: the graph may still run");
        program.model.end_pool(1);
        program.step(Op::ReleaseCached);
        assert_eq!(program.driver.reserved, 0, "{policy}");
    }
}

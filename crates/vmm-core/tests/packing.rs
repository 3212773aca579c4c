//! Where a limit is near, long leases go where they leave the most frames idle.
#![allow(missing_docs)]

mod support;

use std::collections::VecDeque;
use support::{MIB, Random, quiet_pool};
use vmm_core::{AllocError, Lease, Owner, Pool, StreamId};
use vmm_mock::MockDevice;

const STREAM: StreamId = StreamId(1);

fn take(pool: &Pool<MockDevice>, len: u64) -> Lease<MockDevice> {
    pool.allocate(len, STREAM, Owner::NONE).expect("memory")
}

/// Seven leases of two and a half frames lie side by side, and two of them end. The others use halves of
/// frames, and whoever takes whole ones instead of the other halves lacks them at the end.
#[test]
fn all_of_a_limit_serves_long_leases() {
    let (_, pool) = quiet_pool(1 << 30, Some(40 * MIB));
    let all = take(&pool, 40 * MIB);
    drop(all);
    let mut held: VecDeque<_> = (0..7).map(|_| take(&pool, 5 * MIB)).collect();
    held.remove(2);
    held.remove(0);
    // Two whole frames of what is free behind the seven, one more, and half a frame of the second.
    let eight = take(&pool, 8 * MIB);
    let seven = take(&pool, 7 * MIB);
    let stats = pool.stats();
    assert_eq!((stats.live_bytes, stats.reserved_bytes), (40 * MIB, 40 * MIB));
    drop((eight, seven));
    pool.validate();
}

/// What a thread does that serves requests of other lengths each time with a model of six layers.
enum Op {
    Take { name: usize, len: u64 },
    Drop { name: usize },
}

/// The weights of a model, then its work.
struct Server {
    ops: Vec<Op>,
    taken: usize,
}

impl Server {
    fn new(hidden: u64, requests: usize, random: &mut Random) -> Self {
        let mut server = Self { ops: Vec::new(), taken: 0 };
        for _ in 0..6 {
            for parts in [1, 1, 1, 1, 4, 4] {
                server.take(parts * hidden * hidden * 2);
                server.take(hidden * 2);
            }
        }
        server.take(30_522 * hidden * 2);
        for _ in 0..requests {
            let tokens = (1 + random.below(47)) * (8 + random.below(376));
            server.serve(tokens * hidden * 2);
        }
        server
    }

    fn take(&mut self, len: u64) -> usize {
        self.ops.push(Op::Take { name: self.taken, len });
        self.taken += 1;
        self.taken - 1
    }

    fn drop(&mut self, names: &[usize]) {
        self.ops.extend(names.iter().map(|name| Op::Drop { name: *name }));
    }

    /// One pass through the layers, of activations of so many bytes.
    fn serve(&mut self, len: u64) {
        let mut input = self.take(len);
        for _ in 0..6 {
            let heads = [self.take(len), self.take(len), self.take(len)];
            let attention = self.take(len);
            self.drop(&heads);
            let sum = self.take(len);
            self.drop(&[attention]);
            let (wide, active) = (self.take(4 * len), self.take(4 * len));
            self.drop(&[wide]);
            let narrow = self.take(len);
            self.drop(&[active, input]);
            input = self.take(len);
            self.drop(&[narrow, sum]);
        }
        self.drop(&[input]);
    }
}

/// Two servers in turns, some operations each, one of them ahead; how many requests failed, and the peak.
fn run(servers: &[Server; 2], turn: usize, ahead: usize, limit: Option<u64>) -> (usize, u64) {
    let (_, pool) = quiet_pool(4 << 30, limit);
    let mut leases = servers.each_ref().map(|server| {
        std::iter::repeat_with(|| None).take(server.taken).collect::<Vec<Option<Lease<_>>>>()
    });
    let mut failed = 0;
    let mut begun = [0; 2];
    let mut go = |who: usize, ops: usize| {
        let rest = &servers[who].ops[begun[who]..];
        for op in &rest[..ops.min(rest.len())] {
            match *op {
                Op::Take { name, len } => {
                    let stream = StreamId(1 + who as u64);
                    match pool.allocate(len, stream, Owner::NONE) {
                        Ok(lease) => leases[who][name] = Some(lease),
                        Err(AllocError::OutOfMemory(_)) => failed += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
                Op::Drop { name } => drop(leases[who][name].take()),
            }
            while pool.maintain() {}
        }
        begun[who] += ops.min(rest.len());
        rest.len() > ops
    };
    go(0, ahead);
    while go(0, turn) | go(1, turn) {}
    (failed, pool.stats().peak_live_bytes)
}

#[test]
fn two_servers_finish_within_little_more_than_they_need() {
    let mut random = Random(1);
    let servers = [Server::new(512, 24, &mut random), Server::new(768, 24, &mut random)];
    let mut failures = Vec::new();
    for (turn, ahead) in [(1, 90), (2, 0), (4, 130), (7, 40), (11, 100), (18, 60), (30, 20)] {
        let (failed, peak) = run(&servers, turn, ahead, None);
        assert_eq!(failed, 0);
        for permille in [1020, 1025, 1030, 1035] {
            let (failed, _) = run(&servers, turn, ahead, Some(peak / 1000 * permille));
            if failed > 0 {
                failures.push((turn, ahead, permille, failed));
            }
        }
    }
    // Of the 28 that there are 19 failed where the shortest free extent was taken, 3 of them at 1.035.
    assert!(failures.len() <= 9, "{failures:?}");
    assert!(failures.iter().all(|(_, _, permille, _)| *permille < 1035), "{failures:?}");
}

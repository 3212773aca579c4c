//! Graphs that are launched again and again beside a general pool that is short of memory.
//!
//! A graph of the mock device checks at each launch that its memory is where it was when it was
//! captured, and its work checks the bytes that it has written itself. So memory that left its
//! private pool, or that came back to others before the last launch was over, shows.
#![allow(missing_docs)]

mod support;

use proptest::prelude::*;
use std::sync::Arc;
use support::MIB;
use vmm_core::*;
use vmm_mock::{Access, Graph, MockDevice, MockOptions};

const LIMIT: u64 = 96 * MIB;

#[derive(Clone, Debug)]
enum Op {
    /// Captures a graph that uses so many leases, in a private pool of its own or in that of a
    /// graph.
    Capture {
        lens: Vec<u64>,
        shared: Option<usize>,
        keep: bool,
    },
    Launch {
        pick: usize,
        stream: usize,
    },
    /// Also right after a launch.
    DropGraph {
        pick: usize,
    },
    Allocate {
        len: u64,
        stream: usize,
    },
    Release {
        pick: usize,
    },
    Maintain,
    Trim,
    Advance {
        nanos: u64,
    },
}

fn len() -> impl Strategy<Value = u64> {
    prop_oneof![1..64_000_u64, MIB..20 * MIB]
}

fn op() -> impl Strategy<Value = Op> {
    let stream = 0..3_usize;
    prop_oneof![
        2 => (prop::collection::vec(len(), 1..5), any::<Option<usize>>(), any::<bool>())
            .prop_map(|(lens, shared, keep)| Op::Capture { lens, shared, keep }),
        4 => (any::<usize>(), stream.clone()).prop_map(|(pick, stream)| Op::Launch { pick, stream }),
        1 => any::<usize>().prop_map(|pick| Op::DropGraph { pick }),
        6 => (len(), stream).prop_map(|(len, stream)| Op::Allocate { len, stream }),
        6 => any::<usize>().prop_map(|pick| Op::Release { pick }),
        2 => Just(Op::Maintain),
        1 => Just(Op::Trim),
        2 => (0..3_000_000_u64).prop_map(|nanos| Op::Advance { nanos }),
    ]
}

/// A private pool, and the last launch of its graphs.
#[derive(Clone)]
struct Home {
    private: PrivatePool<MockDevice>,
    last: Arc<parking_lot::Mutex<Option<Fence>>>,
}

struct Captured {
    graph: Graph,
    home: Home,
    /// Memory of the graph that the program still holds.
    _leases: Vec<Lease<MockDevice>>,
}

struct Program {
    device: Arc<MockDevice>,
    pool: Pool<MockDevice>,
    streams: Vec<StreamId>,
    graphs: Vec<Captured>,
    general: Vec<(Lease<MockDevice>, u8)>,
    byte: u8,
}

impl Program {
    fn new(options: MockOptions, cross_stream: CrossStream) -> Self {
        let device = Arc::new(MockDevice::new(MockOptions { memory: 256 * MIB, ..options }));
        let options = PoolOptions {
            limit: Some(LIMIT),
            cross_stream,
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        let pool = Pool::new(device.clone(), options).expect("a pool on the mock");
        let streams: Vec<StreamId> = (0..3).map(|_| device.make_stream()).collect();
        for stream in &streams {
            // The pool knows every stream that a graph is launched on.
            pool.allocate(512, *stream, Owner::NONE).expect("there is memory");
        }
        Self { device, pool, streams, graphs: Vec::new(), general: Vec::new(), byte: 0 }
    }

    fn next_byte(&mut self) -> u8 {
        self.byte = self.byte.wrapping_add(1);
        self.byte
    }

    fn range(lease: &Lease<MockDevice>) -> AddrRange {
        AddrRange { addr: lease.addr(), len: lease.len() }
    }

    fn capture(&mut self, lens: &[u64], shared: Option<usize>, keep: bool) {
        let shared = shared.filter(|_| !self.graphs.is_empty());
        let home = match shared {
            Some(pick) => self.graphs[pick % self.graphs.len()].home.clone(),
            None => Home {
                private: self.pool.private_pool().expect("few private pools"),
                last: Arc::default(),
            },
        };
        let stream = self.streams[0];
        self.device.begin_capture(stream);
        let mut leases = Vec::new();
        for (i, len) in lens.iter().enumerate() {
            let Ok(lease) = home.private.allocate(*len, stream, Owner::NONE) else { break };
            let (range, byte) = (Self::range(&lease), self.next_byte());
            self.device.launch(stream, 90_000, &[Access::write(range, byte)]).expect("a node");
            self.device.launch_check(stream, 40_000, range, byte).expect("a node");
            // The next one may lie there.
            if i % 2 == 0 {
                leases.push(lease);
            }
            // Others do not pause meanwhile.
            self.allocate(*len / 2 + 1, 1);
        }
        let graph = self.device.end_capture(stream);
        if !keep {
            leases.clear();
        }
        self.graphs.push(Captured { graph, home, _leases: leases });
    }

    /// Launches of graphs that share a private pool come one after the other.
    fn launch(&self, pick: usize, stream: usize) {
        let Some(captured) = self.graphs.get(pick % self.graphs.len().max(1)) else { return };
        let stream = self.streams[stream];
        let mut last = captured.home.last.lock();
        if let Some(fence) = *last {
            self.device.stream_wait(stream, fence).expect("an order");
        }
        self.device.launch_graph(&captured.graph, stream).expect("the memory of a graph stays");
        *last = Some(self.device.record(stream).expect("a fence"));
    }

    /// Says whether there was memory.
    fn allocate(&mut self, len: u64, stream: usize) -> bool {
        let stream = self.streams[stream];
        match self.pool.allocate(len, stream, Owner::NONE) {
            Ok(lease) => {
                let byte = self.next_byte();
                self.device.fill(lease.addr(), byte, lease.len(), stream).expect("a fill");
                self.general.push((lease, byte));
                true
            }
            Err(AllocError::OutOfMemory(_)) => false,
            Err(error) => panic!("unexpected: {error}"),
        }
    }

    fn release(&mut self, pick: usize) {
        if self.general.is_empty() {
            return;
        }
        let (lease, byte) = self.general.swap_remove(pick % self.general.len());
        let stream = lease.stream();
        self.device.launch_check(stream, 300_000, Self::range(&lease), byte).expect("a check");
        lease.release(stream);
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Capture { lens, shared, keep } => self.capture(lens, *shared, *keep),
            Op::Launch { pick, stream } => self.launch(*pick, *stream),
            Op::DropGraph { pick } if !self.graphs.is_empty() => {
                self.graphs.swap_remove(pick % self.graphs.len());
            }
            Op::DropGraph { .. } => {}
            Op::Allocate { len, stream } => {
                if !self.allocate(*len, *stream) {
                    self.release(usize::from(self.byte));
                }
            }
            Op::Release { pick } => self.release(*pick),
            Op::Maintain => {
                self.pool.maintain();
            }
            Op::Trim => {
                self.pool.trim(LIMIT / 2).expect("a trim");
            }
            Op::Advance { nanos } => self.device.advance(*nanos),
        }
        self.pool.validate();
        assert!(self.pool.stats().reserved_bytes <= LIMIT, "the limit is never passed");
        assert_eq!(self.device.violations(), []);
        assert_eq!(self.device.races(), []);
        assert_eq!(self.device.mismatches(), []);
    }

    fn end(mut self) {
        self.graphs.clear();
        self.general.clear();
        self.pool.trim_and_wait(0).expect("a trim");
        let stats = self.pool.stats();
        assert_eq!((stats.reserved_bytes, stats.private_pools), (0, 0), "everything goes");
        drop(self.pool);
        self.device.finish_all();
        assert_eq!(self.device.mismatches(), []);
        assert_eq!(self.device.violations(), []);
        assert!(self.device.leftovers().is_empty(), "{:?}", self.device.leftovers());
    }
}

fn device() -> impl Strategy<Value = MockOptions> {
    prop_oneof![
        3 => Just(MockOptions::default()),
        1 => Just(MockOptions::without_aliases()),
        1 => Just(MockOptions::without_remapping()),
    ]
}

fn cross_stream() -> impl Strategy<Value = CrossStream> {
    prop_oneof![
        Just(CrossStream::WaitOnDevice),
        Just(CrossStream::WhenReached),
        Just(CrossStream::Never)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(96), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn graphs_keep_their_memory_and_give_it_back(
        options in device(),
        cross_stream in cross_stream(),
        ops in prop::collection::vec(op(), 1..160),
    ) {
        let mut program = Program::new(options, cross_stream);
        for op in &ops {
            program.step(op);
        }
        program.end();
    }
}

/// Memory that a second stream still uses can be put back where it was: the stream of the request waits
/// for that one on the device.
#[test]
fn a_range_that_others_still_use_can_be_restored() {
    let (device, pool) = support::quiet_pool(1 << 30, None);
    let (stream, side) = (device.make_stream(), device.make_stream());
    let private = pool.private_pool().expect("the first private pool");
    let lease = private.allocate(4 * MIB, stream, Owner::NONE).expect("memory");
    let addr = lease.addr();
    lease.used_on(side);
    let range = AddrRange { addr, len: 4 * MIB };
    device.launch(side, 50_000_000, &[Access::write(range, 7)]).expect("work");
    lease.release(stream);
    assert_eq!(pool.stats().retired_bytes, 4 * MIB);
    let again = private.allocate_at(addr, 4 * MIB, stream, Owner::NONE).expect("it can wait");
    assert_eq!((again.addr(), pool.stats().retired_bytes), (addr, 0));
    assert_eq!(pool.stats().host_waits, 0);
    // Without the order the bytes would be those of the other stream.
    device.launch(stream, 1_000, &[Access::write(range, 9)]).expect("work");
    device.launch_check(stream, 1_000, range, 9).expect("work");
    device.finish_all();
    pool.validate();
}

/// Frames stay with a private pool, so what a long lease left there is used up before there is another.
#[test]
fn a_short_lease_takes_what_long_ones_left() {
    let (device, pool) = support::quiet_pool(1 << 30, None);
    let stream = device.make_stream();
    let private = pool.private_pool().expect("the first private pool");
    let allocate = |len| private.allocate(len, stream, Owner::NONE).expect("memory");
    allocate(4 * MIB).release(stream);
    let made = pool.stats().frames_made;
    let short: Vec<_> = [512, 8192, MIB].map(allocate).into();
    let stats = pool.stats();
    assert_eq!((stats.private_reserved_bytes, stats.frames_made), (4 * MIB, made));
    short.into_iter().for_each(|lease| lease.release(stream));
    assert_eq!(allocate(4 * MIB).len(), 4 * MIB);
    assert_eq!(pool.stats().frames_made, made, "what was free in pieces is one again");
    pool.validate();
}

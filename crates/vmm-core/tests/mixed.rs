//! Random programs in which everything meets: faults of the device, streams that are forgotten, lost or not
//! watched, private pools, marks, leases by address, other settings while it runs, and what other threads do
//! while device calls are under way.
//!
//! As in the other models each lease is filled on its stream, and checked on the device before it ends.
#![allow(missing_docs)]

mod support;

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use support::{MIB, Random};
use vmm_core::*;
use vmm_mock::{Faulty, MockDevice, MockOptions};

type Device = Faulty<MockDevice>;
type TestPool = Pool<Device>;

const MEMORY: u64 = 192 * MIB;
const LIMITS: [Option<u64>; 4] = [None, Some(48 * MIB), Some(64 * MIB), Some(90 * MIB + 4321)];
const TARGETS: [Option<u64>; 3] = [None, Some(40 * MIB), Some(PoolOptions::NO_TARGET)];
const OPS: usize = 200;

fn len(random: &mut Random) -> u64 {
    match random.below(5) {
        0 | 1 => 1 + random.below(64_000),
        2 => 512 * (1 + random.below(2048)),
        3 => MIB / 2 * (1 + random.below(40)),
        _ => MIB + random.below(40 * MIB),
    }
}

/// What a lease is held by.
enum Hold {
    Lease(Lease<Device>),
    Raw(DeviceAddr),
}

struct Held {
    hold: Hold,
    range: AddrRange,
    byte: u8,
    /// Behind the filling.
    filled: Fence,
    peers: Vec<DeviceOrdinal>,
}

struct Program {
    random: Random,
    device: Arc<MockDevice>,
    faulty: Arc<Device>,
    pool: TestPool,
    streams: Vec<StreamId>,
    held: Vec<Held>,
    /// Leases that others may end at any moment.
    spare: Arc<Mutex<Vec<Lease<Device>>>>,
    privates: Vec<PrivatePool<Device>>,
    peers: Vec<DeviceOrdinal>,
    marks: Vec<Mark>,
    /// Steps that were begun, and perhaps run.
    steps: Vec<Result<StepOutcome, Step>>,
    bound: u64,
    byte: u8,
    may_fail: bool,
    captures: bool,
}

fn is_refusal_of_the_lost(error: &DeviceError) -> bool {
    error.detail == "the stream was destroyed"
}

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x1234_5677));
        let options = match random.below(5) {
            0 | 1 => MockOptions::default(),
            2 => MockOptions::queued_binds(),
            3 => MockOptions::without_aliases(),
            _ => MockOptions::without_remapping(),
        };
        let granule = random.pick(&[2 * MIB, 64 << 10]);
        let address_space = random.pick(&[128 << 40, 1 << 30]);
        let frame_kind =
            if options.other_granules.iter().any(|(kind, _)| *kind == FrameKind::Exportable) {
                random.pick(&[FrameKind::Device, FrameKind::Exportable])
            } else {
                FrameKind::Device
            };
        let other_granules =
            options.other_granules.iter().map(|(kind, _)| (*kind, granule)).collect();
        let captures = options.capabilities.capture;
        let device = Arc::new(MockDevice::new(MockOptions {
            memory: MEMORY,
            granule,
            address_space,
            other_granules,
            ..options
        }));
        device.set_lag(random.pick(&[0, 1_000_000]));
        let faulty = Arc::new(Faulty::<MockDevice>::new(device.clone()));
        let clock = device.clone();
        let limit = random.pick(&LIMITS);
        let options = PoolOptions {
            limit,
            target: random.pick(&TARGETS),
            cross_stream: random.pick(&[
                CrossStream::WaitOnDevice,
                CrossStream::WhenReached,
                CrossStream::Never,
            ]),
            maintenance: random.pick(&[Maintenance::UserLoop, Maintenance::Inline]),
            time_to_live: Duration::from_millis(random.pick(&[0, 5])),
            clock: Clock::new(move || Duration::from_nanos(clock.now())),
            reservation: random.pick(&[None, Some(64 * MIB)]),
            frame_kind,
            ..PoolOptions::default()
        };
        let pool = Pool::new(faulty.clone(), options).expect("a pool on the mock");
        let streams = (0..4).map(|_| device.make_stream()).collect();
        let may_fail = random.below(2) == 0;
        Self {
            random,
            device,
            faulty,
            pool,
            streams,
            held: Vec::new(),
            spare: Arc::default(),
            privates: Vec::new(),
            peers: Vec::new(),
            marks: Vec::new(),
            steps: Vec::new(),
            bound: limit.unwrap_or(u64::MAX),
            byte: 0,
            may_fail,
            captures,
        }
    }

    fn stream(&mut self) -> StreamId {
        let streams = self.streams.clone();
        self.random.pick(&streams)
    }

    fn fill(&mut self, range: AddrRange, stream: StreamId) -> (u8, Fence) {
        for held in &self.held {
            assert!(
                held.range.end() <= range.addr || range.end() <= held.range.addr,
                "leases overlap"
            );
        }
        self.byte = self.byte.wrapping_add(1);
        self.device
            .fill(range.addr, self.byte, range.len, stream)
            .expect("a fill of a fresh lease");
        (self.byte, self.device.record(stream).expect("a fence"))
    }

    fn check(&self, at: usize, stream: StreamId, nanos: u64) {
        let held = &self.held[at];
        self.device.stream_wait(stream, held.filled).expect("an order");
        self.device.launch_check(stream, nanos, held.range, held.byte).expect("work on a lease");
    }

    fn note(&self, error: &AllocError) {
        match error {
            AllocError::OutOfMemory(_) => {}
            AllocError::Device(error) => assert!(self.may_fail, "{error}"),
            AllocError::TooLarge { .. } => panic!("{error}"),
        }
    }

    fn allocate(&mut self) {
        self.finish_steps();
        let (len, stream) = (len(&mut self.random), self.stream());
        let alignment = 1 << (9 + self.random.below(14));
        let request = Request { alignment, ..Request::new(len, stream) };
        let private = if self.privates.is_empty() || self.random.below(3) > 0 {
            None
        } else {
            let at = self.random.index(self.privates.len());
            Some(self.privates[at].clone())
        };
        let raw = self.random.below(5) == 0;
        let hold = match (&private, raw) {
            (None, false) => self.pool.allocate_with(request).map(Hold::Lease),
            (Some(private), false) => private.allocate_with(request).map(Hold::Lease),
            (None, true) => self.pool.allocate_raw(&request).map(Hold::Raw),
            (Some(private), true) => private.allocate_raw(&request).map(Hold::Raw),
        };
        match hold {
            Ok(hold) => {
                let addr = match &hold {
                    Hold::Lease(lease) => lease.addr(),
                    Hold::Raw(addr) => *addr,
                };
                assert_eq!(addr.0 % alignment, 0);
                let range = AddrRange { addr, len };
                let (byte, filled) = self.fill(range, stream);
                self.held.push(Held { hold, range, byte, filled, peers: Vec::new() });
            }
            Err(AllocError::TooLarge { limited: true, .. }) => {}
            Err(error) => self.note(&error),
        }
    }

    fn spare(&mut self) {
        self.finish_steps();
        let (len, stream) = (len(&mut self.random) / 2 + 1, self.stream());
        match self.pool.allocate(len, stream, Owner::NONE) {
            Ok(lease) => {
                self.device.fill(lease.addr(), 0, len, stream).expect("a fill");
                self.spare.lock().push(lease);
            }
            Err(AllocError::TooLarge { limited: true, .. }) => {}
            Err(error) => self.note(&error),
        }
    }

    fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.index(self.held.len());
        let stream = self.stream();
        self.check(at, stream, 300_000);
        match self.held.swap_remove(at).hold {
            Hold::Lease(lease) => lease.release(stream),
            Hold::Raw(addr) => drop(self.pool.release_raw(addr, Some(stream)).expect("a lease")),
        }
    }

    fn use_elsewhere(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.random.index(self.held.len());
        let stream = self.stream();
        let mark = self.random.below(2) == 0;
        if mark {
            self.check(at, stream, 600_000);
        }
        let marked = self.pool.mark(stream);
        match &self.held[at].hold {
            Hold::Lease(lease) if mark => lease.used_until(marked),
            Hold::Lease(lease) => lease.used_on(stream),
            Hold::Raw(addr) => self.pool.used_on_raw(*addr, stream).expect("a lease"),
        }
        if !mark {
            self.check(at, stream, 600_000);
        }
        self.marks.push(marked);
    }

    fn grant(&mut self) {
        if self.held.is_empty() || self.device.peers().is_empty() {
            return;
        }
        self.finish_steps();
        let at = self.random.index(self.held.len());
        let peer = DeviceOrdinal(1 + u32::try_from(self.random.below(3)).expect("small"));
        let granted = match &self.held[at].hold {
            Hold::Lease(lease) => lease.grant(&[peer]),
            Hold::Raw(addr) => self.pool.grant_raw(*addr, &[peer]),
        };
        match granted {
            Ok(()) => self.held[at].peers.push(peer),
            Err(error) => assert!(self.may_fail, "{error}"),
        }
    }

    fn add_peer(&mut self) {
        if self.random.below(8) > 0 || self.device.peers().is_empty() {
            return;
        }
        self.finish_steps();
        let peer = DeviceOrdinal(1 + u32::try_from(self.random.below(3)).expect("small"));
        match self.pool.add_peer(peer) {
            Ok(()) => self.peers.push(peer),
            Err(error) => assert!(self.may_fail || self.pool.stats().limit.is_some(), "{error}"),
        }
    }

    fn end_stream(&mut self) {
        let at = self.random.index(self.streams.len());
        let stream = self.streams[at];
        match self.random.below(4) {
            0 | 1 => {
                if let Err(error) = self.pool.forget_stream(stream) {
                    assert!(self.may_fail, "{error}");
                    return;
                }
            }
            2 => self.pool.watch_stream(stream, false),
            // Lost.
            _ => {}
        }
        if self.random.below(4) > 0 {
            self.device.destroy_stream(stream);
            self.streams[at] = self.device.make_stream();
        }
    }

    /// What another thread does while a device call is under way.
    fn meanwhile(&mut self) {
        let op = self.random.pick(&[
            DeviceOp::MakeFrame,
            DeviceOp::Map,
            DeviceOp::SetAccess,
            DeviceOp::Unmap,
            DeviceOp::ReleaseFrame,
            DeviceOp::Wait,
            DeviceOp::WaitIdle,
            DeviceOp::Reserve,
        ]);
        let mut random = Random(self.random.below(u64::MAX));
        let (pool, faulty, spare, stream) =
            (self.pool.clone(), self.faulty.clone(), self.spare.clone(), self.stream());
        let private = self.privates.pop();
        self.faulty.once_before(op, move || {
            for _ in 0..1 + random.below(4) {
                match random.below(5) {
                    0 | 1 => {
                        let lease = spare.lock().pop();
                        drop(lease);
                    }
                    2 => {
                        let _ = pool.maintain();
                    }
                    3 => {
                        let _ = pool.trim(random.below(MEMORY));
                    }
                    _ => {
                        let request = Request::new(len(&mut random), stream);
                        if let Ok(Some(lease)) = pool.allocate_at_hand(request)
                            && faulty.inner().fill(lease.addr(), 7, request.len, stream).is_ok()
                        {
                            spare.lock().push(lease);
                        }
                    }
                }
                assert!(
                    faulty.frame_bytes() <= pool.stats().reserved_bytes,
                    "frames beyond the accounts"
                );
            }
            drop(private);
        });
    }

    fn fail(&mut self) {
        if !self.may_fail {
            return;
        }
        let op = self.random.pick(&[
            DeviceOp::MakeFrame,
            DeviceOp::ReleaseFrame,
            DeviceOp::Map,
            DeviceOp::Unmap,
            DeviceOp::SetAccess,
            DeviceOp::Record,
            DeviceOp::Reached,
            DeviceOp::Wait,
            DeviceOp::WaitIdle,
            DeviceOp::StreamWait,
            DeviceOp::IsCapturing,
            DeviceOp::Reserve,
        ]);
        let kind = self.random.pick(&[
            DeviceErrorKind::Failed,
            DeviceErrorKind::NotReady,
            DeviceErrorKind::OutOfMemory,
        ]);
        let k = 1 + self.random.below(4);
        let for_ever = self.random.below(4) == 0;
        if for_ever { self.faulty.fail_from(op, k, kind) } else { self.faulty.fail(op, k, kind) }
    }

    fn finish_steps(&mut self) {
        for step in self.steps.drain(..) {
            let outcome = step.unwrap_or_else(|step| step.run(&*self.faulty));
            self.pool.finish_step(outcome);
        }
    }

    fn step(&mut self) {
        match self.random.below(103) {
            0..28 => self.allocate(),
            28..34 => self.spare(),
            34..56 => self.release(),
            56..61 => self.use_elsewhere(),
            61..67 => {
                let nanos = self.random.below(2_000_000);
                self.device.advance(nanos);
            }
            67..72 => {
                self.pool.maintain();
            }
            72..77 => {
                // Two at once may stay open for some operations.
                if self.steps.len() < 2
                    && let Some(step) = self.pool.begin_step()
                {
                    let run = self.random.below(2) == 0;
                    self.steps.push(if run { Ok(step.run(&*self.faulty)) } else { Err(step) });
                }
            }
            77..79 => self.finish_steps(),
            79..81 => {
                let keep = self.random.below(MEMORY);
                if let Err(error) = self.pool.trim(keep) {
                    assert!(self.may_fail, "{error}");
                }
            }
            81 => {
                self.finish_steps();
                let keep = self.random.below(MEMORY);
                if let Err(error) = self.pool.trim_and_wait(keep) {
                    assert!(self.may_fail, "{error}");
                }
            }
            82..84 => self.end_stream(),
            84..86 => match self.pool.private_pool() {
                Ok(private) => self.privates.push(private),
                Err(error) => assert!(self.may_fail, "{error}"),
            },
            86..88 => {
                if !self.privates.is_empty() {
                    let at = self.random.index(self.privates.len());
                    self.privates.swap_remove(at);
                }
            }
            88 => {
                let limit = self.random.pick(&LIMITS);
                self.pool.set_limit(limit);
                self.bound = limit.unwrap_or(u64::MAX).max(self.pool.stats().reserved_bytes);
            }
            89 => {
                let target = self.random.pick(&TARGETS);
                self.pool.set_target(target);
            }
            100..102 => self.grant(),
            102 => self.add_peer(),
            90..95 => self.meanwhile(),
            95..97 => self.fail(),
            97 => self.faulty.clear(),
            98 => {
                let passed = self.pool.passed(&self.marks);
                assert!(passed.is_ok());
                if let Err(error) = self.pool.wait_for_any(&self.marks) {
                    assert!(self.may_fail, "{error}");
                }
                self.marks.truncate(3);
            }
            _ => {
                if self.captures {
                    // A capture of nothing, beside which the others go on.
                    self.finish_steps();
                    let stream = self.device.make_stream();
                    self.marks.push(self.pool.mark(stream));
                    self.faulty.clear();
                    self.device.begin_capture(stream);
                    self.pool.maintain();
                    let lease =
                        self.pool.allocate(len(&mut self.random), self.streams[1], Owner::NONE);
                    drop(lease);
                    drop(self.device.end_capture(stream));
                    self.pool.forget_stream(stream).expect("a stream that lives");
                    self.device.destroy_stream(stream);
                }
            }
        }
        self.pool.validate();
        let stats = self.pool.stats();
        assert!(
            stats.reserved_bytes <= self.bound,
            "the limit is passed: {} above {}, limit {:?}",
            stats.reserved_bytes,
            self.bound,
            stats.limit
        );
        if let Some(limit) = stats.limit {
            self.bound = self.bound.min(limit.max(stats.reserved_bytes));
        }
        assert!(self.faulty.frame_bytes() <= stats.reserved_bytes, "frames beyond the accounts");
        assert!(stats.live_bytes + stats.retired_bytes <= stats.reserved_bytes);
        for held in &self.held {
            for peer in held.peers.iter().chain(&self.peers) {
                assert!(self.device.peer_has_access(*peer, held.range), "{peer:?} lacks access");
            }
        }
        self.complaints();
    }

    fn complaints(&self) {
        assert_eq!(self.device.races(), []);
        assert_eq!(self.device.mismatches(), []);
        for refused in self.device.violations() {
            assert!(is_refusal_of_the_lost(&refused), "{refused}");
        }
    }

    fn end(mut self) {
        self.faulty.clear();
        self.faulty.once_before(DeviceOp::MemoryInfo, || {});
        self.finish_steps();
        self.held.clear();
        self.spare.lock().clear();
        self.privates.clear();
        self.pool.release_all_raw();
        self.pool.trim_and_wait(0).expect("a trim");
        let stats = self.pool.stats();
        assert_eq!((stats.reserved_bytes, stats.private_pools), (0, 0), "everything goes");
        let (device, faulty) = (self.device.clone(), self.faulty.clone());
        drop(self);
        device.finish_all();
        assert_eq!(faulty.frame_bytes(), 0);
        assert!(device.leftovers().is_empty(), "{:?}", device.leftovers());
        assert_eq!(device.races(), []);
        assert_eq!(device.mismatches(), []);
    }
}

struct Place(u64, usize);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, operation {}", self.0, self.1);
        }
    }
}

#[test]
fn everything_at_once() {
    let first: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0);
    for seed in first..first + u64::from(support::cases(60)) {
        let mut place = Place(seed, 0);
        let mut program = std::mem::ManuallyDrop::new(Program::new(seed));
        for op in 0..OPS {
            place.1 = op;
            program.step();
        }
        place.1 = OPS;
        std::mem::ManuallyDrop::into_inner(program).end();
    }
}

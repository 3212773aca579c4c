//! Random operations, with the bytes of every lease checked by queued work.
//!
//! What holds after each of them:
//! - no two leases that somebody holds overlap;
//! - a lease shows the bytes that were written to it last, to work that is ordered after the write;
//! - no work races with other work (the device complains), and no call is illegal (it refuses);
//! - the limit is kept, and the accounts of pool and device agree.

use super::private::FaultyPrivate;
use super::scene::{FaultyLease, FaultyPool, PoolScene, maintain, take, whole};
use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::time::Duration;
use vmm_core::device::{AddrRange, VirtualMemoryDevice};
use vmm_core::units::StreamId;
use vmm_core::{AllocError, CrossStream, Maintenance, Owner, PoolOptions};

/// Operations for each setting, unless `VMM_RANDOM_OPERATIONS` says otherwise.
const OPERATIONS: u64 = 5_000;

fn operations() -> u64 {
    std::env::var("VMM_RANDOM_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(OPERATIONS)
}

/// A generator of numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap_or(0)
    }

    /// An index below `n`.
    fn index(&mut self, n: usize) -> usize {
        usize::try_from(self.below(n as u64)).unwrap_or(0)
    }

    /// Small and large lengths alike.
    fn len(&mut self, page: u64) -> u64 {
        match self.below(8) {
            0..4 => 1 + self.below(64 << 10),
            4..6 => 1 + self.below(page),
            _ => 1 + self.below(6 * page),
        }
    }
}

/// Says on a panic where it happened.
struct Place(u64, CrossStream);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in step {} with {:?}", self.0, self.1);
        }
    }
}

struct Held<H: Harness> {
    lease: FaultyLease<H>,
    byte: u8,
    /// The stream of the last write. It may read without further ado.
    last: StreamId,
    /// Streams that have read since.
    readers: Vec<StreamId>,
}

struct Model<'a, H: Harness> {
    scene: &'a PoolScene<'a, H>,
    pool: FaultyPool<H>,
    streams: Vec<StreamId>,
    /// Private pools, beside which the general memory serves as well.
    privates: Vec<FaultyPrivate<H>>,
    held: Vec<Held<H>>,
    /// Live ranges by address.
    live: BTreeMap<u64, u64>,
    random: Random,
    misses: u64,
}

impl<H: Harness> Model<'_, H> {
    fn stream(&mut self) -> StreamId {
        self.streams[self.random.index(self.streams.len())]
    }

    fn step(&mut self) -> CaseResult {
        match self.random.below(100) {
            0..45 => self.allocate(),
            45..50 => self.use_elsewhere(),
            50..53 => self.share(),
            53..90 => self.release(),
            90..96 => {
                self.pool.maintain();
                Ok(())
            }
            96..98 => Ok(self.scene.harness.synchronize()?),
            98 => {
                let keep = self.random.below(20) * self.scene.page;
                self.pool.trim(keep)?;
                Ok(())
            }
            _ => self.scene.audit(&self.pool),
        }
    }

    fn allocate(&mut self) -> CaseResult {
        let (len, stream) = (self.random.len(self.scene.page), self.stream());
        let lease = match self.take(len, stream) {
            Ok(lease) => lease,
            Err(AllocError::OutOfMemory(_)) => {
                self.misses += 1;
                return self.release();
            }
            Err(other) => return Err(other.into()),
        };
        let range = whole::<H>(&lease);
        self.enter(range)?;
        let byte = self.random.byte();
        let time = Duration::from_nanos(self.random.below(200_000));
        self.scene.harness.work(stream, time, &[Use::Write(range, byte)])?;
        self.held.push(Held { lease, byte, last: stream, readers: Vec::new() });
        Ok(())
    }

    fn take(&mut self, len: u64, stream: StreamId) -> Result<FaultyLease<H>, AllocError> {
        if self.privates.is_empty() {
            return take::<H>(&self.pool, len, stream);
        }
        let place = self.random.index(2 * self.privates.len());
        match self.privates.get(place) {
            None => take::<H>(&self.pool, len, stream),
            Some(private) => private.allocate(len, stream, Owner::NONE),
        }
    }

    /// Releases a private pool, and makes another.
    fn replace_private(&mut self) -> CaseResult {
        let place = self.random.index(self.privates.len());
        self.privates[place] = self.pool.private_pool()?;
        Ok(())
    }

    fn enter(&mut self, range: AddrRange) -> CaseResult {
        let (start, end) = (range.addr.0, range.end().0);
        if let Some((other, stop)) = self.live.range(..end).next_back() {
            ensure!(*stop <= start, "{start:#x}..{end:#x} overlaps {other:#x}..{stop:#x}");
        }
        self.live.insert(start, end);
        Ok(())
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.random.index(self.held.len()))
    }

    /// Work on another stream, known to the pool by `used_on` alone: a read, or also a write.
    fn use_elsewhere(&mut self) -> CaseResult {
        let Some(i) = self.pick() else { return Ok(()) };
        let (stream, byte, writes) = (self.stream(), self.random.byte(), self.random.below(2) == 0);
        let held = &mut self.held[i];
        self.scene.order(held.last, stream)?;
        held.lease.used_on(stream);
        let range = whole::<H>(&held.lease);
        let uses = [Use::Expect(range, held.byte)];
        self.scene.harness.work(stream, Duration::from_micros(20), &uses)?;
        held.readers.push(stream);
        if writes {
            for reader in std::mem::take(&mut held.readers) {
                self.scene.order(reader, stream)?;
            }
            let uses = [Use::Write(range, byte)];
            self.scene.harness.work(stream, Duration::from_micros(50), &uses)?;
            held.byte = byte;
            held.last = stream;
        }
        Ok(())
    }

    /// Another holder for a moment, whose work the pool knows by its release alone.
    fn share(&mut self) -> CaseResult {
        let Some(i) = self.pick() else { return Ok(()) };
        let stream = self.stream();
        let held = &mut self.held[i];
        let share = held.lease.share(Owner::NONE);
        self.scene.order(held.last, stream)?;
        let uses = [Use::Expect(whole::<H>(&share), held.byte)];
        self.scene.harness.work(stream, Duration::from_micros(500), &uses)?;
        held.readers.push(stream);
        share.release(stream);
        Ok(())
    }

    fn release(&mut self) -> CaseResult {
        let Some(i) = self.pick() else { return Ok(()) };
        let Held { lease, byte, last, .. } = self.held.swap_remove(i);
        let range = whole::<H>(&lease);
        let uses = [Use::Expect(range, byte)];
        self.scene.harness.work(last, Duration::from_micros(5), &uses)?;
        self.live.remove(&range.addr.0);
        lease.release(last);
        Ok(())
    }
}

/// pytorch#142127
pub(super) fn no_two_leases_overlap_and_all_keep_their_bytes<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    for (seed, cross_stream) in
        [(1, CrossStream::WaitOnDevice), (2, CrossStream::WhenReached), (3, CrossStream::Never)]
    {
        let limit = 40 * s.page;
        let maintenance = if seed == 3 { Maintenance::Inline } else { Maintenance::UserLoop };
        let options = PoolOptions { cross_stream, maintenance, ..s.options(limit) };
        // Leaked on a panic: leases of a pool that is out of order must not panic once more.
        let mut model = ManuallyDrop::new(Model {
            scene: &s,
            pool: s.pool(options)?,
            streams: vec![s.stream()?, s.stream()?, s.stream()?],
            privates: Vec::new(),
            held: Vec::new(),
            live: BTreeMap::new(),
            random: Random(seed),
            misses: 0,
        });
        for step in 0..operations() {
            let place = Place(step, cross_stream);
            model.step()?;
            drop(place);
            let (refusals, complaints) = (h.refusals(), h.complaints());
            ensure_eq!(refusals, 0, "calls refused in step {step} with {cross_stream:?}");
            ensure!(complaints.is_empty(), "step {step}, {cross_stream:?}: {complaints:?}");
            ensure!(s.taken() <= limit, "the limit was passed in step {step}");
        }
        let stats = model.pool.stats();
        ensure!(model.misses > 0, "the limit was never met: {stats:?}");
        ensure!(stats.frames_moved > 0 || !stats.remapping, "no frame ever moved: {stats:?}");
        model.held.clear();
        h.synchronize()?;
        maintain::<H>(&model.pool)?;
        model.pool.trim_and_wait(0)?;
        ensure_eq!(model.pool.stats().reserved_bytes, 0, "bytes of an empty pool");
        drop(ManuallyDrop::into_inner(model));
        s.expect_nothing_left()?;
    }
    s.close()
}

pub(super) fn private_pools_and_all_others_keep_their_bytes<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    for (seed, cross_stream) in
        [(4, CrossStream::WaitOnDevice), (5, CrossStream::WhenReached), (6, CrossStream::Never)]
    {
        let limit = 60 * s.page;
        let maintenance = if seed == 5 { Maintenance::Inline } else { Maintenance::UserLoop };
        let pool = s.pool(PoolOptions { cross_stream, maintenance, ..s.options(limit) })?;
        let mut model = ManuallyDrop::new(Model {
            scene: &s,
            streams: vec![s.stream()?, s.stream()?, s.stream()?],
            privates: vec![pool.private_pool()?, pool.private_pool()?],
            pool,
            held: Vec::new(),
            live: BTreeMap::new(),
            random: Random(seed),
            misses: 0,
        });
        for step in 0..operations() {
            let place = Place(step, cross_stream);
            if model.random.below(200) == 0 {
                model.replace_private()?;
            }
            model.step()?;
            drop(place);
            let (refusals, complaints) = (h.refusals(), h.complaints());
            ensure_eq!(refusals, 0, "calls refused in step {step} with {cross_stream:?}");
            ensure!(complaints.is_empty(), "step {step}, {cross_stream:?}: {complaints:?}");
            ensure!(s.taken() <= limit, "the limit was passed in step {step}");
        }
        ensure!(model.misses > 0, "the limit was never met: {:?}", model.pool.stats());
        model.privates.clear();
        model.held.clear();
        h.synchronize()?;
        maintain::<H>(&model.pool)?;
        model.pool.trim_and_wait(0)?;
        ensure_eq!(model.pool.stats().reserved_bytes, 0, "bytes of an empty pool");
        ensure_eq!(model.pool.stats().private_reserved_bytes, 0, "bytes of private pools");
        drop(ManuallyDrop::into_inner(model));
        s.expect_nothing_left()?;
    }
    s.close()
}

pub(super) fn threads_share_a_pool<H: Harness>(h: &H) -> CaseResult {
    let s = PoolScene::new(h)?;
    s.device.need(Need::Strict)?;
    for maintenance in [Maintenance::Worker, Maintenance::Inline, Maintenance::UserLoop] {
        let limit = 48 * s.page;
        let pool = s.pool(PoolOptions { maintenance, ..s.options(limit) })?;
        let streams = [s.stream()?, s.stream()?, s.stream()?, s.stream()?];
        let page = s.page;
        let device = s.device.device;
        let work = |stream: StreamId, seed| {
            let mut random = Random(seed);
            let mut held: ManuallyDrop<Vec<FaultyLease<H>>> = ManuallyDrop::default();
            let mut failures = 0;
            for _ in 0..operations() / 8 {
                if random.below(2) == 0 && held.len() < 8 {
                    match take::<H>(&pool, random.len(page), stream) {
                        Ok(lease) => {
                            device.fill(lease.addr(), random.byte(), lease.len(), stream)?;
                            held.push(lease);
                        }
                        Err(AllocError::OutOfMemory(_)) => failures += 1,
                        Err(other) => return Err(other.into()),
                    }
                } else if !held.is_empty() {
                    let i = random.index(held.len());
                    held.swap_remove(i);
                }
                if random.below(50) == 0 {
                    pool.trim(10 * page)?;
                }
            }
            // Four threads hold at most 8 leases each, of which a quarter are long.
            ensure!(failures < operations() / 16, "{failures} failures");
            drop(ManuallyDrop::into_inner(held));
            Ok::<(), crate::Stop>(())
        };
        let results: Vec<CaseResult> = std::thread::scope(|scope| {
            let threads = streams.iter().zip(10..);
            let threads: Vec<_> =
                threads.map(|(s, seed)| scope.spawn(move || work(*s, seed))).collect();
            let panicked = || Err(crate::Stop::Failed("a thread panicked".to_owned()));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| panicked())).collect()
        });
        for result in results {
            result?;
        }
        ensure_eq!(h.refusals(), 0, "calls refused with {maintenance:?}");
        ensure_eq!(pool.stats().live_leases, 0, "leases at the end");
        ensure!(pool.stats().peak_reserved_bytes <= limit, "the limit was passed");
        drop(pool);
        h.synchronize()?;
        s.expect_nothing_left()?;
    }
    s.close()
}

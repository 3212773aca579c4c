//! The driver: a trace's calls, one after the other, on a pool.

use crate::amount::Amount;
use crate::calls::CallAccount;
use crate::contents::{Check, CheckResult, Contents};
use crate::pool_clock::PoolClock;
use crate::result::{ReplayResult, Sample, recorded_failures};
use crate::schedule::{Call, MOST_STREAMS, PoolIndex, Schedule, Slot, StreamIndex};
use crate::settings::{ReplaySettings, Upkeep};
use crate::source::{Memory, Source, Sources};
use crate::stopwatch::Stopwatch;
use crate::tail::Tail;
use crate::timeline::Timeline;
use crate::worker::Worker;
use std::sync::Arc;
use vmm_core::units::{round_down, round_up};
use vmm_core::{
    AllocError, DeviceError, DeviceResult, Maintenance, Pool, PoolError, PoolOptions, Request,
    StreamId, VirtualMemoryDevice,
};
use vmm_trace::DeviceTrace;

/// Calls between two reports of progress: often enough for the eye, too seldom to cost anything.
const CALLS_PER_REPORT: usize = 1 << 14;

/// Why a replay could not be made at all.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The trace records no allocation.
    #[error("it records no allocation")]
    NothingRecorded,
    /// The trace has more streams than a replay can tell apart.
    #[error("it has {0} streams, and a replay can tell {MOST_STREAMS} apart")]
    TooManyStreams(usize),
    /// The limit can never hold the largest allocation.
    #[error(
        "the limit of {limit} bytes is below its largest single allocation of {largest} bytes, \
         which needs {needed} in the granules of the device"
    )]
    LimitBelowAllocation {
        /// The limit in bytes.
        limit: u64,
        /// The largest allocation of the trace in bytes.
        largest: u64,
        /// The same in whole granules, in bytes.
        needed: u64,
    },
    /// The pool could not be made.
    #[error("the pool could not be made: {0}")]
    Pool(#[from] PoolError),
    /// The trace has more private pools at a time than a pool can keep apart.
    #[error("more than {0} of its private pools live at a time, and this pool keeps {0} apart")]
    TooManyPrivatePools(usize),
    /// A private pool of the trace could not be made.
    #[error("private pool {pool} of the trace could not be made: {error}")]
    PrivatePool {
        /// Which: an index into the trace's pools.
        pool: u16,
        /// What the pool said.
        error: PoolError,
    },
    /// The device cannot make as many streams as the trace has.
    #[error("the device cannot make one more stream: {0}")]
    Stream(DeviceError),
    /// The device failed during the replay; that is not a lack of memory.
    #[error("the device failed: {0}")]
    Device(AllocError),
    /// The bytes of a lease could not be written or checked.
    #[error("the bytes of lease {lease} could not be written or checked: {error}")]
    Contents {
        /// Which: the replay's allocations are numbered from 1.
        lease: u64,
        /// What the device said.
        error: DeviceError,
    },
    /// What the checks found could not be read.
    #[error("the checks could not be finished: {0}")]
    Checks(DeviceError),
}

/// Replays the calls of `trace` on a fresh pool over `device` and measures.
///
/// The clock of `timeline` is moved to each event's time; where driver calls or waits have made the
/// allocating thread late, it catches up in the gaps between events. What was live when the
/// recording began is allocated before the clock starts: it counts as memory, not as driver time.
/// An allocation that fails for want of memory is counted and its tensor never exists. What the
/// program allocated from a private pool, as captured graphs do, comes from a private pool here too
/// ([`vmm_core::PrivatePool`]). `progress` gets the number of calls made so far and of all.
///
/// [`ReplayResult::host_ns_per_op`] is wall-clock time around each pool call of the allocating
/// thread, less what reading the clock takes. It contains the host time of the device calls that
/// these pool calls make, and none of the modelled worker.
///
/// # Errors
/// [`ReplayError`]; failed allocations are no error.
pub fn replay<D, T>(
    trace: &DeviceTrace,
    settings: &ReplaySettings,
    device: Arc<D>,
    timeline: &Arc<T>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ReplayResult, ReplayError>
where
    D: VirtualMemoryDevice + 'static,
    T: Timeline + 'static,
{
    replay_on(trace, settings, device, timeline, None, progress)
}

/// As [`replay`], and checks through `contents` that leases keep their bytes.
///
/// A lease is filled on its stream when it was allocated and checked before it is released: on its
/// stream, or on the stream that still uses it, behind that work and ordered after the filling by a
/// fence. Leases that the trace never releases are checked at its end. The device calls of the check
/// are in no figure, nor is its host time.
///
/// # Errors
/// [`ReplayError`]; failed allocations and wrong bytes are no error.
pub fn replay_checked<D, T>(
    trace: &DeviceTrace,
    settings: &ReplaySettings,
    device: Arc<D>,
    timeline: &Arc<T>,
    contents: &dyn Contents,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ReplayResult, ReplayError>
where
    D: VirtualMemoryDevice + 'static,
    T: Timeline + 'static,
{
    replay_on(trace, settings, device, timeline, Some(contents), progress)
}

fn replay_on<D, T>(
    trace: &DeviceTrace,
    settings: &ReplaySettings,
    device: Arc<D>,
    timeline: &Arc<T>,
    contents: Option<&dyn Contents>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ReplayResult, ReplayError>
where
    D: VirtualMemoryDevice + 'static,
    T: Timeline + 'static,
{
    if trace.streams.len() > MOST_STREAMS {
        return Err(ReplayError::TooManyStreams(trace.streams.len()));
    }
    let schedule = Schedule::of(trace);
    if schedule.largest == 0 {
        return Err(ReplayError::NothingRecorded);
    }
    let peak_requested = trace.peak_requested_bytes();
    let granule = device.properties().granule;
    let bytes = |amount: Option<Amount>| amount.map(|a| a.resolve(peak_requested, granule));
    let limit = bytes(settings.limit).filter(|limit| *limit < u64::MAX);
    check_limit(limit, schedule.largest, device.properties().granule)?;

    let clock = PoolClock::new(Arc::clone(timeline));
    let options = PoolOptions {
        limit,
        target: bytes(settings.target),
        cross_stream: settings.cross_stream,
        maintenance: match settings.upkeep {
            // The worker is modelled here, so the pool must not start one of its own.
            Upkeep::Worker | Upkeep::None => Maintenance::UserLoop,
            Upkeep::Inline => Maintenance::Inline,
        },
        clock: clock.hand(),
        ..PoolOptions::default()
    };
    let name = device.properties().name.clone();
    let pool = Pool::new(device, options)?;

    let streams = (0..schedule.streams).map(|index| timeline.stream(index));
    let streams = streams.collect::<Result<_, _>>().map_err(ReplayError::Stream)?;
    let sources = Sources { placement: settings.placement, peak_requested, granule };
    let mut run = Run::new(&pool, &clock, timeline, settings, schedule.slots, streams, sources)?;
    run.private.resize_with(trace.pools.len(), || None);
    run.check = contents.map(|contents| Check::new(contents, schedule.slots));
    run.allocate_start(&schedule.start)?;
    let played = run.play(&schedule, settings, progress);
    let (stats, device_calls) = (pool.stats(), run.device_calls());
    // What the worker has changed on the device the pool must learn before it is taken down.
    run.worker.wait(&pool, timeline.as_ref());
    played?;
    let check = run.finish_check()?;
    Ok(ReplayResult {
        trace: String::new(),
        policy: settings.placement.map_or_else(|| "vmm".to_owned(), |placed| placed.to_string()),
        device: name,
        events: trace.events.len() as u64,
        peak_requested_bytes: peak_requested,
        peak_live_bytes: stats.peak_live_bytes,
        peak_reserved_bytes: stats.peak_reserved_bytes,
        recorded_peak_reserved_bytes: recorded_peak(trace),
        driver_calls: device_calls.total().count,
        driver_time_us: microseconds(device_calls.total().time_ns + run.waited_ns),
        worker_driver_time_us: microseconds(run.worker.calls.total().time_ns),
        duration_us: trace.duration_us(),
        tail_allocation_us: microseconds(run.tail.of_thousand()),
        worst_allocation_us: microseconds(run.tail.worst()),
        waits: stats.host_waits,
        // A tenth of a nanosecond is already more than the clock tells.
        host_ns_per_op: Some((run.stopwatch.ns_per(run.operations) * 10.0).round() / 10.0),
        failures: run.failures,
        recorded_failures: recorded_failures(trace),
        first_failure: run.first_failure,
        device_calls,
        worker_device_calls: run.worker.calls,
        check,
        limit_bytes: limit,
        budget_bytes: None,
        worker_driver_calls: run.worker.calls.total().count,
        curve: run.curve,
    })
}

/// A limit that the largest allocation can never fit under is a slip of whoever chose it.
fn check_limit(limit: Option<u64>, largest: u64, granule: u64) -> Result<(), ReplayError> {
    let Some(limit) = limit else { return Ok(()) };
    let needed = round_up(largest, granule).unwrap_or(u64::MAX);
    if needed <= round_down(limit, granule) {
        return Ok(());
    }
    Err(ReplayError::LimitBelowAllocation { limit, largest, needed })
}

/// An allocator that held memory held some, so zero says that the trace does not tell.
fn recorded_peak(trace: &DeviceTrace) -> Option<u64> {
    Some(trace.recorded_peak_reserved_bytes()).filter(|&bytes| bytes > 0)
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// The state of a replay under way.
struct Run<'a, D: VirtualMemoryDevice + 'static, T> {
    pool: &'a Pool<D>,
    clock: &'a PoolClock<T>,
    timeline: &'a T,
    upkeep: Upkeep,
    leases: Vec<Option<Memory<D>>>,
    sources: Sources,
    general: Source<D>,
    /// By the trace's index; those that have no memory yet, or were given up, are not there.
    private: Vec<Option<Source<D>>>,
    /// The device's streams, in the order of the trace's and then the lanes.
    streams: Vec<StreamId>,
    worker: Worker,
    stopwatch: Stopwatch,
    /// Allocations and releases since the clock started.
    operations: u64,
    /// Device calls before the clock started.
    calls_before: CallAccount,
    /// Device calls that the check made.
    calls_of_check: CallAccount,
    check: Option<Check<'a>>,
    /// Time that the allocating thread waited for a step of the worker.
    waited_ns: u64,
    /// What allocations cost, waits included.
    tail: Tail,
    failures: u64,
    first_failure: Option<String>,
    curve: Vec<Sample>,
}

impl<'a, D: VirtualMemoryDevice + 'static, T: Timeline + 'static> Run<'a, D, T> {
    fn new(
        pool: &'a Pool<D>,
        clock: &'a PoolClock<T>,
        timeline: &'a T,
        settings: &ReplaySettings,
        slots: usize,
        streams: Vec<StreamId>,
        sources: Sources,
    ) -> Result<Self, PoolError> {
        Ok(Self {
            pool,
            clock,
            timeline,
            upkeep: settings.upkeep,
            leases: std::iter::repeat_with(|| None).take(slots).collect(),
            sources,
            general: sources.general(pool)?,
            private: Vec::new(),
            streams,
            worker: Worker::new(),
            stopwatch: Stopwatch::calibrated(),
            operations: 0,
            calls_before: CallAccount::default(),
            calls_of_check: CallAccount::default(),
            check: None,
            waited_ns: 0,
            tail: Tail::default(),
            failures: 0,
            first_failure: None,
            curve: Vec::new(),
        })
    }

    fn allocate_start(&mut self, start: &[Call]) -> Result<(), ReplayError> {
        for call in start {
            if let Call::Allocate { slot, len, stream, pool } = *call {
                let request = Request::new(len, self.stream(stream));
                self.make_source(pool)?;
                let lease = source(&self.general, &self.private, pool).allocate(request);
                self.keep(slot, lease, request.stream)?;
            }
        }
        self.calls_before = self.timeline.calls();
        Ok(())
    }

    fn play(
        &mut self,
        schedule: &Schedule,
        settings: &ReplaySettings,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), ReplayError> {
        let origin_ns = self.timeline.now_ns();
        let calls_per_sample = settings
            .curve_samples
            .map(|samples| schedule.calls.len().div_ceil(samples.get()).max(1));
        for (done, timed) in schedule.calls.iter().enumerate() {
            self.go_to(origin_ns + timed.at_ns);
            match timed.call {
                Call::Allocate { slot, len, stream, pool } => {
                    self.allocate(slot, len, stream, pool)?;
                }
                Call::Release { slot } => self.release(slot)?,
                Call::ReleaseInUse { slot, lane, end_ns } => {
                    self.release_in_use(slot, lane, origin_ns + end_ns)?;
                }
                Call::EndPool { pool } => self.private[usize::from(pool)] = None,
            }
            if done % CALLS_PER_REPORT == 0 {
                progress(done, schedule.calls.len());
            }
            if calls_per_sample.is_some_and(|every| done % every == 0) {
                self.sample(timed.at_ns);
            }
            if settings.stop_at_failure && self.failures > 0 {
                break;
            }
        }
        progress(schedule.calls.len(), schedule.calls.len());
        Ok(())
    }

    /// Lets time pass until `at_ns`, and the worker work meanwhile.
    fn go_to(&mut self, at_ns: u64) {
        if self.upkeep == Upkeep::Worker {
            self.worker.run_until(self.pool, self.timeline, at_ns.max(self.timeline.now_ns()));
        }
        self.timeline.advance_to(at_ns);
    }

    fn allocate(
        &mut self,
        slot: Slot,
        len: u64,
        stream: StreamIndex,
        pool: PoolIndex,
    ) -> Result<(), ReplayError> {
        let request = Request::new(len, self.stream(stream));
        self.make_source(pool)?;
        self.operations += 1;
        let source = source(&self.general, &self.private, pool);
        let at_hand = self.stopwatch.measure(|| source.allocate_at_hand(request));
        match at_hand {
            Ok(Some(lease)) => {
                self.tail.note_free();
                self.keep(slot, Ok(lease), request.stream)
            }
            Ok(None) => self.allocate_with_calls(slot, request, pool),
            Err(error) => self.keep(slot, Err(error), request.stream),
        }
    }

    /// Makes the private pool of a tensor when it is first needed.
    #[inline]
    fn make_source(&mut self, pool: PoolIndex) -> Result<(), ReplayError> {
        if pool > 0 && self.private[usize::from(pool)].is_none() {
            let made = self.sources.private(self.pool);
            let made = made.map_err(|error| match error {
                PoolError::TooManyPrivatePools { most } => ReplayError::TooManyPrivatePools(most),
                error => ReplayError::PrivatePool { pool, error },
            })?;
            self.private[usize::from(pool)] = Some(made);
        }
        Ok(())
    }

    #[cold]
    fn allocate_with_calls(
        &mut self,
        slot: Slot,
        request: Request,
        pool: PoolIndex,
    ) -> Result<(), ReplayError> {
        let waited_ns = self.worker.wait(self.pool, self.timeline);
        let now_ns = self.timeline.now_ns();
        self.clock.begin_allocation();
        let source = source(&self.general, &self.private, pool);
        let lease = self.stopwatch.measure(|| source.allocate(request));
        // A wait for the device moves the timeline by itself; driver calls do not.
        let device_wait_ns = self.timeline.now_ns() - now_ns;
        let took_ns = self.clock.end_allocation();
        self.waited_ns += waited_ns;
        self.worker.wake(self.timeline.now_ns());
        self.tail.note(waited_ns + device_wait_ns + took_ns);
        self.keep(slot, lease, request.stream)
    }

    /// Enters the lease of a new tensor, or counts its failure.
    #[inline]
    fn keep(
        &mut self,
        slot: Slot,
        lease: Result<Memory<D>, AllocError>,
        stream: StreamId,
    ) -> Result<(), ReplayError> {
        let slot = slot as usize;
        self.leases[slot] = match lease {
            Ok(lease) => Some(lease),
            Err(error @ (AllocError::OutOfMemory(_) | AllocError::TooLarge { .. })) => {
                self.failures += 1;
                self.first_failure.get_or_insert_with(|| error.to_string());
                None
            }
            Err(error) => return Err(ReplayError::Device(error)),
        };
        match &mut self.check {
            Some(check) => check.begin(slot, self.leases[slot].as_ref().map(Memory::range), stream),
            None => Ok(()),
        }
    }

    fn release(&mut self, slot: Slot) -> Result<(), ReplayError> {
        if let Some(lease) = self.leases[slot as usize].take() {
            let stream = lease.stream();
            if let Some(check) = &mut self.check {
                check.end(slot as usize, lease.range(), stream)?;
            }
            self.operations += 1;
            self.stopwatch.measure(|| lease.release(stream));
        }
        Ok(())
    }

    fn release_in_use(
        &mut self,
        slot: Slot,
        lane: StreamIndex,
        end_ns: u64,
    ) -> Result<(), ReplayError> {
        if let Some(lease) = self.leases[slot as usize].take() {
            let lane = self.stream(lane);
            let stream = lease.stream();
            self.timeline.work_until(lane, end_ns);
            if let Some(mut check) = self.check.take() {
                self.order(stream, lane).map_err(ReplayError::Checks)?;
                check.end(slot as usize, lease.range(), lane)?;
                self.check = Some(check);
            }
            self.operations += 1;
            self.stopwatch.measure(|| {
                lease.used_on(lane);
                lease.release(stream);
            });
        }
        Ok(())
    }

    /// Puts later work of `second` behind what is queued on `first`, as a program does that hands a
    /// tensor from one stream to another. Off the account: without a check nobody reads the tensor.
    fn order(&mut self, first: StreamId, second: StreamId) -> DeviceResult<()> {
        let before = self.timeline.calls();
        let fence = self.pool.device().record(first)?;
        self.pool.device().stream_wait(second, fence)?;
        self.calls_of_check = self.calls_of_check.plus(&self.timeline.calls().since(&before));
        Ok(())
    }

    /// Checks the leases that are left, and waits for all checks.
    fn finish_check(&mut self) -> Result<Option<CheckResult>, ReplayError> {
        let Some(mut check) = self.check.take() else { return Ok(None) };
        for (slot, lease) in self.leases.iter().enumerate() {
            if let Some(lease) = lease {
                check.end(slot, lease.range(), lease.stream())?;
            }
        }
        check.finish().map(Some)
    }

    fn stream(&self, index: StreamIndex) -> StreamId {
        self.streams[usize::from(index)]
    }

    fn sample(&mut self, at_ns: u64) {
        let stats = self.pool.stats();
        self.curve.push(Sample {
            time_us: at_ns / 1_000,
            requested_bytes: stats.requested_bytes,
            live_bytes: stats.live_bytes,
            reserved_bytes: stats.reserved_bytes,
        });
    }

    /// The calls that the allocating thread has paid for since the clock started.
    fn device_calls(&self) -> CallAccount {
        let others = self.calls_before.plus(&self.worker.calls).plus(&self.calls_of_check);
        self.timeline.calls().since(&others)
    }
}

/// Where tensors of a pool of the trace come from; made already.
#[inline]
fn source<'a, D: VirtualMemoryDevice>(
    general: &'a Source<D>,
    private: &'a [Option<Source<D>>],
    pool: PoolIndex,
) -> &'a Source<D> {
    match pool {
        0 => general,
        _ => private[usize::from(pool)].as_ref().expect("a private pool that was made"),
    }
}

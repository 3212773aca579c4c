//! The driver: a trace's calls, one after the other, on a pool.

use crate::amount::Amount;
use crate::result::{ReplayResult, Sample};
use crate::schedule::{Call, MOST_STREAMS, Schedule, Slot, StreamIndex};
use crate::settings::{ReplaySettings, Upkeep};
use crate::stopwatch::Stopwatch;
use crate::timeline::Timeline;
use crate::worker::Worker;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::units::{round_down, round_up};
use vmm_core::{
    AllocError, Clock, Lease, Maintenance, Owner, Pool, PoolError, PoolOptions, Request, StreamId,
    VirtualMemoryDevice,
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
    /// The device failed during the replay; that is not a lack of memory.
    #[error("the device failed: {0}")]
    Device(AllocError),
}

/// Replays the calls of `trace` on a fresh pool over `device` and measures.
///
/// The clock of `timeline` is moved to each event's time; where driver calls or waits have made the
/// allocating thread late, it catches up in the gaps between events. What was live when the
/// recording began is allocated before the clock starts: it counts as memory, not as driver time.
/// An allocation that fails for want of memory is counted and its tensor never exists. Private
/// pools of captured graphs are not kept apart. `progress` gets the number of calls made so far and
/// of all.
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
    let limit = bytes(settings.limit);
    check_limit(limit, schedule.largest, device.properties().granule)?;

    let options = PoolOptions {
        limit,
        target: bytes(settings.target),
        cross_stream: settings.cross_stream,
        maintenance: match settings.upkeep {
            // The worker is modelled here, so the pool must not start one of its own.
            Upkeep::Worker | Upkeep::None => Maintenance::UserLoop,
            Upkeep::Inline => Maintenance::Inline,
        },
        clock: clock(Arc::clone(timeline)),
        ..PoolOptions::default()
    };
    let name = device.properties().name.clone();
    let pool = Pool::new(device, options)?;

    let mut run = Run::new(&pool, timeline.as_ref(), settings, &schedule);
    run.allocate_start(&schedule.start)?;
    run.play(&schedule, settings, progress)?;

    let stats = pool.stats();
    let figures = run.figures();
    Ok(ReplayResult {
        trace: String::new(),
        policy: settings.policy.name().to_owned(),
        device: name,
        events: trace.events.len() as u64,
        peak_requested_bytes: peak_requested,
        peak_live_bytes: stats.peak_live_bytes,
        peak_reserved_bytes: stats.peak_reserved_bytes,
        recorded_peak_reserved_bytes: recorded_peak(trace),
        driver_calls: figures.driver_calls,
        driver_time_us: microseconds(figures.driver_time_ns),
        worker_driver_time_us: microseconds(run.worker.driver_time_ns),
        duration_us: trace.duration_us(),
        worst_allocation_us: microseconds(run.worst_ns),
        waits: stats.host_waits,
        // A tenth of a nanosecond is already more than the clock tells.
        host_ns_per_op: (run.stopwatch.ns_per(run.operations) * 10.0).round() / 10.0,
        failures: run.failures,
        limit_bytes: limit,
        budget_bytes: None,
        worker_driver_calls: run.worker.driver_calls,
        curve: run.curve,
    })
}

/// What lives for a time in the pool lives for it in the trace's time.
fn clock<T: Timeline + 'static>(timeline: Arc<T>) -> Clock {
    Clock::new(move || Duration::from_nanos(timeline.now_ns()))
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
    timeline: &'a T,
    upkeep: Upkeep,
    leases: Vec<Option<Lease<D>>>,
    /// The device's streams, in the order of the trace's and then the lanes.
    streams: Vec<StreamId>,
    worker: Worker,
    stopwatch: Stopwatch,
    /// Allocations and releases since the clock started.
    operations: u64,
    /// Totals of the timeline when the clock started.
    driver_before: DriverTotals,
    /// Time that the allocating thread waited for a step of the worker.
    waited_ns: u64,
    worst_ns: u64,
    failures: u64,
    curve: Vec<Sample>,
}

/// Device calls and their time.
#[derive(Clone, Copy, Default)]
struct DriverTotals {
    driver_calls: u64,
    driver_time_ns: u64,
}

impl<'a, D: VirtualMemoryDevice + 'static, T: Timeline> Run<'a, D, T> {
    fn new(
        pool: &'a Pool<D>,
        timeline: &'a T,
        settings: &ReplaySettings,
        schedule: &Schedule,
    ) -> Self {
        Self {
            pool,
            timeline,
            upkeep: settings.upkeep,
            leases: std::iter::repeat_with(|| None).take(schedule.slots).collect(),
            streams: (0..schedule.streams).map(|index| timeline.stream(index)).collect(),
            worker: Worker::new(),
            stopwatch: Stopwatch::calibrated(),
            operations: 0,
            driver_before: DriverTotals::default(),
            waited_ns: 0,
            worst_ns: 0,
            failures: 0,
            curve: Vec::new(),
        }
    }

    fn allocate_start(&mut self, start: &[Call]) -> Result<(), ReplayError> {
        for call in start {
            if let Call::Allocate { slot, len, stream } = *call {
                let lease = self.pool.allocate(len, self.stream(stream), Owner::NONE);
                self.keep(slot, lease)?;
            }
        }
        self.driver_before = self.totals();
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
                Call::Allocate { slot, len, stream } => self.allocate(slot, len, stream)?,
                Call::Release { slot } => self.release(slot),
                Call::ReleaseInUse { slot, lane, end_ns } => {
                    self.release_in_use(slot, lane, origin_ns + end_ns);
                }
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

    fn allocate(&mut self, slot: Slot, len: u64, stream: StreamIndex) -> Result<(), ReplayError> {
        let request = Request::new(len, self.stream(stream));
        self.operations += 1;
        match self.stopwatch.measure(|| self.pool.allocate_at_hand(request)) {
            Ok(Some(lease)) => self.leases[slot as usize] = Some(lease),
            Ok(None) => return self.allocate_with_calls(slot, request),
            Err(error) => return self.keep(slot, Err(error)),
        }
        Ok(())
    }

    #[cold]
    fn allocate_with_calls(&mut self, slot: Slot, request: Request) -> Result<(), ReplayError> {
        let waited_ns = self.worker.wait(self.pool, self.timeline);
        let (now_ns, time_before) = (self.timeline.now_ns(), self.timeline.driver_time_ns());
        let lease = self.stopwatch.measure(|| self.pool.allocate_with(request));
        let took_ns = self.timeline.driver_time_ns() - time_before;
        // A wait for the device moves the clock by itself; driver calls do not.
        let device_wait_ns = self.timeline.now_ns() - now_ns;
        self.timeline.advance_to(now_ns + device_wait_ns + took_ns);
        self.waited_ns += waited_ns;
        self.worker.wake(self.timeline.now_ns());
        self.worst_ns = self.worst_ns.max(waited_ns + device_wait_ns + took_ns);
        self.keep(slot, lease)
    }

    /// Enters the lease of a new tensor, or counts its failure.
    fn keep(&mut self, slot: Slot, lease: Result<Lease<D>, AllocError>) -> Result<(), ReplayError> {
        match lease {
            Ok(lease) => self.leases[slot as usize] = Some(lease),
            Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. }) => self.failures += 1,
            Err(error) => return Err(ReplayError::Device(error)),
        }
        Ok(())
    }

    fn release(&mut self, slot: Slot) {
        if let Some(lease) = self.leases[slot as usize].take() {
            let stream = lease.stream();
            self.operations += 1;
            self.stopwatch.measure(|| lease.release(stream));
        }
    }

    fn release_in_use(&mut self, slot: Slot, lane: StreamIndex, end_ns: u64) {
        if let Some(lease) = self.leases[slot as usize].take() {
            let lane = self.stream(lane);
            self.timeline.work_until(lane, end_ns);
            let stream = lease.stream();
            self.operations += 1;
            self.stopwatch.measure(|| {
                lease.used_on(lane);
                lease.release(stream);
            });
        }
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

    fn totals(&self) -> DriverTotals {
        DriverTotals {
            driver_calls: self.timeline.driver_calls(),
            driver_time_ns: self.timeline.driver_time_ns(),
        }
    }

    /// What the allocating thread has paid since the clock started.
    fn figures(&self) -> DriverTotals {
        let (now, before) = (self.totals(), self.driver_before);
        DriverTotals {
            driver_calls: now.driver_calls - before.driver_calls - self.worker.driver_calls,
            driver_time_ns: now.driver_time_ns - before.driver_time_ns - self.worker.driver_time_ns
                + self.waited_ns,
        }
    }
}

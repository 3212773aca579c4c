//! A trace's events, one after the other, on a model.

use crate::costs::Costs;
use crate::driver::{Driver, ModelCalls};
use crate::model::{BlockId, Model, Release, Request};
use crate::policy::Policy;
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use vmm_replay::{Amount, ReplayResult, Sample, Tail, recorded_failures};
use vmm_trace::{DeviceTrace, EventKind};

/// Events between two reports of progress.
const EVENTS_PER_REPORT: usize = 1 << 16;

/// The granule of devices that CUDA drives, in bytes; limits are resolved in it.
pub(crate) const GRANULE: u64 = 2 << 20;

/// What a run of a model found. Times are what the model's calls cost on an H200 that is idle.
pub type ModelResult = ReplayResult<ModelCalls>;

/// How a model is run.
#[derive(Clone, Debug)]
pub struct RunSettings {
    /// What the model must never exceed.
    pub limit: Option<Amount>,
    /// What calls cost.
    pub costs: Costs,
    /// Ends the run at the first failed allocation, for searches that only ask whether there is one.
    pub stop_at_failure: bool,
    /// Keeps about so many samples of the memory in use ([`ReplayResult::curve`]).
    pub curve_samples: Option<NonZeroUsize>,
}

impl Default for RunSettings {
    /// No limit, an H200 5 ms behind the host, no curve.
    fn default() -> Self {
        Self { limit: None, costs: Costs::h200(), stop_at_failure: false, curve_samples: None }
    }
}

/// Why a model cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The trace records no allocation.
    #[error("it records no allocation")]
    NothingRecorded,
}

/// Runs a model on the events of a trace.
///
/// What was live when the recording began is allocated before the clock starts: it counts as memory,
/// not as driver time. Where the recorded allocator gave segments back, the program is taken to have
/// called `torch.cuda.empty_cache`; a recording made while memory was short shows the same events for
/// another reason. Models that keep pools of captured graphs apart do so until memory of such a
/// pool was given back in the recording. A failed allocation is counted and its tensor never exists; before it fails, the host waits for all frees that other streams
/// still defer. `progress` gets the number of events so far and of all.
///
/// # Errors
/// [`RunError`]; failed allocations are no error.
pub fn run(
    trace: &DeviceTrace,
    policy: &Policy,
    settings: &RunSettings,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<ModelResult, RunError> {
    if trace.tensor_count == 0 {
        return Err(RunError::NothingRecorded);
    }
    let peak_requested = trace.peak_requested_bytes();
    let limit = settings.limit.map(|limit| limit.resolve(peak_requested, GRANULE));
    let mut run = Run::new(
        policy.model(limit, &settings.costs),
        Driver::new(settings.costs.clone(), limit),
        trace.tensor_count as usize,
    );
    for tensor in &trace.start_live {
        let &vmm_trace::StartTensor { id, len, stream, pool } = tensor;
        run.allocate(id, Request { len, stream, pool, now_ns: 0 });
    }
    run.driver.start_clock();
    run.tail = Tail::default();
    let samples = settings.curve_samples;
    let every = samples.map(|samples| trace.events.len().div_ceil(samples.get()).max(1));
    let completes_at_once = |i: usize, id: u32| {
        let next = trace.events.get(i + 1);
        next.is_some_and(|next| next.kind == EventKind::FreeCompleted { id })
    };
    let mut releases = false;
    for (i, event) in trace.events.iter().enumerate() {
        let was_releasing = std::mem::replace(&mut releases, false);
        run.now_ns = event.time_us.saturating_mul(1_000);
        run.driver.begin();
        match event.kind {
            EventKind::Alloc { id, len, stream, pool } => {
                run.allocate(id, Request { len, stream, pool, now_ns: run.now_ns });
            }
            EventKind::FreeRequested { id } => run.request_free(id, completes_at_once(i, id)),
            EventKind::FreeCompleted { id } => run.complete_free(id),
            EventKind::SegmentFree { pool, .. } => {
                if pool > 0 {
                    run.model.end_pool(pool);
                }
                if !was_releasing || pool > 0 {
                    run.model.release_cached(&mut run.driver);
                }
                releases = true;
            }
            EventKind::SegmentAlloc { .. }
            | EventKind::Oom { .. }
            | EventKind::Snapshot
            | EventKind::Annotate => {}
        }
        run.note();
        if i % EVENTS_PER_REPORT == 0 {
            progress(i, trace.events.len());
        }
        if every.is_some_and(|every| i % every == 0) {
            run.sample();
        }
        if settings.stop_at_failure && run.failures > 0 {
            break;
        }
    }
    progress(trace.events.len(), trace.events.len());
    Ok(run.finish(trace, policy, peak_requested, limit))
}

/// A tensor that the model serves.
#[derive(Clone, Copy, Debug)]
struct Held {
    block: BlockId,
    requested: u64,
}

/// A run under way.
struct Run {
    model: Box<dyn Model>,
    driver: Driver,
    now_ns: u64,
    /// By tensor.
    held: Vec<Option<Held>>,
    /// Tensors that the program has let go of while another stream uses them.
    deferred: BTreeSet<u32>,
    requested: u64,
    live: u64,
    peak_live: u64,
    peak_reserved: u64,
    tail: Tail,
    failures: u64,
    curve: Vec<Sample>,
}

impl Run {
    fn new(model: Box<dyn Model>, driver: Driver, tensors: usize) -> Self {
        Self {
            model,
            driver,
            now_ns: 0,
            held: vec![None; tensors],
            deferred: BTreeSet::new(),
            requested: 0,
            live: 0,
            peak_live: 0,
            peak_reserved: 0,
            tail: Tail::default(),
            failures: 0,
            curve: Vec::new(),
        }
    }

    fn allocate(&mut self, id: u32, request: Request) {
        let mut block = self.model.allocate(&mut self.driver, request);
        if block.is_none() && !self.deferred.is_empty() {
            self.driver.wait();
            for id in std::mem::take(&mut self.deferred) {
                self.release(id, false);
            }
            block = self.model.allocate(&mut self.driver, request);
        }
        self.tail.note(self.driver.spent_ns);
        let Some(block) = block else {
            self.failures += 1;
            return;
        };
        self.held[id as usize] = Some(Held { block, requested: request.len });
        self.requested += request.len;
        self.live += self.model.range(block).1;
        self.peak_live = self.peak_live.max(self.live);
    }

    fn request_free(&mut self, id: u32, completes_at_once: bool) {
        if completes_at_once || !self.model.defers_frees() {
            self.release(id, !completes_at_once);
        } else if self.held[id as usize].is_some() {
            self.deferred.insert(id);
        }
    }

    fn complete_free(&mut self, id: u32) {
        if self.deferred.remove(&id) {
            self.release(id, false);
        }
    }

    fn release(&mut self, id: u32, is_in_use: bool) {
        // A tensor for which there was no memory is not there.
        if let Some(held) = self.held[id as usize].take() {
            self.requested -= held.requested;
            self.live -= self.model.range(held.block).1;
            let release = Release { block: held.block, now_ns: self.now_ns, is_in_use };
            self.model.release(&mut self.driver, release);
        }
    }

    /// Takes note of a peak.
    fn note(&mut self) {
        self.peak_reserved = self.peak_reserved.max(self.model.reserved(&self.driver));
    }

    fn sample(&mut self) {
        self.curve.push(Sample {
            time_us: self.now_ns / 1_000,
            requested_bytes: self.requested,
            live_bytes: self.live,
            reserved_bytes: self.model.reserved(&self.driver),
        });
    }

    fn finish(
        self,
        trace: &DeviceTrace,
        policy: &Policy,
        peak_requested: u64,
        limit: Option<u64>,
    ) -> ModelResult {
        let total = self.driver.calls.total();
        ModelResult {
            trace: String::new(),
            policy: policy.to_string(),
            device: "model".to_owned(),
            events: trace.events.len() as u64,
            peak_requested_bytes: peak_requested,
            peak_live_bytes: self.peak_live,
            peak_reserved_bytes: self.peak_reserved,
            recorded_peak_reserved_bytes: Some(trace.recorded_peak_reserved_bytes())
                .filter(|&bytes| bytes > 0),
            driver_calls: total.count,
            driver_time_us: microseconds(total.time_ns),
            worker_driver_time_us: 0.0,
            duration_us: trace.duration_us(),
            tail_allocation_us: microseconds(self.tail.of_thousand()),
            worst_allocation_us: microseconds(self.tail.worst()),
            waits: self.driver.waits,
            host_ns_per_op: None,
            failures: self.failures,
            recorded_failures: recorded_failures(trace),
            first_failure: None,
            device_calls: self.driver.calls,
            worker_device_calls: ModelCalls::default(),
            check: None,
            limit_bytes: limit,
            budget_bytes: None,
            worker_driver_calls: 0,
            curve: self.curve,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

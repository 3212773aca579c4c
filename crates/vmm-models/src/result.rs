//! What a run of a model found.

use crate::driver::ModelCalls;
use serde::Serialize;
use vmm_replay::Sample;

/// The figures of one trace under one model.
///
/// Serialized, it has the keys of a replay's result ([`vmm_replay::ReplayResult`]), in the same order.
/// Times in microseconds are what the model's calls cost on an H200 that is idle.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelResult {
    /// The trace's name; empty until the caller sets it.
    pub trace: String,
    /// The policy, as it is written on a command line.
    pub policy: String,
    /// `model`: no device was there.
    pub device: String,
    /// Events of the trace.
    pub events: u64,
    /// The most bytes that the program held at once, as it asked for them.
    pub peak_requested_bytes: u64,
    /// The most bytes held at once, the allocator's rounding included.
    pub peak_live_bytes: u64,
    /// The most physical memory held at once.
    pub peak_reserved_bytes: u64,
    /// The most that the recorded program's own allocator held at once, if the trace says.
    pub recorded_peak_reserved_bytes: Option<u64>,
    /// Driver calls.
    pub driver_calls: u64,
    /// Their time, without waits for the device.
    pub driver_time_us: f64,
    /// Zero: none of these allocators has a worker.
    pub worker_driver_time_us: f64,
    /// From the trace's first event to its last.
    pub duration_us: u64,
    /// The driver time that 999 of 1000 allocations did not exceed, waits included.
    pub tail_allocation_us: f64,
    /// The most driver time in a single allocation, waits for the device included.
    pub worst_allocation_us: f64,
    /// How often the host waited for the device, at most once an event.
    pub waits: u64,
    /// `None`: how fast a model is says nothing of the allocator that it stands for.
    pub host_ns_per_op: Option<f64>,
    /// Allocations that failed for want of memory.
    pub failures: u64,
    /// The driver calls by name.
    pub device_calls: ModelCalls,
    /// None.
    pub worker_device_calls: ModelCalls,
    /// The smallest limit that works, where it was searched for; left out elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// The limit in bytes, if there was one. Not serialized.
    #[serde(skip)]
    pub limit_bytes: Option<u64>,
    /// Samples of the memory in use over time, if asked for. Not serialized.
    #[serde(skip)]
    pub curve: Vec<Sample>,
}

impl ModelResult {
    /// Peak reserved over peak requested; `None` for a program that requested nothing.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people needs no 53 bits")]
    pub fn reserved_ratio(&self) -> Option<f64> {
        let needed = self.peak_requested_bytes;
        (needed > 0).then(|| self.peak_reserved_bytes as f64 / needed as f64)
    }

    /// Driver time as a share of the duration; `None` without a duration.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "durations lie far below 2^52 microseconds")]
    pub fn driver_share(&self) -> Option<f64> {
        (self.duration_us > 0).then(|| self.driver_time_us / self.duration_us as f64)
    }
}

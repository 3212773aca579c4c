//! What a replay found.

use crate::calls::CallAccount;
use crate::contents::CheckResult;
use serde::Serialize;
use vmm_trace::{DeviceTrace, Event, EventKind};

/// The figures of one trace under one policy; `C` accounts for device calls.
///
/// Serialized, it is one object of the command's `--json` output; fields that are left out there are
/// marked. Times in microseconds are logical: the trace's own, and the costs of device calls, which
/// a host-only device states and a real one is measured at. Models of other allocators have the same
/// figures: nobody works beside the thread that allocates, and no host time is measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayResult<C = CallAccount> {
    /// The trace's name; empty until the caller sets it.
    pub trace: String,
    /// The policy's name.
    pub policy: String,
    /// The device that the replay ran on; `model` where there was none.
    pub device: String,
    /// Events of the trace, those included that a replay has no use for.
    pub events: u64,
    /// The most bytes that the program held at once, as it asked for them: no allocator needs less.
    pub peak_requested_bytes: u64,
    /// The most bytes held at once as the pool counts them, its rounding included, and chunks of heaps
    /// as a whole.
    pub peak_live_bytes: u64,
    /// The most physical memory that the pool held at once.
    pub peak_reserved_bytes: u64,
    /// The most that the recorded program's own allocator held at once, if the trace says.
    pub recorded_peak_reserved_bytes: Option<u64>,
    /// Device calls made on the allocating thread.
    pub driver_calls: u64,
    /// Their time, and the time that thread waited for a call of the worker.
    pub driver_time_us: f64,
    /// Time of the device calls that the worker made.
    pub worker_driver_time_us: f64,
    /// From the trace's first event to its last.
    pub duration_us: u64,
    /// The driver time that 999 of 1000 allocations did not exceed, waits included.
    pub tail_allocation_us: f64,
    /// The most driver time in a single allocation, waits for the worker and the device included.
    pub worst_allocation_us: f64,
    /// How often the host waited for the device, the last rung of the out-of-memory ladder.
    pub waits: u64,
    /// Real time inside the pool per allocation or release, in nanoseconds, of the allocating
    /// thread. See [`crate::replay`] for what it contains. `None` for a model: how fast that is says
    /// nothing of the allocator that it stands for.
    pub host_ns_per_op: Option<f64>,
    /// Allocations that failed for want of memory.
    pub failures: u64,
    /// Allocations that failed in the recording. They are no part of a replay: what the program needed for
    /// them is not counted. Left out of the output where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub recorded_failures: u64,
    /// What was said of the first failure of the replay. Not serialized; `None` of a model.
    #[serde(skip)]
    pub first_failure: Option<String>,
    /// The device calls made on the allocating thread, by operation. Their time is `driver_time_us`
    /// less the waits for the worker.
    pub device_calls: C,
    /// The device calls that the worker made, by operation.
    pub worker_device_calls: C,
    /// Whether leases kept their bytes, where that was checked; left out elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<CheckResult>,
    /// The limit in bytes, if there was one.
    #[serde(skip)]
    pub limit_bytes: Option<u64>,
    /// The smallest limit that works, where it was searched for; left out elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_bytes: Option<u64>,
    /// Device calls that the worker made. Not serialized: `worker_device_calls` has them.
    #[serde(skip)]
    pub worker_driver_calls: u64,
    /// Samples of the memory in use over time, if asked for. Not serialized.
    #[serde(skip)]
    pub curve: Vec<Sample>,
}

/// The memory in use at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since the trace's first event.
    pub time_us: u64,
    /// Bytes that the program held, as asked for.
    pub requested_bytes: u64,
    /// Bytes that the program held, with the pool's rounding.
    pub live_bytes: u64,
    /// Physical memory that the pool held.
    pub reserved_bytes: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "what serde asks for")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How many allocations failed in a recording.
#[must_use]
pub fn recorded_failures(trace: &DeviceTrace) -> u64 {
    let failed = |event: &&Event| matches!(event.kind, EventKind::Oom { .. });
    trace.events.iter().filter(failed).count() as u64
}

impl<C> ReplayResult<C> {
    /// Peak reserved over peak requested; `None` for a program that requested nothing.
    #[must_use]
    pub fn reserved_ratio(&self) -> Option<f64> {
        ratio(self.peak_reserved_bytes, self.peak_requested_bytes)
    }

    /// The recorded allocator's peak reserved over peak requested.
    #[must_use]
    pub fn recorded_ratio(&self) -> Option<f64> {
        ratio(self.recorded_peak_reserved_bytes?, self.peak_requested_bytes)
    }

    /// Driver time on the allocating thread as a share of the duration; `None` without a duration.
    #[must_use]
    pub fn driver_share(&self) -> Option<f64> {
        self.share(self.driver_time_us)
    }

    /// The worker's driver time as a share of the duration; `None` without a duration.
    #[must_use]
    pub fn worker_share(&self) -> Option<f64> {
        self.share(self.worker_driver_time_us)
    }

    #[expect(clippy::cast_precision_loss, reason = "durations lie far below 2^52 microseconds")]
    fn share(&self, time_us: f64) -> Option<f64> {
        (self.duration_us > 0).then(|| time_us / self.duration_us as f64)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people needs no 53 bits")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

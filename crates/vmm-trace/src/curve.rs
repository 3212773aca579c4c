//! Figures that a replay wants from a trace, computed from its events.

use crate::model::{DeviceTrace, EventKind, Trace};

impl Trace {
    /// The device with the most events. Which index it has says nothing: programs choose any device.
    #[must_use]
    pub fn main_device(&self) -> Option<&DeviceTrace> {
        // The first of equals: `max_by_key` would give the last.
        self.devices.iter().rev().max_by_key(|device| device.events.len())
    }

    /// Events of all devices.
    #[must_use]
    pub fn event_count(&self) -> usize {
        self.devices.iter().map(|device| device.events.len()).sum()
    }
}

impl DeviceTrace {
    /// Most bytes of live tensors at one moment: the lower bound for any allocator.
    ///
    /// A tensor is live from `Alloc` to `FreeCompleted`, not to `FreeRequested`: memory that another
    /// stream still uses cannot be given out again. `PyTorch` counts its `requested_bytes` so too.
    #[must_use]
    pub fn peak_requested_bytes(&self) -> u64 {
        self.requested_curve().map(|(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// Bytes of live tensors over time, as (microseconds, bytes): first the state before the first
    /// event, then one point for each `Alloc` and `FreeCompleted`.
    pub fn requested_curve(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut len_of = vec![0; self.tensor_count as usize];
        let mut live = 0;
        for tensor in &self.start_live {
            len_of[tensor.id as usize] = tensor.len;
            live += tensor.len;
        }
        let start = live;
        let changes = self.events.iter().filter_map(move |event| {
            match event.kind {
                EventKind::Alloc { id, len, .. } => {
                    len_of[id as usize] = len;
                    live += len;
                }
                EventKind::FreeCompleted { id } => live -= len_of[id as usize],
                _ => return None,
            }
            Some((event.time_us, live))
        });
        std::iter::once((0, start)).chain(changes)
    }

    /// Bytes that the recorded allocator held from the device over time, as (microseconds, bytes):
    /// first the state before the first event, then one point for each segment event.
    pub fn recorded_reserved_curve(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut reserved = self.start_reserved;
        let changes = self.events.iter().filter_map(move |event| {
            match event.kind {
                EventKind::SegmentAlloc { len, .. } => reserved += len,
                EventKind::SegmentFree { len, .. } => reserved = reserved.saturating_sub(len),
                _ => return None,
            }
            Some((event.time_us, reserved))
        });
        std::iter::once((0, self.start_reserved)).chain(changes)
    }

    /// Most bytes that the recorded allocator held from the device at one moment. 0 for RMM, whose
    /// log does not say.
    #[must_use]
    pub fn recorded_peak_reserved_bytes(&self) -> u64 {
        self.recorded_reserved_curve().map(|(_, bytes)| bytes).max().unwrap_or(0)
    }

    /// Sum of the final segments, in bytes.
    #[must_use]
    pub fn end_reserved_bytes(&self) -> u64 {
        self.end_segments.iter().map(|segment| segment.total_size).sum()
    }

    /// Microseconds from the first event to the last.
    #[must_use]
    pub fn duration_us(&self) -> u64 {
        self.events.last().map_or(0, |event| event.time_us)
    }
}

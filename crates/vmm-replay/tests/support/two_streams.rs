//! A small trace, for tests here and of the command.

use vmm_trace::{Census, DeviceTrace, Event, EventKind};

const MIB: u64 = 1 << 20;

/// How many tensors the trace has.
pub(crate) const TENSORS: u32 = 400;

/// Tensors of many lengths on two streams, one every `every_us`, some in use by a third stream beyond
/// their end.
pub(crate) fn two_streams(every_us: u64) -> DeviceTrace {
    let mut events = Vec::new();
    let mut push = |time_us, kind| events.push(Event { time_us, kind });
    let mut in_use: Option<u32> = None;
    for id in 0..TENSORS {
        let at_us = u64::from(id) * every_us;
        let (stream, len) = (u16::from(id % 3 == 0), MIB * u64::from(1 + id * 7 % 13) + 512);
        push(at_us, EventKind::Alloc { id, len, stream, pool: 0 });
        if let Some(id) = in_use.take() {
            push(at_us + 40, EventKind::FreeCompleted { id });
        }
        let Some(gone) = id.checked_sub(8) else { continue };
        push(at_us + 50, EventKind::FreeRequested { id: gone });
        if gone % 5 == 0 {
            in_use = Some(gone);
        } else {
            push(at_us + 50, EventKind::FreeCompleted { id: gone });
        }
    }
    DeviceTrace {
        device: 0,
        streams: vec![0, 1],
        pools: vec![(0, 0)],
        tensor_count: TENSORS,
        start_live: Vec::new(),
        start_reserved: 0,
        events,
        end_segments: Vec::new(),
        census: Census::default(),
    }
}

//! Calls whose time depends on no length.

use super::{Clock, Times, median, microseconds};
use serde::Serialize;
use std::time::Duration;
use vmm_core::device::VirtualMemoryDevice;
use vmm_core::{DeviceOp, DeviceResult, Fence, StreamId};

/// How often each call is made for its median.
const REPETITIONS: usize = 101;

/// What one call takes: the median in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct CallCost {
    pub(crate) call: &'static str,
    pub(crate) repetitions: usize,
    pub(crate) time_us: f64,
}

/// Measures the calls that a pool makes often. `streams` are idle.
///
/// # Errors
/// What the device says.
pub(crate) fn small_calls(
    device: &impl VirtualMemoryDevice,
    now_ns: Clock<'_>,
    streams: [StreamId; 2],
) -> DeviceResult<Vec<CallCost>> {
    let [first, second] = streams;
    let times = Times::new(now_ns);
    let mut costs = Vec::new();
    let mut add = |op: DeviceOp, call: &mut dyn FnMut() -> DeviceResult<()>| {
        call()?;
        let mut list = Vec::with_capacity(REPETITIONS);
        for _ in 0..REPETITIONS {
            times.measure(&mut list, &mut *call)?;
        }
        let time_us = microseconds(median(list));
        costs.push(CallCost { call: op.name(), repetitions: REPETITIONS, time_us });
        DeviceResult::Ok(())
    };
    add(DeviceOp::MemoryInfo, &mut || device.memory_info().map(|_| ()))?;
    let mut last = Fence::REACHED;
    add(DeviceOp::Record, &mut || device.record(first).map(|fence| last = fence))?;
    add(DeviceOp::StreamWait, &mut || device.stream_wait(second, last))?;
    add(DeviceOp::Reached, &mut || device.reached(first).map(|_| ()))?;
    // The stream is idle, so this returns soon; then the calls that are counted wait for nothing.
    add(DeviceOp::Wait, &mut || device.wait(last, Duration::from_secs(10)).map(|_| ()))?;
    if device.properties().capabilities.capture {
        add(DeviceOp::IsCapturing, &mut || device.is_capturing(first).map(|_| ()))?;
    }
    if device.properties().capabilities.remapping {
        let granule = device.properties().granule;
        let mut bases = Vec::with_capacity(REPETITIONS + 1);
        let reserved = add(DeviceOp::Reserve, &mut || {
            device.reserve(granule, granule).map(|base| bases.push(base))
        });
        let freed = match reserved {
            Ok(()) => add(DeviceOp::FreeRegion, &mut || match bases.pop() {
                Some(base) => device.free_region(base, granule),
                None => Ok(()),
            }),
            Err(error) => Err(error),
        };
        // After an error what is left goes all the same.
        for base in bases {
            let _ = device.free_region(base, granule);
        }
        freed?;
    }
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_mock::{MockDevice, MockOptions};

    fn measured(options: MockOptions) -> Vec<(&'static str, f64)> {
        let device = MockDevice::new(options);
        let streams = [device.make_stream(), device.make_stream()];
        let costs = small_calls(&device, &|| device.total_cost_ns(), streams).expect("legal");
        assert!(device.leftovers().is_empty() && device.violations().is_empty());
        costs.iter().map(|cost| (cost.call, cost.time_us)).collect()
    }

    #[test]
    fn the_mock_costs_what_its_model_says() {
        assert_eq!(
            measured(MockOptions::default()),
            [
                ("memory_info", 1.0),
                ("record", 0.2),
                ("stream_wait", 0.23),
                ("reached", 0.14),
                ("wait", 0.14),
                ("is_capturing", 0.14),
                ("reserve", 21.0),
                ("free_region", 21.0),
            ]
        );
    }

    #[test]
    fn what_a_device_cannot_do_is_left_out() {
        let calls = measured(MockOptions::without_remapping());
        assert!(calls.iter().all(|(call, _)| !["reserve", "free_region"].contains(call)));
        let calls = measured(MockOptions::queued_binds());
        assert!(calls.iter().all(|(call, _)| *call != "is_capturing"));
    }
}

//! Calls whose time depends on the length of a frame.

use super::{Clock, Times, median, microseconds};
use serde::Serialize;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceErrorKind, FrameKind, Mapping, Properties, VirtualMemoryDevice,
};
use vmm_core::{DeviceAddr, DeviceResult, Fence, FrameHandle};

/// Mebibyte, in bytes.
const MIB: u64 = 1 << 20;

/// Lengths that are measured, in bytes: up to where frames cost milliseconds each.
const LENS: [u64; 6] = [2 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB];

/// A frame is at most so large a part of the free memory, so that others are left alone.
const SHARE_OF_FREE: u64 = 4;

/// How long a bind may take that the device has queued.
const PATIENCE: Duration = Duration::from_secs(60);

/// What calls take for frames of one length: medians in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct FrameCosts {
    pub(crate) frame_bytes: u64,
    /// How often each call was made.
    pub(crate) repetitions: usize,
    pub(crate) make_frame_us: f64,
    /// `None` here and below on a device that cannot map.
    pub(crate) map_us: Option<f64>,
    /// From the call until the device has done it; `None` here and for `unmap` where that is the same.
    pub(crate) map_done_us: Option<f64>,
    pub(crate) set_access_us: Option<f64>,
    pub(crate) unmap_us: Option<f64>,
    pub(crate) unmap_done_us: Option<f64>,
    pub(crate) release_frame_us: f64,
}

/// Measures each length that the device can make and that is a sensible part of `free` bytes.
///
/// # Errors
/// Any failure but a lack of memory, which ends the list.
pub(crate) fn frames(
    device: &impl VirtualMemoryDevice,
    now_ns: Clock<'_>,
    free: u64,
) -> DeviceResult<Vec<FrameCosts>> {
    let Properties { granule, max_reservation, .. } = *device.properties();
    let times = Times::new(now_ns);
    let mut costs = Vec::new();
    for len in LENS.into_iter().filter(|len| len.is_multiple_of(granule)) {
        if len > free / SHARE_OF_FREE || len > max_reservation {
            break;
        }
        match frames_of(device, &times, len) {
            Ok(cost) => costs.push(cost),
            // Others took it meanwhile.
            Err(error) if error.kind == DeviceErrorKind::OutOfMemory => break,
            Err(error) => return Err(error),
        }
    }
    Ok(costs)
}

/// Long frames take milliseconds, and vary less.
fn repetitions(len: u64) -> usize {
    match len / MIB {
        0..=64 => 31,
        65..=256 => 15,
        _ => 7,
    }
}

/// Times of each call, in nanoseconds.
#[derive(Default)]
struct Lists {
    make_frame: Vec<u64>,
    map: Vec<u64>,
    map_done: Vec<u64>,
    set_access: Vec<u64>,
    unmap: Vec<u64>,
    unmap_done: Vec<u64>,
    release_frame: Vec<u64>,
}

fn frames_of(
    device: &impl VirtualMemoryDevice,
    times: &Times<'_>,
    len: u64,
) -> DeviceResult<FrameCosts> {
    let remaps = device.properties().capabilities.remapping;
    let granule = device.properties().granule;
    let at = if remaps { Some(device.reserve(len, granule)?) } else { None };
    let cycles = |count: usize| {
        let mut lists = Lists::default();
        (0..count).try_for_each(|_| cycle(device, times, len, at, &mut lists)).map(|()| lists)
    };
    let repetitions = repetitions(len);
    let lists = cycles(1).and_then(|_| cycles(repetitions));
    if let Some(base) = at {
        let freed = device.free_region(base, len);
        // What failed first says more.
        if lists.is_ok() {
            freed?;
        }
    }
    let lists = lists?;
    let median = |times_ns: Vec<u64>| microseconds(median(times_ns));
    let if_remaps = |times_ns: Vec<u64>| remaps.then(|| median(times_ns));
    let if_any = |times_ns: Vec<u64>| (!times_ns.is_empty()).then(|| median(times_ns));
    Ok(FrameCosts {
        frame_bytes: len,
        repetitions,
        make_frame_us: median(lists.make_frame),
        map_us: if_remaps(lists.map),
        map_done_us: if_any(lists.map_done),
        set_access_us: if_remaps(lists.set_access),
        unmap_us: if_remaps(lists.unmap),
        unmap_done_us: if_any(lists.unmap_done),
        release_frame_us: median(lists.release_frame),
    })
}

/// The life of one frame. Whatever fails, nothing is left.
fn cycle(
    device: &impl VirtualMemoryDevice,
    times: &Times<'_>,
    len: u64,
    at: Option<DeviceAddr>,
    lists: &mut Lists,
) -> DeviceResult<()> {
    let made = times.measure(&mut lists.make_frame, || device.make_frame(len, FrameKind::Device));
    let frame = made?;
    let mapped = match at {
        Some(addr) => mapping(device, times, AddrRange { addr, len }, frame, lists),
        None => Ok(()),
    };
    let released = times.measure(&mut lists.release_frame, || device.release_frame(frame));
    mapped.and(released)
}

fn mapping(
    device: &impl VirtualMemoryDevice,
    times: &Times<'_>,
    range: AddrRange,
    frame: FrameHandle,
    lists: &mut Lists,
) -> DeviceResult<()> {
    let bound = times.measure(&mut lists.map, || device.map(&[Mapping { range, frame }], &[]))?;
    let bound = done(device, times, bound, &lists.map, &mut lists.map_done);
    let access = times.measure(&mut lists.set_access, || device.set_access(range, &[]));
    let unbound = times.measure(&mut lists.unmap, || device.unmap(&[range], &[]))?;
    let unbound = done(device, times, unbound, &lists.unmap, &mut lists.unmap_done);
    bound.and(access).and(unbound)
}

/// Waits for a bind that the device has queued, and adds what it took from its call on.
fn done(
    device: &impl VirtualMemoryDevice,
    times: &Times<'_>,
    fence: Fence,
    calls_ns: &[u64],
    times_ns: &mut Vec<u64>,
) -> DeviceResult<()> {
    if fence == Fence::REACHED {
        return Ok(());
    }
    let mut waits_ns = Vec::with_capacity(1);
    // A device that is this late fails at its next calls.
    times.measure(&mut waits_ns, || device.wait(fence, PATIENCE))?;
    times_ns.extend(calls_ns.last().zip(waits_ns.last()).map(|(call, wait)| call + wait));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_core::DeviceOp;
    use vmm_mock::{CostModel, Faulty, MockDevice, MockOptions};

    fn measured(device: &MockDevice, free: u64) -> Vec<FrameCosts> {
        let costs = frames(device, &|| device.total_cost_ns(), free).expect("legal");
        assert!(device.leftovers().is_empty() && device.violations().is_empty());
        costs
    }

    #[test]
    fn the_mock_costs_what_its_model_says() {
        let device = MockDevice::new(MockOptions::with_memory(4 << 30));
        let costs = measured(&device, 4 << 30);
        let model = CostModel::h200();
        assert_eq!(costs.len(), 5, "2 MiB to a quarter of 4 GiB");
        for cost in costs {
            let len = cost.frame_bytes;
            assert_eq!(cost.make_frame_us, microseconds(model.make_frame.at(len)));
            assert_eq!(cost.map_us, Some(microseconds(model.map.at(len))));
            assert_eq!(cost.set_access_us, Some(microseconds(model.set_access.at(len))));
            assert_eq!(cost.unmap_us, Some(microseconds(model.unmap.at(len))));
            assert_eq!((cost.map_done_us, cost.unmap_done_us), (None, None));
            assert_eq!(cost.release_frame_us, microseconds(model.release_frame.at(len)));
        }
    }

    #[test]
    fn a_device_without_remapping_only_makes_and_releases() {
        let options = MockOptions { memory: 1 << 30, ..MockOptions::without_remapping() };
        let costs = measured(&MockDevice::new(options), 1 << 30);
        assert!(!costs.is_empty());
        for cost in costs {
            assert!(cost.make_frame_us > 0.0 && cost.release_frame_us > 0.0);
            assert_eq!((cost.map_us, cost.set_access_us, cost.unmap_us), (None, None, None));
        }
    }

    #[test]
    fn binds_that_are_queued_are_waited_for() {
        let costs = measured(&MockDevice::new(MockOptions::queued_binds()), 4 << 30);
        assert!(!costs.is_empty());
        let query_us = microseconds(CostModel::h200().query);
        for cost in costs {
            // The mock's calls cost something; that its devices bind, only time.
            let sum = |call: Option<f64>| call.map(|us| ((us + query_us) * 1e3).round() / 1e3);
            assert_eq!(cost.map_done_us, sum(cost.map_us));
            assert_eq!(cost.unmap_done_us, sum(cost.unmap_us));
        }
    }

    #[test]
    fn few_addresses_end_the_list() {
        let options = MockOptions { max_reservation: 100 << 20, ..MockOptions::default() };
        assert_eq!(measured(&MockDevice::new(options), 4 << 30).len(), 3, "up to 64 MiB");
    }

    #[test]
    fn memory_that_others_took_ends_the_list() {
        let device = MockDevice::new(MockOptions::with_memory(1 << 30));
        device.other_use((1 << 30) - (20 << 20));
        assert_eq!(measured(&device, 1 << 30).len(), 2, "16 MiB fit and 64 do not");
    }

    #[test]
    fn a_failed_call_leaves_nothing() {
        let ops = [DeviceOp::Reserve, DeviceOp::MakeFrame, DeviceOp::Map, DeviceOp::SetAccess];
        for op in ops {
            let mock = MockDevice::new(MockOptions::with_memory(1 << 30));
            let device = Faulty::new(mock);
            device.fail(op, 3, DeviceErrorKind::Failed);
            let error = frames(&device, &|| 0, 1 << 30).expect_err("was made to fail");
            assert_eq!(error.op, op);
            assert!(device.inner().leftovers().is_empty(), "{op}");
        }
    }
}

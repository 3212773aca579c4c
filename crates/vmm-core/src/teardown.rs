//! Taking a pool down: everything it has goes back to the device, whatever the device says.

use crate::device::{AddrRange, DeviceResult, VirtualMemoryDevice};
use crate::extent::Kind;
use crate::state::State;
use crate::step::{gone_is_done, range};
use crate::timeline::Point;
use crate::units::{DeviceAddr, Fence};
use std::time::Duration;

/// How long work may keep a pool from being taken down. Beyond it the device counts as hung.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Waits for the work that uses the pool's memory, then unmaps, releases and frees all of it.
///
/// Errors are of no use to anybody here. A device whose context is gone has nothing left to give back;
/// where a device cannot say when the work is over, all memory is left behind: better that than to
/// unmap what is in use.
pub(crate) fn run<D: VirtualMemoryDevice + ?Sized>(device: &D, state: &mut State) {
    // Those that are named by their addresses hold no pool.
    state.release_all_raw();
    state.sweep_released();
    for point in last_uses(state) {
        // Once more, for a device that was busy only.
        let over = is_over(device, state, point).or_else(|_| is_over(device, state, point));
        // Of a stream that was destroyed only the device as a whole can tell.
        if !over.or_else(|_| gone_is_done(device.wait_idle(), ()).map(|()| true)).unwrap_or(false) {
            return;
        }
    }
    for (fence, mappings) in std::mem::take(&mut state.unbinding) {
        let _ = device.wait(fence, PATIENCE);
        for mapping in mappings {
            state.forget_mapping(mapping);
        }
    }
    if !state.budget.plain {
        unmap_all(device, state);
    }
    for (_, frame) in state.frames.frames.iter() {
        let _ = device.release_frame(frame.handle);
    }
    if !state.budget.plain {
        for region in state.regions() {
            let _ = device.free_region(DeviceAddr(region.base), region.len);
        }
    }
}

/// Waits until a point is reached; whether it is, or was lost with its context.
fn is_over<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    state: &mut State,
    point: Point,
) -> DeviceResult<bool> {
    let reached = state.timelines.fence(device, point).and_then(|fence| match fence {
        Some(fence) => device.wait(fence, PATIENCE),
        None => Ok(true),
    });
    gone_is_done(reached, true)
}

fn unmap_all<D: VirtualMemoryDevice + ?Sized>(device: &D, state: &State) {
    let mapped: Vec<AddrRange> =
        state.frames.mappings.iter().map(|(_, entry)| range(entry.addr, entry.len)).collect();
    if gone_is_done(device.unmap(&mapped, &[]), Fence::REACHED)
        .and_then(|fence| device.wait(fence, PATIENCE))
        .is_err()
    {
        for one in mapped {
            let _ = device.unmap(&[one], &[]).and_then(|fence| device.wait(fence, PATIENCE));
        }
    }
}

/// The last use of each stream.
fn last_uses(state: &State) -> Vec<Point> {
    let free = state.extents.iter().filter(|(_, extent)| extent.kind == Kind::Free);
    let mut points: Vec<Point> = free
        .map(|(_, extent)| Point { stream: extent.stream, epoch: extent.epoch })
        .chain(state.frames.mappings.iter().flat_map(|(_, entry)| entry.uses.iter().copied()))
        .chain(state.retired.iter().flat_map(|id| state.uses.iter(state.extents[*id].uses)))
        .filter(|point| !state.timelines.is_reached(*point))
        .collect();
    points.sort_by_key(|point| (point.stream, std::cmp::Reverse(point.epoch)));
    points.dedup_by_key(|point| point.stream);
    points
}

//! The device as a whole, and its physical memory.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use crate::scene::Scene;
use vmm_core::device::{DeviceErrorKind, FrameKind, VirtualMemoryDevice};

pub(super) fn properties_never_change<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let first = s.device.properties().clone();
    ensure!(first.granule.is_power_of_two(), "a granule of {} bytes", first.granule);
    s.usable(1)?;
    ensure_eq!(*s.device.properties(), first, "properties");
    s.close()
}

pub(super) fn free_memory_follows_frames<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Exhaustible)?;
    let start = s.device.memory_info()?;
    ensure!(start.free <= start.total, "more free than there is: {start:?}");
    let len = 32 * s.granule;
    let frame = s.frame(32)?;
    let with = s.device.memory_info()?;
    ensure_eq!(with.free, start.free - len, "free memory with a frame");
    s.release(frame)?;
    ensure_eq!(s.device.memory_info()?, start, "memory after its release");
    s.close()
}

pub(super) fn make_frame_refuses_odd_lengths<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    for len in [0, 1, s.granule - 1, s.granule + 1] {
        s.refused(&format!("a frame of {len}"), s.device.make_frame(len, FrameKind::Device))?;
    }
    for (kind, granule) in &s.device.properties().other_granules {
        let what = format!("{kind:?} of a half granule");
        s.refused(&what, s.device.make_frame(granule / 2, *kind))?;
    }
    s.close()
}

pub(super) fn exhausted_memory_changes_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Exhaustible)?;
    let start = s.device.memory_info()?;
    let len = (start.total / s.granule + 1) * s.granule;
    match s.device.make_frame(len, FrameKind::Device) {
        Err(error) => ensure_eq!(error.kind, DeviceErrorKind::OutOfMemory, "{error}"),
        Ok(_) => return Err(Stop::Failed(format!("a frame of {len} of {}", start.total))),
    }
    ensure_eq!(s.device.memory_info()?, start, "memory after a frame that could not be made");
    s.frame(1)?;
    s.close()
}

pub(super) fn a_missing_kind_is_not_supported<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::MissingKind)?;
    let Some(kind) = s.missing_kind() else { return Ok(()) };
    match s.device.make_frame(s.granule, kind) {
        Err(error) => ensure_eq!(error.kind, DeviceErrorKind::NotSupported, "{error}"),
        Ok(_) => return Err(Stop::Failed(format!("{kind:?} has no granule and was made"))),
    }
    s.close()
}

pub(super) fn release_frame_refuses_dead_and_mapped_frames<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let mapping = s.usable(1)?;
    if s.capabilities().remapping {
        s.refused("a mapped frame", s.device.release_frame(mapping.frame))?;
        s.unmap(&[mapping.range])?;
    }
    s.release(mapping.frame)?;
    s.refused("a dead frame", s.device.release_frame(mapping.frame))?;
    s.close()
}

/// Handles may come back, but a frame lives only once.
pub(super) fn fresh_frames_can_be_made_again_and_again<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    for round in 0..50 {
        let frames = [s.frame(1)?, s.frame(2)?, s.frame(1)?];
        for (i, frame) in frames.iter().enumerate() {
            ensure!(!frames[..i].contains(frame), "round {round}: {frame:?} lives twice");
        }
        for frame in frames {
            s.release(frame)?;
        }
    }
    s.close()
}

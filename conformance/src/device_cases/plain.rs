//! Frames of a device that cannot map: each has one address.

use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use crate::scene::Scene;
use vmm_core::device::{AddrRange, DeviceErrorKind, DeviceResult, Mapping, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, Fence};

pub(super) fn a_frame_has_no_address_before_it_is_mapped<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Remapping)?;
    let frame = s.frame(1)?;
    ensure_eq!(s.device.fixed_addr(frame), None, "the address of a new frame");
    let mapped = s.usable(1)?;
    ensure_eq!(s.device.fixed_addr(mapped.frame), None, "the fixed address of a mapped frame");
    s.close()
}

pub(super) fn a_plain_frame_has_one_address<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::NoRemapping)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let mut living: Vec<(Mapping, u8)> = Vec::new();
    for i in 0..24_u8 {
        let new = s.usable(1 + u64::from(i) % 3)?;
        let (addr, end) = (new.range.addr, new.range.end());
        ensure!(addr.0 != 0, "a frame at zero");
        ensure_eq!(addr.0 % s.granule, 0, "{addr} in granules");
        for (old, _) in &living {
            let apart = end <= old.range.addr || old.range.end() <= addr;
            ensure!(apart, "{new:?} and {old:?} overlap");
        }
        s.write(if i % 2 == 0 { stream } else { other }, new.range, i)?;
        living.push((new, i));
        if i % 4 == 3 {
            h.synchronize()?;
            s.release(living.swap_remove(0).0.frame)?;
        }
        for (frame, _) in &living {
            let now = s.device.fixed_addr(frame.frame);
            ensure_eq!(now, Some(frame.range.addr), "the address of {frame:?}");
        }
    }
    // Each has its bytes, whoever came and went beside it.
    for (frame, seed) in living {
        s.expect(stream, frame.range, seed)?;
    }
    s.close()
}

pub(super) fn plain_frames_cannot_be_mapped<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::NoRemapping)?;
    let (range, frame) = {
        let usable = s.usable(1)?;
        (usable.range, usable.frame)
    };
    let g = s.granule;
    let elsewhere = Mapping { range: AddrRange { addr: DeviceAddr(64 * g), len: g }, frame };
    let not_supported = |what: &str, result: DeviceResult<()>| {
        let kind = result.map_err(|error| error.kind);
        ensure_eq!(kind, Err(DeviceErrorKind::NotSupported), "{what}");
        Ok::<(), crate::Stop>(())
    };
    let unit = |result: DeviceResult<Fence>| result.map(|_| ());
    not_supported("reserve", s.device.reserve(g, g).map(|_| ()))?;
    not_supported("free_region", s.device.free_region(range.addr, range.len))?;
    not_supported("map", unit(s.device.map(&[elsewhere], &[])))?;
    not_supported("map of nothing", unit(s.device.map(&[], &[])))?;
    not_supported("unmap", unit(s.device.unmap(&[range], &[])))?;
    not_supported("unmap of nothing", unit(s.device.unmap(&[], &[])))?;
    not_supported("set_access", s.device.set_access(range, &[]))?;
    let stream = s.stream()?;
    s.write(stream, range, 1)?;
    s.expect(stream, range, 1)?;
    s.close()
}

pub(super) fn release_frame_refuses_plain_frames_in_use<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::NoRemapping)?;
    s.need(Need::Strict)?;
    s.need(Need::Occupy)?;
    let stream = s.stream()?;
    let used = s.usable(2)?;
    h.occupy(stream, &[Use::Write(used.range, 1)])?;
    s.refused("a frame in use", s.device.release_frame(used.frame))?;
    h.let_go()?;
    h.synchronize()?;
    s.expect_byte(stream, used.range, 1)?;
    s.release(used.frame)?;
    s.close()
}

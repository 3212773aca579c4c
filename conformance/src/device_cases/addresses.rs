//! Reserved addresses.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use crate::scene::Scene;
use vmm_core::device::{DeviceErrorKind, VirtualMemoryDevice};

pub(super) fn reservations_are_aligned<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Remapping)?;
    for shift in [0, 1, 4, 7] {
        let alignment = s.granule << shift;
        let base = s.device.reserve(3 * s.granule, alignment)?;
        ensure!(base.0 != 0, "a reservation at zero");
        ensure_eq!(base.0 % alignment, 0, "{base} aligned to {alignment}");
        // In between, something that disturbs the alignment of the next.
        let odd = s.device.reserve(s.granule, s.granule)?;
        s.device.free_region(base, 3 * s.granule)?;
        s.device.free_region(odd, s.granule)?;
    }
    s.close()
}

pub(super) fn reservations_never_overlap<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let mut living = Vec::new();
    for i in 0..64_u64 {
        living.push(s.region(1 + i % 5)?);
        // Freed addresses may come back, but only once.
        if i % 3 == 2 {
            let gone = living.swap_remove(usize::try_from(i / 3).unwrap_or(0));
            s.free(gone)?;
        }
        for (n, a) in living.iter().enumerate() {
            for b in &living[..n] {
                ensure!(a.end() <= b.addr || b.end() <= a.addr, "{a:?} and {b:?} overlap");
            }
        }
    }
    s.close()
}

pub(super) fn reserve_refuses_odd_lengths<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    s.need(Need::Remapping)?;
    let g = s.granule;
    for (len, alignment) in [(0, g), (g + 1, g), (g / 2, g), (g, 0), (g, g / 2), (3 * g, 3 * g)] {
        let what = format!("{len} bytes aligned to {alignment}");
        s.refused(&what, s.device.reserve(len, alignment))?;
    }
    s.close()
}

pub(super) fn a_reservation_can_be_too_large<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Remapping)?;
    match s.device.reserve(1 << 62, s.granule) {
        Err(error) => ensure_eq!(error.kind, DeviceErrorKind::OutOfAddresses, "{error}"),
        Ok(base) => return Err(Stop::Failed(format!("2^62 bytes were reserved at {base}"))),
    }
    s.region(16)?;
    s.close()
}

pub(super) fn free_region_takes_whole_empty_regions_only<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    s.need(Need::Remapping)?;
    let mapping = s.usable(2)?;
    let (base, len) = (mapping.range.addr, mapping.range.len);
    s.refused("with a mapping", s.device.free_region(base, len))?;
    s.unmap(&[mapping.range])?;
    s.refused("the first half", s.device.free_region(base, len / 2))?;
    s.refused("the second half", s.device.free_region(base.offset(len / 2), len / 2))?;
    s.refused("more than it is", s.device.free_region(base, 2 * len))?;
    s.free(mapping.range)?;
    s.refused("twice", s.device.free_region(base, len))?;
    s.close()
}

//! Unmapping.

use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure};
use crate::scene::Scene;
use vmm_core::device::{AddrRange, Mapping, VirtualMemoryDevice};

/// A region of six granules with a frame of two at its start and one of one behind it.
fn scene_of_two<H: Harness>(
    s: &Scene<'_, H>,
) -> Result<(AddrRange, Mapping, Mapping), crate::Stop> {
    let region = s.region(6)?;
    let two = Mapping { range: s.part(region, 0, 2), frame: s.frame(2)? };
    let one = Mapping { range: s.part(region, 2, 1), frame: s.frame(1)? };
    s.map(&[two, one])?;
    s.device.set_access(s.part(region, 0, 3), &[])?;
    Ok((region, two, one))
}

fn broken_ranges<H: Harness>(
    s: &Scene<'_, H>,
    region: AddrRange,
) -> [(&'static str, AddrRange); 6] {
    let half = s.granule / 2;
    let crooked = AddrRange { addr: region.addr.offset(half), len: 2 * s.granule };
    [
        ("the first half of a mapping", s.part(region, 0, 1)),
        ("the second half of a mapping", s.part(region, 1, 1)),
        ("one and a half", s.part(region, 1, 2)),
        ("a mapping and a gap", s.part(region, 2, 2)),
        ("a gap", s.part(region, 4, 1)),
        ("beside the granules", crooked),
    ]
}

pub(super) fn unmap_takes_whole_mappings_only<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let (region, two, _) = scene_of_two(&s)?;
    for (what, range) in broken_ranges(&s, region) {
        s.refused(what, s.device.unmap(&[range], &[]))?;
    }
    s.refused("the same twice", s.device.unmap(&[two.range, two.range], &[]))?;
    s.unmap(&[s.part(region, 0, 3)])?;
    s.refused("what is gone", s.device.unmap(&[two.range], &[]))?;
    s.close()
}

pub(super) fn unmap_is_all_or_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    let (region, two, one) = scene_of_two(&s)?;
    for (what, range) in broken_ranges(&s, region) {
        for good in [two.range, one.range] {
            s.refused(what, s.device.unmap(&[good, range], &[]))?;
        }
        // Still mapped, and still usable.
        s.device.fill(region.addr, 1, 3 * s.granule, stream)?;
        h.synchronize()?;
    }
    s.close()
}

pub(super) fn unmap_refuses_ranges_in_use<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    s.need(Need::Occupy)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let (_, two, one) = scene_of_two(&s)?;
    h.occupy(stream, &[Use::Read(two.range)])?;
    let elsewhere = s.device.record(other)?;
    s.refused("a range in use", s.device.unmap(&[two.range], &[]))?;
    s.refused("behind another stream", s.device.unmap(&[one.range, two.range], &[elsewhere]))?;
    s.unmap(&[one.range])?;
    h.let_go()?;
    h.synchronize()?;
    s.unmap(&[two.range])?;
    s.close()
}

pub(super) fn unmap_refuses_unreached_fences<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    s.need(Need::Occupy)?;
    s.need(Need::ImmediateBinds)?;
    let stream = s.stream()?;
    let (_, two, _) = scene_of_two(&s)?;
    h.occupy(stream, &[])?;
    let fence = s.device.record(stream)?;
    s.refused("an unreached fence", s.device.unmap(&[two.range], &[fence]))?;
    h.let_go()?;
    s.wait(fence)?;
    s.device.unmap(&[two.range], &[fence])?;
    s.note_unmapped(&[two.range]);
    s.close()
}

pub(super) fn an_empty_unmap_does_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let (region, ..) = scene_of_two(&s)?;
    let before = h.leftovers();
    let fence = s.device.unmap(&[], &[])?;
    s.wait(fence)?;
    ensure!(h.leftovers() == before, "an empty batch has changed the device");
    s.device.fill(region.addr, 1, 3 * s.granule, stream)?;
    s.expect_byte(stream, s.part(region, 0, 3), 1)?;
    s.close()
}

//! Mapping.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use crate::scene::Scene;
use vmm_core::device::{AddrRange, Mapping, VirtualMemoryDevice};
use vmm_core::units::Fence;

/// Targets that break a rule, for frames of one and two granules that have no mapping, beside a
/// region of eight granules whose first is mapped.
fn broken_targets<H: Harness>(
    s: &Scene<'_, H>,
    region: AddrRange,
    one: Mapping,
    two: Mapping,
) -> Vec<(&'static str, Mapping)> {
    let part = |at, granules| s.part(region, at, granules);
    let crooked = AddrRange { addr: part(2, 1).addr.offset(s.granule / 2), len: s.granule };
    vec![
        ("a part of the frame", Mapping { range: part(2, 1), ..two }),
        ("more than the frame", Mapping { range: part(2, 2), ..one }),
        ("over a mapping", Mapping { range: part(0, 1), ..one }),
        ("half over a mapping", Mapping { range: part(0, 2), ..two }),
        ("half outside the region", Mapping { range: part(7, 2), ..two }),
        ("beside the granules", Mapping { range: crooked, ..one }),
        ("nothing", Mapping { range: AddrRange { len: 0, ..part(2, 1) }, ..one }),
    ]
}

fn target<H: Harness>(s: &Scene<'_, H>) -> Result<(AddrRange, Mapping, Mapping), crate::Stop> {
    let region = s.region(8)?;
    let first = Mapping { range: s.part(region, 0, 1), frame: s.frame(1)? };
    s.map(&[first])?;
    let one = Mapping { range: s.part(region, 5, 1), frame: s.frame(1)? };
    let two = Mapping { range: s.part(region, 5, 2), frame: s.frame(2)? };
    Ok((region, one, two))
}

pub(super) fn map_refuses_broken_targets<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let (region, one, two) = target(&s)?;
    for (what, mapping) in broken_targets(&s, region, one, two) {
        s.refused(what, s.device.map(&[mapping], &[]))?;
    }
    s.refused("two that overlap", s.device.map(&[one, two], &[]))?;
    let stray = s.region(1)?;
    s.free(stray)?;
    s.refused("no region", s.device.map(&[Mapping { range: stray, ..one }], &[]))?;
    s.close()
}

pub(super) fn map_is_all_or_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let (region, one, two) = target(&s)?;
    let good = Mapping { range: s.part(region, 4, 1), frame: s.frame(1)? };
    for (what, mapping) in broken_targets(&s, region, one, two) {
        s.refused(what, s.device.map(&[good, mapping], &[]))?;
        s.refused("the good part is not mapped", s.device.unmap(&[good.range], &[]))?;
    }
    // The place and the frame are as free as before.
    s.map(&[good])?;
    s.close()
}

pub(super) fn aliases_show_the_same_bytes<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Aliases)?;
    let stream = s.stream()?;
    let first = s.usable(2)?;
    let region = s.region(5)?;
    let aliases = [s.part(region, 0, 2), s.part(region, 3, 2)];
    let batch = aliases.map(|range| Mapping { range, frame: first.frame });
    s.write(stream, first.range, 1)?;
    s.map(&batch)?;
    for alias in aliases {
        s.device.set_access(alias, &[])?;
        s.expect(stream, alias, 1)?;
    }
    s.write(stream, aliases[1], 2)?;
    s.expect(stream, first.range, 2)?;
    s.expect(stream, aliases[0], 2)?;
    // A device's own work, within the stream and without a wait in between.
    s.device.fill(aliases[0].addr, 9, aliases[0].len, stream)?;
    let target = s.usable(2)?;
    s.device.copy(target.range.addr, first.range.addr, first.range.len, stream)?;
    s.expect_byte(stream, target.range, 9)?;
    s.close()
}

pub(super) fn map_refuses_unreached_fences<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    s.need(Need::Occupy)?;
    s.need(Need::ImmediateBinds)?;
    let stream = s.stream()?;
    let mapping = Mapping { range: s.region(1)?, frame: s.frame(1)? };
    h.occupy(stream, &[])?;
    let fence = s.device.record(stream)?;
    s.refused("an unreached fence", s.device.map(&[mapping], &[fence]))?;
    h.let_go()?;
    s.wait(fence)?;
    s.device.map(&[mapping], &[fence, Fence::REACHED])?;
    s.note_mapped(mapping.range);
    s.close()
}

pub(super) fn the_fence_of_a_map_says_when_it_exists<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let mapping = Mapping { range: s.region(1)?, frame: s.frame(1)? };
    let fence = s.device.map(&[mapping], &[])?;
    s.note_mapped(mapping.range);
    if !s.capabilities().queued_binds {
        ensure_eq!(fence, Fence::REACHED, "the fence of an immediate bind");
    }
    s.device.set_access(mapping.range, &[])?;
    // Behind the fence, without a wait of the host, the memory can be used.
    s.device.stream_wait(stream, fence)?;
    s.device.fill(mapping.range.addr, 3, mapping.range.len, stream)?;
    s.expect_byte(stream, mapping.range, 3)?;
    s.wait(fence)?;
    s.close()
}

pub(super) fn an_empty_map_does_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Remapping)?;
    let before = h.leftovers();
    let fence = s.device.map(&[], &[])?;
    s.wait(fence)?;
    ensure!(h.leftovers() == before, "an empty batch has changed the device");
    s.close()
}

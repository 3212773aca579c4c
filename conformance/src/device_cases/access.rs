//! Access to mapped memory.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need};
use crate::scene::Scene;
use vmm_core::device::{AddrRange, Mapping, VirtualMemoryDevice};

/// A region of four granules: frames of two and of one, mapped without access, and a gap.
fn mapped<H: Harness>(s: &Scene<'_, H>) -> Result<(AddrRange, Mapping, Mapping), crate::Stop> {
    let region = s.region(4)?;
    let two = Mapping { range: s.part(region, 0, 2), frame: s.frame(2)? };
    let one = Mapping { range: s.part(region, 2, 1), frame: s.frame(1)? };
    s.map(&[two, one])?;
    Ok((region, two, one))
}

pub(super) fn memory_without_access_cannot_be_used<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    let (_, two, one) = mapped(&s)?;
    let usable = s.usable(1)?.range;
    s.refused("a fill", s.device.fill(one.range.addr, 0, 1, stream))?;
    s.refused("a copy from it", s.device.copy(usable.addr, one.range.addr, 1, stream))?;
    s.refused("a copy to it", s.device.copy(one.range.addr, usable.addr, 1, stream))?;
    s.device.set_access(two.range, &[])?;
    s.device.fill(two.range.addr, 0, two.range.len, stream)?;
    s.refused("a fill into the next", s.device.fill(two.range.addr, 0, two.range.len + 1, stream))?;
    s.close()
}

pub(super) fn set_access_refuses_parts_and_gaps<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let (region, ..) = mapped(&s)?;
    for (what, range) in [
        ("the first half of a mapping", s.part(region, 0, 1)),
        ("the second half of a mapping", s.part(region, 1, 1)),
        ("a mapping and a gap", s.part(region, 2, 2)),
        ("a gap", s.part(region, 3, 1)),
    ] {
        s.refused(what, s.device.set_access(range, &[]))?;
    }
    s.close()
}

pub(super) fn access_stays_when_more_is_granted<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let (region, two, one) = mapped(&s)?;
    s.device.set_access(two.range, &[])?;
    s.write(stream, two.range, 1)?;
    s.device.set_access(one.range, &[])?;
    s.expect(stream, two.range, 1)?;
    s.device.set_access(s.part(region, 0, 3), &[])?;
    s.expect(stream, two.range, 1)?;
    s.write(stream, s.part(region, 0, 3), 2)?;
    s.expect(stream, s.part(region, 0, 3), 2)?;
    s.close()
}

pub(super) fn set_access_is_all_or_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    let (region, two, one) = mapped(&s)?;
    s.device.set_access(two.range, &[])?;
    s.refused("two mappings and a gap", s.device.set_access(region, &[]))?;
    s.refused("still no access", s.device.fill(one.range.addr, 0, 1, stream))?;
    s.device.fill(two.range.addr, 5, two.range.len, stream)?;
    s.expect_byte(stream, two.range, 5)?;
    s.close()
}

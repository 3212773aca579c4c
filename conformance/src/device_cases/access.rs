//! Access to mapped memory.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use crate::scene::Scene;
use vmm_core::device::{AddrRange, DeviceErrorKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::DeviceOrdinal;

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

pub(super) fn a_peer_uses_what_it_was_given<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Peers)?;
    let stream = s.stream()?;
    let peers = h.peers();
    let (region, two, one) = mapped(&s)?;
    s.device.set_access(s.part(region, 0, 3), &[])?;
    s.device.fill(two.range.addr, 1, two.range.len, stream)?;
    s.device.fill(one.range.addr, 2, one.range.len, stream)?;
    h.synchronize()?;
    for peer in &peers {
        ensure!(h.read_as_peer(*peer, two.range).is_err(), "{peer:?} was given nothing yet");
    }
    // All peers at once, later than the device's own access, and beside a mapping without it.
    s.device.set_access(two.range, &peers)?;
    for peer in &peers {
        let seen = h.read_as_peer(*peer, two.range)?;
        ensure!(seen.iter().all(|byte| *byte == 1), "{peer:?} sees other bytes");
        ensure!(h.read_as_peer(*peer, one.range).is_err(), "{peer:?} has the neighbour too");
        let both = s.part(region, 0, 3);
        ensure!(h.read_as_peer(*peer, both).is_err(), "{peer:?} has more than it was given");
    }
    // Given once more to nobody, it stays.
    s.device.set_access(s.part(region, 0, 3), &[])?;
    if s.capabilities().aliases {
        let alias = Mapping { range: s.region(2)?, frame: two.frame };
        s.map(&[alias])?;
        s.device.set_access(alias.range, &[])?;
        s.device.fill(alias.range.addr, 3, alias.range.len, stream)?;
        h.synchronize()?;
        for peer in &peers {
            ensure!(h.read_as_peer(*peer, alias.range).is_err(), "{peer:?} has the alias too");
            let seen = h.read_as_peer(*peer, two.range)?;
            ensure!(seen.iter().all(|byte| *byte == 3), "{peer:?} sees old bytes");
        }
    }
    s.close()
}

pub(super) fn peers_that_cannot_be_are_not_supported<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let (_, two, one) = mapped(&s)?;
    let nobody = DeviceOrdinal(u32::MAX);
    // Where there are real ones, they do not get access in passing.
    let peers = [h.peers().as_slice(), &[nobody]].concat();
    let kind = s.device.set_access(two.range, &peers).map_err(|error| error.kind);
    ensure_eq!(kind, Err(DeviceErrorKind::NotSupported), "access for {peers:?}");
    for peer in h.peers() {
        ensure!(h.read_as_peer(peer, two.range).is_err(), "{peer:?} got access by a failed call");
    }
    if h.abilities().strict {
        let stream = s.stream()?;
        s.refused("still no access", s.device.fill(two.range.addr, 0, 1, stream))?;
    }
    s.device.set_access(one.range, &[])?;
    s.close()
}

//! Shapes in which binds, work and fences come together, as in Vulkan's sparse binding.

use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, Stop, ensure};
use crate::scene::{SHORT, Scene};
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};

pub(super) fn a_bind_shows_scattered_frames_in_order<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let region = s.region(16)?;
    let lens = [1, 4, 2, 1, 3, 5];
    let mut batch = Vec::new();
    let mut at = 0;
    for len in lens {
        batch.push(Mapping { range: s.part(region, at, len), frame: s.frame(len)? });
        at += len;
    }
    // In no order, so that only the addresses can bring them into theirs.
    batch.swap(0, 4);
    batch.swap(1, 3);
    s.map(&batch)?;
    s.device.set_access(region, &[])?;
    s.write(stream, region, 1)?;
    s.expect(stream, region, 1)?;
    let (at, other) = (s.part(region, 4, 4), s.usable(4)?.range);
    s.device.fill(other.addr, 0, other.len, stream)?;
    s.device.copy(at.addr, other.addr, other.len, stream)?;
    s.expect_byte(stream, at, 0)?;
    s.close()
}

pub(super) fn a_rebind_moves_bytes_with_their_frame<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let region = s.region(4)?;
    let places = [s.part(region, 0, 2), s.part(region, 2, 2)];
    let frames = [s.frame(2)?, s.frame(2)?];
    let bind = |one: usize| {
        let batch = [
            Mapping { range: places[0], frame: frames[one] },
            Mapping { range: places[1], frame: frames[1 - one] },
        ];
        s.map(&batch)?;
        Ok::<(), Stop>(s.device.set_access(region, &[])?)
    };
    bind(0)?;
    s.write(stream, places[0], 10)?;
    s.write(stream, places[1], 20)?;
    h.synchronize()?;
    s.unmap(&[region])?;
    bind(1)?;
    s.expect(stream, places[0], 20)?;
    s.expect(stream, places[1], 10)?;
    s.write(stream, places[0], 30)?;
    h.synchronize()?;
    s.unmap(&places)?;
    // Alone, so that two frames that changed places both times are noticed.
    s.map(&[Mapping { range: places[1], frame: frames[1] }])?;
    s.device.set_access(places[1], &[])?;
    s.expect(stream, places[1], 30)?;
    s.close()
}

pub(super) fn an_alias_outlives_the_mapping_it_was_made_from<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Aliases)?;
    let stream = s.stream()?;
    let old = s.usable(2)?;
    s.write(stream, old.range, 1)?;
    let alias = Mapping { range: s.region(2)?, frame: old.frame };
    s.map(&[alias])?;
    s.device.set_access(alias.range, &[])?;
    s.unmap(&[old.range])?;
    s.expect(stream, alias.range, 1)?;
    // The old address is free for another frame.
    let next = Mapping { range: old.range, frame: s.frame(2)? };
    s.map(&[next])?;
    s.device.set_access(next.range, &[])?;
    s.write(stream, next.range, 2)?;
    s.expect(stream, alias.range, 1)?;
    s.close()
}

pub(super) fn binds_wait_for_their_fences<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::QueuedBinds)?;
    s.need(Need::Occupy)?;
    let (stream, next) = (s.stream()?, s.stream()?);
    let old = s.usable(1)?;
    h.occupy(stream, &[Use::Write(old.range, 1)])?;
    let used = s.device.record(stream)?;
    let unbound = s.device.unmap(&[old.range], &[used])?;
    s.note_unmapped(&[old.range]);
    ensure!(!s.device.wait(unbound, SHORT)?, "unmapped while work uses it");
    let new = Mapping { range: old.range, frame: s.frame(1)? };
    let bound = s.device.map(&[new], &[unbound])?;
    s.note_mapped(new.range);
    s.device.set_access(new.range, &[])?;
    ensure!(!s.device.wait(bound, SHORT)?, "mapped before it was unmapped");
    s.device.stream_wait(next, bound)?;
    s.device.fill(new.range.addr, 2, new.range.len, next)?;
    h.let_go()?;
    s.wait(bound)?;
    s.expect_byte(next, new.range, 2)?;
    // What the old work wrote is in the old frame.
    let again = Mapping { range: s.region(1)?, frame: old.frame };
    s.map(&[again])?;
    s.device.set_access(again.range, &[])?;
    s.expect_byte(stream, again.range, 1)?;
    s.close()
}

pub(super) fn order_holds_along_one_stream<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let range = s.usable(1)?.range;
    for round in 0..5 {
        h.work(stream, Duration::from_micros(300), &[Use::Write(range, round)])?;
        let fence = s.device.record(stream)?;
        s.device.stream_wait(stream, fence)?;
        s.device.fill(range.addr, round + 100, range.len, stream)?;
    }
    s.expect_byte(stream, range, 104)?;
    s.close()
}

pub(super) fn order_holds_across_streams<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let (first, second) = (s.stream()?, s.stream()?);
    let range = s.usable(1)?.range;
    h.work(first, Duration::from_millis(5), &[Use::Write(range, 1)])?;
    let fence = s.device.record(first)?;
    s.device.stream_wait(second, fence)?;
    s.device.fill(range.addr, 2, range.len, second)?;
    let back = s.device.record(second)?;
    s.device.stream_wait(first, back)?;
    let target = s.usable(1)?.range;
    s.device.copy(target.addr, range.addr, range.len, first)?;
    s.expect_byte(first, target, 2)?;
    h.synchronize()?;
    s.expect_byte(first, range, 2)?;
    s.close()
}

pub(super) fn order_is_passed_on_through_a_third_stream<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Occupy)?;
    let (first, between, last) = (s.stream()?, s.stream()?, s.stream()?);
    let range = s.usable(1)?.range;
    h.occupy(first, &[Use::Write(range, 1)])?;
    let fence = s.device.record(first)?;
    s.device.stream_wait(between, fence)?;
    let fence = s.device.record(between)?;
    ensure!(!s.device.wait(fence, SHORT)?, "reached before what its stream waits for");
    s.device.stream_wait(last, fence)?;
    s.device.fill(range.addr, 2, range.len, last)?;
    let end = s.device.record(last)?;
    ensure!(!s.device.wait(end, SHORT)?, "the last stream does not wait");
    h.let_go()?;
    s.wait(end)?;
    h.synchronize()?;
    s.expect_byte(last, range, 2)?;
    s.close()
}

pub(super) fn calls_from_many_threads_do_not_disturb_each_other<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Remapping)?;
    let (device, granule) = (s.device, s.granule);
    let streams = [s.stream()?, s.stream()?, s.stream()?, s.stream()?];
    let work = |stream, byte| {
        for round in 0..25_u8 {
            let len = 2 * granule;
            let range = AddrRange { addr: device.reserve(len, granule)?, len };
            let frame = device.make_frame(len, FrameKind::Device)?;
            let bound = device.map(&[Mapping { range, frame }], &[])?;
            device.set_access(range, &[])?;
            device.stream_wait(stream, bound)?;
            device.fill(range.addr, byte + round, len, stream)?;
            let fence = device.record(stream)?;
            ensure!(device.wait(fence, crate::scene::LONG)?, "{fence:?} is not reached");
            let unbound = device.unmap(&[range], &[fence])?;
            ensure!(device.wait(unbound, crate::scene::LONG)?, "{unbound:?} is not reached");
            device.release_frame(frame)?;
            device.free_region(range.addr, len)?;
        }
        Ok::<(), Stop>(())
    };
    let results: Vec<CaseResult> = std::thread::scope(|scope| {
        let threads = streams.iter().zip([0_u8, 50, 100, 150]);
        let threads: Vec<_> =
            threads.map(|(s, byte)| scope.spawn(move || work(*s, byte))).collect();
        let panicked = || Err(Stop::Failed("a thread panicked".to_owned()));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    for result in results {
        result?;
    }
    s.close()
}

//! Streams that capture graphs.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use crate::scene::Scene;
use std::time::Duration;
use vmm_core::device::VirtualMemoryDevice;

pub(super) fn capturing_can_be_asked_at_any_time<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let (stream, other) = (s.stream()?, s.stream()?);
    ensure!(!s.device.is_capturing(stream)?, "a new stream captures");
    if s.harness.abilities().occupy {
        h.occupy(stream, &[])?;
        ensure!(!s.device.is_capturing(stream)?, "a busy stream captures");
        h.let_go()?;
        h.synchronize()?;
    }
    if s.need(Need::Capture).is_ok() {
        h.begin_capture(stream)?;
        let during = (s.device.is_capturing(stream)?, s.device.is_capturing(other)?);
        h.end_capture(stream)?;
        ensure_eq!(during, (true, false), "the capturing stream and another one");
        ensure!(!s.device.is_capturing(stream)?, "a capture that has ended");
    }
    s.close()
}

pub(super) fn a_capture_forbids_what_would_break_it<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Capture)?;
    s.need(Need::Strict)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let fence = s.device.record(stream)?;
    let elsewhere = s.device.record(other)?;
    h.begin_capture(stream)?;
    s.refused("record", s.device.record(stream))?;
    s.refused("stream_wait", s.device.stream_wait(stream, elsewhere))?;
    s.refused("reached", s.device.reached(stream))?;
    s.refused("wait", s.device.wait(fence, Duration::ZERO))?;
    h.end_capture(stream)?;
    s.close()
}

pub(super) fn a_capture_leaves_other_calls_legal<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Capture)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let frame = s.frame(1)?;
    let mapped = if s.capabilities().remapping { Some((s.usable(1)?, s.region(1)?)) } else { None };
    h.begin_capture(stream)?;
    s.release(frame)?;
    if let Some((mapping, region)) = mapped {
        s.unmap(&[mapping.range])?;
        s.free(region)?;
    }
    let elsewhere = s.device.record(other)?;
    ensure!(s.device.reached(other)? <= elsewhere.value, "beyond the last fence");
    s.usable(1)?;
    h.end_capture(stream)?;
    s.close()
}

pub(super) fn record_refuses_a_capturing_stream<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Capture)?;
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    h.begin_capture(stream)?;
    s.refused("record", s.device.record(stream))?;
    h.end_capture(stream)?;
    s.device.record(stream)?;
    s.close()
}

pub(super) fn stream_wait_refuses_capturing_streams<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Capture)?;
    s.need(Need::Strict)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    let (own, elsewhere) = (s.device.record(stream)?, s.device.record(other)?);
    h.begin_capture(stream)?;
    s.refused("the stream captures", s.device.stream_wait(stream, elsewhere))?;
    s.refused("the fence's stream captures", s.device.stream_wait(other, own))?;
    h.end_capture(stream)?;
    s.device.stream_wait(other, own)?;
    s.close()
}

//! Fences, on the host.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use crate::scene::{SHORT, Scene};
use std::time::Duration;
use vmm_core::device::VirtualMemoryDevice;
use vmm_core::units::{Fence, StreamId};

/// A time in which much could happen and nothing does.
const MODERATE: Duration = Duration::from_millis(20);

pub(super) fn record_values_rise<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let streams = [s.stream()?, s.stream()?];
    let mut last = [0, 0];
    for round in 0..20 {
        for (stream, last) in streams.iter().zip(&mut last) {
            let fence = s.device.record(*stream)?;
            ensure_eq!(fence.stream, *stream, "the stream of a fence");
            ensure!(fence.value > *last, "{fence:?} follows {last}");
            *last = fence.value;
            if round % 5 == 0 {
                h.work(*stream, Duration::from_micros(10), &[])?;
            }
        }
    }
    h.synchronize()?;
    s.close()
}

pub(super) fn reached_never_falls<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    ensure_eq!(s.device.reached(stream)?, 0, "reached of an unused stream");
    let mut highest = 0;
    for _ in 0..10 {
        h.work(stream, Duration::from_micros(10), &[])?;
        let fence = s.device.record(stream)?;
        for _ in 0..3 {
            let reached = s.device.reached(stream)?;
            ensure!(reached >= highest, "{reached} after {highest}");
            ensure!(reached <= fence.value, "{reached}, and {} was the last", fence.value);
            highest = reached;
        }
        if fence.value % 2 == 0 {
            h.synchronize()?;
            ensure_eq!(s.device.reached(stream)?, fence.value, "reached after a wait for all");
            highest = fence.value;
        }
    }
    h.synchronize()?;
    if h.abilities().occupy {
        let before = s.device.reached(stream)?;
        h.occupy(stream, &[])?;
        s.device.record(stream)?;
        ensure_eq!(s.device.reached(stream)?, before, "reached while the stream is held up");
        h.let_go()?;
    }
    s.close()
}

/// Many more fences than any device has events.
pub(super) fn reached_fences_need_no_care<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let mut first = None;
    let mut last = Fence::REACHED;
    for i in 0..20_000 {
        last = s.device.record(stream)?;
        first = first.or(Some(last));
        if i % 1_000 == 999 {
            h.synchronize()?;
            ensure_eq!(s.device.reached(stream)?, last.value, "reached after {i} fences");
        }
    }
    for fence in first.into_iter().chain([last]) {
        ensure!(s.device.wait(fence, Duration::ZERO)?, "{fence:?} is not reached any more");
    }
    s.close()
}

pub(super) fn a_reached_fence_is_waited_for_at_once<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    ensure!(s.device.wait(Fence::REACHED, Duration::ZERO)?, "the fence that is always reached");
    let start = Fence { stream, value: 0 };
    ensure!(s.device.wait(start, Duration::ZERO)?, "value 0 of a stream");
    let fence = s.device.record(stream)?;
    s.wait(fence)?;
    ensure_eq!(s.device.reached(stream)?, fence.value, "reached after a wait");
    if h.abilities().occupy {
        h.occupy(stream, &[])?;
    }
    ensure!(s.device.wait(fence, Duration::ZERO)?, "a reached fence of a busy stream");
    h.let_go()?;
    s.close()
}

pub(super) fn a_wait_ends_when_its_time_is_up<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Occupy)?;
    let (stream, other) = (s.stream()?, s.stream()?);
    h.occupy(stream, &[])?;
    let fence = s.device.record(stream)?;
    ensure!(!s.device.wait(fence, Duration::ZERO)?, "a look at an unreached fence");
    ensure!(!s.device.wait(fence, SHORT)?, "a short wait for an unreached fence");
    ensure_eq!(s.device.reached(stream)?, 0, "reached while the stream is held up");
    // Another stream is not held up.
    let elsewhere = s.device.record(other)?;
    ensure!(s.device.wait(elsewhere, MODERATE)?, "a fence of another stream");
    h.let_go()?;
    s.wait(fence)?;
    s.close()
}

/// A stream that is destroyed before counts as well.
pub(super) fn an_idle_device_has_reached_every_fence<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let (stream, destroyed) = (s.stream()?, h.make_stream()?);
    let fences = [stream, destroyed].map(|stream| {
        h.work(stream, MODERATE, &[])?;
        Ok::<_, Stop>(s.device.record(stream)?)
    });
    h.destroy_stream(destroyed)?;
    s.device.wait_idle()?;
    for fence in fences {
        let fence = fence?;
        ensure!(s.device.wait(fence, Duration::ZERO)?, "{fence:?} on an idle device");
    }
    s.device.wait_idle()?;
    s.close()
}

pub(super) fn wait_idle_refuses_captures<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Capture)?;
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    h.begin_capture(stream)?;
    s.refused("wait_idle", s.device.wait_idle())?;
    h.end_capture(stream)?;
    s.device.wait_idle()?;
    s.close()
}

pub(super) fn a_wait_for_a_reached_fence_costs_a_stream_nothing<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let (stream, other) = (s.stream()?, s.stream()?);
    let old = s.device.record(other)?;
    s.wait(old)?;
    if h.abilities().occupy {
        h.occupy(other, &[])?;
    }
    for fence in [old, Fence::REACHED, Fence { stream: other, value: 0 }] {
        s.device.stream_wait(stream, fence)?;
    }
    behind_is_reached(&s, stream)?;
    h.let_go()?;
    s.close()
}

fn behind_is_reached<H: Harness>(s: &Scene<'_, H>, stream: StreamId) -> CaseResult {
    let fence = s.device.record(stream)?;
    ensure!(s.device.wait(fence, MODERATE)?, "the stream waits for something");
    Ok(())
}

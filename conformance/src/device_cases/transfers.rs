//! Copies and fills.

use crate::harness::{Harness, Use};
use crate::outcome::{CaseResult, Need, ensure, ensure_eq};
use crate::scene::Scene;
use std::time::Duration;
use vmm_core::device::{AddrRange, VirtualMemoryDevice};

pub(super) fn copies_are_ordered_with_their_stream<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let (a, b, c) = (s.usable(3)?.range, s.usable(3)?.range, s.usable(3)?.range);
    s.write(stream, a, 1)?;
    s.write(stream, b, 2)?;
    // Slow work before the copies, and quick work behind them, all without a wait.
    h.work(stream, Duration::from_millis(3), &[Use::Write(a, 7)])?;
    s.device.copy(b.addr, a.addr, a.len, stream)?;
    s.device.copy(c.addr, b.addr, b.len, stream)?;
    h.work(stream, Duration::from_micros(1), &[Use::Write(a, 8), Use::Write(b, 9)])?;
    s.expect_byte(stream, c, 7)?;
    s.expect_byte(stream, b, 9)?;
    // A part, at places that are aligned to nothing.
    s.write(stream, a, 3)?;
    s.device.copy(c.addr.offset(5), a.addr.offset(5), c.len - 9, stream)?;
    let inner = |range: AddrRange| AddrRange { addr: range.addr.offset(5), len: range.len - 9 };
    let copied = h.read(stream, inner(c))?;
    ensure!(copied == h.read(stream, inner(a))?, "an unaligned copy differs");
    let head = AddrRange { len: 5, ..c };
    s.expect_byte(stream, head, 7)?;
    s.close()
}

pub(super) fn copy_refuses_overlapping_ranges<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    s.need(Need::Strict)?;
    let stream = s.stream()?;
    let range = s.usable(2)?.range;
    let g = s.granule;
    s.refused("onto itself", s.device.copy(range.addr, range.addr, g, stream))?;
    s.refused("by one forward", s.device.copy(range.addr.offset(1), range.addr, g, stream))?;
    let next = range.addr.offset(g - 1);
    s.refused("by one at the end", s.device.copy(range.addr, next, g, stream))?;
    s.device.copy(range.addr, range.addr.offset(g), g, stream)?;
    s.close()
}

pub(super) fn fills_are_ordered_with_their_stream<H: Harness>(h: &H) -> CaseResult {
    let s = Scene::new(h);
    let stream = s.stream()?;
    let (a, b) = (s.usable(2)?.range, s.usable(2)?.range);
    h.work(stream, Duration::from_millis(3), &[Use::Write(a, 1)])?;
    s.device.fill(a.addr, 2, a.len, stream)?;
    s.device.copy(b.addr, a.addr, a.len, stream)?;
    s.device.fill(a.addr, 3, a.len, stream)?;
    s.expect_byte(stream, b, 2)?;
    s.expect_byte(stream, a, 3)?;
    s.device.fill(a.addr.offset(3), 4, 7, stream)?;
    let found = h.read(stream, AddrRange { len: 12, ..a })?;
    ensure_eq!(found, [3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 3, 3], "a small fill");
    s.close()
}

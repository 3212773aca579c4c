//! Streams, fences and copies.

use crate::context::Current;
use crate::device::CudaDevice;
use crate::error::About;
use crate::ffi::{self, CAPTURE_STATUS_NONE, EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING, code};
use crate::stream;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, DeviceErrorKind, DeviceOp, DeviceResult};
use vmm_core::units::{DeviceAddr, Fence, StreamId};

/// How long a wait asks again and again. Most waits of a pool are for work that is about to end.
const ASK_FOR: Duration = Duration::from_micros(50);
/// The shortest and the longest sleep between questions after that.
const SLEEP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// An event of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event(pub(crate) ffi::Event);

// SAFETY: an event is a handle that the driver lets any thread use; nothing is read through the
// pointer here.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

/// About work on a stream.
fn on_stream(op: DeviceOp) -> About {
    About::op(op)
}

impl CudaDevice {
    /// The handle of a stream on this thread.
    pub(crate) fn handle(about: About, stream: StreamId) -> DeviceResult<ffi::Stream> {
        stream::handle(stream)
            .ok_or_else(|| about.error(DeviceErrorKind::Illegal, stream::NOT_A_NAME))
    }

    pub(crate) fn new_stream(&self) -> DeviceResult<StreamId> {
        let about = on_stream(DeviceOp::Record);
        let _current = self.context.enter_relaxed(about)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, and the driver writes the handle.
        let result =
            unsafe { (self.context.driver().stream_create)(&raw mut raw, STREAM_NON_BLOCKING) };
        self.context.check(about, result)?;
        Ok(stream::name(raw))
    }

    pub(crate) fn end_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let about = on_stream(DeviceOp::Record);
        let raw = Self::handle(about, stream)?;
        if [ffi::STREAM_LEGACY, ffi::STREAM_PER_THREAD].contains(&raw.addr()) {
            let detail = "a default stream cannot be destroyed";
            return Err(about.error(DeviceErrorKind::Illegal, detail));
        }
        let _current = self.context.enter_relaxed(about)?;
        // SAFETY: that the stream lives, and is used by nobody else, is the caller's promise.
        let result = unsafe { (self.context.driver().stream_destroy)(raw) };
        self.context.check(about, result)
    }

    pub(crate) fn wait_for_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let about = on_stream(DeviceOp::Wait);
        let raw = Self::handle(about, stream)?;
        let _current = self.context.enter_relaxed(about)?;
        // SAFETY: that the stream lives is the caller's promise.
        let result = unsafe { (self.context.driver().stream_synchronize)(raw) };
        self.context.check(about, result)
    }

    pub(crate) fn wait_for_all(&self) -> DeviceResult<()> {
        let about = on_stream(DeviceOp::Wait);
        let _current = self.context.enter_relaxed(about)?;
        // SAFETY: the context is current.
        let result = unsafe { (self.context.driver().ctx_synchronize)() };
        self.context.check(about, result)
    }

    /// A capture forbids this, and its graph is lost. Of a blocking stream that captures the legacy stream
    /// tells without harm, so that it is asked first.
    pub(crate) fn wait_until_idle(&self) -> DeviceResult<()> {
        let about = on_stream(DeviceOp::WaitIdle);
        let captured = about.error(DeviceErrorKind::NotReady, "a stream of the device captures");
        let legacy = Self::handle(about, StreamId(0))?;
        let current = self.context.enter_relaxed(about)?;
        if self.captures(about, legacy, &current)? {
            return Err(captured);
        }
        // SAFETY: the context is current.
        match unsafe { (self.context.driver().ctx_synchronize)() } {
            code::STREAM_CAPTURE_UNSUPPORTED
            | code::STREAM_CAPTURE_INVALIDATED
            | code::STREAM_CAPTURE_IMPLICIT => Err(captured),
            result => self.context.check(about, result),
        }
    }

    /// While a blocking stream captures, the legacy stream cannot be used: the driver says so, and
    /// leaves the capture alone (`cuStreamIsCapturing`). For the pool that is a stream that captures.
    pub(crate) fn ask_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        let about = on_stream(DeviceOp::IsCapturing);
        let raw = Self::handle(about, stream)?;
        let current = self.context.enter(about)?;
        self.captures(about, raw, &current)
    }

    fn captures(
        &self,
        about: About,
        raw: ffi::Stream,
        _current: &Current<'_>,
    ) -> DeviceResult<bool> {
        let mut status = CAPTURE_STATUS_NONE;
        // SAFETY: that the stream lives is the caller's promise; the driver writes the status.
        let result = unsafe { (self.context.driver().stream_is_capturing)(raw, &raw mut status) };
        if result == code::STREAM_CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.context.check(about, result)?;
        Ok(status != CAPTURE_STATUS_NONE)
    }

    /// A capture of another thread can begin after the pool has asked whether the stream captures. What
    /// is recorded then is part of the graph and never reached, so that it becomes no fence.
    pub(crate) fn record_fence(&self, stream: StreamId) -> DeviceResult<Fence> {
        let about = on_stream(DeviceOp::Record);
        let raw = Self::handle(about, stream)?;
        let current = self.context.enter(about)?;
        let line = self.fences.line(stream);
        let mut line = line.lock();
        let event = match self.fences.take_free() {
            Some(event) => event,
            None => self.new_event(about, &current)?,
        };
        // SAFETY: the event is in no line, so that nobody waits for what it meant before; that the
        // stream lives is the caller's promise.
        let result = unsafe { (self.context.driver().event_record)(event.0, raw) };
        if let Err(error) = self.context.check(about, result) {
            self.fences.recycle(event);
            return Err(error);
        }
        let captures = self.captures(about, raw, &current);
        let _relaxed = self.context.enter_relaxed(about)?;
        // A capture may also have begun before the record and ended before the question above.
        if captures == Ok(false) && !self.was_captured(event) {
            return Ok(Fence { stream, value: line.push(event) });
        }
        self.destroy_event(event);
        captures?;
        let detail = "the stream began to capture; record the fence when the capture has ended";
        Err(about.error(DeviceErrorKind::NotReady, detail))
    }

    /// An event without timing, which makes it quick.
    pub(crate) fn new_event(&self, about: About, _current: &Current<'_>) -> DeviceResult<Event> {
        let _relaxed = self.context.enter_relaxed(about)?;
        let mut event = ptr::null_mut();
        // SAFETY: the context is current, and the driver writes the handle.
        let result =
            unsafe { (self.context.driver().event_create)(&raw mut event, EVENT_DISABLE_TIMING) };
        self.context.check(about, result)?;
        Ok(Event(event))
    }

    pub(crate) fn is_done(&self, about: About, event: Event) -> DeviceResult<bool> {
        // SAFETY: an event of this device that was recorded and not destroyed: that happens at the
        // device's end only, or where nobody else knows the event.
        match unsafe { (self.context.driver().event_query)(event.0) } {
            code::NOT_READY => Ok(false),
            result => self.context.check(about, result).map(|()| true),
        }
    }

    /// Whether an event was recorded in a capture: it stands for no work, and is never done.
    fn was_captured(&self, event: Event) -> bool {
        // SAFETY: as in `is_done`.
        unsafe { (self.context.driver().event_query)(event.0) == code::CAPTURED_EVENT }
    }

    pub(crate) fn destroy_event(&self, event: Event) {
        // SAFETY: an event of this device that nobody else knows any more. The driver frees it once
        // it is done.
        unsafe { (self.context.driver().event_destroy)(event.0) };
    }

    pub(crate) fn reached_value(&self, stream: StreamId) -> DeviceResult<u64> {
        let about = on_stream(DeviceOp::Reached);
        let _current = self.context.enter_relaxed(about)?;
        self.settle(about, stream)
    }

    /// Takes the fences of a stream that are reached.
    fn settle(&self, about: About, stream: StreamId) -> DeviceResult<u64> {
        let Some(line) = self.fences.known(stream) else { return Ok(0) };
        let mut line = line.lock();
        line.settle(|event| self.is_done(about, event), |event| self.fences.recycle(event))
    }

    pub(crate) fn wait_for_fence(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        let about = on_stream(DeviceOp::Wait);
        if fence.value == 0 {
            return Ok(true);
        }
        let start = Instant::now();
        loop {
            {
                let _current = self.context.enter_relaxed(about)?;
                if self.settle(about, fence.stream)? >= fence.value {
                    return Ok(true);
                }
            }
            if !self.fences.known(fence.stream).is_some_and(|line| line.lock().knows(fence.value)) {
                return Err(about.error(DeviceErrorKind::Illegal, "the fence was never recorded"));
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Ok(false);
            };
            if waited < ASK_FOR {
                thread::yield_now();
            } else {
                // Late by at most a sixteenth of the wait, and by a millisecond.
                thread::sleep((waited / 16).clamp(SLEEP.0, SLEEP.1).min(left));
            }
        }
    }

    pub(crate) fn put_behind(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        let about = on_stream(DeviceOp::StreamWait);
        let raw = Self::handle(about, stream)?;
        let _current = self.context.enter(about)?;
        // A stream is behind its own work anyway.
        if fence.value == 0 || fence.stream == stream {
            return Ok(());
        }
        let Some(line) = self.fences.known(fence.stream) else {
            return Err(about.error(DeviceErrorKind::Illegal, "the fence was never recorded"));
        };
        // Held over the call, so that the event is not recycled and recorded anew before it.
        let line = line.lock();
        let Some(event) = line.event(fence.value) else {
            if fence.value <= line.reached() {
                return Ok(());
            }
            return Err(about.error(DeviceErrorKind::Illegal, "the fence was never recorded"));
        };
        // SAFETY: the event is in the line and was recorded; that the stream lives is the caller's
        // promise.
        let result = unsafe { (self.context.driver().stream_wait_event)(raw, event.0, 0) };
        self.context.check(about, result)
    }

    pub(crate) fn queue_copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Copy, AddrRange { addr: to, len });
        let (raw, size) = (Self::handle(about, stream)?, size(about, len)?);
        let _current = self.context.enter(about)?;
        if size == 0 {
            return Ok(());
        }
        // SAFETY: the driver refuses addresses without memory; that both ranges are usable until the
        // work is done is the caller's promise (`copy`).
        let result = unsafe { (self.context.driver().memcpy_dtod_async)(to.0, from.0, size, raw) };
        self.context.check(about, result)
    }

    pub(crate) fn queue_fill(
        &self,
        to: DeviceAddr,
        byte: u8,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Fill, AddrRange { addr: to, len });
        let (raw, size) = (Self::handle(about, stream)?, size(about, len)?);
        let _current = self.context.enter(about)?;
        if size == 0 {
            return Ok(());
        }
        // SAFETY: as for a copy (`fill`).
        let result = unsafe { (self.context.driver().memset_d8_async)(to.0, byte, size, raw) };
        self.context.check(about, result)
    }

    pub(crate) fn copy_in(
        &self,
        to: DeviceAddr,
        from: &[u8],
        stream: StreamId,
    ) -> DeviceResult<()> {
        let len = from.len() as u64;
        let about = About::range(DeviceOp::Copy, AddrRange { addr: to, len });
        let raw = Self::handle(about, stream)?;
        let _current = self.context.enter_relaxed(about)?;
        if from.is_empty() {
            return Ok(());
        }
        let driver = self.context.driver();
        // SAFETY: `from` is read until the copy is done, which the wait below sees to; the target is
        // as for a copy.
        let result =
            unsafe { (driver.memcpy_htod_async)(to.0, from.as_ptr().cast(), from.len(), raw) };
        self.context.check(about, result)?;
        // SAFETY: that the stream lives is the caller's promise.
        self.context.check(about, unsafe { (driver.stream_synchronize)(raw) })
    }

    pub(crate) fn copy_out(
        &self,
        to: &mut [u8],
        from: DeviceAddr,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let len = to.len() as u64;
        let about = About::range(DeviceOp::Copy, AddrRange { addr: from, len });
        let raw = Self::handle(about, stream)?;
        let _current = self.context.enter_relaxed(about)?;
        if to.is_empty() {
            return Ok(());
        }
        let driver = self.context.driver();
        // SAFETY: `to` is written until the copy is done, which the wait below sees to; the source is
        // as for a copy.
        let result =
            unsafe { (driver.memcpy_dtoh_async)(to.as_mut_ptr().cast(), from.0, to.len(), raw) };
        self.context.check(about, result)?;
        // SAFETY: that the stream lives is the caller's promise.
        self.context.check(about, unsafe { (driver.stream_synchronize)(raw) })
    }
}

fn size(about: About, len: u64) -> DeviceResult<usize> {
    usize::try_from(len)
        .map_err(|_| about.error(DeviceErrorKind::Illegal, "longer than the address space"))
}

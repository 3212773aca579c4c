//! A request that memory at hand does not serve: the ladder decides under the lock, and what it decides on is
//! done here, without it, until there is a lease or nothing is left to do.

use crate::device::{
    DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, VirtualMemoryDevice,
};
use crate::error::{AllocError, OutOfMemory, PoolError};
use crate::ladder::{Next, Reach};
use crate::options::{CrossStream, Maintenance};
use crate::pool::Pressure;
use crate::shared::{Shared, Waiting};
use crate::state::{LeaseId, Want};
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

thread_local! {
    /// This thread runs pressure callbacks: an allocation that fails in one does not call them again.
    static PRESSING: Cell<bool> = const { Cell::new(false) };
}

/// How much a request is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    All,
    /// No wait for the device, no callback.
    Spare,
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    #[cold]
    pub(crate) fn allocate_slow(&self, want: &Want) -> Result<(LeaseId, u64), AllocError> {
        let begin = self.options.clock.now();
        let limit = self.lock().budget.limit;
        let result = if limit.is_some_and(|limit| want.len > limit) {
            Err(self.too_large(want.requested, want.alignment))
        } else {
            match self.climb(want, Effort::All) {
                Ok(Ok(memory)) => Ok(memory),
                Ok(Err(refused)) => Err(self.out_of_memory(want, refused)),
                Err(error) => Err(error.into()),
            }
        };
        self.end_climb(begin);
        result.inspect_err(|_| self.note_failure())
    }

    /// As [`Self::allocate_slow`] for one who can do without: `None` where that would take a wait for the
    /// device or callbacks, and then it is no failure.
    #[cold]
    pub(crate) fn allocate_spare(&self, want: &Want) -> DeviceResult<Option<(LeaseId, u64)>> {
        let begin = self.options.clock.now();
        let limit = self.lock().budget.limit;
        if limit.is_some_and(|limit| want.len > limit) {
            return Ok(None);
        }
        let result = self.climb(want, Effort::Spare);
        self.end_climb(begin);
        Ok(result?.ok())
    }

    /// Ends a miss that lasted from `begin` on.
    fn end_climb(&self, begin: Duration) {
        self.lock().end_climb();
        if self.options.maintenance == Maintenance::Inline {
            self.maintain();
        }
        let took = self.options.clock.now().saturating_sub(begin);
        self.lock().counters.missed(took);
    }

    /// Memory for a request; if there is none, what the device refused last.
    fn climb(
        &self,
        want: &Want,
        effort: Effort,
    ) -> DeviceResult<Result<(LeaseId, u64), Option<DeviceError>>> {
        let mut refused: Option<DeviceError> = None;
        let mut pressed = false;
        let mut reach = Reach {
            cross_stream: self.options.cross_stream,
            capturing: false,
            device_full: false,
            impatient: false,
            never_idle: false,
            removal_failed: false,
            address_full: false,
            means: self.means(),
        };
        loop {
            let next = {
                let mut state = self.lock();
                reach.capturing = self.capturing_for(&state, want.slot)?;
                let next = state.climb(&*self.device, want, reach)?;
                state.validate_in_debug();
                match next {
                    Next::Taken(id) => return Ok(Ok((id, state.extents[id.extent].addr))),
                    Next::AwaitStep => {
                        reach.impatient = self.await_step(&mut state);
                        continue;
                    }
                    other => other,
                }
            };
            match next {
                Next::Grow(step) => {
                    let waiting = Waiting { want, since: self.options.clock.now() };
                    match self.finish(step.run(&*self.device), Some(waiting)) {
                        Ok(id) => {
                            let id = id.expect("a growth for a request ends in a lease");
                            return Ok(Ok((id, self.lock().extents[id.extent].addr)));
                        }
                        Err(error) if is_out_of_frames(error) && !reach.device_full => {
                            // A full device is a moment, not a verdict: less may still be had.
                            reach.device_full = std::mem::replace(&mut reach.means.exact, true);
                            refused = Some(error);
                        }
                        Err(error) if self.refuses_kind(error, reach.means.kind) => {
                            reach.means = self.means();
                        }
                        Err(error) => return Err(error),
                    }
                }
                Next::Remove(step) => {
                    reach.removal_failed = self.finish(step.run(&*self.device), None).is_err();
                    // What went made room on the device.
                    reach.device_full = false;
                }
                Next::Reserve(arena, need) => {
                    let reserved = self.reserve(arena, need);
                    reach.address_full = reserved.is_err();
                    refused = reserved.err().and_then(PoolError::device).or(refused);
                }
                Next::Wait(_) if effort == Effort::Spare => return Ok(Err(refused)),
                Next::Wait(awaited) => {
                    reach.never_idle = !self.await_work(&awaited)?;
                    // Idle frames that serve now leave less to be made.
                    reach.device_full = false;
                    if reach.cross_stream == CrossStream::Never {
                        reach.cross_stream = CrossStream::WhenReached;
                    }
                }
                Next::Exhausted if reach.cross_stream == CrossStream::Never && !reach.capturing => {
                    reach.cross_stream = CrossStream::WhenReached;
                }
                Next::Exhausted if effort == Effort::All && !pressed && self.press(want) => {
                    pressed = true;
                    reach.device_full = false;
                }
                Next::Exhausted => return Ok(Err(refused)),
                Next::Taken(_) | Next::AwaitStep => unreachable!("handled under the lock"),
            }
        }
    }

    /// Whether a failure means that the device refuses this kind of frame; then plain ones are used.
    fn refuses_kind(&self, error: DeviceError, kind: FrameKind) -> bool {
        let about_frames =
            matches!(error.op, DeviceOp::MakeFrame | DeviceOp::Map | DeviceOp::SetAccess);
        let gone = error.kind == DeviceErrorKind::Deinitialized;
        kind != FrameKind::Device
            && about_frames
            && !gone
            && !self.kind_refused.swap(true, Ordering::Relaxed)
    }

    /// Calls the pressure callbacks, without any lock; says whether there were any.
    fn press(&self, want: &Want) -> bool {
        /// Ends the pressing, also when a callback panics.
        struct Pressing;
        impl Drop for Pressing {
            fn drop(&mut self) {
                PRESSING.set(false);
            }
        }
        if PRESSING.replace(true) {
            return false;
        }
        let _pressing = Pressing;
        self.call_back(want)
    }

    fn call_back(&self, want: &Want) -> bool {
        let callbacks = self.callbacks.lock().clone();
        let pressure = {
            let state = self.lock();
            Pressure {
                requested: want.requested,
                reserved: state.counters.reserved_bytes,
                limit: state.budget.limit,
            }
        };
        for callback in &callbacks {
            callback(&pressure);
        }
        !callbacks.is_empty()
    }

    fn out_of_memory(&self, want: &Want, device: Option<DeviceError>) -> AllocError {
        let state = self.lock();
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested: want.requested,
            limit: state.budget.limit,
            reserved: state.counters.reserved_bytes,
            live: state.counters.live_bytes,
            retired: state.counters.retired_bytes,
            largest_possible: state.largest_possible(device.is_some(), want.domain),
            owners: state.largest_owners(5),
            device,
        }))
    }
}

/// Whether the device has no memory for a frame; other calls may want memory too, but less of ours
/// would not help them.
fn is_out_of_frames(error: DeviceError) -> bool {
    error.kind == DeviceErrorKind::OutOfMemory && error.op == DeviceOp::MakeFrame
}

//! Waits on the host for work that keeps memory from those who want it.

use crate::device::{DeviceError, DeviceErrorKind, DeviceResult, VirtualMemoryDevice};
use crate::shared::Shared;
use crate::state::State;
use crate::timeline::{Point, Standing};
use crate::units::Fence;
use std::time::Duration;

/// How long one look at a fence lasts when several are waited for in turn; doubles up to a cap.
const FIRST_LOOK: Duration = Duration::from_micros(20);
pub(crate) const LONGEST_LOOK: Duration = Duration::from_millis(2);

/// Work of which some has to end.
#[derive(Debug, Default)]
pub(crate) struct Awaited {
    /// Of each stream, the first that matters.
    pub(crate) fences: Vec<Fence>,
    /// There is more, on streams that cannot be recorded on. When it is over only the device as a whole
    /// can tell.
    pub(crate) unanswered: bool,
}

impl Awaited {
    pub(crate) fn is_empty(&self) -> bool {
        self.fences.is_empty() && !self.unanswered
    }
}

impl State {
    /// For each stream, the first of its points that is not reached.
    pub(crate) fn first_of<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        mut points: Vec<Point>,
    ) -> DeviceResult<Awaited> {
        points.retain(|point| !self.timelines.is_reached(*point));
        points.sort_by_key(|point| (point.stream, point.epoch));
        points.dedup_by_key(|point| point.stream);
        let mut awaited = Awaited::default();
        for point in points {
            match self.timelines.ask(device, point)? {
                Standing::Reached => {}
                Standing::Before(fence) => awaited.fences.push(fence),
                Standing::Unknown => awaited.unanswered = true,
            }
        }
        Ok(awaited)
    }
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    /// Waits on the host until some of the work is over, and notes that. `false` where there was nothing to
    /// wait for, or only the device as a whole, which cannot be waited for now.
    pub(crate) fn await_work(&self, awaited: &Awaited) -> DeviceResult<bool> {
        if awaited.is_empty() {
            return Ok(false);
        }
        if awaited.fences.is_empty() {
            return self.wait_idle();
        }
        self.lock().counters.host_waits += 1;
        let fence = self.wait_any(&awaited.fences)?;
        // The stream itself may fail to say so.
        self.lock().timelines.note_reached(fence);
        Ok(true)
    }

    /// Waits until one of the fences is reached. One that cannot be waited for is the failure of all only
    /// where there is no other.
    fn wait_any(&self, fences: &[Fence]) -> DeviceResult<Fence> {
        let mut fences = fences.to_vec();
        let mut look = FIRST_LOOK;
        loop {
            let mut index = 0;
            while let Some(fence) = fences.get(index) {
                match self.device.wait(*fence, look) {
                    Ok(true) => return Ok(*fence),
                    Ok(false) => index += 1,
                    Err(error) => {
                        fences.swap_remove(index);
                        if fences.is_empty() || error.kind == DeviceErrorKind::Deinitialized {
                            return Err(error);
                        }
                    }
                }
            }
            look = (look * 2).min(LONGEST_LOOK);
        }
    }

    /// Waits for all work of the device; `false` if it cannot be waited for, at least not now.
    fn wait_idle(&self) -> DeviceResult<bool> {
        let moment = {
            let mut state = self.lock();
            // A capture may be what a stream has failed for. This call would break it.
            if self.capturing(&state)? {
                return Ok(false);
            }
            state.timelines.moment()
        };
        match self.device.wait_idle() {
            Ok(()) => {}
            Err(DeviceError {
                kind: DeviceErrorKind::NotSupported | DeviceErrorKind::NotReady,
                ..
            }) => return Ok(false),
            Err(error) => return Err(error),
        }
        let mut state = self.lock();
        state.counters.host_waits += 1;
        state.timelines.pass(&moment);
        Ok(true)
    }
}

//! What calls of the device interface take, on any device.
//!
//! The clock is given: the system's for a real device, the account for the mock. Each figure is the
//! median of several calls behind one that is not counted, since first calls are dearer.

mod frames;
mod small;

pub(crate) use frames::{FrameCosts, frames};
pub(crate) use small::{CallCost, small_calls};

use vmm_core::device::{DeviceErrorKind, FrameKind, VirtualMemoryDevice};
use vmm_core::{DeviceError, DeviceResult};

/// A clock in nanoseconds that moves while calls are made.
type Clock<'a> = &'a dyn Fn() -> u64;

/// Times of one kind of call.
struct Times<'a> {
    now_ns: Clock<'a>,
    /// What two readings of the clock take with nothing between them.
    overhead_ns: u64,
}

impl<'a> Times<'a> {
    fn new(now_ns: Clock<'a>) -> Self {
        let pause = || {
            let start_ns = now_ns();
            now_ns() - start_ns
        };
        let overhead_ns = median((0..101).map(|_| pause()).collect());
        Self { now_ns, overhead_ns }
    }

    /// Makes a call and adds the nanoseconds that it took to `times_ns`.
    fn measure<R>(&self, times_ns: &mut Vec<u64>, call: impl FnOnce() -> R) -> R {
        let start_ns = (self.now_ns)();
        let result = call();
        times_ns.push(((self.now_ns)() - start_ns).saturating_sub(self.overhead_ns));
        result
    }
}

/// The middle one; 0 of none.
fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "calls take far less than 2^53 ns")]
fn microseconds(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// The longest frame that can be made now, in bytes, to a granule: tried, not asked.
///
/// On a device without remapping a frame is a plain allocation, and the answer says how fragmented
/// the card is. For a moment the free memory is taken.
///
/// # Errors
/// Any failure but a lack of memory.
pub(crate) fn largest_block(device: &impl VirtualMemoryDevice, free: u64) -> DeviceResult<u64> {
    let granule = device.properties().granule;
    let succeeds = |granules: u64| -> Result<bool, DeviceError> {
        match device.make_frame(granules * granule, FrameKind::Device) {
            Ok(frame) => device.release_frame(frame).map(|()| true),
            Err(error) if error.kind == DeviceErrorKind::OutOfMemory => Ok(false),
            Err(error) => Err(error),
        }
    };
    let (mut works, mut fails) = (0, free / granule + 1);
    // Mostly all that is free can be had, or nearly: the search begins there.
    let mut tried = fails - 1;
    while fails - works > 1 {
        if succeeds(tried)? {
            works = tried;
        } else {
            fails = tried;
        }
        tried = works + (fails - works) / 2;
    }
    Ok(works * granule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_mock::{MockDevice, MockOptions};

    const MIB: u64 = 1 << 20;

    #[test]
    fn medians() {
        assert_eq!(median(vec![]), 0);
        assert_eq!(median(vec![5, 1, 9]), 5);
    }

    #[test]
    fn the_largest_block_is_what_others_have_left() {
        let device = MockDevice::new(MockOptions::with_memory(1 << 30));
        assert_eq!(largest_block(&device, 1 << 30), Ok(1 << 30));
        // Whatever the device says is free, what counts is what it makes.
        device.other_use(301 * MIB);
        assert_eq!(largest_block(&device, 1 << 30), Ok(722 * MIB));
        device.other_use(1 << 30);
        assert_eq!(largest_block(&device, 1 << 30), Ok(0));
        assert!(device.leftovers().is_empty());
    }
}

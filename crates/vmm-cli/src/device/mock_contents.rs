//! Checks of bytes on the mock device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use vmm_core::device::AddrRange;
use vmm_core::{DeviceResult, StreamId};
use vmm_mock::{Access, MockDevice};
use vmm_replay::{Contents, Faults, SHOWN_LEASES, WrongLease};

/// What fresh memory of the mock holds; a pattern like it would hide that nothing was written.
const POISON: u8 = 0xdb;

/// Fills and checks memory of a mock device, whose ranges hold one byte value each: leases whose
/// numbers are 255 apart have the same pattern.
#[derive(Debug)]
pub struct MockContents {
    device: Arc<MockDevice>,
    /// The lease that was checked last with such work.
    checked: Mutex<HashMap<(StreamId, AddrRange, u8), u64>>,
    /// What the device had complained about before.
    complaints_before: usize,
}

impl MockContents {
    /// Checks on `device`. Complaints of the device from before do not count.
    #[must_use]
    pub fn new(device: Arc<MockDevice>) -> Self {
        let complaints_before = complaints(&device);
        Self { device, checked: Mutex::default(), complaints_before }
    }
}

fn complaints(device: &MockDevice) -> usize {
    device.violations().len() + device.races().len()
}

fn pattern(lease: u64) -> u8 {
    let byte = u8::try_from(lease % 255).expect("below 255");
    if byte < POISON { byte } else { byte + 1 }
}

/// Work takes no logical time: a check must not change when fences are reached.
const DURATION_NS: u64 = 0;

impl Contents for MockContents {
    fn fill(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        self.device.launch(stream, DURATION_NS, &[Access::write(range, pattern(lease))])
    }

    fn check(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert((stream, range, pattern(lease)), lease);
        self.device.launch_check(stream, DURATION_NS, range, pattern(lease))
    }

    fn finish(&self) -> DeviceResult<Faults> {
        self.device.finish_all();
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let mismatches = self.device.mismatches();
        let first = mismatches.iter().take(SHOWN_LEASES).filter_map(|wrong| {
            let lease = *checked.get(&(wrong.stream, wrong.range, wrong.expected))?;
            Some(WrongLease { lease, offset: wrong.first.since(wrong.range.addr) })
        });
        Ok(Faults {
            wrong_bytes: mismatches.iter().map(|wrong| wrong.count).sum(),
            first: first.collect(),
            complaints: (complaints(&self.device) - self.complaints_before) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_neighbours_differ_and_none_looks_like_fresh_memory() {
        for lease in 0..1_000 {
            assert_ne!(pattern(lease), POISON);
            for other in lease + 1..lease + 255 {
                assert_ne!(pattern(lease), pattern(other), "{lease} and {other}");
            }
        }
    }
}

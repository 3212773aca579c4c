//! Checks of bytes on a CUDA card.

use std::sync::{Arc, Mutex, PoisonError};
use vmm_core::device::AddrRange;
use vmm_core::{DeviceAddr, DeviceResult, StreamId};
use vmm_cuda::{CudaDevice, kernels};
use vmm_replay::{Contents, Faults, SHOWN_LEASES, WrongLease};

/// Checks between two looks at what they found. The card sums checks up, so the lease is looked for
/// among these; a look waits for the card, so it must be rare.
const CHECKS_PER_LOOK: usize = 1024;

/// Fills and checks memory of a card by kernels; the pattern of a lease follows from its number.
pub(crate) struct CudaContents {
    device: Arc<CudaDevice>,
    kernels: kernels::Contents,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Checks since the last look: lease and range.
    recent: Vec<(u64, AddrRange)>,
    /// The streams that they ran on.
    streams: Vec<StreamId>,
    /// The lowest wrong address so far.
    lowest: Option<DeviceAddr>,
    faults: Faults,
}

impl CudaContents {
    /// Loads the kernels.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(device: &Arc<CudaDevice>) -> DeviceResult<Self> {
        let kernels = kernels::Contents::new(device)?;
        Ok(Self { device: Arc::clone(device), kernels, state: Mutex::default() })
    }

    /// Waits for the checks that are queued and enters what they found.
    fn look(&self, state: &mut State) -> DeviceResult<()> {
        // Not for the whole device, on which something may run without end.
        for stream in state.streams.drain(..) {
            self.device.synchronize_stream(stream)?;
        }
        let found = self.kernels.mismatches()?;
        // The card keeps the lowest wrong address of all, so a new one is of these checks.
        if found.first != state.lowest
            && let Some(wrong) = found.first.and_then(|first| owner(&state.recent, first))
            && state.faults.first.len() < SHOWN_LEASES
        {
            state.faults.first.push(wrong);
        }
        state.lowest = found.first;
        state.faults.wrong_bytes = found.count;
        state.recent.clear();
        Ok(())
    }
}

/// The earliest of the checked leases that had the address.
fn owner(checked: &[(u64, AddrRange)], first: DeviceAddr) -> Option<WrongLease> {
    let has = |range: &AddrRange| range.addr <= first && first < range.end();
    let (lease, range) = checked.iter().find(|(_, range)| has(range))?;
    Some(WrongLease { lease: *lease, offset: first.since(range.addr) })
}

impl Contents for CudaContents {
    fn fill(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        self.kernels.fill(range, lease, stream)
    }

    fn check(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        self.kernels.check(range, lease, stream)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.recent.push((lease, range));
        if !state.streams.contains(&stream) {
            state.streams.push(stream);
        }
        if state.recent.len() >= CHECKS_PER_LOOK { self.look(&mut state) } else { Ok(()) }
    }

    fn finish(&self) -> DeviceResult<Faults> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.look(&mut state)?;
        Ok(state.faults.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_address_belongs_to_the_earliest_lease_there() {
        let range = |addr, len| AddrRange { addr: DeviceAddr(addr), len };
        let checked = Vec::from([
            (4, range(0x1000, 0x1000)),
            (5, range(0x4000, 0x800)),
            (6, range(0x1000, 0x4000)),
        ]);
        let owner = |addr| owner(&checked, DeviceAddr(addr));
        assert_eq!(owner(0x1fff), Some(WrongLease { lease: 4, offset: 0xfff }));
        assert_eq!(owner(0x2000), Some(WrongLease { lease: 6, offset: 0x1000 }));
        assert_eq!(owner(0x47ff), Some(WrongLease { lease: 5, offset: 0x7ff }));
        assert_eq!(owner(0x5000), None);
    }
}

//! Checks of bytes on a card.

use super::card::Card;
use std::sync::{Arc, Mutex, PoisonError};
use vmm_core::device::AddrRange;
use vmm_core::{DeviceAddr, DeviceResult, StreamId};
use vmm_replay::{Contents, Faults, SHOWN_LEASES, WrongLease};

/// Kernels that fill and check memory; the pattern follows from the seed and the place in the range.
pub(crate) trait Checks {
    /// Queues the writing of the pattern.
    fn fill(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()>;

    /// Queues a comparison with it.
    fn check(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()>;

    /// What the checks since the last call have found. The caller has waited for their streams.
    fn found(&self) -> DeviceResult<Found>;
}

/// What checks have found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Bytes that were not as expected.
    pub(crate) wrong_bytes: u64,
    /// The address of one of them, if it is known.
    pub(crate) first: Option<DeviceAddr>,
}

/// Checks between two looks at what they found. The card sums checks up, so the lease is looked for
/// among these; a look waits for the card, so it must be rare.
const CHECKS_PER_LOOK: usize = 1024;

/// Fills and checks leases on a card; the pattern of a lease follows from its number.
pub(crate) struct CardContents<C> {
    card: Arc<C>,
    checks: Box<dyn Checks>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Checks since the last look: lease and range.
    recent: Vec<(u64, AddrRange)>,
    /// The streams that they ran on.
    streams: Vec<StreamId>,
    faults: Faults,
}

impl<C: Card> CardContents<C> {
    /// Loads the kernels.
    ///
    /// # Errors
    /// What the driver says.
    pub(crate) fn new(card: &Arc<C>) -> DeviceResult<Self> {
        let checks = card.checks()?;
        Ok(Self { card: Arc::clone(card), checks, state: Mutex::default() })
    }

    /// Waits for the checks that are queued and enters what they found.
    fn look(&self, state: &mut State) -> DeviceResult<()> {
        // Not for the whole device, on which something may run without end.
        for stream in state.streams.drain(..) {
            self.card.synchronize_stream(stream)?;
        }
        let found = self.checks.found()?;
        if let Some(wrong) = found.first.and_then(|first| owner(&state.recent, first))
            && state.faults.first.len() < SHOWN_LEASES
        {
            state.faults.first.push(wrong);
        }
        state.faults.wrong_bytes += found.wrong_bytes;
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

impl<C: Card> Contents for CardContents<C> {
    fn fill(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        self.checks.fill(range, lease, stream)
    }

    fn check(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()> {
        self.checks.check(range, lease, stream)?;
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

//! Peers: other devices that have access to memory of the pool.
//!
//! Access belongs to a mapping, not to its frame. A peer of the *pool* has it on every mapping that
//! memory in use lies under: a growth asks for it along with this device's own, and what is mapped
//! when a peer is added is caught up with before the call returns. A peer of a *lease* has it on the
//! mappings under that lease for as long as these last, whoever holds the memory later.
//!
//! A grant costs about a millisecond a frame on NVIDIA's cards, many times the rest of a move. So
//! nothing is granted that was not asked for, and frames that a lease has shared move last.
//!
//! A stale mapping is not caught up with: it may be removed any moment. Recall takes back only those
//! that lack no peer.

use crate::device::{
    AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping,
    VirtualMemoryDevice,
};
use crate::error::PoolError;
use crate::frame::{MappingEntry, MappingId, MappingState};
use crate::shared::Shared;
use crate::state::{LeaseId, State};
use crate::step::{StepOutcome, Work, give_access, range};
use crate::units::DeviceOrdinal;
use parking_lot::MutexGuard;

/// Grants between two looks at the pool: an allocation may have to wait for them.
const GRANTS_AT_ONCE: usize = 4;

/// The peers of a pool.
#[derive(Debug)]
pub(crate) struct Peers {
    /// What every new mapping gets. The last one may be joining still.
    wanted: Vec<DeviceOrdinal>,
    /// How many of them have access to all there is.
    members: usize,
}

/// A mapping that peers are to be given.
#[derive(Debug)]
struct Grant {
    mapping: MappingId,
    range: AddrRange,
    peers: Vec<DeviceOrdinal>,
}

impl Peers {
    pub(crate) fn new(peers: &[DeviceOrdinal]) -> Self {
        let mut wanted = peers.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        Self { members: wanted.len(), wanted }
    }

    /// Peers that have access to all memory of the pool.
    pub(crate) fn members(&self) -> &[DeviceOrdinal] {
        &self.wanted[..self.members]
    }

    /// Peers that every new mapping gives access to.
    pub(crate) fn wanted(&self) -> &[DeviceOrdinal] {
        &self.wanted
    }

    /// Whether a mapping lacks nothing that a new one would have.
    pub(crate) fn has_all(&self, entry: &MappingEntry) -> bool {
        entry.access.is_some() && entry.lacks(&self.wanted).is_empty()
    }

    /// Whether a mapping has what was promised for all memory in use.
    pub(crate) fn has_members(&self, entry: &MappingEntry) -> bool {
        entry.access.is_some() && entry.lacks(self.members()).is_empty()
    }

    /// Whether somebody has access that a new mapping would not give.
    pub(crate) fn exceeds_pool(&self, entry: &MappingEntry) -> bool {
        entry.access.iter().flatten().any(|peer| !self.wanted.contains(peer))
    }

    fn begin(&mut self, peer: DeviceOrdinal) {
        self.wanted.push(peer);
    }

    /// Ends what [`Self::begin`] began.
    fn end(&mut self, joined: bool) {
        if joined {
            self.members = self.wanted.len();
        } else {
            self.wanted.truncate(self.members);
        }
    }
}

impl MappingEntry {
    /// Those of `peers` that have no access, each once.
    fn lacks(&self, peers: &[DeviceOrdinal]) -> Vec<DeviceOrdinal> {
        let mut lacking = Vec::new();
        for peer in peers {
            if !self.access.iter().flatten().chain(&lacking).any(|known| known == peer) {
                lacking.push(*peer);
            }
        }
        lacking
    }
}

impl State {
    /// Peers that were added since a growth was decided on, and that it has not asked access for.
    fn missed_peers(&self, outcome: &StepOutcome) -> Vec<DeviceOrdinal> {
        match (&outcome.work, &outcome.result) {
            (Work::Grow(growth), Ok(_)) => {
                let wanted = self.peers.wanted().iter();
                wanted.filter(|peer| !growth.peers.contains(peer)).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// A few mappings that lack some of `peers`. They stay until [`Self::end_grants`]; whoever needs
    /// one of them unmapped waits as for a step.
    fn begin_grants(&mut self, mappings: Vec<MappingId>, peers: &[DeviceOrdinal]) -> Vec<Grant> {
        let mut grants = Vec::new();
        for mapping in mappings {
            let entry = &mut self.frames.mappings[mapping];
            let lacking = entry.lacks(peers);
            if !lacking.is_empty() {
                entry.pinned = true;
                let range = range(entry.addr, entry.len);
                grants.push(Grant { mapping, range, peers: lacking });
                if grants.len() == GRANTS_AT_ONCE {
                    break;
                }
            }
        }
        self.steps_under_way += u32::from(!grants.is_empty());
        grants
    }

    /// Records that the first `done` grants succeeded.
    fn end_grants(&mut self, grants: Vec<Grant>, done: usize) {
        self.steps_under_way -= 1;
        for (index, grant) in grants.into_iter().enumerate() {
            let entry = &mut self.frames.mappings[grant.mapping];
            entry.pinned = false;
            if index < done {
                entry.access.get_or_insert_default().extend(grant.peers);
            }
        }
    }

    /// Takes `len` bytes into the accounts for a frame that serves nobody; `false` if the limit forbids it.
    fn begin_trial(&mut self, len: u64) -> bool {
        let may = self.room(u64::MAX) >= len;
        if may {
            self.counters.reserve(len);
            self.steps_under_way += 1;
        }
        may
    }

    fn end_trial(&mut self, len: u64) {
        self.counters.unreserve(len);
        self.steps_under_way -= 1;
    }

    /// Mappings that memory in use lies under, or may lie under soon.
    fn current_mappings(&self) -> Vec<MappingId> {
        let all = self.frames.mappings.iter();
        all.filter(|(_, entry)| entry.state == MappingState::Current).map(|(id, _)| id).collect()
    }

    /// The mappings under a lease.
    fn mappings_under(&self, id: LeaseId) -> Vec<MappingId> {
        let extent = &self.extents[self.live(id)];
        let region = self.arenas[extent.arena].region(extent.region);
        let mut found = Vec::new();
        let mut at = extent.addr;
        while at < extent.end() {
            let mapping = region.mapping_at(at).expect("a mapping under a lease");
            at = self.frames.mappings[mapping].end();
            found.push(mapping);
        }
        found
    }
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    /// Peers need aliases, so that no frame is unmapped in order to move while access to it is given.
    pub(crate) fn check_peers(&self, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        let properties = self.device.properties();
        let can = properties.capabilities;
        if peers.is_empty() || (can.peers && can.remapping && can.aliases) {
            return Ok(());
        }
        Err(PoolError::NotSupported {
            device: properties.name.clone(),
            missing: "access for peers",
        })
    }

    /// Tries on a frame made for it whether peers can have access, for a pool that has none to try it on.
    pub(crate) fn try_peers(&self, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        if peers.is_empty() {
            return Ok(());
        }
        let device = &*self.device;
        let granule = device.properties().granule;
        let base = device.reserve(granule, granule)?;
        let range = AddrRange { addr: base, len: granule };
        let tried = device.make_frame(granule, FrameKind::Device).and_then(|frame| {
            let mapped = device.map(&[Mapping { range, frame }], &[]);
            let tried = mapped.and_then(|_| {
                let given = give_access(device, range, peers);
                device.unmap(&[range], &[]).and(given)
            });
            device.release_frame(frame).and(tried)
        });
        device.free_region(base, granule).and(tried)
    }

    /// As [`Self::try_peers`], with the frame in the accounts. Where the limit leaves no room for it, because
    /// all frames are being made or on their way out, one of these is waited for.
    fn try_peers_within_limit(&self, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        let granule = self.device.properties().granule;
        while !self.lock().begin_trial(granule) {
            if self.give_some(peers, State::current_mappings)? {
                return Ok(());
            }
            if !self.maintain() {
                return Err(DeviceError::new(
                    DeviceOp::SetAccess,
                    DeviceErrorKind::NotReady,
                    "the limit leaves no room to try it, until frames are made or released",
                ));
            }
        }
        let tried = self.try_peers(peers);
        self.lock().end_trial(granule);
        self.announce_step();
        tried
    }

    pub(crate) fn add_peer(&self, peer: DeviceOrdinal) -> Result<(), PoolError> {
        self.check_peers(&[peer])?;
        let _one_at_a_time = self.granting.lock();
        if self.lock().peers.members().contains(&peer) {
            return Ok(());
        }
        let peers = [peer];
        // A peer that cannot have access must not spoil the growth of others: so some of what there is
        // comes first.
        if !self.give_some(&peers, State::current_mappings)? {
            self.try_peers_within_limit(&peers)?;
        }
        // From here on nothing comes without, and what lacks it gets less.
        self.lock().peers.begin(peer);
        let result = self.give_all(&peers, State::current_mappings);
        let mut state = self.lock();
        state.peers.end(result.is_ok());
        state.validate_in_debug();
        Ok(result?)
    }

    pub(crate) fn grant(&self, id: LeaseId, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        self.check_peers(peers)?;
        let _one_at_a_time = self.granting.lock();
        Ok(self.give_all(peers, |state| state.mappings_under(id))?)
    }

    fn give_all(
        &self,
        peers: &[DeviceOrdinal],
        of: impl Fn(&State) -> Vec<MappingId>,
    ) -> DeviceResult<()> {
        while self.give_some(peers, &of)? {}
        Ok(())
    }

    /// Gives peers access to a few of the mappings that lack it, without the lock; says whether
    /// there were any.
    fn give_some(
        &self,
        peers: &[DeviceOrdinal],
        of: impl Fn(&State) -> Vec<MappingId>,
    ) -> DeviceResult<bool> {
        let grants = {
            let mut state = self.lock();
            let mappings = of(&state);
            state.begin_grants(mappings, peers)
        };
        if grants.is_empty() {
            return Ok(false);
        }
        let mut done = 0;
        let mut result = Ok(true);
        for grant in &grants {
            if let Err(error) = give_access(&*self.device, grant.range, &grant.peers) {
                result = Err(error);
                break;
            }
            done += 1;
        }
        let mut state = self.lock();
        state.end_grants(grants, done);
        state.validate_in_debug();
        drop(state);
        self.announce_step();
        result
    }

    /// The lock, and an outcome that lacks no peer: one may have been added since its growth was
    /// decided on.
    pub(crate) fn lock_with_peers(
        &self,
        mut outcome: StepOutcome,
    ) -> (MutexGuard<'_, State>, StepOutcome) {
        loop {
            let state = self.lock();
            let missed = state.missed_peers(&outcome);
            if missed.is_empty() {
                return (state, outcome);
            }
            drop(state);
            outcome = outcome.with_peers(&*self.device, missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: DeviceOrdinal = DeviceOrdinal(1);
    const B: DeviceOrdinal = DeviceOrdinal(2);

    #[test]
    fn a_peer_that_joins_is_wanted_before_it_is_a_member() {
        let mut peers = Peers::new(&[A, A]);
        peers.begin(B);
        assert_eq!((peers.members(), peers.wanted()), ([A].as_slice(), [A, B].as_slice()));
        peers.end(false);
        assert_eq!((peers.members(), peers.wanted()), ([A].as_slice(), [A].as_slice()));
        peers.begin(B);
        peers.end(true);
        assert_eq!(peers.members(), [A, B]);
    }
}

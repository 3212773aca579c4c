//! What a pool tells about itself: figures, snapshots, the facts of an error.

use crate::arena::{DomainId, GENERAL, LARGE, domain_of};
use crate::device::FrameKind;
use crate::extent::{Extent, Kind};
use crate::frame::MappingState;
use crate::region::Region;
use crate::report::{FrameView, FreeView, LeaseView, MappingView, PrivateView, Snapshot, Stats};
use crate::state::State;
use crate::step::range;
use crate::tenancy::PrivateId;
use crate::timeline::READY;
use crate::units::DeviceAddr;
use std::collections::HashMap;

impl State {
    pub(crate) fn stats(&self, frame_kind: FrameKind) -> Stats {
        Stats {
            counters: self.counters,
            limit: self.budget.limit,
            target: self.budget.shown_target(),
            frames: self.frames.frames.len() as u64,
            mappings: self.frames.mappings.len() as u64,
            address_bytes: self.address_bytes(),
            private_pools: self.tenancies.living().count() as u64,
            private_reserved_bytes: self.private_bytes(),
            remapping: !self.budget.plain,
            frame_kind,
        }
    }

    pub(crate) fn address_bytes(&self) -> u64 {
        self.regions().map(|region| region.len).sum()
    }

    /// All regions, arena by arena.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.arenas.all().iter().flat_map(|arena| arena.regions.iter()).map(|(_, region)| region)
    }

    pub(crate) fn snapshot(&self, frame_kind: FrameKind) -> Snapshot {
        let mut index = HashMap::new();
        let mut frames = Vec::new();
        for (id, frame) in self.frames.frames.iter() {
            index.insert(id, frames.len());
            frames.push(FrameView {
                len: frame.len,
                mappings: frame.mappings.len(),
                leaving: frame.leaving,
            });
        }
        let mappings = self.frames.mappings.iter().map(|(_, entry)| MappingView {
            range: range(entry.addr, entry.len),
            frame: index[&entry.frame],
            stale: entry.state != MappingState::Current,
            peers: entry.access.as_ref().map_or(0, Vec::len),
        });
        let of_kind = |kinds: &'static [Kind]| {
            self.extents.iter().map(|(_, e)| e).filter(|e| kinds.contains(&e.kind))
        };
        Snapshot {
            stats: self.stats(frame_kind),
            regions: self.regions().map(|region| range(region.base, region.len)).collect(),
            mappings: mappings.collect(),
            frames,
            peers: self.peers.members().to_vec(),
            leases: of_kind(&[Kind::Live, Kind::Retired])
                .map(|extent| self.lease_view(extent))
                .collect(),
            free: of_kind(&[Kind::Free])
                .map(|extent| FreeView {
                    range: range(extent.addr, extent.len),
                    stream: (extent.stream != READY).then(|| self.timelines.id(extent.stream)),
                    private_pool: self.tenancies.tenant(extent.arena),
                })
                .collect(),
            private_pools: self.private_views(),
        }
    }

    fn lease_view(&self, extent: &Extent) -> LeaseView {
        LeaseView {
            addr: DeviceAddr(extent.addr),
            len: extent.len,
            requested: extent.requested,
            owner: self.owners.name(extent.owner).to_owned(),
            stream: self.timelines.id(extent.stream),
            count: extent.count,
            private_pool: self.tenancies.tenant(extent.arena),
        }
    }

    fn private_views(&self) -> Vec<PrivateView> {
        let view = |(id, domain): (PrivateId, DomainId)| {
            let arenas = &self.arenas.of(domain);
            let regions = arenas.iter().flat_map(|arena| arena.regions.iter());
            PrivateView {
                id,
                regions: regions.map(|(_, region)| range(region.base, region.len)).collect(),
                reserved_bytes: arenas.iter().map(|arena| arena.mapped).sum(),
            }
        };
        self.tenancies.living().map(view).collect()
    }

    /// The names with the most live bytes, largest first.
    pub(crate) fn largest_owners(&self, most: usize) -> Vec<(String, u64)> {
        let mut bytes: HashMap<u32, u64> = HashMap::new();
        for (_, extent) in self.extents.iter().filter(|(_, extent)| extent.kind == Kind::Live) {
            *bytes.entry(extent.owner).or_default() += extent.len;
        }
        let mut owners: Vec<_> = bytes
            .into_iter()
            .map(|(owner, bytes)| (self.owners.name(owner).to_owned(), bytes))
            .collect();
        owners.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        owners.truncate(most);
        owners
    }

    /// The largest request in a domain that free extents, idle frames and, unless the device is
    /// full, new frames could serve now.
    pub(crate) fn largest_possible(&self, device_full: bool, domain: DomainId) -> u64 {
        if self.budget.plain {
            return self.largest_plain(device_full, domain);
        }
        let longest_in = if domain == GENERAL { LARGE } else { domain };
        let mut idle = 0;
        let mut longest = 0;
        for (id, extent) in self.extents.iter().filter(|(_, extent)| extent.kind == Kind::Free) {
            if extent.arena == longest_in {
                longest = longest.max(extent.len);
            }
            if domain_of(extent.arena) == GENERAL {
                let whole = self.whole_mappings(id);
                idle += whole.iter().map(|m| self.frames.mappings[*m].len).sum::<u64>();
            }
        }
        let room = match self.budget.limit {
            Some(limit) if !device_full => limit.saturating_sub(self.counters.reserved_bytes),
            _ => 0,
        };
        longest.max(idle + room / self.budget.granule * self.budget.granule)
    }
}

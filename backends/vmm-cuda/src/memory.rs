//! What lives on the device: frames, reservations and mappings, by this device's own accounts.
//!
//! The driver needs none of this. It serves to put mappings back when an unmap fails half-way, to
//! know which frames lie in host memory, and to say what is left.

use std::collections::{BTreeMap, HashMap};
use vmm_core::device::{AddrRange, FrameKind};
use vmm_core::units::{DeviceAddr, FrameHandle};

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) len: u64,
    pub(crate) kind: FrameKind,
    /// What the driver has returned for a plain allocation; 0 for a frame that can be mapped.
    pub(crate) base: u64,
}

/// A mapping, and who may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) range: AddrRange,
    pub(crate) frame: FrameHandle,
    pub(crate) access: bool,
    /// The other devices that may use it, as the driver names them.
    pub(crate) peers: Vec<i32>,
}

/// The accounts.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    frames: HashMap<FrameHandle, Frame>,
    regions: BTreeMap<DeviceAddr, u64>,
    mappings: BTreeMap<DeviceAddr, Mapped>,
}

impl Accounts {
    pub(crate) fn add_region(&mut self, base: DeviceAddr, len: u64) {
        self.regions.insert(base, len);
    }

    pub(crate) fn remove_region(&mut self, base: DeviceAddr) {
        self.regions.remove(&base);
    }

    pub(crate) fn add_frame(&mut self, handle: FrameHandle, frame: Frame) {
        self.frames.insert(handle, frame);
    }

    pub(crate) fn frame(&self, handle: FrameHandle) -> Option<Frame> {
        self.frames.get(&handle).copied()
    }

    pub(crate) fn remove_frame(&mut self, handle: FrameHandle) {
        self.frames.remove(&handle);
    }

    pub(crate) fn add_mapping(&mut self, mapped: Mapped) {
        self.mappings.insert(mapped.range.addr, mapped);
    }

    /// Takes the mappings that lie in a range, in the order of addresses.
    pub(crate) fn take_mappings(&mut self, range: AddrRange) -> Vec<Mapped> {
        let addrs: Vec<_> = self.mappings.range(range.addr..range.end()).map(|(a, _)| *a).collect();
        addrs.iter().filter_map(|addr| self.mappings.remove(addr)).collect()
    }

    /// Notes that the device and these others may use a range.
    pub(crate) fn grant(&mut self, range: AddrRange, peers: &[i32]) {
        for (_, mapped) in self.mappings.range_mut(range.addr..range.end()) {
            mapped.access = true;
            for peer in peers {
                if !mapped.peers.contains(peer) {
                    mapped.peers.push(*peer);
                }
            }
        }
    }

    /// The parts of a range that show host memory, neighbours joined.
    pub(crate) fn host_parts(&self, range: AddrRange) -> Vec<AddrRange> {
        let mut parts: Vec<AddrRange> = Vec::new();
        for mapped in self.mappings.range(range.addr..range.end()).map(|(_, mapped)| mapped) {
            if self.frame(mapped.frame).is_none_or(|frame| frame.kind != FrameKind::Host) {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end() == mapped.range.addr => last.len += mapped.range.len,
                _ => parts.push(mapped.range),
            }
        }
        parts
    }

    /// The ranges of all mappings, all frames, all reservations.
    pub(crate) fn all(&self) -> (Vec<AddrRange>, Vec<FrameHandle>, Vec<AddrRange>) {
        let mappings = self.mappings.values().map(|mapped| mapped.range).collect();
        let regions = self.regions.iter().map(|(&addr, &len)| AddrRange { addr, len }).collect();
        (mappings, self.frames.keys().copied().collect(), regions)
    }

    /// Everything that lives, in words.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let mappings = self.mappings.values().map(|mapped| {
            format!("mapping of {} bytes at {}", mapped.range.len, mapped.range.addr)
        });
        let frames = self.frames.iter().map(|(handle, frame)| {
            format!("{:?} frame of {} bytes ({:#x})", frame.kind, frame.len, handle.0)
        });
        let regions =
            self.regions.iter().map(|(base, len)| format!("reservation of {len} bytes at {base}"));
        mappings.chain(frames).chain(regions).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const G: u64 = 2 << 20;

    fn mapped(page: u64, frame: u64) -> Mapped {
        let range = AddrRange { addr: DeviceAddr(page * G), len: G };
        Mapped { range, frame: FrameHandle(frame), access: false, peers: Vec::new() }
    }

    fn pages(first: u64, count: u64) -> AddrRange {
        AddrRange { addr: DeviceAddr(first * G), len: count * G }
    }

    #[test]
    fn mappings_come_out_with_the_access_that_they_had() {
        let mut accounts = Accounts::default();
        for page in 1..=3 {
            accounts.add_mapping(mapped(page, page));
        }
        accounts.grant(pages(1, 2), &[1]);
        accounts.grant(pages(2, 2), &[1, 2]);
        let out = accounts.take_mappings(pages(1, 3));
        let seen: Vec<_> = out.iter().map(|m| (m.frame.0, m.access, m.peers.clone())).collect();
        assert_eq!(seen, [(1, true, vec![1]), (2, true, vec![1, 2]), (3, true, vec![1, 2])]);
        assert_eq!(accounts.take_mappings(pages(1, 3)), []);
    }

    #[test]
    fn host_memory_is_found_in_runs() {
        let mut accounts = Accounts::default();
        for (handle, kind) in [(1, FrameKind::Host), (2, FrameKind::Device)] {
            accounts.add_frame(FrameHandle(handle), Frame { len: G, kind, base: 0 });
        }
        for (page, frame) in [(1, 1), (2, 1), (3, 2), (4, 1)] {
            accounts.add_mapping(mapped(page, frame));
        }
        assert_eq!(accounts.host_parts(pages(1, 4)), [pages(1, 2), pages(4, 1)]);
        assert_eq!(accounts.host_parts(pages(3, 1)), []);
    }

    #[test]
    fn what_is_left_is_named() {
        let mut accounts = Accounts::default();
        assert!(accounts.leftovers().is_empty());
        accounts.add_region(DeviceAddr(G), 4 * G);
        accounts.add_frame(FrameHandle(1), Frame { len: G, kind: FrameKind::Device, base: 0 });
        accounts.add_mapping(mapped(1, 1));
        assert_eq!(accounts.leftovers().len(), 3);
        accounts.take_mappings(pages(1, 1));
        accounts.remove_frame(FrameHandle(1));
        accounts.remove_region(DeviceAddr(G));
        assert!(accounts.leftovers().is_empty());
    }
}

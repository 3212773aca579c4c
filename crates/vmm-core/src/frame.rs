//! Frames and their mappings.
//!
//! | mapping | bytes with their address here | frame | becomes |
//! |---|---|---|---|
//! | `Current` | some | serves | `Stale` once the last of them has moved on |
//! | `Stale` | none | serves at another address, or is leaving | `Leaving` once its uses are over |
//! | `Leaving` | none | as before | gone, when the step that unmaps it comes back; `Stale` if that fails |
//!
//! A stale mapping stays because queued work may still use it. It holds no memory of its own.

use crate::extent::ExtentId;
use crate::region::RegionRef;
use crate::table::Table;
use crate::timeline::Point;
use crate::units::{DeviceOrdinal, FrameHandle};

pub(crate) type FrameId = u32;
pub(crate) type MappingId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MappingState {
    Current,
    Stale,
    Leaving,
}

#[derive(Debug)]
pub(crate) struct MappingEntry {
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) frame: FrameId,
    pub(crate) at: RegionRef,
    pub(crate) state: MappingState,
    /// The `Dead` extents in its range, in no order. They are never joined, so that ids last.
    pub(crate) dead: Vec<ExtentId>,
    pub(crate) dead_bytes: u64,
    /// Where the uses of its dead bytes end, each stream once.
    pub(crate) uses: Vec<Point>,
    /// The peers that have access, besides this device; `None` if not even this device has.
    pub(crate) access: Option<Vec<DeviceOrdinal>>,
    /// A peer is being given access: the mapping stays until that is done.
    pub(crate) pinned: bool,
}

impl MappingEntry {
    pub(crate) fn end(&self) -> u64 {
        self.addr + self.len
    }

    /// Whether some of its bytes have moved on, but not all.
    pub(crate) fn is_split(&self) -> bool {
        self.dead_bytes > 0 && self.dead_bytes < self.len
    }

    /// Notes that `extent` has moved on, and where its uses end.
    pub(crate) fn add_dead(&mut self, extent: ExtentId, len: u64, point: Point) {
        self.dead.push(extent);
        self.dead_bytes += len;
        match self.uses.iter_mut().find(|known| known.stream == point.stream) {
            Some(known) => known.epoch = known.epoch.max(point.epoch),
            None => self.uses.push(point),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) handle: FrameHandle,
    pub(crate) len: u64,
    pub(crate) mappings: Vec<MappingId>,
    /// To be released once it has no mapping. It serves nobody any more.
    pub(crate) leaving: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(crate) frames: Table<Frame>,
    pub(crate) mappings: Table<MappingEntry>,
    /// Mappings that are stale or leaving, oldest first.
    pub(crate) stale: Vec<MappingId>,
    /// Frames with mappings of which some bytes have moved on.
    pub(crate) split: Vec<FrameId>,
    /// Frames that go as soon as they have no mapping.
    pub(crate) leaving: Vec<FrameId>,
    /// The longest frame ever made, in bytes.
    pub(crate) longest: u64,
    /// Bytes of all frames.
    pub(crate) bytes: u64,
}

/// Frames that a pool holds, and their bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) frames: usize,
    pub(crate) bytes: u64,
}

impl Frames {
    pub(crate) fn held(&self) -> Held {
        Held { frames: self.frames.len(), bytes: self.bytes }
    }

    pub(crate) fn add(&mut self, handle: FrameHandle, len: u64) -> FrameId {
        self.longest = self.longest.max(len);
        self.bytes += len;
        self.frames.add(Frame { handle, len, mappings: Vec::new(), leaving: false })
    }

    /// Forgets a frame that was released.
    pub(crate) fn remove(&mut self, frame: FrameId) -> Frame {
        let frame = self.frames.remove(frame);
        self.bytes -= frame.len;
        frame
    }

    /// Lets a frame go as soon as its mappings are gone.
    pub(crate) fn send_away(&mut self, frame: FrameId) {
        self.frames[frame].leaving = true;
        self.leaving.push(frame);
    }

    /// Takes back [`Self::send_away`].
    pub(crate) fn keep(&mut self, frame: FrameId) {
        if std::mem::take(&mut self.frames[frame].leaving) {
            self.leaving.retain(|id| *id != frame);
        }
    }

    /// Keeps the list of split frames right after a change to one of a frame's mappings.
    pub(crate) fn note_split(&mut self, frame: FrameId) {
        let split = self.frames[frame].mappings.iter().any(|id| self.mappings[*id].is_split());
        match (split, self.split.iter().position(|id| *id == frame)) {
            (true, None) => self.split.push(frame),
            (false, Some(index)) => {
                self.split.swap_remove(index);
            }
            _ => {}
        }
    }
}

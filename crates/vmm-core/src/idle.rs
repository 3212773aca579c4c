//! Which frames, and which ends of frames, can move to another address.

use crate::arena::{ArenaId, LARGE, SMALL, is_short};
use crate::extent::{ExtentId, Kind, NONE};
use crate::frame::{FrameId, MappingId};
use crate::growth::Means;
use crate::state::State;
use crate::timeline::{Point, READY, StreamSlot};
use smallvec::{SmallVec, smallvec};

/// Free bytes of one mapping that move on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) extent: ExtentId,
    pub(crate) mapping: MappingId,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// A frame of which nobody holds a byte.
#[derive(Clone, Debug)]
pub(crate) struct IdleFrame {
    pub(crate) frame: FrameId,
    pub(crate) len: u64,
    /// All its bytes: one part, several if some had moved before, none if it was leaving.
    pub(crate) parts: SmallVec<[Part; 1]>,
    /// A peer was given access where it is, which a move would cost.
    pub(crate) granted: bool,
}

/// The free end of a frame that is otherwise in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeEnd {
    pub(crate) frame: FrameId,
    pub(crate) frame_len: u64,
    pub(crate) part: Part,
}

/// Free extents that a request may draw on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserve {
    pub(crate) arena: ArenaId,
    pub(crate) slot: StreamSlot,
    /// This one stays where it is.
    pub(crate) except: Option<ExtentId>,
}

impl State {
    /// Idle frames, best to take first: those of leases as long as the request, in the shortest free
    /// extents, because long runs are worth keeping whole. What peers were given comes last. Frames of
    /// private pools are nobody else's.
    pub(crate) fn idle_frames(&self, reserve: Reserve, means: Means) -> Vec<IdleFrame> {
        let order: &[ArenaId] = match (is_short(reserve.arena), means.borrow) {
            (false, _) => &[LARGE, SMALL],
            (true, true) => &[SMALL, LARGE],
            (true, false) => &[SMALL],
        };
        let mut all = self.leaving_frames(reserve, means);
        all.extend(self.split_idle_frames(reserve, means));
        for arena in order {
            let mut extents = self.drawable(*arena, reserve, means, self.budget.granule);
            extents.sort_by_key(|id| (self.extents[*id].len, self.extents[*id].addr));
            for extent in extents {
                all.extend(self.whole_mappings(extent).into_iter().rev().map(|mapping| {
                    let entry = &self.frames.mappings[mapping];
                    let part = Part { extent, mapping, addr: entry.addr, len: entry.len };
                    let granted = self.peers.exceeds_pool(entry);
                    IdleFrame {
                        frame: entry.frame,
                        len: entry.len,
                        parts: smallvec![part],
                        granted,
                    }
                }));
            }
        }
        all.sort_by_key(|frame| frame.granted);
        all
    }

    pub(crate) fn drawable(
        &self,
        arena: ArenaId,
        reserve: Reserve,
        means: Means,
        least: u64,
    ) -> Vec<ExtentId> {
        let arena = &self.arenas[arena];
        let mut extents: Vec<ExtentId> = arena.free(&self.extents, reserve.slot, least).collect();
        if reserve.slot != READY {
            extents.extend(arena.free(&self.extents, READY, least));
        }
        extents
            .retain(|id| Some(*id) != reserve.except && (!means.unmap_first || self.is_over(*id)));
        extents
    }

    /// Whether the last use of a free extent is known to be over.
    pub(crate) fn is_over(&self, id: ExtentId) -> bool {
        let extent = &self.extents[id];
        self.timelines.is_reached(Point { stream: extent.stream, epoch: extent.epoch })
    }

    /// Mappings that lie in an extent with all their bytes, by address.
    pub(crate) fn whole_mappings(&self, id: ExtentId) -> Vec<MappingId> {
        let extent = &self.extents[id];
        let region = self.arenas[extent.arena].region(extent.region);
        let mut found = Vec::new();
        let mut at = extent.addr;
        while at < extent.end() {
            let mapping = region.mapping_at(at).expect("a mapping under free memory");
            let entry = &self.frames.mappings[mapping];
            if entry.addr >= extent.addr && entry.end() <= extent.end() {
                found.push(mapping);
            }
            at = entry.end();
        }
        found
    }

    /// Frames that were about to go, and that the taker comes after. None of their bytes has an
    /// address.
    fn leaving_frames(&self, reserve: Reserve, means: Means) -> Vec<IdleFrame> {
        let leaving = self.frames.leaving.iter().filter(|_| !means.unmap_first);
        leaving
            .filter(|frame| {
                self.uses_of(**frame)
                    .all(|use_| use_.stream == reserve.slot || self.timelines.is_reached(use_))
            })
            .map(|frame| IdleFrame {
                frame: *frame,
                len: self.frames.frames[*frame].len,
                parts: SmallVec::new(),
                granted: false,
            })
            .collect()
    }

    /// Where the uses of a frame's stale mappings end.
    pub(crate) fn uses_of(&self, frame: FrameId) -> impl Iterator<Item = Point> + '_ {
        let mappings = self.frames.frames[frame].mappings.iter();
        mappings.flat_map(|mapping| self.frames.mappings[*mapping].uses.iter().copied())
    }

    /// Idle frames whose bytes have several addresses. They come first: moving them mends them.
    fn split_idle_frames(&self, reserve: Reserve, means: Means) -> Vec<IdleFrame> {
        let frames = self.frames.split.iter().filter(|_| !means.unmap_first);
        frames
            .filter_map(|frame| {
                let len = self.frames.frames[*frame].len;
                let parts = self.free_parts(*frame, reserve)?;
                let granted = parts
                    .iter()
                    .any(|part| self.peers.exceeds_pool(&self.frames.mappings[part.mapping]));
                Some(IdleFrame { frame: *frame, len, parts, granted })
            })
            .collect()
    }

    /// All bytes of a frame as parts, if all are free for the taker.
    fn free_parts(&self, frame: FrameId, reserve: Reserve) -> Option<SmallVec<[Part; 1]>> {
        let mut parts = SmallVec::new();
        for mapping in &self.frames.frames[frame].mappings {
            let entry = &self.frames.mappings[*mapping];
            if entry.dead_bytes == entry.len {
                continue;
            }
            // A split frame's bytes are spread over its mappings, so each of these has dead ones.
            let mut at = *entry.dead.first()?;
            while self.extents[at].prev != NONE && self.extents[at].addr > entry.addr {
                at = self.extents[at].prev;
            }
            while at != NONE && self.extents[at].addr < entry.end() {
                let extent = &self.extents[at];
                if extent.kind != Kind::Dead {
                    if !self.usable(at, reserve.slot) || Some(at) == reserve.except {
                        return None;
                    }
                    let addr = extent.addr.max(entry.addr);
                    let len = extent.end().min(entry.end()) - addr;
                    parts.push(Part { extent: at, mapping: *mapping, addr, len });
                }
                at = extent.next;
            }
        }
        Some(parts)
    }

    /// Free ends of at least `least` bytes: the last bytes of frames in use, if `last`, or their first.
    pub(crate) fn free_ends(
        &self,
        reserve: Reserve,
        means: Means,
        last: bool,
        least: u64,
    ) -> impl Iterator<Item = FreeEnd> + '_ {
        [LARGE, SMALL]
            .into_iter()
            .flat_map(move |arena| self.drawable(arena, reserve, means, least.max(1)))
            .filter_map(move |id| self.free_end(id, last))
            .filter(move |end| end.part.len >= least)
    }

    /// The end of a frame in use that an extent covers at its front (`last`: the frame's last
    /// bytes) or at its back (the frame's first).
    fn free_end(&self, id: ExtentId, last: bool) -> Option<FreeEnd> {
        let extent = &self.extents[id];
        let region = self.arenas[extent.arena].region(extent.region);
        let mapping = region.mapping_at(if last { extent.addr } else { extent.end() - 1 })?;
        let entry = &self.frames.mappings[mapping];
        let (addr, end) =
            if last { (extent.addr, entry.end()) } else { (entry.addr, extent.end()) };
        let covers = if last {
            entry.addr < addr && end <= extent.end()
        } else {
            end < entry.end() && extent.addr <= addr
        };
        covers.then(|| FreeEnd {
            frame: entry.frame,
            frame_len: entry.len,
            part: Part { extent: id, mapping, addr, len: end - addr },
        })
    }
}

//! What becomes of a growth when its device calls have been made, or have failed.

use crate::device::AddrRange;
use crate::extent::{ExtentId, Kind};
use crate::frame::{FrameId, MappingEntry, MappingId, MappingState};
use crate::region::RegionRef;
use crate::state::{LeaseId, State, Want};
use crate::step::{Failure, Growth, Lost, Source, StillMapped};
use crate::timeline::Point;
use crate::units::{DeviceOrdinal, FrameHandle};

impl State {
    /// Records that a growth's frames are mapped, and makes the lease it was for.
    pub(crate) fn finish_growth(
        &mut self,
        growth: &Growth,
        made: &[FrameHandle],
        want: Option<&Want>,
    ) -> Option<LeaseId> {
        // A queued bind is ordered before later work of the taker alone: all others come after a use
        // of the taker's.
        let mut epoch = if growth.queued { self.timelines.now(growth.slot).epoch } else { 0 };
        let mut made = made.iter();
        let last = growth.pieces.len() - 1;
        for (index, piece) in growth.pieces.iter().enumerate() {
            let frame = match &piece.source {
                Source::New => {
                    self.counters.frames_made += 1;
                    self.frames
                        .add(*made.next().expect("a frame for each new piece"), piece.range.len)
                }
                Source::Moved { frame, parts, .. } => {
                    self.counters.frames_moved += 1;
                    for (mapping, extent) in parts {
                        let point = self.last_use(*extent);
                        if point.stream == growth.slot {
                            epoch = epoch.max(point.epoch);
                        }
                        self.move_on(*mapping, *extent, point);
                        if growth.unmap_first {
                            self.forget_mapping(*mapping);
                        }
                    }
                    if parts.is_empty() {
                        let own = self.uses_of(*frame).filter(|use_| use_.stream == growth.slot);
                        epoch = own.map(|use_| use_.epoch).fold(epoch, u64::max);
                    }
                    *frame
                }
            };
            let access = Some(growth.peers.clone());
            let mapping = self.add_mapping(frame, growth.extent, piece.range, access);
            let edges =
                [growth.front.filter(|_| index == 0), growth.back.filter(|_| index == last)];
            for edge in edges.into_iter().flatten() {
                self.move_on(mapping, edge, Point::REACHED);
            }
        }
        self.steps_under_way -= 1;
        self.counters.made(growth.planned);
        let mut point = Point { stream: growth.slot, epoch };
        if let Some(prefix) = growth.prefix {
            let front = self.last_use(prefix);
            if front.stream == growth.slot {
                point.epoch = point.epoch.max(front.epoch);
            }
            self.set_free(prefix, point);
        }
        let whole = self.set_free(growth.extent, point);
        want.map(|want| self.carve(whole, want))
    }

    /// Where the last use of an extent ends that is free, or was before it was taken out.
    pub(crate) fn last_use(&self, id: ExtentId) -> Point {
        let extent = &self.extents[id];
        Point { stream: extent.stream, epoch: extent.epoch }
    }

    /// Puts back what a growth took out that failed.
    pub(crate) fn fail_growth(&mut self, growth: &Growth, failure: &Failure) {
        for (index, piece) in growth.pieces.iter().enumerate() {
            match &piece.source {
                Source::New => self.counters.unreserve(piece.range.len),
                Source::Moved { frame, parts, .. } => {
                    let lost = failure.lost.iter().find(|(piece, _)| *piece == index);
                    for (mapping, extent) in parts {
                        let point = self.last_use(*extent);
                        if lost.is_some() {
                            self.move_on(*mapping, *extent, point);
                        } else {
                            self.set_free(*extent, point);
                        }
                        if lost.is_some_and(|(_, lost)| *lost == Lost::Unmapped) {
                            self.forget_mapping(*mapping);
                        }
                    }
                    if lost.is_some() || parts.is_empty() {
                        self.frames.send_away(*frame);
                    }
                }
            }
        }
        if let Some(prefix) = growth.prefix {
            let point = self.last_use(prefix);
            self.set_free(prefix, point);
        }
        for (handle, len) in &failure.unreleased {
            self.counters.reserve(*len);
            let frame = self.frames.add(*handle, *len);
            self.frames.send_away(frame);
        }
        for edge in [growth.back, growth.front].into_iter().flatten() {
            // One extent again, as it was before.
            let left = if Some(edge) == growth.back { growth.extent } else { edge };
            self.extents.join_next(left);
        }
        let whole = growth.front.unwrap_or(growth.extent);
        match &failure.still_mapped {
            None => {
                let arena = self.extents[whole].arena;
                self.arenas[arena].set_void(&mut self.extents, whole);
            }
            Some(left) => self.keep_mapped(growth, whole, left),
        }
        self.counters.made(self.frames.held());
        self.steps_under_way -= 1;
    }

    /// Keeps in the accounts a growth that failed and could not be unmapped, or is not known to be gone yet:
    /// maintenance removes it later.
    fn keep_mapped(&mut self, growth: &Growth, mut extent: ExtentId, left: &StillMapped) {
        let mut made = left.made.iter();
        let mut going = Vec::new();
        for (index, piece) in growth.pieces.iter().enumerate() {
            let frame = match &piece.source {
                Source::New => {
                    self.counters.reserve(piece.range.len);
                    let frame = self
                        .frames
                        .add(*made.next().expect("a frame for each new piece"), piece.range.len);
                    self.frames.send_away(frame);
                    frame
                }
                Source::Moved { frame, .. } => *frame,
            };
            let rest = (index + 1 < growth.pieces.len())
                .then(|| self.extents.split(extent, piece.range.len));
            let mapping = self.add_mapping(frame, extent, piece.range, None);
            self.move_on(mapping, extent, Point::REACHED);
            extent = rest.unwrap_or(extent);
            if left.gone.is_some() {
                self.frames.mappings[mapping].state = MappingState::Leaving;
                going.push(mapping);
            }
        }
        self.unbinding.extend(left.gone.map(|fence| (fence, going)));
    }

    /// Records a mapping that begins in `extent`.
    pub(crate) fn add_mapping(
        &mut self,
        frame: FrameId,
        extent: ExtentId,
        range: AddrRange,
        access: Option<Vec<DeviceOrdinal>>,
    ) -> MappingId {
        let (addr, len) = (range.addr.0, range.len);
        let at =
            RegionRef { arena: self.extents[extent].arena, region: self.extents[extent].region };
        let id = self.frames.mappings.add(MappingEntry {
            addr,
            len,
            frame,
            at,
            state: MappingState::Current,
            dead: Vec::new(),
            dead_bytes: 0,
            uses: Vec::new(),
            access,
            pinned: false,
        });
        self.frames.frames[frame].mappings.push(id);
        let arena = &mut self.arenas[at.arena];
        arena.mapped += len;
        arena.region_mut(at.region).set_mapping(addr, len, Some(id));
        id
    }

    /// Records that an extent's bytes have no address in this mapping any more. The mapping is
    /// stale once that holds for all of its bytes.
    pub(crate) fn move_on(&mut self, mapping: MappingId, extent: ExtentId, point: Point) {
        self.extents[extent].kind = Kind::Dead;
        let entry = &mut self.frames.mappings[mapping];
        debug_assert_eq!(entry.state, MappingState::Current);
        entry.add_dead(extent, self.extents[extent].len, point);
        let frame = entry.frame;
        if entry.dead_bytes == entry.len {
            entry.state = MappingState::Stale;
            self.arenas[entry.at.arena].mapped -= entry.len;
            self.counters.stale_bytes += entry.len;
            self.frames.stale.push(mapping);
        }
        self.frames.note_split(frame);
    }

    /// Records that a stale mapping is gone.
    pub(crate) fn forget_mapping(&mut self, mapping: MappingId) {
        self.frames.stale.retain(|id| *id != mapping);
        let entry = self.frames.mappings.remove(mapping);
        debug_assert_ne!(entry.state, MappingState::Current);
        self.counters.stale_bytes -= entry.len;
        self.frames.frames[entry.frame].mappings.retain(|id| *id != mapping);
        let arena = &mut self.arenas[entry.at.arena];
        arena.region_mut(entry.at.region).set_mapping(entry.addr, entry.len, None);
        for extent in entry.dead {
            arena.set_void(&mut self.extents, extent);
        }
    }
}

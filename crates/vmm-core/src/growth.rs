//! Growth: where a request goes that no free extent can hold, and which frames go there.
//!
//! Memory that is free in pieces serves a request of any length, because idle frames move: they are
//! mapped a second time, side by side, where addresses are free. Their old mappings become
//! stale and are removed later, so that nobody waits for the work that still uses them.

use crate::arena::{ArenaId, LARGE, SMALL};
use crate::device::FrameKind;
use crate::extent::{ExtentId, Kind, NONE};
use crate::frame::{Frame, FrameId, MappingEntry, MappingId, MappingState};
use crate::state::{LeaseId, State, Want};
use crate::step::{Failure, Growth, Piece, Source, range};
use crate::timeline::{Point, READY, StreamSlot};
use crate::units::{FrameHandle, round_up};

/// What a growth may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// New frames may be made until this many bytes are reserved.
    pub(crate) ceiling: u64,
    /// Idle frames may move.
    pub(crate) idle: bool,
    pub(crate) kind: FrameKind,
    /// The device has no aliases: a frame must leave its old place first, so its uses must be over.
    pub(crate) unmap_first: bool,
    /// The device is nearly full: new frames are no longer than the request needs.
    pub(crate) exact: bool,
    /// Binds are queued on the device.
    pub(crate) queued: bool,
}

/// Where frames could be mapped so that a request fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    void: ExtentId,
    /// Free bytes in front are used too.
    prefix: Option<ExtentId>,
    /// Bytes of frames needed, from the start of the void.
    need: u64,
}

/// An idle frame in a free extent.
#[derive(Clone, Copy, Debug)]
struct IdleFrame {
    extent: ExtentId,
    mapping: MappingId,
    len: u64,
}

impl State {
    /// Decides on frames for a request, or says `None` when the means do not suffice. What is
    /// decided on is out of everybody's reach until [`Self::finish_growth`].
    pub(crate) fn plan_growth(&mut self, want: &Want, means: Means) -> Option<Growth> {
        let arena = want.arena();
        let places = self.places(arena, want);
        // The place that needs least, and if its addresses are too short for the frames that are
        // to be had, the longest one.
        let longest = places.iter().copied().max_by_key(|place| self.extents[place.void].len);
        for place in places.first().copied().into_iter().chain(longest) {
            if let Some(chosen) = self.choose(arena, want.slot, place, means) {
                return Some(self.take_out(arena, want.slot, place, chosen, means));
            }
        }
        None
    }

    /// Decides on one new frame ahead of need, behind the last memory of an arena.
    pub(crate) fn plan_ahead(&mut self, arena: ArenaId, len: u64, means: Means) -> Option<Growth> {
        let extents = &self.extents;
        let ready_before = |void: ExtentId| {
            let prev = extents[void].prev;
            if prev != NONE && extents[prev].kind == Kind::Free && extents[prev].stream == READY {
                extents[prev].len
            } else {
                0
            }
        };
        let void = self.arenas[usize::from(arena)]
            .voids(extents)
            .filter(|void| extents[*void].len >= len)
            .max_by_key(|void| (ready_before(*void), extents[*void].len))?;
        let prefix = Some(extents[void].prev).filter(|_| ready_before(void) > 0);
        let place = Place { void, prefix, need: len };
        Some(self.take_out(arena, READY, place, vec![(None, len)], means))
    }

    /// All places for a request, least need first.
    fn places(&self, arena: ArenaId, want: &Want) -> Vec<Place> {
        let granule = self.budget.granule;
        let mut places: Vec<Place> = self.arenas[usize::from(arena)]
            .voids(&self.extents)
            .filter_map(|void| {
                let gap = &self.extents[void];
                let prefix = Some(gap.prev).filter(|prev| *prev != NONE && self.usable(*prev, want.slot));
                let start = prefix
                    .and_then(|prev| self.extents[prev].aligned(want.alignment))
                    .filter(|start| *start < gap.addr);
                let (prefix, start) = match start {
                    Some(start) => (prefix, start),
                    None => (None, gap.aligned(want.alignment)?),
                };
                let need = round_up(start.checked_add(want.len)?.checked_sub(gap.addr)?, granule)?;
                (need > 0 && need <= gap.len).then_some(Place { void, prefix, need })
            })
            .collect();
        places.sort_by_key(|place| (place.need, self.extents[place.void].len));
        places
    }

    /// Frames for a place: `None` is one to be made.
    fn choose(
        &self,
        arena: ArenaId,
        slot: StreamSlot,
        place: Place,
        means: Means,
    ) -> Option<Vec<(Option<IdleFrame>, u64)>> {
        let room = self.room(means);
        let cap = self.extents[place.void].len;
        let mut chosen = Vec::new();
        let mut missing = place.need;
        if room < missing && means.idle {
            let mut left = cap;
            for frame in self.idle_frames(arena, slot, place.prefix, means) {
                if missing == 0 {
                    break;
                }
                if frame.len <= left {
                    chosen.push((Some(frame), frame.len));
                    missing = missing.saturating_sub(frame.len);
                    left -= frame.len;
                }
            }
        }
        if missing > 0 {
            if room < missing {
                return None;
            }
            let taken: u64 = chosen.iter().map(|(_, len)| len).sum();
            let mut left = cap - taken;
            let mut room = room;
            let frame_len = self.budget.frame_len(arena);
            while missing > 0 {
                // A whole frame where it fits; the rest, which does, otherwise.
                let whole = frame_len <= room.min(left) && !means.exact;
                let len = if whole { frame_len } else { missing.min(frame_len) };
                chosen.push((None, len));
                missing = missing.saturating_sub(len);
                room -= len;
                left -= len;
            }
        }
        Some(chosen)
    }

    pub(crate) fn room(&self, means: Means) -> u64 {
        let reserved = self.counters.reserved_bytes;
        means.ceiling.saturating_sub(reserved).min(self.budget.room(reserved))
    }

    /// Idle frames that a stream may take, best to take first: those of the request's own arena, in
    /// the shortest free extents, because long runs are worth keeping whole.
    fn idle_frames(
        &self,
        arena: ArenaId,
        slot: StreamSlot,
        prefix: Option<ExtentId>,
        means: Means,
    ) -> Vec<IdleFrame> {
        let order = if arena == LARGE { [LARGE, SMALL] } else { [SMALL, LARGE] };
        let mut all = Vec::new();
        for arena in order {
            let granule = self.budget.granule;
            let arena = &self.arenas[usize::from(arena)];
            let mut extents: Vec<ExtentId> = arena.free(&self.extents, slot, granule).collect();
            if slot != READY {
                extents.extend(arena.free(&self.extents, READY, granule));
            }
            extents.retain(|id| {
                let over = || {
                    let extent = &self.extents[*id];
                    self.timelines.is_reached(Point { stream: extent.stream, epoch: extent.epoch })
                };
                Some(*id) != prefix && (!means.unmap_first || over())
            });
            extents.sort_by_key(|id| (self.extents[*id].len, self.extents[*id].addr));
            for extent in extents {
                // Backwards, so that what stays of the extent keeps its id while it is cut.
                all.extend(self.whole_mappings(extent).into_iter().rev().map(|mapping| IdleFrame {
                    extent,
                    mapping,
                    len: self.frames.mappings[mapping].len,
                }));
            }
        }
        all
    }

    /// Mappings that lie in an extent with all their bytes, by address.
    pub(crate) fn whole_mappings(&self, id: ExtentId) -> Vec<MappingId> {
        let extent = &self.extents[id];
        let region = &self.arenas[usize::from(extent.arena)].regions[usize::from(extent.region)];
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

    /// Takes everything that a growth touches out of reach and reserves its new bytes.
    fn take_out(
        &mut self,
        arena: ArenaId,
        slot: StreamSlot,
        place: Place,
        chosen: Vec<(Option<IdleFrame>, u64)>,
        means: Means,
    ) -> Growth {
        if let Some(prefix) = place.prefix {
            self.arenas[usize::from(arena)].remove(&mut self.extents, prefix);
            self.extents[prefix].kind = Kind::Pending;
        }
        let total: u64 = chosen.iter().map(|(_, len)| len).sum();
        let base = self.extents[place.void].addr;
        self.arenas[usize::from(arena)].unlink_void(&mut self.extents, place.void);
        self.extents[place.void].kind = Kind::Pending;
        if self.extents[place.void].len > total {
            let rest = self.extents.split(place.void, total);
            self.arenas[usize::from(arena)].set_void(&mut self.extents, rest);
        }
        let mut addr = base;
        let mut pieces = Vec::with_capacity(chosen.len());
        for (idle, len) in chosen {
            let source = match idle {
                None => {
                    self.counters.reserve(len);
                    Source::New
                }
                Some(idle) => {
                    let entry = &self.frames.mappings[idle.mapping];
                    let old = range(entry.addr, entry.len);
                    let handle = self.frames.frames[entry.frame].handle;
                    let extent = self.cut(idle.extent, entry.addr, entry.len);
                    Source::Idle { mapping: idle.mapping, extent, handle, old }
                }
            };
            pieces.push(Piece { range: range(addr, len), source });
            addr += len;
        }
        self.steps_under_way += 1;
        Growth {
            extent: place.void,
            range: range(base, total),
            pieces,
            prefix: place.prefix,
            slot,
            stream: self.timelines.id(slot),
            kind: means.kind,
            unmap_first: means.unmap_first,
            queued: means.queued && slot != READY,
        }
    }

    /// Cuts a range out of a free extent; the answer is `Pending`. What is below keeps its id.
    pub(crate) fn cut(&mut self, mut id: ExtentId, addr: u64, len: u64) -> ExtentId {
        let arena = &mut self.arenas[usize::from(self.extents[id].arena)];
        arena.remove(&mut self.extents, id);
        if self.extents[id].addr < addr {
            let front = addr - self.extents[id].addr;
            let rest = self.extents.split(id, front);
            arena.insert(&mut self.extents, id);
            id = rest;
        }
        if self.extents[id].len > len {
            let rest = self.extents.split(id, len);
            arena.insert(&mut self.extents, rest);
        }
        self.extents[id].kind = Kind::Pending;
        id
    }

    /// Records that a growth's frames are mapped, and makes the lease it was for.
    pub(crate) fn finish_growth(&mut self, growth: &Growth, made: &[FrameHandle], want: Option<&Want>) -> Option<LeaseId> {
        // A queued bind is ordered before later work of the taker alone: all others come after a use
        // of the taker's.
        let mut epoch = if growth.queued { self.timelines.now(growth.slot).epoch } else { 0 };
        let mut made = made.iter();
        for piece in &growth.pieces {
            let frame = match &piece.source {
                Source::New => {
                    let handle = *made.next().expect("a frame for each new piece");
                    self.counters.frames_made += 1;
                    self.add_frame(handle, piece.range.len)
                }
                Source::Idle { mapping, extent, .. } => {
                    let old = &mut self.extents[*extent];
                    let point = Point { stream: old.stream, epoch: old.epoch };
                    epoch = epoch.max(if old.stream == growth.slot { old.epoch } else { 0 });
                    self.counters.frames_moved += 1;
                    let frame = self.frames.mappings[*mapping].frame;
                    self.make_stale(*mapping, *extent, point);
                    if growth.unmap_first {
                        self.forget_mapping(*mapping);
                    }
                    frame
                }
            };
            self.add_mapping(frame, growth.extent, piece);
        }
        self.end_step();
        let mut point = Point { stream: growth.slot, epoch };
        if let Some(prefix) = growth.prefix {
            let front = &self.extents[prefix];
            if front.stream == growth.slot {
                point.epoch = point.epoch.max(front.epoch);
            }
            self.set_free(prefix, point);
        }
        let whole = self.set_free(growth.extent, point);
        want.map(|want| self.carve(whole, want))
    }

    /// Puts back what a growth took out that failed.
    pub(crate) fn fail_growth(&mut self, growth: &Growth, failure: &Failure) {
        for (index, piece) in growth.pieces.iter().enumerate() {
            match &piece.source {
                Source::New => self.counters.unreserve(piece.range.len),
                Source::Idle { mapping, extent, .. } => {
                    let old = &self.extents[*extent];
                    let point = Point { stream: old.stream, epoch: old.epoch };
                    if failure.lost.contains(&index) {
                        let frame = self.frames.mappings[*mapping].frame;
                        self.make_stale(*mapping, *extent, point);
                        self.forget_mapping(*mapping);
                        self.send_away(frame);
                    } else {
                        self.set_free(*extent, point);
                    }
                }
            }
        }
        if let Some(prefix) = growth.prefix {
            let front = &self.extents[prefix];
            let point = Point { stream: front.stream, epoch: front.epoch };
            self.set_free(prefix, point);
        }
        for (handle, len) in &failure.unreleased {
            self.counters.reserve(*len);
            let frame = self.add_frame(*handle, *len);
            self.send_away(frame);
        }
        match &failure.still_mapped {
            None => {
                let arena = usize::from(self.extents[growth.extent].arena);
                self.arenas[arena].set_void(&mut self.extents, growth.extent);
            }
            Some(made) => self.keep_mapped(growth, made),
        }
        self.end_step();
    }

    /// Keeps in the accounts a growth that failed and could not be unmapped: maintenance removes it
    /// later.
    fn keep_mapped(&mut self, growth: &Growth, made: &[FrameHandle]) {
        let mut made = made.iter();
        let mut extent = growth.extent;
        for (index, piece) in growth.pieces.iter().enumerate() {
            let frame = match &piece.source {
                Source::New => {
                    self.counters.reserve(piece.range.len);
                    let handle = *made.next().expect("a frame for each new piece");
                    let frame = self.add_frame(handle, piece.range.len);
                    self.send_away(frame);
                    frame
                }
                Source::Idle { handle, .. } => {
                    let by_handle = self.frames.frames.iter().find(|(_, frame)| frame.handle == *handle);
                    by_handle.expect("an idle frame stays in the table").0
                }
            };
            let rest = (index + 1 < growth.pieces.len()).then(|| self.extents.split(extent, piece.range.len));
            let mapping = self.add_mapping(frame, extent, piece);
            self.make_stale(mapping, extent, Point::REACHED);
            extent = rest.unwrap_or(extent);
        }
    }

    fn add_frame(&mut self, handle: FrameHandle, len: u64) -> FrameId {
        self.longest_frame = self.longest_frame.max(len);
        self.frames.frames.add(Frame { handle, len, mappings: Vec::new(), leaving: false })
    }

    pub(crate) fn add_mapping(&mut self, frame: FrameId, extent: ExtentId, piece: &Piece) -> MappingId {
        let (addr, len) = (piece.range.addr.0, piece.range.len);
        let (arena, region) = (self.extents[extent].arena, self.extents[extent].region);
        let id = self.frames.mappings.add(MappingEntry {
            addr,
            len,
            frame,
            arena,
            region,
            state: MappingState::Current,
            dead: Vec::new(),
        });
        self.frames.frames[frame].mappings.push(id);
        self.arenas[usize::from(arena)].regions[usize::from(region)].set_mapping(addr, len, Some(id));
        id
    }

    /// Records that the bytes of a mapping, all in `extent`, have no address here any more.
    pub(crate) fn make_stale(&mut self, mapping: MappingId, extent: ExtentId, point: Point) {
        self.extents[extent].kind = Kind::Dead;
        let entry = &mut self.frames.mappings[mapping];
        debug_assert_eq!(entry.state, MappingState::Current);
        entry.state = MappingState::Stale(point);
        entry.dead.push(extent);
        self.counters.stale_bytes += entry.len;
        self.stale.push(mapping);
    }

    /// Records that a stale mapping is gone.
    pub(crate) fn forget_mapping(&mut self, mapping: MappingId) {
        self.stale.retain(|id| *id != mapping);
        let entry = self.frames.mappings.remove(mapping);
        debug_assert_ne!(entry.state, MappingState::Current);
        self.counters.stale_bytes -= entry.len;
        self.frames.frames[entry.frame].mappings.retain(|id| *id != mapping);
        let arena = &mut self.arenas[usize::from(entry.arena)];
        arena.regions[usize::from(entry.region)].set_mapping(entry.addr, entry.len, None);
        for extent in entry.dead {
            arena.set_void(&mut self.extents, extent);
        }
    }

    pub(crate) fn end_step(&mut self) {
        self.steps_under_way -= 1;
    }
}

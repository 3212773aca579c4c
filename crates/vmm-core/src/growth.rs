//! Growth: where a request goes that no free extent can hold, and which frames go there.
//!
//! Memory that is free in pieces serves a request of any length, because idle frames move: they are
//! mapped a second time, side by side, where addresses are free. Their old mappings become
//! stale and are removed later, so that nobody waits for the work that still uses them. When
//! idle frames do not suffice, the run may begin with the free end of one frame in use and end with the
//! free start of another: these are mapped a second time too, and stay where they are for their holders.

use crate::arena::{ArenaId, GENERAL, LARGE, domain_of};
use crate::device::FrameKind;
use crate::extent::{ExtentId, Kind, NONE};
use crate::frame::{FrameId, Held, MappingId};
use crate::idle::{FreeEnd, IdleFrame, Part, Reserve};
use crate::state::{State, Want};
use crate::step::{Growth, Piece, Source, range};
use crate::timeline::READY;
use crate::units::{round_down, round_up};

/// What a growth may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// New frames are made, rather than idle ones moved, until this many bytes are reserved.
    pub(crate) target: u64,
    /// New frames are made for what idle ones cannot serve until this many bytes are reserved.
    pub(crate) ceiling: u64,
    /// Frames of long leases may go to short ones. They are long themselves, and one short lease keeps
    /// a frame from all long ones.
    pub(crate) borrow: bool,
    /// Ends of frames in use may serve.
    pub(crate) ends: bool,
    /// They are used before idle frames that they save.
    pub(crate) thrifty: bool,
    pub(crate) kind: FrameKind,
    /// The device has no aliases: a frame must leave its old place first, so its uses must be over.
    pub(crate) unmap_first: bool,
    /// The device is nearly full: new frames are no longer than the request needs.
    pub(crate) exact: bool,
    /// Binds are queued on the device.
    pub(crate) queued: bool,
    /// Idle frames serve only if no queued work uses them any more. A stream captures a graph into a
    /// private pool: no order between its nodes and that work holds when the graph runs.
    pub(crate) ready_only: bool,
}

impl Means {
    /// What a device without queued binds, whose frames may have several addresses, offers without new frames.
    pub(crate) const MOVES: Self = Self {
        target: 0,
        ceiling: 0,
        borrow: true,
        ends: false,
        thrifty: false,
        kind: FrameKind::Device,
        unmap_first: false,
        exact: false,
        queued: false,
        ready_only: false,
    };
}

/// Where frames could be mapped so that a request fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) void: ExtentId,
    /// Free bytes in front are used too.
    pub(crate) prefix: Option<ExtentId>,
    /// Bytes needed from the start of the void.
    pub(crate) need: u64,
}

/// One frame of a growth.
#[derive(Clone, Debug)]
enum Choice {
    New(u64),
    Idle(IdleFrame),
    /// Its free last bytes, at the front of the growth.
    Front(FreeEnd),
    /// Its free first bytes, at the back.
    Back(FreeEnd),
}

impl Choice {
    fn frame_len(&self) -> u64 {
        match self {
            Self::New(len) => *len,
            Self::Idle(idle) => idle.len,
            Self::Front(end) | Self::Back(end) => end.frame_len,
        }
    }

    fn parts(&self) -> &[Part] {
        match self {
            Self::New(_) => &[],
            Self::Idle(idle) => &idle.parts,
            Self::Front(end) | Self::Back(end) => std::slice::from_ref(&end.part),
        }
    }
}

/// Addresses that frames are sought for.
#[derive(Clone, Copy, Debug)]
struct Gap {
    /// Bytes that are still needed.
    missing: u64,
    /// Bytes that there is room for.
    left: u64,
}

impl Gap {
    /// Fills the gap with few idle frames: the longest that do not exceed it. Among equals those come
    /// first that are listed first. Leaves the others in `idle`.
    fn fill(&mut self, idle: &mut Vec<&IdleFrame>, chosen: &mut Vec<Choice>) {
        idle.sort_by_key(|frame| std::cmp::Reverse(frame.len));
        idle.retain(|frame| {
            let fits = frame.len <= self.missing.min(self.left);
            if fits {
                self.missing -= frame.len;
                self.left -= frame.len;
                chosen.push(Choice::Idle((*frame).clone()));
            }
            !fits
        });
    }

    /// Covers what is still missing with little waste: the shortest idle frame that suffices.
    fn cover(&mut self, idle: &[&IdleFrame], too_long: u64, chosen: &mut Vec<Choice>) {
        let suits = |frame: &&&IdleFrame| {
            frame.len >= self.missing && frame.len <= self.left && frame.len < too_long
        };
        if self.missing > 0
            && let Some(frame) = idle.iter().filter(suits).min_by_key(|frame| frame.len)
        {
            self.missing = 0;
            self.left -= frame.len;
            chosen.push(Choice::Idle((*frame).clone()));
        }
    }
}

/// Whether a frame is among those chosen: its bytes cannot serve twice.
fn names(chosen: &[Choice], frame: FrameId) -> bool {
    chosen.iter().any(|choice| match choice {
        Choice::New(_) => false,
        Choice::Idle(idle) => idle.frame == frame,
        Choice::Front(end) | Choice::Back(end) => end.frame == frame,
    })
}

impl State {
    /// Decides on frames for a request, or says `None` when the means do not suffice. What is
    /// decided on is out of everybody's reach until the growth is finished.
    pub(crate) fn plan_growth(
        &mut self,
        want: &Want,
        means: Means,
        idle: &[IdleFrame],
    ) -> Option<Growth> {
        let arena = want.arena();
        let places = self.places(arena, want);
        // The place that needs least, and if its addresses are too short for the frames that are
        // to be had, the longest one.
        let longest = places.iter().copied().max_by_key(|place| self.extents[place.void].len);
        for place in places.first().copied().into_iter().chain(longest) {
            if let Some(growth) = self.plan_at(want, place, means, idle) {
                return Some(growth);
            }
        }
        let void = longest.filter(|_| means.ends)?.void;
        let reserve = Reserve { arena, slot: want.slot, except: None };
        let front = self.free_ends(reserve, means, true, 1).max_by_key(|end| end.part.len)?;
        self.plan_with_front(want, void, front, means, idle)
    }

    /// A growth at the start of a void, or that is joined to what is free in front of it.
    pub(crate) fn plan_at(
        &mut self,
        want: &Want,
        place: Place,
        means: Means,
        idle: &[IdleFrame],
    ) -> Option<Growth> {
        let reserve = Reserve { arena: want.arena(), slot: want.slot, except: place.prefix };
        let cap = self.extents[place.void].len;
        let chosen = self.choose(place.need, cap, reserve, means, idle, Vec::new())?;
        Some(self.take_out(reserve, place, chosen, means))
    }

    /// A growth at the start of a void that begins inside a frame in use.
    pub(crate) fn plan_with_front(
        &mut self,
        want: &Want,
        void: ExtentId,
        front: FreeEnd,
        means: Means,
        idle: &[IdleFrame],
    ) -> Option<Growth> {
        let need = self.need_behind(&front, void, want)?;
        let place = Place { void, prefix: None, need };
        let reserve = Reserve { arena: want.arena(), slot: want.slot, except: None };
        let cap = self.extents[void].len.checked_sub(front.frame_len)?;
        let chosen = self.choose(need, cap, reserve, means, idle, vec![Choice::Front(front)])?;
        Some(self.take_out(reserve, place, chosen, means))
    }

    /// Bytes that a request needs behind the free end of a frame, if that is mapped at the start of a void.
    pub(crate) fn need_behind(&self, front: &FreeEnd, void: ExtentId, want: &Want) -> Option<u64> {
        let mapped = self.extents[void].addr.checked_add(front.frame_len)?;
        let first = mapped - front.part.len;
        let start = first.checked_add(want.alignment - 1)? & !(want.alignment - 1);
        Some(start.checked_add(want.len)?.saturating_sub(mapped))
    }

    /// Decides on one new frame ahead of need, behind the last memory of an arena.
    pub(crate) fn plan_ahead(&mut self, arena: ArenaId, len: u64, means: Means) -> Option<Growth> {
        let extents = &self.extents;
        let ready_before = |void: ExtentId| {
            let prev = extents[void].prev;
            if prev != NONE && self.usable(prev, READY) { extents[prev].len } else { 0 }
        };
        let void = self.arenas[arena]
            .voids(extents)
            .filter(|void| extents[*void].len >= len)
            .max_by_key(|void| (ready_before(*void), extents[*void].len))?;
        // What is free in front stays in reach: it is joined when the frame is there.
        let place = Place { void, prefix: None, need: len };
        let reserve = Reserve { arena, slot: READY, except: None };
        Some(self.take_out(reserve, place, vec![Choice::New(len)], means))
    }

    /// All places for a request, least need first.
    pub(crate) fn places(&self, arena: ArenaId, want: &Want) -> Vec<Place> {
        let mut places: Vec<Place> = self.arenas[arena]
            .voids(&self.extents)
            .filter_map(|void| {
                let gap = &self.extents[void];
                let prefix =
                    Some(gap.prev).filter(|prev| *prev != NONE && self.usable(*prev, want.slot));
                let start = prefix
                    .and_then(|prev| self.extents[prev].aligned(want.alignment))
                    .filter(|start| *start < gap.addr);
                let (prefix, start) = match start {
                    Some(start) => (prefix, start),
                    None => (None, gap.aligned(want.alignment)?),
                };
                let need = start.checked_add(want.len)?.checked_sub(gap.addr)?;
                (need > 0 && need <= gap.len).then_some(Place { void, prefix, need })
            })
            .collect();
        places.sort_by_key(|place| (place.need, self.extents[place.void].len));
        places
    }

    /// Frames for `need` bytes behind those already chosen, at most `cap` bytes long.
    fn choose(
        &self,
        need: u64,
        cap: u64,
        reserve: Reserve,
        means: Means,
        idle: &[IdleFrame],
        mut chosen: Vec<Choice>,
    ) -> Option<Vec<Choice>> {
        let room = self.room(means.ceiling);
        let mut gap = Gap { missing: need, left: cap };
        if self.room(means.target) < need {
            let stays = |frame: &IdleFrame| {
                let in_prefix = |part: &Part| Some(part.extent) == reserve.except;
                frame.parts.iter().any(in_prefix) || names(&chosen, frame.frame)
            };
            let idle = idle.iter().filter(|frame| !stays(frame));
            let (granted, others) = idle.partition(|frame| frame.granted);
            // Where no new frames can be had in their place, long ones have to do for a rest.
            let may_make = means.ceiling > 0 && self.room(u64::MAX) >= need;
            let longest_rest = self.budget.too_long(LARGE).filter(|_| may_make);
            for mut idle in [others, granted] {
                gap.fill(&mut idle, &mut chosen);
                if means.thrifty
                    && let Some(end) = self.back_end(gap, reserve, means, &chosen)
                {
                    chosen.push(Choice::Back(end));
                    return Some(chosen);
                }
                gap.cover(&idle, longest_rest.unwrap_or(u64::MAX), &mut chosen);
            }
        }
        if gap.missing > 0 && means.ends && room < gap.missing {
            chosen.push(Choice::Back(self.back_end(gap, reserve, means, &chosen)?));
            gap.missing = 0;
        }
        if gap.missing > 0 {
            self.choose_new(gap, room, reserve.arena, means, &mut chosen)?;
        }
        Some(chosen)
    }

    /// The free start of a frame in use that closes a gap: the longest, or the shortest where memory is packed.
    fn back_end(
        &self,
        gap: Gap,
        reserve: Reserve,
        means: Means,
        chosen: &[Choice],
    ) -> Option<FreeEnd> {
        if gap.missing == 0 {
            return None;
        }
        let fits = |end: &FreeEnd| end.frame_len <= gap.left && !names(chosen, end.frame);
        let ends = self.free_ends(reserve, means, false, gap.missing).filter(fits);
        if means.thrifty {
            ends.min_by_key(|end| end.part.len)
        } else {
            ends.max_by_key(|end| end.part.len)
        }
    }

    fn choose_new(
        &self,
        mut gap: Gap,
        mut room: u64,
        arena: ArenaId,
        means: Means,
        chosen: &mut Vec<Choice>,
    ) -> Option<()> {
        gap.missing = round_up(gap.missing, self.budget.granule)?;
        let frame_len = self.growth_len(arena, gap.missing);
        while gap.missing > 0 {
            // A whole frame where it fits; just what is needed otherwise.
            let whole = frame_len <= room.min(gap.left) && !means.exact;
            let len = if whole { frame_len } else { gap.missing.min(frame_len) };
            room = room.checked_sub(len)?;
            gap.left = gap.left.checked_sub(len)?;
            gap.missing = gap.missing.saturating_sub(len);
            chosen.push(Choice::New(len));
        }
        Some(())
    }

    /// The length of a frame made for a request that lacks `missing` bytes. In a private pool it is
    /// short, because its rest serves nobody else: what is missing, or an eighth of what the arena has,
    /// so that many requests make for few calls.
    pub(crate) fn growth_len(&self, arena: ArenaId, missing: u64) -> u64 {
        let len = self.budget.growth_len(arena, missing);
        if domain_of(arena) == GENERAL {
            return len;
        }
        let eighth = round_down(self.arenas[arena].mapped / 8, self.budget.granule);
        len.min(missing.max(eighth))
    }

    /// Bytes of frames that may be made before `ceiling`, or the limit, is passed.
    pub(crate) fn room(&self, ceiling: u64) -> u64 {
        let reserved = self.counters.reserved_bytes;
        round_down(
            ceiling.saturating_sub(reserved).min(self.budget.room(reserved)),
            self.budget.granule,
        )
    }

    /// Takes everything that a growth touches out of reach and reserves its new bytes.
    fn take_out(
        &mut self,
        reserve: Reserve,
        place: Place,
        chosen: Vec<Choice>,
        means: Means,
    ) -> Growth {
        let Reserve { arena, slot, .. } = reserve;
        if let Some(prefix) = place.prefix {
            self.arenas[arena].remove(&mut self.extents, prefix);
            self.extents[prefix].kind = Kind::Pending;
        }
        let total: u64 = chosen.iter().map(Choice::frame_len).sum();
        let base = self.extents[place.void].addr;
        self.arenas[arena].unlink_void(&mut self.extents, place.void);
        self.extents[place.void].kind = Kind::Pending;
        if self.extents[place.void].len > total {
            let rest = self.extents.split(place.void, total);
            self.arenas[arena].set_void(&mut self.extents, rest);
        }
        let cuts = self.cut_all(chosen.iter().map(Choice::parts));
        let mut extent = place.void;
        let front = match chosen.first() {
            Some(Choice::Front(end)) => {
                let dead = extent;
                extent = self.extents.split(extent, end.frame_len - end.part.len);
                Some(dead)
            }
            _ => None,
        };
        let back = match chosen.last() {
            Some(Choice::Back(end)) => {
                let len = self.extents[extent].len - (end.frame_len - end.part.len);
                Some(self.extents.split(extent, len))
            }
            _ => None,
        };
        for choice in &chosen {
            if let Choice::Idle(idle) = choice {
                self.frames.keep(idle.frame);
            }
        }
        let mut addr = base;
        let pieces = chosen.iter().zip(cuts).map(|(choice, parts)| {
            let len = choice.frame_len();
            let piece = Piece { range: range(addr, len), source: self.source(choice, parts) };
            addr += len;
            piece
        });
        let pieces = pieces.collect();
        let new = chosen.iter().filter_map(|choice| match choice {
            Choice::New(len) => Some(*len),
            _ => None,
        });
        let planned = Held {
            frames: self.frames.frames.len() + new.clone().count(),
            bytes: self.counters.reserve(new.sum()),
        };
        self.steps_under_way += 1;
        Growth {
            extent,
            front,
            back,
            range: range(base, total),
            pieces,
            planned,
            prefix: place.prefix,
            slot,
            stream: self.timelines.id(slot),
            kind: means.kind,
            peers: self.peers.wanted().to_vec(),
            unmap_first: means.unmap_first,
            queued: means.queued && slot != READY,
        }
    }

    fn source(&self, choice: &Choice, parts: Vec<(MappingId, ExtentId)>) -> Source {
        let frame = match choice {
            Choice::New(_) => return Source::New,
            Choice::Idle(idle) => idle.frame,
            Choice::Front(end) | Choice::Back(end) => end.frame,
        };
        let old = parts.first().map(|(mapping, _)| {
            let entry = &self.frames.mappings[*mapping];
            range(entry.addr, entry.len)
        });
        Source::Moved { frame, handle: self.frames.frames[frame].handle, parts, old }
    }

    /// Cuts groups of parts out of their free extents; the cuts are `Pending`, and grouped likewise.
    pub(crate) fn cut_all<'a>(
        &mut self,
        groups: impl ExactSizeIterator<Item = &'a [Part]>,
    ) -> Vec<Vec<(MappingId, ExtentId)>> {
        let mut cuts = vec![Vec::new(); groups.len()];
        let mut all: Vec<(usize, Part)> = groups
            .enumerate()
            .flat_map(|(index, parts)| parts.iter().map(move |part| (index, *part)))
            .collect();
        // From above, because what is below a cut keeps the id of the extent.
        all.sort_by_key(|(_, part)| std::cmp::Reverse(part.addr));
        for (index, part) in all {
            cuts[index].push((part.mapping, self.cut(part.extent, part.addr, part.len)));
        }
        cuts
    }

    /// Cuts a range out of a free extent; the answer is `Pending`. What is below keeps its id.
    fn cut(&mut self, id: ExtentId, addr: u64, len: u64) -> ExtentId {
        let arena = &mut self.arenas[self.extents[id].arena];
        let cut = arena.cut(&mut self.extents, id, addr, len);
        self.extents[cut].kind = Kind::Pending;
        cut
    }
}

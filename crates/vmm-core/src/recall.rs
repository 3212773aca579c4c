//! Recall: stale mappings taken back into use, without a device call.
//!
//! A frame that moved is still mapped where it was. If it is idle again when addresses are wanted,
//! its bytes can simply have their address there once more. A program that repeats itself, as
//! training and serving do, so soon finds a place that it built before for each of its long requests.

use crate::extent::{ExtentId, Extents, Kind, NONE};
use crate::frame::{FrameId, MappingId, MappingState};
use crate::idle::IdleFrame;
use crate::state::{LeaseId, State, Want};
use crate::timeline::{Point, StreamSlot};
use std::collections::VecDeque;

/// One piece of a run of addresses that could hold a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// Free memory, as it is.
    Free,
    /// A stale mapping of an idle frame.
    Stale(FrameId),
}

/// Idle frames by their id.
struct Idle<'a>(Vec<Option<&'a IdleFrame>>);

impl Idle<'_> {
    fn get(&self, frame: FrameId) -> Option<&IdleFrame> {
        *self.0.get(frame as usize)?
    }

    /// Whether `extent` holds bytes of a frame.
    fn lies_in(&self, frame: FrameId, extent: ExtentId) -> bool {
        self.get(frame).is_some_and(|idle| idle.parts.iter().any(|part| part.extent == extent))
    }
}

/// A run of links whose stale frames are all different and lie elsewhere.
#[derive(Debug, Default)]
struct Run {
    links: VecDeque<(ExtentId, Link)>,
    len: u64,
    stale: usize,
}

impl State {
    /// Serves a request by recalling stale mappings, if they and free memory between them suffice.
    pub(crate) fn recall(&mut self, want: &Want, idle: &[IdleFrame]) -> Option<LeaseId> {
        if self.frames.stale.is_empty() {
            return None;
        }
        let mut by_id = vec![None; self.frames.frames.places()];
        for frame in idle.iter().filter(|frame| !frame.granted) {
            by_id[frame.frame as usize] = Some(frame);
        }
        let idle = Idle(by_id);
        let links = self.find_run(want, &idle)?;
        Some(self.take_back(want, &links, &idle))
    }

    /// The run of addresses that is long enough and recalls the fewest frames.
    fn find_run(&self, want: &Want, idle: &Idle<'_>) -> Option<Vec<(ExtentId, Link)>> {
        let mut best: Option<(usize, Vec<(ExtentId, Link)>)> = None;
        for (_, region) in self.arenas[want.arena()].regions.iter() {
            let mut run = Run::default();
            let mut at = region.first;
            while at != NONE {
                match self.link(at, want, idle) {
                    None => run = Run::default(),
                    Some(link) => {
                        run.push(at, link, idle, &self.extents);
                        run.shorten(want.len, &self.extents);
                        let cheaper = best.as_ref().is_none_or(|(least, _)| run.stale < *least);
                        if cheaper && run.len >= want.len && self.starts_aligned(&run, want) {
                            best = Some((run.stale, run.links.iter().copied().collect()));
                        }
                    }
                }
                at = self.extents[at].next;
            }
        }
        best.map(|(_, links)| links)
    }

    fn starts_aligned(&self, run: &Run, want: &Want) -> bool {
        let Some((first, _)) = run.links.front() else { return false };
        let start = &self.extents[*first];
        start.aligned(want.alignment).is_some_and(|addr| addr - start.addr + want.len <= run.len)
    }

    fn link(&self, at: ExtentId, want: &Want, idle: &Idle<'_>) -> Option<Link> {
        let extent = &self.extents[at];
        match extent.kind {
            Kind::Free => self.usable(at, want.slot).then_some(Link::Free),
            Kind::Dead => {
                let region = self.arenas[extent.arena].region(extent.region);
                let entry = &self.frames.mappings[region.mapping_at(extent.addr)?];
                let whole = entry.state == MappingState::Stale && entry.dead.len() == 1;
                let usable = self.peers.has_all(entry);
                (whole && usable && idle.get(entry.frame).is_some())
                    .then_some(Link::Stale(entry.frame))
            }
            _ => None,
        }
    }

    /// Gives the frames of a run their addresses there, and makes the lease.
    fn take_back(&mut self, want: &Want, links: &[(ExtentId, Link)], idle: &Idle<'_>) -> LeaseId {
        let frame_of = |link: &Link| match link {
            Link::Free => None,
            Link::Stale(frame) => Some(idle.get(*frame).expect("a frame of the run is idle")),
        };
        let frames: Vec<&IdleFrame> = links.iter().filter_map(|(_, link)| frame_of(link)).collect();
        let mut cuts = self.cut_all(frames.iter().map(|frame| frame.parts.as_slice())).into_iter();
        // Extents vanish when they are joined, so that addresses tell which are in already.
        let links: Vec<_> =
            links.iter().map(|(id, link)| (*id, self.extents[*id].addr, *link)).collect();
        let mut whole = NONE;
        for (extent, addr, link) in links {
            whole = match frame_of(&link) {
                None if whole != NONE && addr < self.extents[whole].end() => whole,
                None if self.extents[extent].stream == want.slot => extent,
                None => self.reassign(extent, Point { stream: want.slot, epoch: 0 }),
                Some(frame) => {
                    let parts = cuts.next().expect("a cut for each frame");
                    let point = self.come_back(frame.frame, parts, want.slot);
                    self.revive(extent);
                    self.set_free(extent, point)
                }
            };
        }
        self.carve(whole, want)
    }

    /// Takes a frame from where it is; says where its uses by `slot` end.
    fn come_back(
        &mut self,
        frame: FrameId,
        parts: Vec<(MappingId, ExtentId)>,
        slot: StreamSlot,
    ) -> Point {
        let mut point = Point { stream: slot, epoch: 0 };
        let mut note = |last: Point| {
            if last.stream == slot {
                point.epoch = point.epoch.max(last.epoch);
            }
        };
        self.uses_of(frame).for_each(&mut note);
        for (_, part) in &parts {
            note(self.last_use(*part));
        }
        for (mapping, part) in parts {
            let last = self.last_use(part);
            self.move_on(mapping, part, last);
        }
        self.frames.keep(frame);
        self.counters.frames_recalled += 1;
        point
    }

    /// Makes a stale mapping current again; its one extent is about to be free.
    fn revive(&mut self, extent: ExtentId) {
        let place = &self.extents[extent];
        let region = self.arenas[place.arena].region(place.region);
        let mapping: MappingId =
            region.mapping_at(place.addr).expect("a mapping under a dead extent");
        let entry = &mut self.frames.mappings[mapping];
        entry.state = MappingState::Current;
        entry.dead.clear();
        entry.dead_bytes = 0;
        // Whoever used it before is ordered before whoever gets it now, and that one is noted anew.
        entry.uses.clear();
        self.arenas[place.arena].mapped += entry.len;
        self.counters.stale_bytes -= entry.len;
        self.frames.stale.retain(|id| *id != mapping);
    }
}

impl Run {
    /// Adds a link at the end, and drops from the front what contradicts it: the same frame again, or
    /// a frame that is to be recalled out of this very run.
    fn push(&mut self, at: ExtentId, link: Link, idle: &Idle<'_>, extents: &Extents) {
        let contradicts = |(extent, other): &(ExtentId, Link)| match (link, *other) {
            (Link::Stale(frame), Link::Stale(known)) => frame == known,
            (Link::Stale(frame), Link::Free) => idle.lies_in(frame, *extent),
            (Link::Free, Link::Stale(known)) => idle.lies_in(known, at),
            (Link::Free, Link::Free) => false,
        };
        if let Some(last) = self.links.iter().rposition(contradicts) {
            for _ in 0..=last {
                self.drop_first(extents);
            }
        }
        self.links.push_back((at, link));
        self.len += extents[at].len;
        self.stale += usize::from(link != Link::Free);
    }

    /// Drops links from the front that the request does not need.
    fn shorten(&mut self, need: u64, extents: &Extents) {
        while let Some((first, _)) = self.links.front() {
            if self.len - extents[*first].len < need {
                break;
            }
            self.drop_first(extents);
        }
    }

    fn drop_first(&mut self, extents: &Extents) {
        let (at, link) = self.links.pop_front().expect("a run with links");
        self.len -= extents[at].len;
        self.stale -= usize::from(link != Link::Free);
    }
}

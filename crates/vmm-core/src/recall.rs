//! Recall: stale mappings taken back into use, without a device call.
//!
//! A frame that moved is still mapped where it was. If it is idle again when addresses are wanted,
//! its bytes can simply have their address there once more. A program that repeats itself, as
//! training and serving do, so soon finds a place that it built before for each of its long requests.

use crate::arena::ArenaId;
use crate::extent::{ExtentId, Kind, NONE};
use crate::frame::{FrameId, MappingId, MappingState};
use crate::growth::Means;
use crate::idle::{IdleFrame, Reserve};
use crate::state::{LeaseId, State, Want};
use std::collections::{HashMap, VecDeque};

/// One piece of a run of addresses that could hold a request.
#[derive(Clone, Copy, Debug)]
enum Link {
    /// Free memory, as it is.
    Free,
    /// A stale mapping of an idle frame.
    Stale(FrameId),
}

/// A run of links whose frames are all different and all elsewhere.
#[derive(Debug, Default)]
struct Run {
    links: VecDeque<(ExtentId, Link)>,
    len: u64,
    /// Frames that the run recalls, and extents that it contains.
    frames: HashMap<FrameId, usize>,
    extents: HashMap<ExtentId, usize>,
    dropped: usize,
}

impl State {
    /// Serves a request by recalling stale mappings, if they and free memory between them suffice.
    pub(crate) fn recall(&mut self, want: &Want, means: Means) -> Option<LeaseId> {
        if self.frames.stale.is_empty() {
            return None;
        }
        let reserve = Reserve { arena: want.arena(), slot: want.slot, except: None };
        let idle: HashMap<FrameId, IdleFrame> = self
            .idle_frames(reserve, means)
            .into_iter()
            .map(|frame| (frame.frame, frame))
            .collect();
        let links = self.find_run(want, &idle)?;
        Some(self.take_back(want, links, idle))
    }

    /// The first run of addresses long enough; of several, that which recalls the fewest frames.
    fn find_run(
        &self,
        want: &Want,
        idle: &HashMap<FrameId, IdleFrame>,
    ) -> Option<Vec<(ExtentId, Link)>> {
        let arena: ArenaId = want.arena();
        let mut best: Option<(usize, Vec<(ExtentId, Link)>)> = None;
        for region in &self.arenas[usize::from(arena)].regions {
            let mut run = Run::default();
            let mut at = region.first;
            while at != NONE {
                match self.link(at, want, idle) {
                    None => run.clear(),
                    Some(link) => {
                        run.push(at, self.extents[at].len, link, idle, &self.extents);
                        run.shorten(want.len, &self.extents);
                        if run.len >= want.len && self.starts_aligned(&run, want) {
                            let cost = run.frames.len();
                            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                                best = Some((cost, run.links.iter().copied().collect()));
                            }
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

    fn link(&self, at: ExtentId, want: &Want, idle: &HashMap<FrameId, IdleFrame>) -> Option<Link> {
        let extent = &self.extents[at];
        match extent.kind {
            Kind::Free => self.usable(at, want.slot).then_some(Link::Free),
            Kind::Dead => {
                let region =
                    &self.arenas[usize::from(extent.arena)].regions[usize::from(extent.region)];
                let entry = &self.frames.mappings[region.mapping_at(extent.addr)?];
                let whole = entry.state == MappingState::Stale && entry.dead.len() == 1;
                (whole && idle.contains_key(&entry.frame)).then_some(Link::Stale(entry.frame))
            }
            _ => None,
        }
    }

    /// Gives the frames of a run their addresses there, and makes the lease.
    fn take_back(
        &mut self,
        want: &Want,
        links: Vec<(ExtentId, Link)>,
        mut idle: HashMap<FrameId, IdleFrame>,
    ) -> LeaseId {
        let stale: Vec<(ExtentId, IdleFrame)> = links
            .iter()
            .filter_map(|(extent, link)| match link {
                Link::Free => None,
                Link::Stale(frame) => {
                    Some((*extent, idle.remove(frame).expect("a frame of the run is idle")))
                }
            })
            .collect();
        let cuts = self.cut_all(stale.iter().map(|(_, frame)| frame.parts.as_slice()));
        let mut first = links[0].0;
        for ((extent, frame), parts) in stale.iter().zip(cuts) {
            self.frames.keep(frame.frame);
            let mut point = self.timelines.now(want.slot);
            point.epoch = 0;
            for (mapping, part) in parts {
                let last = self.last_use(part);
                if last.stream == want.slot {
                    point.epoch = point.epoch.max(last.epoch);
                }
                self.move_on(mapping, part, last);
            }
            let own = self.uses_of(frame.frame).filter(|use_| use_.stream == want.slot);
            point.epoch = own.map(|use_| use_.epoch).fold(point.epoch, u64::max);
            self.revive(*extent);
            self.counters.frames_recalled += 1;
            let joined = self.set_free(*extent, point);
            if *extent == first {
                first = joined;
            }
        }
        self.join_ready(want.slot);
        self.take(want).expect("a run that was just joined fits")
    }

    /// Makes a stale mapping current again; its one extent is about to be free.
    fn revive(&mut self, extent: ExtentId) {
        let place = &self.extents[extent];
        let region = &self.arenas[usize::from(place.arena)].regions[usize::from(place.region)];
        let mapping: MappingId =
            region.mapping_at(place.addr).expect("a mapping under a dead extent");
        let entry = &mut self.frames.mappings[mapping];
        entry.state = MappingState::Current;
        entry.dead.clear();
        entry.dead_bytes = 0;
        // Whoever used it before is ordered before whoever gets it now, and that one is noted anew.
        entry.uses.clear();
        self.counters.stale_bytes -= entry.len;
        self.frames.stale.retain(|id| *id != mapping);
    }
}

impl Run {
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a link at the end; drops from the front what contradicts it.
    fn push(
        &mut self,
        at: ExtentId,
        len: u64,
        link: Link,
        idle: &HashMap<FrameId, IdleFrame>,
        extents: &crate::extent::Extents,
    ) {
        let place = self.dropped + self.links.len();
        let mut conflict = None;
        if let Link::Stale(frame) = link {
            conflict = self.frames.get(&frame).copied();
            // The frame must not lie in the run as free memory.
            for part in &idle[&frame].parts {
                conflict = conflict.max(self.extents.get(&part.extent).copied());
            }
        } else {
            for (_, known) in
                self.links.iter().enumerate().filter_map(|(i, (_, link))| match link {
                    Link::Stale(frame) => Some((i, *frame)),
                    Link::Free => None,
                })
            {
                if idle[&known].parts.iter().any(|part| part.extent == at) {
                    conflict = conflict.max(self.frames.get(&known).copied());
                }
            }
        }
        if let Some(last) = conflict {
            while self.dropped <= last {
                self.drop_first(extents);
            }
        }
        self.links.push_back((at, link));
        self.len += len;
        self.extents.insert(at, place);
        if let Link::Stale(frame) = link {
            self.frames.insert(frame, place);
        }
    }

    /// Drops links from the front that the request does not need.
    fn shorten(&mut self, need: u64, extents: &crate::extent::Extents) {
        while let Some((first, _)) = self.links.front() {
            if self.len - extents[*first].len < need {
                break;
            }
            self.drop_first(extents);
        }
    }

    fn drop_first(&mut self, extents: &crate::extent::Extents) {
        let (at, link) = self.links.pop_front().expect("a run with links");
        self.len -= extents[at].len;
        self.extents.remove(&at);
        if let Link::Stale(frame) = link {
            self.frames.remove(&frame);
        }
        self.dropped += 1;
    }
}

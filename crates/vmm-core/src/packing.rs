//! Packing: where a limit is near, a long lease goes where it leaves the most frames idle.
//!
//! Otherwise a request takes the shortest free extent that holds it, which is quick. That breaks up to two
//! idle frames more than it has to, and what they have left serves no other long lease. Leases of some ten
//! frames each lose three or four hundredths of the memory in this way, and none of it comes back when a
//! peak is there, for leases cannot move. So all places are compared beforehand: both ends of the free
//! extents that suffice, and runs of idle frames, each of which may begin with the free end of a frame in
//! use and end with the free start of another.
//!
//! A frame that a lease shares counts as lost later, without the part that is the lease's own: whoever else
//! uses it may end first. Otherwise lasting leases come to lie in the rests of passing ones, with two frames
//! each that nobody else can have.

use crate::arena::LARGE;
use crate::extent::{Extent, ExtentId};
use crate::growth::{Means, Place};
use crate::idle::{FreeEnd, IdleFrame, Reserve};
use crate::ladder::Next;
use crate::state::{LeaseId, State, Want};

/// So many frames are moved to save one: a move costs some fifty microseconds on a card.
const MOVES_PER_FRAME_SAVED: u64 = 30;

/// Where a lease could begin.
#[derive(Clone, Debug)]
enum Site {
    /// At this address of a free extent: nothing has to move.
    Extent(ExtentId, u64),
    /// At the start of a void, or in what is free in front of it.
    Void(Place),
    /// At the free end of a frame in use, which is mapped at the start of a void.
    Front(ExtentId, FreeEnd),
}

/// What runs of frames can consist of, as far as their cost goes.
#[derive(Clone, Copy, Debug)]
struct Stock {
    /// Bytes of all idle frames, and of those that may be made.
    bytes: u64,
    /// The shortest frame, which covers a rest.
    shortest: u64,
    /// The longest free start of a frame in use, which may close a run.
    longest_back: u64,
}

impl Stock {
    /// What a run of `need` bytes costs: those of the frames that are idle no more, of the rest of a frame that
    /// is shared, and a part of those that move. `None` where there is too little, with `kept` idle bytes
    /// that stay where they are.
    fn cost(self, need: u64, kept: u64) -> Option<u64> {
        let covered = need.checked_next_multiple_of(self.shortest)?;
        let rest = need % self.shortest;
        let is_closed = rest > 0 && rest <= self.longest_back;
        let broken = if is_closed { need - rest } else { covered };
        let suffices = broken <= self.bytes.saturating_sub(kept);
        let shared = if is_closed { covered - need } else { 0 };
        suffices.then(|| broken.saturating_add(shared + covered / MOVES_PER_FRAME_SAVED))
    }
}

impl State {
    /// Whether a request is one to be packed, if there is a loss.
    #[inline]
    pub(crate) fn is_tight(&self, want: &Want) -> bool {
        want.arena() == LARGE
            && self.budget.is_tight(self.counters.live_bytes.saturating_add(want.len))
    }

    /// Memory without a device call for a request that is to be packed, unless it belongs elsewhere.
    #[cold]
    pub(crate) fn take_packed(&mut self, want: &Want) -> Option<LeaseId> {
        let level = self.budget.level();
        let means = Means { target: level, ceiling: level, ..Means::MOVES };
        if !self.loses_much(want, means) {
            return self.take(want);
        }
        match self.best_site(want, means, &self.idle_for(want, means)) {
            Some(Site::Extent(id, addr)) => Some(self.carve_at(id, addr, want)),
            Some(_) => None,
            None => self.take(want),
        }
    }

    /// The memory that leaves the most frames idle, or the step that makes it; `None` where little is lost.
    pub(crate) fn pack(&mut self, want: &Want, means: Means) -> Option<Next> {
        if !self.loses_much(want, means) {
            return None;
        }
        let means = Means { ends: true, thrifty: true, ..means };
        let idle = self.idle_for(want, means);
        let growth = match self.best_site(want, means, &idle)? {
            Site::Extent(id, addr) => return Some(Next::Taken(self.carve_at(id, addr, want))),
            Site::Void(place) => self.plan_at(want, place, means, &idle),
            Site::Front(void, front) => self.plan_with_front(want, void, front, means, &idle),
        };
        growth.map(Next::grow)
    }

    /// The place that leaves the most frames idle.
    fn best_site(&self, want: &Want, means: Means, idle: &[IdleFrame]) -> Option<Site> {
        let mut sites = self.sites_at_hand(want, means);
        self.add_sites_of_runs(want, means, idle, &mut sites);
        // Among equals those come first of which nothing has to move.
        sites.into_iter().min_by_key(|(cost, _)| *cost).map(|(_, site)| site)
    }

    /// Whether much of the limit is free among long leases in frames that are in use.
    fn loses_much(&self, want: &Want, means: Means) -> bool {
        let reserve = Reserve { arena: LARGE, slot: want.slot, except: None };
        let free = self.drawable(LARGE, reserve, means, 1).into_iter();
        let lost = free.map(|id| {
            let Extent { addr, len, .. } = self.extents[id];
            len - self.idle_bytes_in(id, addr, addr + len)
        });
        self.budget.is_loss(lost.sum())
    }

    /// Places in free extents, with what they cost in bytes.
    fn sites_at_hand(&self, want: &Want, means: Means) -> Vec<(u64, Site)> {
        let reserve = Reserve { arena: LARGE, slot: want.slot, except: None };
        let mut sites = Vec::new();
        for id in self.drawable(LARGE, reserve, means, want.len) {
            let extent = &self.extents[id];
            if !extent.fits(want.len, want.alignment) {
                continue;
            }
            let first = extent.addr + extent.front(want.alignment);
            let last = (extent.end() - want.len) & !(want.alignment - 1);
            for addr in [first, last] {
                let cost = self.cost_in(id, addr, addr + want.len);
                sites.push((cost, Site::Extent(id, addr)));
            }
        }
        sites
    }

    /// Places that take a run of frames, with what they cost in bytes.
    fn add_sites_of_runs(
        &self,
        want: &Want,
        means: Means,
        idle: &[IdleFrame],
        sites: &mut Vec<(u64, Site)>,
    ) {
        let reserve = Reserve { arena: LARGE, slot: want.slot, except: None };
        let backs = self.free_ends(reserve, means, false, 1).map(|end| end.part.len);
        let stock = Stock {
            bytes: idle.iter().fold(self.room(means.ceiling), |sum, frame| sum + frame.len),
            shortest: idle.iter().map(|frame| frame.len).min().unwrap_or(self.budget.granule),
            longest_back: backs.max().unwrap_or(0),
        };
        let places = self.places(LARGE, want);
        for place in &places {
            let (in_front, kept) = place.prefix.map_or((0, 0), |prefix| {
                let Extent { addr, len, .. } = self.extents[prefix];
                let end = addr + len;
                let first = end - (want.len - place.need);
                (self.cost_in(prefix, first, end), self.idle_bytes_in(prefix, addr, end))
            });
            if let Some(cost) = stock.cost(place.need, kept) {
                sites.push((in_front + cost, Site::Void(*place)));
            }
        }
        let void = places.iter().map(|place| place.void).max_by_key(|void| self.extents[*void].len);
        let Some(void) = void else { return };
        for front in self.free_ends(reserve, means, true, 1) {
            let need = self.need_behind(&front, void, want);
            if let Some(cost) = need.and_then(|need| stock.cost(need, 0)) {
                let shared = front.frame_len - front.part.len;
                let moved = front.frame_len / MOVES_PER_FRAME_SAVED;
                sites.push((cost + shared + moved, Site::Front(void, front)));
            }
        }
    }

    /// What a lease in this range of a free extent costs: the frames that are idle no more, and the rests of those
    /// that it shares at either end.
    fn cost_in(&self, id: ExtentId, from: u64, to: u64) -> u64 {
        let extent = &self.extents[id];
        let region = self.arenas[extent.arena].region(extent.region);
        let frame_at = |at| region.mapping_at(at).map(|mapping| &self.frames.mappings[mapping]);
        let is_shared = |start: u64, end: u64| start < extent.addr || end > extent.end();
        let at_front = frame_at(from).filter(|entry| is_shared(entry.addr, entry.end()));
        let at_back = frame_at(to - 1).filter(|entry| is_shared(entry.addr, entry.end()));
        let shared = at_front.map_or(0, |entry| from - entry.addr)
            + at_back.map_or(0, |entry| entry.end().saturating_sub(to));
        self.idle_bytes_in(id, from, to) + shared
    }

    /// Bytes of the idle frames that a range of a free extent touches.
    fn idle_bytes_in(&self, id: ExtentId, from: u64, to: u64) -> u64 {
        let whole = self.whole_mappings(id).into_iter().map(|id| &self.frames.mappings[id]);
        whole.filter(|entry| entry.addr < to && entry.end() > from).map(|entry| entry.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOCK: Stock = Stock { bytes: 1000, shortest: 100, longest_back: 40 };

    #[test]
    fn a_run_costs_its_frames_what_it_shares_and_its_moves() {
        let moved = |bytes: u64| bytes / MOVES_PER_FRAME_SAVED;
        assert_eq!(STOCK.cost(300, 0), Some(300 + moved(300)));
        assert_eq!(STOCK.cost(350, 0), Some(400 + moved(400)), "no free start is as long as 50");
        assert_eq!(
            STOCK.cost(330, 0),
            Some(300 + 70 + moved(400)),
            "70 of the last frame are others'"
        );
        assert_eq!(STOCK.cost(0, 1000), Some(0));
    }

    #[test]
    fn a_run_needs_frames_that_may_move() {
        assert_eq!(STOCK.cost(1040, 0), Some(1000 + 60 + 1100 / MOVES_PER_FRAME_SAVED));
        assert_eq!(STOCK.cost(1050, 0), None);
        assert_eq!(STOCK.cost(900, 101), None);
        assert_eq!(STOCK.cost(u64::MAX, 0), None);
    }
}

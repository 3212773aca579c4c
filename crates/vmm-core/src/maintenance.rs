//! Maintenance: what need not be done by the thread that allocates.
//!
//! In this order, because the first saves an allocation the most: frames made ahead of need, stale
//! mappings removed, frames released that nobody needs. One step at a time, each a few device calls.

use crate::arena::{LARGE, SMALL};
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::extent::ExtentId;
use crate::frame::{FrameId, MappingId, MappingState};
use crate::growth::Means;
use crate::state::State;
use crate::step::{Step, StepOutcome, Work, range};
use crate::timeline::{Point, READY};
use crate::units::Fence;
use std::time::Duration;

/// Mappings that one step removes: few, because an allocation may have to wait for the call.
const UNMAPS_PER_STEP: usize = 4;

/// Free bytes that are kept ahead for short leases.
const SMALL_AHEAD_FRAMES: u64 = 1;

impl State {
    /// The next thing to do, or `None`. `capturing`: only calls that a capture allows.
    pub(crate) fn next_step<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        now: Duration,
        means: Means,
        capturing: bool,
    ) -> DeviceResult<Option<Step>> {
        if let Some(step) = self.step_ahead(means) {
            return Ok(Some(step));
        }
        if capturing {
            return Ok(None);
        }
        if let Some(step) = self.step_removing(device)? {
            return Ok(Some(step));
        }
        let excess = self.budget.excess(now, self.counters.live_bytes, self.counters.reserved_bytes);
        if excess >= self.budget.granule && self.expel(self.counters.reserved_bytes - excess) > 0 {
            return self.step_removing(device);
        }
        Ok(None)
    }

    /// One frame more, while the pool has less than it makes ahead of need.
    fn step_ahead(&mut self, means: Means) -> Option<Step> {
        let means = Means { ceiling: self.budget.ahead(), ..means };
        let room = self.room(means);
        if room < self.budget.granule {
            return None;
        }
        let small = self.budget.frame_len(SMALL);
        let (arena, len) = if self.free_in(SMALL) < SMALL_AHEAD_FRAMES * small {
            (SMALL, small)
        } else {
            (LARGE, self.budget.frame_len(LARGE))
        };
        (len <= room).then(|| self.plan_ahead(arena, len, means)).flatten().map(|growth| Step(Work::Grow(growth)))
    }

    fn free_in(&self, arena: u8) -> u64 {
        let arena = &self.arenas[usize::from(arena)];
        self.timelines
            .slots()
            .chain([READY])
            .flat_map(|slot| arena.free(&self.extents, slot, self.budget.granule))
            .map(|id| self.extents[id].len)
            .sum()
    }

    /// Removes stale mappings whose uses are over, and frames that have none left.
    pub(crate) fn step_removing<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) -> DeviceResult<Option<Step>> {
        if let Some(step) = self.step_releasing() {
            return Ok(Some(step));
        }
        self.poll_stale(device)?;
        let mut batch = Vec::new();
        for index in 0..self.stale.len() {
            let mapping = self.stale[index];
            let entry = &mut self.frames.mappings[mapping];
            let MappingState::Stale(point) = entry.state else { continue };
            if self.timelines.is_reached(point) {
                entry.state = MappingState::Leaving(point);
                batch.push((mapping, range(entry.addr, entry.len)));
                if batch.len() == UNMAPS_PER_STEP {
                    break;
                }
            }
        }
        if batch.is_empty() {
            return Ok(None);
        }
        self.steps_under_way += 1;
        Ok(Some(Step(Work::Unmap(batch))))
    }

    fn step_releasing(&mut self) -> Option<Step> {
        let leaving = self.leaving.iter().position(|id| self.frames.frames[*id].mappings.is_empty())?;
        let id = self.leaving.swap_remove(leaving);
        let frame = &self.frames.frames[id];
        self.steps_under_way += 1;
        Some(Step(Work::Release(id, frame.handle, frame.len)))
    }

    /// Learns which stale mappings are over; records the fences that this needs.
    fn poll_stale<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) -> DeviceResult<()> {
        let mut newest: Vec<Point> = Vec::new();
        for mapping in &self.stale {
            let MappingState::Stale(point) = self.frames.mappings[*mapping].state else { continue };
            match newest.iter_mut().find(|p| p.stream == point.stream) {
                Some(known) => known.epoch = known.epoch.max(point.epoch),
                None => newest.push(point),
            }
        }
        for point in newest {
            if self.timelines.fence(device, point)?.is_some() {
                self.timelines.poll(device, point.stream)?;
            }
        }
        Ok(())
    }

    /// Marks idle frames as leaving until at most `keep` bytes stay; says how many bytes will go.
    pub(crate) fn expel(&mut self, keep: u64) -> u64 {
        let mut going = 0;
        let leaving: u64 = self.leaving.iter().map(|id| self.frames.frames[*id].len).sum();
        let reserved = self.counters.reserved_bytes - leaving;
        for arena in [LARGE, SMALL] {
            for slot in self.timelines.slots().chain([READY]).collect::<Vec<_>>() {
                let granule = self.budget.granule;
                let free: Vec<ExtentId> = self.arenas[usize::from(arena)].free(&self.extents, slot, granule).collect();
                for extent in free {
                    for mapping in self.whole_mappings(extent).into_iter().rev() {
                        let len = self.frames.mappings[mapping].len;
                        if reserved - going < keep + len {
                            continue;
                        }
                        self.expel_frame(extent, mapping);
                        going += len;
                    }
                }
            }
        }
        going
    }

    /// For each stream, the first fence that keeps a frame from going; none when only `keep` bytes stay.
    pub(crate) fn fences_of_idle<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        keep: u64,
    ) -> DeviceResult<Vec<Fence>> {
        if self.counters.reserved_bytes <= keep {
            return Ok(Vec::new());
        }
        let stale = self.stale.iter().filter_map(|id| self.frames.mappings[*id].state.point());
        let mut points: Vec<Point> = stale.collect();
        points.extend(self.free_points(|_| true));
        points.extend(self.retired.iter().flat_map(|id| self.uses.iter(self.extents[*id].uses)));
        self.first_fences(device, points)
    }

    fn expel_frame(&mut self, extent: ExtentId, mapping: MappingId) {
        let entry = &self.frames.mappings[mapping];
        let (addr, len, frame) = (entry.addr, entry.len, entry.frame);
        let cut = self.cut(extent, addr, len);
        let point = Point { stream: self.extents[cut].stream, epoch: self.extents[cut].epoch };
        self.make_stale(mapping, cut, point);
        self.send_away(frame);
    }

    pub(crate) fn send_away(&mut self, frame: FrameId) {
        self.frames.frames[frame].leaving = true;
        self.leaving.push(frame);
    }

    /// Records what came of a removal.
    pub(crate) fn finish_removal(&mut self, outcome: &StepOutcome) {
        self.end_step();
        let succeeded = outcome.succeeded();
        match &outcome.work {
            Work::Unmap(batch) => {
                for (mapping, _) in batch {
                    if succeeded {
                        self.counters.unmaps += 1;
                        self.forget_mapping(*mapping);
                    } else {
                        let entry = &mut self.frames.mappings[*mapping];
                        if let MappingState::Leaving(point) = entry.state {
                            entry.state = MappingState::Stale(point);
                        }
                    }
                }
            }
            Work::Release(id, _, len) => {
                if succeeded {
                    self.frames.frames.remove(*id);
                    self.counters.frames_released += 1;
                    self.counters.frames_released_bytes += *len;
                    self.counters.unreserve(*len);
                } else {
                    self.leaving.push(*id);
                }
            }
            Work::Grow(_) => unreachable!("growth has its own finish"),
        }
    }
}

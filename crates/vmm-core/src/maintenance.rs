//! Maintenance: what need not be done by the thread that allocates.
//!
//! In this order, because the first saves an allocation the most: frames made ahead of need, stale
//! mappings removed, frames exchanged for such as serve better, frames released that nobody needs. One step
//! at a time, each a few device calls.

use crate::arena::{ArenaId, LARGE, SMALL};
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::frame::MappingState;
use crate::growth::Means;
use crate::idle::{IdleFrame, Reserve};
use crate::options::CrossStream;
use crate::state::State;
use crate::step::{Step, StepOutcome, Work, range};
use crate::timeline::{Point, READY, Standing};
use crate::units::Fence;
use crate::wait::Awaited;
use std::time::Duration;

/// Mappings that a frame may have on average before the oldest stale ones are removed. One: they
/// go as soon as their uses are over.
const MAPPINGS_PER_FRAME: usize = 1;

/// Mappings that one step removes: few, because an allocation may have to wait for the call.
const UNMAPS_PER_STEP: usize = 4;

/// Free bytes that are kept ahead for short leases.
const SMALL_AHEAD_FRAMES: u64 = 1;

/// How many bytes stay when idle frames go.
#[derive(Clone, Copy)]
enum Keep {
    /// No fewer: what is above a level, by less than a frame, would be made again.
    AtLeast(u64),
    /// No more.
    AtMost(u64),
}

impl State {
    /// The next thing to do, or `None`. `capturing`: only calls that a capture allows.
    pub(crate) fn next_step<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        now: Duration,
        means: Means,
        cross_stream: CrossStream,
        capturing: bool,
    ) -> DeviceResult<Option<Step>> {
        self.sweep_released();
        if self.budget.plain {
            return self.next_plain_step(device, now, cross_stream, capturing);
        }
        if let Some(step) = self.step_ahead(means) {
            return Ok(Some(step));
        }
        if capturing {
            return Ok(None);
        }
        if let Some(step) = self.step_removing(device)? {
            return Ok(Some(step));
        }
        if self.exchange_frame(means) {
            return self.step_removing(device);
        }
        if self.budget.may_exceed(self.counters.reserved_bytes) {
            self.poll(device, READY, cross_stream)?;
        }
        let excess =
            self.budget.excess(now, self.counters.live_bytes, self.counters.reserved_bytes);
        if excess >= self.budget.granule
            && self.expel(Keep::AtLeast(self.counters.reserved_bytes - excess), means) > 0
        {
            return self.step_removing(device);
        }
        Ok(None)
    }

    /// One frame more, while the pool has less than it makes ahead of need.
    fn step_ahead(&mut self, means: Means) -> Option<Step> {
        let room = self.room(self.budget.ahead());
        if room < self.budget.granule {
            return None;
        }
        let small = self.budget.frame_len(SMALL);
        let (arena, len) = if self.free_in(SMALL) < SMALL_AHEAD_FRAMES * small {
            (SMALL, small)
        } else {
            (LARGE, self.budget.ahead_len(LARGE, self.counters.reserved_bytes))
        };
        (len <= room)
            .then(|| self.plan_ahead(arena, len, means))
            .flatten()
            .map(|growth| Step(Work::Grow(growth)))
    }

    fn free_in(&self, arena: ArenaId) -> u64 {
        let arena = &self.arenas[arena];
        self.timelines
            .slots()
            .chain([READY])
            .flat_map(|slot| arena.free(&self.extents, slot, self.budget.granule))
            .map(|id| self.extents[id].len)
            .sum()
    }

    /// Removes stale mappings whose uses are over, and frames that have none left.
    pub(crate) fn step_removing<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
    ) -> DeviceResult<Option<Step>> {
        self.forget_unbound(device)?;
        if let Some(step) = self.step_releasing() {
            return Ok(Some(step));
        }
        self.poll_stale(device)?;
        let over = self
            .frames
            .mappings
            .len()
            .saturating_sub(self.frames.frames.len() * MAPPINGS_PER_FRAME);
        let mut batch = Vec::new();
        for index in 0..self.frames.stale.len() {
            let mapping = self.frames.stale[index];
            let entry = &mut self.frames.mappings[mapping];
            let passed = entry.uses.iter().all(|point| self.timelines.is_reached(*point));
            let unwanted = index < over || self.frames.frames[entry.frame].leaving;
            if entry.state == MappingState::Stale && unwanted && passed && !entry.pinned {
                entry.state = MappingState::Leaving;
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

    /// Forgets mappings whose queued removal is over.
    fn forget_unbound<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) -> DeviceResult<()> {
        let mut index = 0;
        while let Some((fence, _)) = self.unbinding.get(index) {
            if device.reached(fence.stream)? < fence.value {
                index += 1;
                continue;
            }
            for mapping in self.unbinding.swap_remove(index).1 {
                self.forget_mapping(mapping);
            }
        }
        Ok(())
    }

    fn step_releasing(&mut self) -> Option<Step> {
        let leaving = self
            .frames
            .leaving
            .iter()
            .position(|id| self.frames.frames[*id].mappings.is_empty())?;
        let id = self.frames.leaving.swap_remove(leaving);
        let frame = &self.frames.frames[id];
        self.steps_under_way += 1;
        Some(Step(Work::Release(id, frame.handle, frame.len)))
    }

    /// Learns which stale mappings are over; records the fences that this needs.
    fn poll_stale<D: VirtualMemoryDevice + ?Sized>(&mut self, device: &D) -> DeviceResult<()> {
        let newest = self.timelines.newest(self.stale_uses());
        self.poll_newest(device, newest)
    }

    /// Learns which points are reached; records the fences that this needs.
    pub(crate) fn poll_points<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        points: Vec<Point>,
    ) -> DeviceResult<()> {
        let newest = self.timelines.newest(points.into_iter());
        self.poll_newest(device, newest)
    }

    /// As [`Self::poll_points`], for one point of each stream.
    fn poll_newest<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        newest: Vec<Point>,
    ) -> DeviceResult<()> {
        self.timelines.ask_anew();
        for point in newest {
            if let Standing::Before(_) = self.timelines.ask(device, point)? {
                self.timelines.poll(device, point.stream)?;
            }
        }
        Ok(())
    }

    fn stale_uses(&self) -> impl Iterator<Item = Point> + '_ {
        self.frames.stale.iter().flat_map(|id| self.frames.mappings[*id].uses.iter().copied())
    }

    /// The next step towards at most `keep` bytes.
    pub(crate) fn step_trimming<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        keep: u64,
        means: Means,
    ) -> DeviceResult<Option<Step>> {
        self.sweep_released();
        if self.budget.plain {
            return Ok(self.release_idle_region(keep));
        }
        self.expel(Keep::AtMost(keep), means);
        self.step_removing(device)
    }

    /// Marks idle frames as leaving, as many as `keep` says; says how many bytes will go.
    fn expel(&mut self, keep: Keep, means: Means) -> u64 {
        let leaving: u64 = self.frames.leaving.iter().map(|id| self.frames.frames[*id].len).sum();
        let mut staying = self.counters.reserved_bytes - leaving;
        let before = staying;
        self.send_away_idle(means, |frame, _| {
            let goes = match keep {
                Keep::AtLeast(bytes) => staying >= bytes.saturating_add(frame.len),
                Keep::AtMost(bytes) => staying > bytes,
            };
            staying -= if goes { frame.len } else { 0 };
            goes
        });
        before - staying
    }

    /// Lets one idle frame go that is much longer or shorter than frames are now: others are made ahead in
    /// its place. Says whether there was one.
    fn exchange_frame(&mut self, means: Means) -> bool {
        let spent = self.exchanged_bytes >= self.budget.most_exchanged();
        if spent || !self.budget.may_exchange() {
            return false;
        }
        let Some(misfits) = self.budget.misfits(LARGE) else { return false };
        let mut found = false;
        let mut exchanged = 0;
        self.send_away_idle(means, |frame, arena| {
            let goes = !found && arena == LARGE && misfits(frame.len) && !frame.granted;
            if goes {
                found = true;
                exchanged = frame.len;
            }
            goes
        });
        self.exchanged_bytes += exchanged;
        found
    }

    /// Lets idle frames go that `goes` picks, by what arena they lie in.
    fn send_away_idle(&mut self, means: Means, mut goes: impl FnMut(&IdleFrame, ArenaId) -> bool) {
        for slot in self.timelines.slots().chain([READY]).collect::<Vec<_>>() {
            let reserve = Reserve { arena: LARGE, slot, except: None };
            let mut going = self.idle_frames(reserve, means);
            going.retain(|frame| {
                let part = frame.parts.first();
                part.is_some_and(|part| goes(frame, self.extents[part.extent].arena))
            });
            let cuts = self.cut_all(going.iter().map(|frame| frame.parts.as_slice()));
            for (frame, parts) in going.iter().zip(cuts) {
                for (mapping, extent) in parts {
                    let point = self.last_use(extent);
                    self.move_on(mapping, extent, point);
                }
                self.frames.send_away(frame.frame);
            }
        }
    }

    /// For each stream, the first work up to a point of `queued` that keeps a frame from going; none when
    /// only `keep` bytes stay. Others that go on with their work would be waited for without end.
    pub(crate) fn work_on_idle<D: VirtualMemoryDevice + ?Sized>(
        &mut self,
        device: &D,
        keep: u64,
        queued: &[Point],
    ) -> DeviceResult<Awaited> {
        if self.counters.reserved_bytes <= keep {
            return Ok(Awaited::default());
        }
        let mut points: Vec<Point> = self.stale_uses().collect();
        let goes = |domain| !self.tenancies.is_private(domain);
        points.extend(self.free_points(|_| true, goes));
        points.extend(self.retired_points(goes));
        points.retain(|point| {
            queued.iter().any(|end| end.stream == point.stream && point.epoch <= end.epoch)
        });
        let mut awaited = self.first_of(device, points)?;
        awaited.fences.extend(self.unbinding.iter().map(|(fence, _)| *fence));
        Ok(awaited)
    }

    /// Records what came of a removal.
    pub(crate) fn finish_removal(&mut self, outcome: &StepOutcome) {
        self.steps_under_way -= 1;
        match (&outcome.work, &outcome.result) {
            (Work::Unmap(batch), Ok(done)) => {
                self.counters.unmaps += batch.len() as u64;
                let mappings = batch.iter().map(|(mapping, _)| *mapping);
                if done.gone == Fence::REACHED {
                    mappings.for_each(|mapping| self.forget_mapping(mapping));
                } else {
                    self.unbinding.push((done.gone, mappings.collect()));
                }
            }
            (Work::Unmap(batch), Err(_)) => {
                for (mapping, _) in batch {
                    self.frames.mappings[*mapping].state = MappingState::Stale;
                }
            }
            (Work::Release(id, _, len), Ok(_)) => {
                self.frames.remove(*id);
                self.counters.frames_released += 1;
                self.counters.frames_released_bytes += *len;
                self.counters.unreserve(*len);
            }
            (Work::Release(id, ..), Err(_)) => self.frames.leaving.push(*id),
            (Work::ReleaseRegion(idle), Ok(_)) => self.finish_release(idle),
            (Work::ReleaseRegion(idle), Err(_)) => self.fail_release(idle),
            (Work::Grow(_) | Work::MakeRegion(_), _) => unreachable!("these have their own finish"),
        }
    }
}

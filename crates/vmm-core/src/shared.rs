//! The lock, and what is done between two holds of it.
//!
//! Under the lock the pool decides and records, and makes no call that can take long. Device calls
//! that can are made between two holds of the lock, on what the first has put out of everybody's
//! reach: see [`crate::step`].

use crate::arena::{ArenaId, GENERAL, domain_of};
use crate::bins::UNIT;
use crate::budget::Budget;
use crate::device::{DeviceError, DeviceErrorKind, DeviceResult, FrameKind, VirtualMemoryDevice};
use crate::error::{AllocError, PoolError};
use crate::growth::Means;
use crate::options::{CrossStream, PoolOptions};
use crate::peers::Peers;
use crate::pool::{PressureCallback, Request};
use crate::state::{LeaseId, State, Want};
use crate::step::{Step, StepOutcome, Work};
use crate::teardown;
use crate::timeline::{READY, StreamSlot};
use crate::units::round_up;
use crate::wait::{Awaited, LONGEST_LOOK};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The least that a reservation is worth.
const LEAST_RESERVATION: u64 = 64 << 20;

/// Addresses that one pool may hold, as a multiple of the device's memory.
const ADDRESS_CAP: u64 = 64;

/// How long the drop of a pool waits for a capture to end, before it leaves its memory behind.
const CAPTURE_PATIENCE: Duration = Duration::from_secs(5);

/// How long maintenance pauses after a step that the device refused.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// How long an allocation waits for the steps of others. A step takes milliseconds at most; one that
/// takes longer will not come back, and must not hang others.
const STEP_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Shared<D: VirtualMemoryDevice + 'static> {
    pub(crate) device: Arc<D>,
    pub(crate) options: PoolOptions,
    state: Mutex<State>,
    /// Held while peers are given access: one change at a time. Taken before `state`, never after.
    pub(crate) granting: Mutex<()>,
    /// A step has come back.
    step_done: Condvar,
    pub(crate) callbacks: Mutex<Vec<PressureCallback>>,
    pub(crate) heaps: crate::heap::Heaps,
    /// The device refuses the kind of frames that the options name.
    pub(crate) kind_refused: AtomicBool,
    /// Bytes of the device, for what can never fit.
    device_total: u64,
    /// The process that the pool was made in.
    process: u32,
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    pub(crate) fn new(device: Arc<D>, options: PoolOptions, device_total: u64) -> Self {
        let granule = device.properties().granule;
        let capabilities = device.properties().capabilities;
        let PoolOptions { limit, target, time_to_live, .. } = options;
        let budget = Budget::new(capabilities, limit, target, granule, device_total, time_to_live);
        let peers = Peers::new(&options.peers);
        Self {
            device,
            options,
            state: Mutex::new(State::new(budget, peers)),
            granting: Mutex::new(()),
            step_done: Condvar::new(),
            callbacks: Mutex::new(Vec::new()),
            heaps: crate::heap::Heaps::default(),
            kind_refused: AtomicBool::new(false),
            device_total,
            process: std::process::id(),
        }
    }

    /// Whether this is a fork of the process that the pool was made in.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// The lock; `None` in a fork where another thread of the parent held it, who never lets go there.
    #[inline]
    pub(crate) fn lock_unless_forked(&self) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock().or_else(|| self.lock_contended())
    }

    #[cold]
    fn lock_contended(&self) -> Option<MutexGuard<'_, State>> {
        if self.is_forked() { None } else { Some(self.state.lock()) }
    }

    pub(crate) fn cross_stream(&self) -> CrossStream {
        self.options.cross_stream
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The request in units, `None` if it asks for no bytes.
    #[inline]
    pub(crate) fn check(&self, request: &Request) -> Result<Option<Want>, AllocError> {
        if request.len == 0 {
            return Ok(None);
        }
        let alignment = request.alignment.max(UNIT);
        let is_power = request.alignment == 0 || request.alignment.is_power_of_two();
        let len = round_up(request.len, UNIT)
            .filter(|len| *len <= self.device_total && alignment <= self.device_total);
        match len {
            Some(len) if is_power => Ok(Some(Want {
                requested: request.len,
                len,
                alignment,
                slot: 0,
                owner: request.owner.0,
                domain: GENERAL,
            })),
            _ if is_power => Err(self.too_large(request.len, alignment)),
            _ => Err(self.too_large(request.len, request.alignment)),
        }
    }

    /// The failure of a request that can never be served.
    #[cold]
    pub(crate) fn too_large(&self, requested: u64, alignment: u64) -> AllocError {
        let limit = self.lock().budget.limit.filter(|limit| *limit < self.device_total);
        let largest_ever = limit.unwrap_or(self.device_total);
        AllocError::TooLarge { requested, alignment, largest_ever, limited: limit.is_some() }
    }

    #[cold]
    pub(crate) fn note_failure(&self) {
        self.lock().counters.failures += 1;
    }

    /// The kind of frames that are made from now on.
    pub(crate) fn frame_kind(&self) -> FrameKind {
        if self.kind_refused.load(Ordering::Relaxed) {
            FrameKind::Device
        } else {
            self.options.frame_kind
        }
    }

    pub(crate) fn means(&self) -> Means {
        let capabilities = self.device.properties().capabilities;
        Means {
            ends: capabilities.aliases,
            kind: self.frame_kind(),
            unmap_first: !capabilities.aliases,
            queued: capabilities.queued_binds,
            ..Means::MOVES
        }
    }

    /// Whether any stream that the pool knows is capturing. A stream that cannot be asked, because it was
    /// destroyed without being forgotten, say, must not keep all others from their memory.
    pub(crate) fn capturing(&self, state: &State) -> DeviceResult<bool> {
        self.capturing_for(state, READY)
    }

    /// As [`Self::capturing`], for a request of a stream, which lives.
    pub(crate) fn capturing_for(&self, state: &State, own: StreamSlot) -> DeviceResult<bool> {
        if !self.device.properties().capabilities.capture {
            return Ok(false);
        }
        let timelines = &state.timelines;
        let may_ask = |slot: &StreamSlot| {
            !timelines.is_forgotten(*slot) && (*slot == own || !timelines.is_unwatched(*slot))
        };
        for slot in timelines.slots().filter(may_ask) {
            match self.device.is_capturing(state.timelines.id(slot)) {
                Ok(true) => return Ok(true),
                Err(error) if error.kind == DeviceErrorKind::Deinitialized => return Err(error),
                Ok(false) | Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Reserves a region of at least `need` bytes for an arena.
    pub(crate) fn reserve(&self, arena: ArenaId, need: u64) -> Result<(), PoolError> {
        const NO_MORE: PoolError = PoolError::Options("the pool holds as many addresses as it may");
        let cap = self.device_total.saturating_mul(ADDRESS_CAP).max(LEAST_RESERVATION);
        let properties = self.device.properties();
        let most = properties.max_reservation.min(cap / 4);
        let wanted = match domain_of(arena) {
            GENERAL => self.options.reservation.unwrap_or(self.device_total.saturating_mul(16)),
            // There may be many private pools: each reserves as much again as it has, from little on.
            _ => self.lock().arenas[arena].address_bytes().max(LEAST_RESERVATION),
        };
        let granule = properties.granule;
        let need = round_up(need, granule).ok_or(NO_MORE)?;
        let mut len = (wanted.max(need).min(most) / granule * granule).max(granule);
        loop {
            if len < need || !self.lock().may_reserve(arena, len, cap) {
                return Err(NO_MORE);
            }
            match self.device.reserve(len, granule) {
                Ok(base) => {
                    let mut state = self.lock();
                    // Another thread may have reserved meanwhile.
                    if state.may_reserve(arena, len, cap) {
                        state.add_region(arena, base.0, len);
                        return Ok(());
                    }
                    drop(state);
                    self.device.free_region(base, len)?;
                    return Err(NO_MORE);
                }
                // Short regions are worth little for all, and may do for one.
                Err(error)
                    if error.kind == DeviceErrorKind::OutOfAddresses
                        && len > need
                        && (len > LEAST_RESERVATION || domain_of(arena) != GENERAL) =>
                {
                    len = (len / 2 / granule * granule).max(need);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(crate) fn begin_step(&self) -> Option<Step> {
        let now = self.options.clock.now();
        let mut state = self.lock();
        if state.paused_until > now {
            return None;
        }
        let capturing = self.capturing(&state).ok()?;
        let step =
            state.next_step(&*self.device, now, self.means(), self.options.cross_stream, capturing);
        state.validate_in_debug();
        step.unwrap_or_else(|_| {
            state.pause(now + PAUSE_AFTER_FAILURE);
            None
        })
    }

    /// Records what came of a step; for a growth that somebody waits for, makes the lease.
    pub(crate) fn finish(
        &self,
        outcome: StepOutcome,
        waiting: Option<Waiting<'_>>,
    ) -> Result<Option<LeaseId>, DeviceError> {
        let now = self.options.clock.now();
        let want = waiting.as_ref().map(|waiting| waiting.want);
        let (mut state, outcome) = self.lock_with_peers(outcome);
        let result = match (&outcome.work, &outcome.result) {
            (Work::Grow(growth), Ok(done)) => {
                if let Some(waiting) = &waiting {
                    state.budget.end_trim();
                    let moved = growth.moved();
                    if moved > 0 {
                        state.budget.moved_for_a_request(waiting.since, now, moved);
                    }
                }
                Ok(state.finish_growth(growth, &done.made, want))
            }
            (Work::Grow(growth), Err(failure)) => {
                state.fail_growth(growth, failure);
                Err(failure.error)
            }
            (Work::MakeRegion(new), Ok(done)) => {
                let frame = done.made[0];
                let addr = self.device.fixed_addr(frame);
                let addr = addr.expect("a frame has an address where nothing can be mapped");
                Ok(state.finish_region(new, frame, addr, want))
            }
            (Work::MakeRegion(new), Err(failure)) => {
                state.fail_region(new);
                Err(failure.error)
            }
            (_, result) => {
                state.finish_removal(&outcome);
                result.as_ref().map(|_| None).map_err(|failure| failure.error)
            }
        };
        if result.is_err() {
            state.counters.failed_steps += 1;
            if want.is_none() {
                state.pause(now + PAUSE_AFTER_FAILURE);
            }
        }
        state.validate_in_debug();
        drop(state);
        self.announce_step();
        result
    }

    /// Waits for the step of another thread; says whether that took too long.
    pub(crate) fn await_step(&self, state: &mut MutexGuard<'_, State>) -> bool {
        self.step_done.wait_for(state, STEP_PATIENCE).timed_out()
    }

    /// Wakes those who wait for a step.
    pub(crate) fn announce_step(&self) {
        self.step_done.notify_all();
    }

    pub(crate) fn maintain(&self) -> bool {
        let Some(step) = self.begin_step() else { return false };
        self.finish(step.run(&*self.device), None).is_ok()
    }

    pub(crate) fn trim(&self, keep: u64, wait: bool) -> Result<u64, PoolError> {
        let (before, queued) = {
            let state = self.lock();
            (state.counters.frames_released_bytes, state.timelines.all_now())
        };
        loop {
            let (step, awaited) = {
                let mut state = self.lock();
                if self.capturing(&state)? {
                    break;
                }
                // Each time: a request that was short of memory meanwhile has ended it.
                let live = state.counters.live_bytes;
                state.budget.trim_to(keep, live);
                state.poll(&*self.device, READY, CrossStream::WhenReached)?;
                let step = state.step_trimming(&*self.device, keep, self.means())?;
                let awaited = if step.is_none() && wait {
                    state.work_on_idle(&*self.device, keep, &queued)?
                } else {
                    Awaited::default()
                };
                state.validate_in_debug();
                (step, awaited)
            };
            match step {
                Some(step) => {
                    self.finish(step.run(&*self.device), None)?;
                }
                None if self.await_work(&awaited)? => {}
                None => break,
            }
        }
        Ok(self.lock().counters.frames_released_bytes - before)
    }

    /// Gives everything back to the device. Nobody holds a lease or the pool any more.
    pub(crate) fn take_down(&self) {
        let mut state = self.lock();
        let begin = Instant::now();
        while self.capturing(&state).unwrap_or(false) {
            // Where the work that still uses the memory ends cannot be asked during a capture. Memory
            // in use is better left behind than unmapped.
            if begin.elapsed() > CAPTURE_PATIENCE {
                return;
            }
            std::thread::sleep(LONGEST_LOOK);
        }
        teardown::run(&*self.device, &mut state);
    }
}

/// Who waits for a step, and since when.
pub(crate) struct Waiting<'a> {
    pub(crate) want: &'a Want,
    /// By the clock of the options.
    pub(crate) since: Duration,
}

impl State {
    /// Frees the slots of forgotten streams that nothing names any more.
    pub(crate) fn vacate_slots(&mut self) {
        let mut named = HashSet::new();
        named.extend(self.extents.iter().map(|(_, extent)| extent.stream));
        named.extend(self.uses.all().map(|point| point.stream));
        named.extend(
            self.frames
                .mappings
                .iter()
                .flat_map(|(_, entry)| entry.uses.iter().map(|point| point.stream)),
        );
        named.extend(self.tenancies.points().map(|point| point.stream));
        let vacant: Vec<StreamSlot> =
            self.timelines.finished().filter(|slot| !named.contains(slot)).collect();
        self.timelines.vacate(&vacant);
    }
}

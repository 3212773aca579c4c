//! The lock, and what is done between two holds of it.
//!
//! Under the lock the pool decides and records, and makes no call that can take long. Device calls
//! that can are made between two holds of the lock, on what the first has put out of everybody's
//! reach: see [`crate::step`].

use crate::arena::{ArenaId, GENERAL, domain_of};
use crate::bins::UNIT;
use crate::budget::Budget;
use crate::device::{
    DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, VirtualMemoryDevice,
};
use crate::error::{AllocError, OutOfMemory, PoolError};
use crate::growth::Means;
use crate::ladder::{Next, Reach};
use crate::options::{CrossStream, Maintenance, PoolOptions};
use crate::peers::Peers;
use crate::pool::{Pressure, PressureCallback, Request};
use crate::state::{LeaseId, State, Want};
use crate::step::{Step, StepOutcome, Work};
use crate::teardown;
use crate::timeline::{READY, StreamSlot};
use crate::units::round_up;
use crate::wait::{Awaited, LONGEST_LOOK};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::Cell;
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

thread_local! {
    /// This thread runs pressure callbacks: an allocation that fails in one does not call them again.
    static PRESSING: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct Shared<D: VirtualMemoryDevice + 'static> {
    pub(crate) device: Arc<D>,
    options: PoolOptions,
    state: Mutex<State>,
    /// Held while peers are given access: one change at a time. Taken before `state`, never after.
    pub(crate) granting: Mutex<()>,
    /// A step has come back.
    step_done: Condvar,
    pub(crate) callbacks: Mutex<Vec<PressureCallback>>,
    pub(crate) heaps: crate::heap::Heaps,
    /// The device refuses the kind of frames that the options name.
    kind_refused: AtomicBool,
    /// Bytes of the device, for what can never fit.
    device_total: u64,
    /// The process that the pool was made in.
    process: u32,
}

impl<D: VirtualMemoryDevice + 'static> Shared<D> {
    pub(crate) fn new(device: Arc<D>, options: PoolOptions, device_total: u64) -> Self {
        let granule = device.properties().granule;
        let plain = !device.properties().capabilities.remapping;
        let PoolOptions { limit, target, time_to_live, .. } = options;
        let budget = Budget::new(plain, limit, target, granule, device_total, time_to_live);
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
    fn too_large(&self, requested: u64, alignment: u64) -> AllocError {
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

    fn means(&self) -> Means {
        Means {
            target: 0,
            ceiling: 0,
            borrow: true,
            ends: self.device.properties().capabilities.aliases,
            kind: self.frame_kind(),
            unmap_first: !self.device.properties().capabilities.aliases,
            exact: false,
            queued: self.device.properties().capabilities.queued_binds,
            ready_only: false,
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

    #[cold]
    pub(crate) fn allocate_slow(&self, want: &Want) -> Result<(LeaseId, u64), AllocError> {
        let begin = self.options.clock.now();
        let limit = self.lock().budget.limit;
        let result = if limit.is_some_and(|limit| want.len > limit) {
            Err(self.too_large(want.requested, want.alignment))
        } else {
            match self.climb(want, Effort::All) {
                Ok(Ok(memory)) => Ok(memory),
                Ok(Err(refused)) => Err(self.out_of_memory(want, refused)),
                Err(error) => Err(error.into()),
            }
        };
        self.end_climb(begin);
        result.inspect_err(|_| self.note_failure())
    }

    /// As [`Self::allocate_slow`] for one who can do without: `None` where that would take a wait for the
    /// device or callbacks, and then it is no failure.
    #[cold]
    pub(crate) fn allocate_spare(&self, want: &Want) -> DeviceResult<Option<(LeaseId, u64)>> {
        let begin = self.options.clock.now();
        let limit = self.lock().budget.limit;
        if limit.is_some_and(|limit| want.len > limit) {
            return Ok(None);
        }
        let result = self.climb(want, Effort::Spare);
        self.end_climb(begin);
        Ok(result?.ok())
    }

    /// Ends a miss that lasted from `begin` on.
    fn end_climb(&self, begin: Duration) {
        self.lock().end_climb();
        if self.options.maintenance == Maintenance::Inline {
            self.maintain();
        }
        let took = self.options.clock.now().saturating_sub(begin);
        self.lock().counters.missed(took);
    }

    /// Memory for a request; if there is none, what the device refused last.
    fn climb(
        &self,
        want: &Want,
        effort: Effort,
    ) -> DeviceResult<Result<(LeaseId, u64), Option<DeviceError>>> {
        let mut refused: Option<DeviceError> = None;
        let mut pressed = false;
        let mut reach = Reach {
            cross_stream: self.options.cross_stream,
            capturing: false,
            device_full: false,
            impatient: false,
            never_idle: false,
            removal_failed: false,
            address_full: false,
            means: self.means(),
        };
        loop {
            let next = {
                let mut state = self.lock();
                reach.capturing = self.capturing_for(&state, want.slot)?;
                let next = state.climb(&*self.device, want, reach)?;
                state.validate_in_debug();
                match next {
                    Next::Taken(id) => return Ok(Ok((id, state.extents[id.extent].addr))),
                    Next::AwaitStep => {
                        reach.impatient =
                            self.step_done.wait_for(&mut state, STEP_PATIENCE).timed_out();
                        continue;
                    }
                    other => other,
                }
            };
            match next {
                Next::Grow(step) => {
                    let waiting = Waiting { want, since: self.options.clock.now() };
                    match self.finish(step.run(&*self.device), Some(waiting)) {
                        Ok(id) => {
                            let id = id.expect("a growth for a request ends in a lease");
                            return Ok(Ok((id, self.lock().extents[id.extent].addr)));
                        }
                        Err(error) if is_out_of_frames(error) && !reach.device_full => {
                            // A full device is a moment, not a verdict: less may still be had.
                            reach.device_full = std::mem::replace(&mut reach.means.exact, true);
                            refused = Some(error);
                        }
                        Err(error) if self.refuses_kind(error, reach.means.kind) => {
                            reach.means = self.means();
                        }
                        Err(error) => return Err(error),
                    }
                }
                Next::Remove(step) => {
                    reach.removal_failed = self.finish(step.run(&*self.device), None).is_err();
                    // What went made room on the device.
                    reach.device_full = false;
                }
                Next::Reserve(arena, need) => {
                    let reserved = self.reserve(arena, need);
                    reach.address_full = reserved.is_err();
                    refused = reserved.err().and_then(PoolError::device).or(refused);
                }
                Next::Wait(_) if effort == Effort::Spare => return Ok(Err(refused)),
                Next::Wait(awaited) => {
                    reach.never_idle = !self.await_work(&awaited)?;
                    // Idle frames that serve now leave less to be made.
                    reach.device_full = false;
                    if reach.cross_stream == CrossStream::Never {
                        reach.cross_stream = CrossStream::WhenReached;
                    }
                }
                Next::Exhausted if reach.cross_stream == CrossStream::Never && !reach.capturing => {
                    reach.cross_stream = CrossStream::WhenReached;
                }
                Next::Exhausted if effort == Effort::All && !pressed && self.press(want) => {
                    pressed = true;
                    reach.device_full = false;
                }
                Next::Exhausted => return Ok(Err(refused)),
                Next::Taken(_) | Next::AwaitStep => unreachable!("handled under the lock"),
            }
        }
    }

    /// Whether a failure means that the device refuses this kind of frame; then plain ones are used.
    fn refuses_kind(&self, error: DeviceError, kind: FrameKind) -> bool {
        let about_frames =
            matches!(error.op, DeviceOp::MakeFrame | DeviceOp::Map | DeviceOp::SetAccess);
        let gone = error.kind == DeviceErrorKind::Deinitialized;
        kind != FrameKind::Device
            && about_frames
            && !gone
            && !self.kind_refused.swap(true, Ordering::Relaxed)
    }

    /// Calls the pressure callbacks, without any lock; says whether there were any.
    fn press(&self, want: &Want) -> bool {
        /// Ends the pressing, also when a callback panics.
        struct Pressing;
        impl Drop for Pressing {
            fn drop(&mut self) {
                PRESSING.set(false);
            }
        }
        if PRESSING.replace(true) {
            return false;
        }
        let _pressing = Pressing;
        self.call_back(want)
    }

    fn call_back(&self, want: &Want) -> bool {
        let callbacks = self.callbacks.lock().clone();
        let pressure = {
            let state = self.lock();
            Pressure {
                requested: want.requested,
                reserved: state.counters.reserved_bytes,
                limit: state.budget.limit,
            }
        };
        for callback in &callbacks {
            callback(&pressure);
        }
        !callbacks.is_empty()
    }

    fn out_of_memory(&self, want: &Want, device: Option<DeviceError>) -> AllocError {
        let state = self.lock();
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested: want.requested,
            limit: state.budget.limit,
            reserved: state.counters.reserved_bytes,
            live: state.counters.live_bytes,
            retired: state.counters.retired_bytes,
            largest_possible: state.largest_possible(device.is_some(), want.domain),
            owners: state.largest_owners(5),
            device,
        }))
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
    want: &'a Want,
    /// By the clock of the options.
    since: Duration,
}

/// How much a request is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effort {
    All,
    /// No wait for the device, no callback.
    Spare,
}

/// Whether the device has no memory for a frame; other calls may want memory too, but less of ours
/// would not help them.
fn is_out_of_frames(error: DeviceError) -> bool {
    error.kind == DeviceErrorKind::OutOfMemory && error.op == DeviceOp::MakeFrame
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

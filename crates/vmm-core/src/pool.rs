//! The pool: what users see, and the only place with a lock.
//!
//! Under the lock the pool decides and records, and makes no call that can take long. Device calls
//! that can are made between two holds of the lock, on what the first has put out of everybody's
//! reach: see [`crate::step`].

use crate::arena::{ArenaId, SMALL, SMALL_MAX};
use crate::bins::UNIT;
use crate::budget::Budget;
use crate::device::{DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, VirtualMemoryDevice};
use crate::error::{AllocError, OutOfMemory, PoolError};
use crate::extent::Extent;
use crate::growth::Means;
use crate::ladder::{Next, Reach};
use crate::lease::Lease;
use crate::options::{CrossStream, Maintenance, PoolOptions};
use crate::owner::Owner;
use crate::region::Region;
use crate::report::{Snapshot, Stats};
use crate::state::{LeaseId, State, Want};
use crate::step::{Step, StepOutcome, Work};
use crate::teardown;
use crate::timeline::READY;
use crate::units::{DeviceAddr, Fence, StreamId, round_up};
use crate::worker::Worker;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The least that a reservation is worth.
const LEAST_RESERVATION: u64 = 64 << 20;

/// Addresses that one pool may hold, as a multiple of the device's memory.
const ADDRESS_CAP: u64 = 64;

/// How long one look at a fence lasts when several are waited for in turn; doubles up to a cap.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LONGEST_LOOK: Duration = Duration::from_millis(2);

/// How long maintenance pauses after a step that the device refused.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What somebody asks a pool for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes; any number. No bytes give a lease without memory.
    pub len: u64,
    /// Alignment of the address in bytes, a power of two. Less than 512 means 512.
    pub alignment: u64,
    /// The stream whose work will use the memory first.
    pub stream: StreamId,
    /// Who it is accounted to.
    pub owner: Owner,
}

impl Request {
    /// `len` bytes for work on `stream`, at the least alignment, for nobody in particular.
    #[must_use]
    pub fn new(len: u64, stream: StreamId) -> Self {
        Self { len, alignment: UNIT, stream, owner: Owner::NONE }
    }
}

/// What a pressure callback learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Bytes that an allocation is about to fail for.
    pub requested: u64,
    /// Physical memory of the pool in bytes.
    pub reserved: u64,
    /// The pool's limit in bytes, if it has one.
    pub limit: Option<u64>,
}

type PressureCallback = Arc<dyn Fn(&Pressure) + Send + Sync>;

/// A pool of one device's memory. Clones are the same pool; the last of them and of the leases to
/// go takes it down, and waits for work that still uses its memory.
pub struct Pool<D: VirtualMemoryDevice + 'static> {
    inner: Arc<Inner<D>>,
}

pub(crate) struct Inner<D: VirtualMemoryDevice + 'static> {
    device: Arc<D>,
    options: PoolOptions,
    state: Mutex<State>,
    /// A step has come back.
    step_done: Condvar,
    callbacks: Mutex<Vec<PressureCallback>>,
    /// The device refuses the kind of frames that the options name.
    kind_refused: AtomicBool,
    /// Bytes of the device, for what can never fit.
    device_total: u64,
    worker: Option<Worker>,
}

impl<D: VirtualMemoryDevice + 'static> Clone for Pool<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("device", &self.inner.device.properties().name).finish_non_exhaustive()
    }
}

impl<D: VirtualMemoryDevice + 'static> Pool<D> {
    /// Makes a pool. Reserves addresses and makes no frame yet.
    ///
    /// # Errors
    /// [`PoolError::NotSupported`] where the device has no virtual memory or not that kind of frame;
    /// [`PoolError::Options`] for a limit below one granule; [`PoolError::Device`] if the device
    /// refuses even small reservations.
    pub fn new(device: Arc<D>, options: PoolOptions) -> Result<Self, PoolError> {
        let properties = device.properties();
        let granule = properties.granule;
        let missing = |missing| PoolError::NotSupported { device: properties.name.clone(), missing };
        if !properties.capabilities.remapping {
            return Err(missing("remapping of memory"));
        }
        if properties.granule_of(options.frame_kind).is_none() {
            return Err(missing("frames of the kind asked for"));
        }
        if options.limit.is_some_and(|limit| limit < granule) {
            return Err(PoolError::Options("the limit is below one granule of the device: raise it"));
        }
        let device_total = device.memory_info()?.total;
        let budget = Budget::new(options.limit, options.target, granule, options.time_to_live);
        let uses_worker = options.maintenance == Maintenance::Worker;
        let inner = Arc::new_cyclic(|weak| Inner {
            device,
            options,
            state: Mutex::new(State::new(budget)),
            step_done: Condvar::new(),
            callbacks: Mutex::new(Vec::new()),
            kind_refused: AtomicBool::new(false),
            device_total,
            worker: uses_worker.then(|| Worker::start(weak.clone())),
        });
        for arena in [SMALL, SMALL + 1] {
            inner.reserve(arena)?;
        }
        inner.wake_worker();
        Ok(Self { inner })
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.inner.device
    }

    /// The owner of this name, for accounts and error messages. Costs a lookup: keep it.
    #[must_use]
    pub fn owner(&self, name: &str) -> Owner {
        self.inner.lock().owners.intern(name)
    }

    /// The name of an owner.
    #[must_use]
    pub fn owner_name(&self, owner: Owner) -> String {
        self.inner.lock().owners.name(owner.0).to_owned()
    }

    /// `len` bytes for work on `stream`, accounted to `owner`.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate(&self, len: u64, stream: StreamId, owner: Owner) -> Result<Lease<D>, AllocError> {
        self.allocate_with(Request { owner, ..Request::new(len, stream) })
    }

    /// Memory as the request says.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    #[inline]
    pub fn allocate_with(&self, request: Request) -> Result<Lease<D>, AllocError> {
        let Some(mut want) = self.inner.check(&request)? else { return Ok(self.lease(None, 0, request)) };
        {
            let mut state = self.inner.lock();
            want.slot = state.timelines.slot(request.stream);
            if let Some(id) = state.take(&want) {
                let addr = state.extents[id.extent].addr;
                state.validate_in_debug();
                drop(state);
                return Ok(self.lease(Some(id), addr, request));
            }
            state.counters.misses += 1;
        }
        let (id, addr) = self.inner.allocate_slow(&want)?;
        Ok(self.lease(Some(id), addr, request))
    }

    /// Memory as the request says if there is any at hand: makes no device call whatever.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`]. That there is none at hand is `Ok(None)`.
    pub fn allocate_at_hand(&self, request: Request) -> Result<Option<Lease<D>>, AllocError> {
        let Some(mut want) = self.inner.check(&request)? else { return Ok(Some(self.lease(None, 0, request))) };
        let mut state = self.inner.lock();
        want.slot = state.timelines.slot(request.stream);
        let taken = state.take(&want).map(|id| (id, state.extents[id.extent].addr));
        state.validate_in_debug();
        drop(state);
        Ok(taken.map(|(id, addr)| self.lease(Some(id), addr, request)))
    }

    #[inline]
    fn lease(&self, id: Option<LeaseId>, addr: u64, request: Request) -> Lease<D> {
        let Request { len, stream, owner, .. } = request;
        Lease { pool: self.clone(), id, addr: DeviceAddr(addr), len, stream, owner }
    }

    pub(crate) fn share(&self, id: LeaseId) {
        let mut state = self.inner.lock();
        let at = state.live(id);
        state.extents[at].count += 1;
        state.validate_in_debug();
    }

    pub(crate) fn used_on(&self, id: LeaseId, stream: StreamId) {
        let mut state = self.inner.lock();
        let slot = state.timelines.slot(stream);
        state.note_use(id, slot);
        state.validate_in_debug();
    }

    #[inline]
    pub(crate) fn release(&self, id: LeaseId, stream: StreamId) {
        let mut state = self.inner.lock();
        let slot = state.timelines.slot(stream);
        state.release(id, slot);
        state.validate_in_debug();
    }

    /// Decides on the next step of maintenance; `None` when there is nothing to do now. For those
    /// who run the device calls themselves: [`Step::run`], then [`Self::finish_step`]. All others
    /// call [`Self::maintain`].
    #[must_use]
    pub fn begin_step(&self) -> Option<Step> {
        self.inner.begin_step()
    }

    /// Records what came of a step.
    pub fn finish_step(&self, outcome: StepOutcome) {
        // A failure is counted, and maintenance pauses for a moment.
        let _ = self.inner.finish(outcome, None);
    }

    /// Does one step of maintenance: a few device calls, none that waits. Says whether there was
    /// anything to do.
    pub fn maintain(&self) -> bool {
        self.inner.maintain()
    }

    /// Releases idle frames whose uses are over until at most `keep` bytes are reserved. Never
    /// waits; memory that queued work still uses goes later, during maintenance. Returns the bytes released.
    ///
    /// # Errors
    /// The first device call that failed; what was released before stays released.
    pub fn trim(&self, keep: u64) -> Result<u64, PoolError> {
        self.inner.trim(keep, false)
    }

    /// As [`Self::trim`], but waits on the host for work that still uses idle frames.
    ///
    /// # Errors
    /// The first device call that failed; what was released before stays released.
    pub fn trim_and_wait(&self, keep: u64) -> Result<u64, PoolError> {
        self.inner.trim(keep, true)
    }

    /// Sets the limit in bytes. A limit below what is reserved stops growth at once; [`Self::trim`]
    /// brings the pool below it.
    pub fn set_limit(&self, limit: Option<u64>) {
        self.inner.lock().budget.limit = limit;
        self.inner.wake_worker();
    }

    /// Sets the target in bytes.
    pub fn set_target(&self, target: Option<u64>) {
        self.inner.lock().budget.target = target;
        self.inner.wake_worker();
    }

    /// To be called before a stream is destroyed: the pool records where its work ends and never
    /// names the stream to the device again. A later stream of the same handle is a new one.
    ///
    /// # Errors
    /// If the fence cannot be recorded. The stream is forgotten all the same, and its memory stays
    /// with it until the pool is taken down.
    pub fn forget_stream(&self, stream: StreamId) -> Result<(), PoolError> {
        let mut state = self.inner.lock();
        let slot = state.timelines.slot(stream);
        let now = state.timelines.now(slot);
        let recorded = state.timelines.fence(&*self.inner.device, now);
        state.timelines.forget(slot);
        recorded.map(|_| ()).map_err(PoolError::from)
    }

    /// Calls `callback` before an allocation fails, without any lock: it may release leases, and
    /// may call the pool. The allocation is tried once more afterwards.
    pub fn on_pressure(&self, callback: Arc<dyn Fn(&Pressure) + Send + Sync>) {
        self.inner.callbacks.lock().push(callback);
    }

    /// The figures of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.lock().stats()
    }

    /// Everything the pool has, at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.inner.lock().snapshot()
    }

    /// Checks all structures against each other. Debug builds do so after every operation.
    ///
    /// # Panics
    /// If an invariant does not hold: a fault of the pool.
    pub fn validate(&self) {
        self.inner.lock().validate();
    }
}

impl<D: VirtualMemoryDevice + 'static> Inner<D> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn wake_worker(&self) {
        if let Some(worker) = &self.worker {
            worker.wake();
        }
    }

    /// The request in units, `None` if it asks for no bytes.
    #[inline]
    fn check(&self, request: &Request) -> Result<Option<Want>, AllocError> {
        if request.len == 0 {
            return Ok(None);
        }
        let alignment = request.alignment.max(UNIT);
        let len = round_up(request.len, UNIT).filter(|len| *len <= self.device_total && alignment <= self.device_total);
        match len {
            Some(len) if alignment.is_power_of_two() => {
                Ok(Some(Want { requested: request.len, len, alignment, slot: 0, owner: request.owner.0 }))
            }
            _ => Err(self.too_large(request.len, request.alignment)),
        }
    }

    #[cold]
    fn too_large(&self, requested: u64, alignment: u64) -> AllocError {
        let largest_ever = self.lock().budget.limit.unwrap_or(u64::MAX).min(self.device_total);
        AllocError::TooLarge { requested, alignment, largest_ever }
    }

    fn means(&self) -> Means {
        let kind = if self.kind_refused.load(Ordering::Relaxed) { FrameKind::Device } else { self.options.frame_kind };
        Means {
            target: 0,
            ceiling: 0,
            ends: false,
            kind,
            unmap_first: !self.device.properties().capabilities.aliases,
            exact: false,
            queued: self.device.properties().capabilities.queued_binds,
        }
    }

    /// Whether any stream that the pool knows is capturing.
    fn capturing(&self, state: &State) -> DeviceResult<bool> {
        if !self.device.properties().capabilities.capture {
            return Ok(false);
        }
        for slot in state.timelines.slots().filter(|slot| !state.timelines.is_forgotten(*slot)) {
            if self.device.is_capturing(state.timelines.id(slot))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    #[cold]
    fn allocate_slow(&self, want: &Want) -> Result<(LeaseId, u64), AllocError> {
        let limit = self.lock().budget.limit;
        if limit.is_some_and(|limit| want.len > limit) {
            return Err(self.too_large(want.requested, want.alignment));
        }
        let result = self.climb(want);
        if result.is_err() {
            self.lock().counters.failures += 1;
        }
        if self.options.maintenance == Maintenance::Inline {
            self.maintain();
        }
        self.wake_worker();
        result
    }

    fn climb(&self, want: &Want) -> Result<(LeaseId, u64), AllocError> {
        let mut refused: Option<DeviceError> = None;
        let mut pressed = false;
        let mut reach = Reach {
            cross_stream: self.options.cross_stream,
            capturing: false,
            device_full: false,
            address_full: false,
            means: self.means(),
        };
        loop {
            let next = {
                let mut state = self.lock();
                reach.capturing = self.capturing(&state)?;
                let next = state.climb(&*self.device, want, reach)?;
                state.validate_in_debug();
                match next {
                    Next::Taken(id) => return Ok((id, state.extents[id.extent].addr)),
                    Next::AwaitStep => {
                        self.step_done.wait(&mut state);
                        continue;
                    }
                    other => other,
                }
            };
            match next {
                Next::Grow(growth) => match self.finish(Step(Work::Grow(growth)).run(&*self.device), Some(want)) {
                    Ok(id) => {
                        let id = id.expect("a growth for a request ends in a lease");
                        return Ok((id, self.lock().extents[id.extent].addr));
                    }
                    Err(error) if error.kind == DeviceErrorKind::OutOfMemory => {
                        // A full device is a moment, not a verdict: less may still be had.
                        reach.device_full = std::mem::replace(&mut reach.means.exact, true);
                        refused = Some(error);
                    }
                    Err(error) if self.refuses_kind(error, reach.means.kind) => reach.means = self.means(),
                    Err(error) => return Err(error.into()),
                },
                Next::Reserve(arena) => reach.address_full = self.reserve(arena).is_err(),
                Next::Wait(fences) => {
                    self.lock().counters.host_waits += 1;
                    self.wait_any(&fences)?;
                    if reach.cross_stream == CrossStream::Never {
                        reach.cross_stream = CrossStream::WhenReached;
                    }
                }
                Next::Exhausted if reach.cross_stream == CrossStream::Never && !reach.capturing => {
                    reach.cross_stream = CrossStream::WhenReached;
                }
                Next::Exhausted if !pressed && self.press(want) => pressed = true,
                Next::Exhausted => return Err(self.out_of_memory(want, refused)),
                Next::Taken(_) | Next::AwaitStep => unreachable!("handled under the lock"),
            }
        }
    }

    /// Whether a failure means that the device refuses this kind of frame; then plain ones are used.
    fn refuses_kind(&self, error: DeviceError, kind: FrameKind) -> bool {
        let about_frames = matches!(error.op, DeviceOp::MakeFrame | DeviceOp::Map | DeviceOp::SetAccess);
        let gone = error.kind == DeviceErrorKind::Deinitialized;
        kind != FrameKind::Device && about_frames && !gone && !self.kind_refused.swap(true, Ordering::Relaxed)
    }

    fn wait_any(&self, fences: &[Fence]) -> DeviceResult<()> {
        let mut look = FIRST_LOOK;
        loop {
            for fence in fences {
                if self.device.wait(*fence, look)? {
                    return Ok(());
                }
            }
            look = (look * 2).min(LONGEST_LOOK);
        }
    }

    /// Calls the pressure callbacks, without any lock; says whether there were any.
    fn press(&self, want: &Want) -> bool {
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
        if std::env::var_os("VMM_LAB").is_some() { eprintln!("want {} KiB: {}", want.len >> 10, state.lab()); }
        AllocError::OutOfMemory(Box::new(OutOfMemory {
            requested: want.requested,
            limit: state.budget.limit,
            reserved: state.counters.reserved_bytes,
            live: state.counters.live_bytes,
            retired: state.counters.retired_bytes,
            largest_possible: state.largest_possible(device.is_some()),
            owners: state.largest_owners(5),
            device,
        }))
    }

    fn reserve(&self, arena: ArenaId) -> Result<(), PoolError> {
        let granule = self.device.properties().granule;
        let most = self.device.properties().max_reservation;
        let wanted = self.options.reservation.unwrap_or(self.device_total.saturating_mul(16)).min(most);
        let alignment = granule.max(SMALL_MAX * 2);
        let mut len = round_up(wanted, alignment).filter(|len| *len <= most).unwrap_or(wanted / granule * granule).max(granule);
        loop {
            let cap = self.device_total.saturating_mul(ADDRESS_CAP).max(LEAST_RESERVATION);
            if self.lock().address_bytes().saturating_add(len) > cap {
                return Err(PoolError::Options("the pool holds as many addresses as it may"));
            }
            match self.device.reserve(len, granule) {
                Ok(base) => {
                    self.lock().add_region(arena, base.0, len);
                    return Ok(());
                }
                Err(error) if error.kind == DeviceErrorKind::OutOfAddresses && len / 2 >= LEAST_RESERVATION.min(wanted) => {
                    len = round_up(len / 2, granule).expect("half of a length that was in range");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn begin_step(&self) -> Option<Step> {
        let now = self.options.clock.now();
        let mut state = self.lock();
        if state.paused_until > now {
            return None;
        }
        let capturing = self.capturing(&state).ok()?;
        let step = state.next_step(&*self.device, now, self.means(), capturing);
        state.validate_in_debug();
        step.unwrap_or_else(|_| {
            state.pause(now + PAUSE_AFTER_FAILURE);
            None
        })
    }

    /// Records what came of a step; for a growth that `want` asked for, makes the lease.
    fn finish(&self, outcome: StepOutcome, want: Option<&Want>) -> Result<Option<LeaseId>, DeviceError> {
        let now = self.options.clock.now();
        let mut state = self.lock();
        let result = match (&outcome.work, &outcome.result) {
            (Work::Grow(growth), Ok(made)) => Ok(state.finish_growth(growth, made, want)),
            (Work::Grow(growth), Err(failure)) => {
                state.fail_growth(growth, failure);
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
        self.step_done.notify_all();
        result
    }

    pub(crate) fn maintain(&self) -> bool {
        let Some(step) = self.begin_step() else { return false };
        self.finish(step.run(&*self.device), None).is_ok()
    }

    fn trim(&self, keep: u64, wait: bool) -> Result<u64, PoolError> {
        let before = self.lock().counters.frames_released_bytes;
        loop {
            let (step, fences) = {
                let mut state = self.lock();
                if self.capturing(&state)? {
                    break;
                }
                state.poll(&*self.device, READY, CrossStream::WhenReached)?;
                state.expel(keep, self.means());
                let step = state.step_removing(&*self.device)?;
                let fences = if step.is_none() && wait { state.fences_of_idle(&*self.device, keep)? } else { Vec::new() };
                state.validate_in_debug();
                (step, fences)
            };
            match step {
                Some(step) => {
                    self.finish(step.run(&*self.device), None)?;
                }
                None if fences.is_empty() => break,
                None => {
                    self.lock().counters.host_waits += 1;
                    self.wait_any(&fences)?;
                }
            }
        }
        Ok(self.lock().counters.frames_released_bytes - before)
    }
}

impl<D: VirtualMemoryDevice + 'static> Drop for Inner<D> {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
        teardown::run(&*self.device, self.state.get_mut());
    }
}

impl State {
    fn add_region(&mut self, arena: ArenaId, base: u64, len: u64) {
        let regions = &mut self.arenas[usize::from(arena)].regions;
        let region = u8::try_from(regions.len()).expect("at most 255 regions: the address cap is far below");
        let extent = Extent { addr: base, len, arena, region, ..Extent::default() };
        let first = self.extents.add(extent);
        self.arenas[usize::from(arena)].regions.push(Region::new(base, len, self.budget.granule, first));
        self.arenas[usize::from(arena)].set_void(&mut self.extents, first);
    }
}

//! The pool: what users see.

use crate::arena::{DomainId, GENERAL, LARGE, SMALL};
use crate::bins::UNIT;
use crate::device::{DeviceResult, VirtualMemoryDevice};
use crate::error::{AllocError, PoolError};
use crate::lease::Lease;
use crate::options::{Maintenance, PoolOptions};
use crate::owner::Owner;
use crate::report::{Snapshot, Stats};
use crate::shared::Shared;
use crate::state::{LeaseId, Memory, State, Want};
use crate::step::{Step, StepOutcome};
use crate::units::{DeviceAddr, DeviceOrdinal, StreamId};
use crate::worker::Worker;
use std::fmt;
use std::sync::Arc;

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

pub(crate) type PressureCallback = Arc<dyn Fn(&Pressure) + Send + Sync>;

/// A pool of one device's memory. Clones are the same pool; the last of them and of the leases to
/// go takes it down, and waits for work that still uses its memory. While a stream captures a graph that
/// cannot be asked for: the drop waits some seconds for the capture's end, and then leaves the memory behind.
pub struct Pool<D: VirtualMemoryDevice + 'static> {
    pub(crate) handle: Arc<Handle<D>>,
}

/// What the clones of a pool and its leases hold. The worker does not: the pool goes down with its
/// last user, in that user's thread.
pub(crate) struct Handle<D: VirtualMemoryDevice + 'static> {
    pub(crate) shared: Arc<Shared<D>>,
    worker: Option<Worker>,
}

impl<D: VirtualMemoryDevice + 'static> Drop for Handle<D> {
    fn drop(&mut self) {
        // In a fork there is no worker, its lock may be held for ever, and the device is the parent's.
        if self.shared.is_forked() {
            std::mem::forget(self.worker.take());
            return;
        }
        if let Some(worker) = self.worker.take() {
            worker.stop();
        }
        self.shared.take_down();
    }
}

impl<D: VirtualMemoryDevice + 'static> Clone for Pool<D> {
    fn clone(&self) -> Self {
        Self { handle: self.handle.clone() }
    }
}

impl<D: VirtualMemoryDevice + 'static> fmt::Debug for Pool<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("device", &self.handle.shared.device.properties().name)
            .finish_non_exhaustive()
    }
}

impl<D: VirtualMemoryDevice + 'static> Pool<D> {
    /// Makes a pool. Reserves addresses and makes no frame yet.
    ///
    /// On a device without [`Capabilities::remapping`](crate::Capabilities::remapping) it works on
    /// plain allocations, which share what they can but do not move: see [`Stats::remapping`]. Releasing
    /// one may wait there for the work of the device.
    ///
    /// # Errors
    /// [`PoolError::NotSupported`] where the device lacks that kind of frame or access for peers;
    /// [`PoolError::Options`] for a limit below one granule; [`PoolError::Device`] if the device
    /// refuses even small reservations, or access for a peer.
    pub fn new(device: Arc<D>, options: PoolOptions) -> Result<Self, PoolError> {
        let properties = device.properties();
        let granule = properties.granule;
        let missing =
            |missing| PoolError::NotSupported { device: properties.name.clone(), missing };
        if properties.capabilities.queued_binds && properties.capabilities.capture {
            return Err(missing("queued binds without graph capture"));
        }
        if properties.granule_of(options.frame_kind).is_none() {
            return Err(missing("frames of the kind asked for"));
        }
        if options.limit.is_some_and(|limit| limit < granule) {
            return Err(PoolError::Options(
                "the limit is below one granule of the device: raise it",
            ));
        }
        let remapping = properties.capabilities.remapping;
        let peers = options.peers.clone();
        let device_total = device.memory_info()?.total;
        let uses_worker = options.maintenance == Maintenance::Worker;
        let shared = Arc::new(Shared::new(device, options, device_total));
        // From here on a failure takes down what was made.
        let mut handle = Handle { shared, worker: None };
        handle.shared.check_peers(&peers)?;
        for arena in [SMALL, LARGE].into_iter().filter(|_| remapping) {
            handle.shared.reserve(arena, granule)?;
        }
        handle.shared.try_peers(&peers)?;
        handle.worker = uses_worker.then(|| Worker::start(handle.shared.clone()));
        Ok(Self { handle: Arc::new(handle) })
    }

    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<D> {
        &self.handle.shared.device
    }

    /// The owner of this name, for accounts and error messages. Costs a lookup: keep it.
    #[must_use]
    pub fn owner(&self, name: &str) -> Owner {
        self.handle.shared.lock().owners.intern(name)
    }

    /// The name of an owner.
    #[must_use]
    pub fn owner_name(&self, owner: Owner) -> String {
        self.handle.shared.lock().owners.name(owner.0).to_owned()
    }

    /// `len` bytes for work on `stream`, accounted to `owner`.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    pub fn allocate(
        &self,
        len: u64,
        stream: StreamId,
        owner: Owner,
    ) -> Result<Lease<D>, AllocError> {
        self.allocate_with(Request { owner, ..Request::new(len, stream) })
    }

    /// Memory as the request says.
    ///
    /// # Errors
    /// See [`AllocError`]. Nothing has changed then.
    #[inline]
    pub fn allocate_with(&self, request: Request) -> Result<Lease<D>, AllocError> {
        let obtained = self.obtain(GENERAL, &request, |_, _| {})?;
        Ok(self.lease(obtained, request))
    }

    /// Memory as the request says if there is any at hand: makes no device call whatever. Near the limit a
    /// request above 1 MiB may be better placed by moving frames; that is then not at hand.
    ///
    /// # Errors
    /// [`AllocError::TooLarge`]. That there is none at hand is `Ok(None)`.
    pub fn allocate_at_hand(&self, request: Request) -> Result<Option<Lease<D>>, AllocError> {
        let obtained = self.obtain_at_hand(GENERAL, &request, |_, _| {})?;
        Ok(obtained.map(|memory| self.lease(memory, request)))
    }

    /// As [`Shared::check`], and counts failures.
    #[inline]
    fn check(&self, request: &Request) -> Result<Option<Want>, AllocError> {
        self.shared().check(request).inspect_err(|_| self.shared().note_failure())
    }

    /// A live extent in a domain and its address, after `note` was called with it under the lock;
    /// `None` for no bytes.
    #[inline]
    pub(crate) fn obtain(
        &self,
        domain: DomainId,
        request: &Request,
        note: impl Fn(&mut State, LeaseId),
    ) -> Result<Memory, AllocError> {
        let Some(mut want) = self.check(request)? else { return Ok(None) };
        want.domain = domain;
        {
            let mut state = self.handle.shared.lock();
            want.slot = state.timelines.slot(request.stream);
            if let Some(id) = state.take_at_hand(&want) {
                note(&mut state, id);
                let addr = state.extents[id.extent].addr;
                state.validate_in_debug();
                return Ok(Some((id, addr)));
            }
            state.counters.misses += 1;
        }
        let slow = self.handle.shared.allocate_slow(&want);
        self.wake_worker();
        let (id, addr) = slow?;
        note(&mut self.handle.shared.lock(), id);
        Ok(Some((id, addr)))
    }

    /// As [`Self::obtain`] for one who can do without: `Ok(None)` where that would take a wait for the
    /// device or callbacks, or could never be.
    pub(crate) fn obtain_spare(
        &self,
        domain: DomainId,
        request: &Request,
    ) -> DeviceResult<Option<Memory>> {
        let shared = self.shared();
        let Ok(want) = shared.check(request) else { return Ok(None) };
        if let Ok(Some(at_hand)) = self.obtain_at_hand(domain, request, |_, _| {}) {
            return Ok(Some(at_hand));
        }
        let Some(want) = want else { return Ok(Some(None)) };
        let slot = shared.lock().timelines.slot(request.stream);
        let spare = shared.allocate_spare(&Want { slot, domain, ..want });
        self.wake_worker();
        Ok(spare?.map(Some))
    }

    /// As [`Self::obtain`]; without memory at hand `Ok(None)`.
    pub(crate) fn obtain_at_hand(
        &self,
        domain: DomainId,
        request: &Request,
        note: impl Fn(&mut State, LeaseId),
    ) -> Result<Option<Memory>, AllocError> {
        let Some(mut want) = self.check(request)? else { return Ok(Some(None)) };
        want.domain = domain;
        let mut state = self.handle.shared.lock();
        want.slot = state.timelines.slot(request.stream);
        let taken = state.take_at_hand(&want).map(|id| {
            note(&mut state, id);
            Some((id, state.extents[id.extent].addr))
        });
        state.validate_in_debug();
        Ok(taken)
    }

    #[inline]
    pub(crate) fn lease(&self, memory: Memory, request: Request) -> Lease<D> {
        let Request { len, stream, owner, .. } = request;
        let addr = DeviceAddr(memory.map_or(0, |(_, addr)| addr));
        Lease { pool: self.clone(), id: memory.map(|(id, _)| id), addr, len, stream, owner }
    }

    pub(crate) fn shared(&self) -> &Shared<D> {
        &self.handle.shared
    }

    pub(crate) fn wake_worker(&self) {
        if let Some(worker) = &self.handle.worker {
            worker.wake();
        }
    }

    pub(crate) fn share(&self, id: LeaseId) {
        let mut state = self.handle.shared.lock();
        let at = state.live(id);
        state.extents[at].add_user();
        state.validate_in_debug();
    }

    pub(crate) fn used_on(&self, id: LeaseId, stream: StreamId) {
        let mut state = self.handle.shared.lock();
        let slot = state.timelines.slot(stream);
        state.note_use(id, slot);
        state.validate_in_debug();
    }

    #[inline]
    pub(crate) fn release(&self, id: LeaseId, stream: Option<StreamId>) {
        // Destructors run in forks too: what is released there is the parent's.
        let Some(mut state) = self.handle.shared.lock_unless_forked() else { return };
        let slot = stream.map(|stream| state.timelines.slot(stream));
        state.release(id, slot);
        state.validate_in_debug();
    }

    /// Decides on the next step of maintenance; `None` when there is nothing to do now. For those
    /// who run the device calls themselves: [`Step::run`], then [`Self::finish_step`]. All others
    /// call [`Self::maintain`].
    #[must_use]
    pub fn begin_step(&self) -> Option<Step> {
        self.handle.shared.begin_step()
    }

    /// Records what came of a step.
    ///
    /// # Panics
    /// If the step was begun by another pool.
    pub fn finish_step(&self, outcome: StepOutcome) {
        // A failure is counted, and maintenance pauses for a moment.
        let _ = self.handle.shared.finish(outcome, None);
    }

    /// Does one step of maintenance: a few device calls, none that waits, but for releases without
    /// [`Stats::remapping`]. Says whether it did something: `false` when there was nothing to do, and
    /// after a failure.
    pub fn maintain(&self) -> bool {
        self.handle.shared.maintain()
    }

    /// Releases idle frames whose uses are over until at most `keep` bytes are reserved. Never
    /// waits, but for the device's own waits without [`Stats::remapping`]; memory that queued work still
    /// uses goes later, during maintenance. Until memory is short again nothing is made ahead of need
    /// above `keep`; without limit and target, what was needed before above it is not expected again. Returns
    /// the bytes released meanwhile, by whomever.
    ///
    /// # Errors
    /// The first device call that failed; what was released before stays released.
    pub fn trim(&self, keep: u64) -> Result<u64, PoolError> {
        self.handle.shared.trim(keep, false)
    }

    /// As [`Self::trim`], but waits on the host for work that still uses idle frames: for what was queued
    /// before the call.
    ///
    /// # Errors
    /// The first device call that failed; what was released before stays released.
    pub fn trim_and_wait(&self, keep: u64) -> Result<u64, PoolError> {
        self.handle.shared.trim(keep, true)
    }

    /// Sets the limit in bytes. A limit below what is reserved stops growth at once; [`Self::trim`]
    /// brings the pool below it.
    pub fn set_limit(&self, limit: Option<u64>) {
        {
            let mut state = self.handle.shared.lock();
            state.budget.limit = limit;
            state.budget.end_trim();
        }
        self.wake_worker();
    }

    /// Sets the target in bytes; `None`: the limit, [`PoolOptions::NO_TARGET`]: none.
    pub fn set_target(&self, target: Option<u64>) {
        {
            let mut state = self.handle.shared.lock();
            state.budget.target = target;
            state.budget.end_trim();
        }
        self.wake_worker();
    }

    /// Gives another device access to all memory of the pool: to what there is before this returns, to
    /// what comes along with this device's own. Work of that device may then use any lease.
    ///
    /// A grant is a slow call: about 1 ms a frame on NVIDIA's cards, for each frame there is now and
    /// for each that is made or moved later. [`Lease::grant`] is for single leases.
    ///
    /// # Errors
    /// [`PoolError::NotSupported`] where the device lacks
    /// [`Capabilities::peers`](crate::Capabilities::peers); [`PoolError::Device`] if the device refuses:
    /// the peer is none of the pool's then, and a later call may succeed.
    pub fn add_peer(&self, peer: DeviceOrdinal) -> Result<(), PoolError> {
        self.handle.shared.add_peer(peer)
    }

    pub(crate) fn grant(&self, id: LeaseId, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        self.handle.shared.grant(id, peers)
    }

    pub(crate) fn check_peers(&self, peers: &[DeviceOrdinal]) -> Result<(), PoolError> {
        self.handle.shared.check_peers(peers)
    }

    /// To be called before a stream is destroyed: the pool records where its work ends, and from
    /// then on only asks for that fence. A later stream of the same handle is a new one. Heaps over the
    /// pool give back what they keep for the stream. Leases and blocks of it may outlive it. Does nothing
    /// for a stream that nobody has met. Memory of a stream that was destroyed without this serves others
    /// only once the pool has waited for the whole device, as it does where it would fail otherwise.
    ///
    /// # Errors
    /// [`PoolError::Capturing`] while a stream captures, and [`PoolError::Device`] if the fence cannot
    /// be recorded; the stream is not forgotten then.
    pub fn forget_stream(&self, stream: StreamId) -> Result<(), PoolError> {
        let mut state = self.handle.shared.lock();
        if self.handle.shared.capturing(&state)? {
            return Err(PoolError::Capturing);
        }
        if let Some(slot) = state.timelines.known_slot(stream) {
            let device = &*self.handle.shared.device;
            if state.timelines.has_many_forgotten() {
                state.timelines.poll_forgotten(device)?;
                state.vacate_slots();
            }
            state.timelines.forget(device, slot)?;
        }
        drop(state);
        self.handle.shared.heaps.forget(stream);
        Ok(())
    }

    /// Says whether the pool may ask the device about a stream, as it may about all others. Where it may not,
    /// the stream can be destroyed at any moment, without [`Self::forget_stream`] and before its leases end:
    /// the device is asked about it only for requests of its own. What it released since the last of those
    /// serves it alone, and others once the pool has waited for the whole device, as it does where it would
    /// fail otherwise. For streams of other libraries.
    ///
    /// A later stream of the same handle is taken for the same one.
    pub fn watch_stream(&self, stream: StreamId, watched: bool) {
        let mut state = self.handle.shared.lock();
        let slot = state.timelines.slot(stream);
        state.timelines.watch(slot, watched);
    }

    /// Calls `callback` before an allocation fails, without any lock: it may release leases, and
    /// may call the pool. The allocation is tried once more afterwards. An allocation that fails
    /// inside a callback calls none.
    ///
    /// The pool keeps the callback: one that holds the pool keeps it alive for ever.
    pub fn on_pressure(&self, callback: Arc<dyn Fn(&Pressure) + Send + Sync>) {
        self.handle.shared.callbacks.lock().push(callback);
    }

    /// The figures of this moment.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let shared = &self.handle.shared;
        shared.lock().stats(shared.frame_kind())
    }

    /// Lets the peaks among the figures begin anew, at what there is now. The pool's own decisions
    /// stay as they are.
    pub fn reset_peaks(&self) {
        let mut state = self.handle.shared.lock();
        let held = state.frames.held();
        state.counters.reset_peaks(held);
    }

    /// Everything the pool has, at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let shared = &self.handle.shared;
        shared.lock().snapshot(shared.frame_kind())
    }

    /// Checks all structures against each other. Debug builds do so after operations, as often as
    /// keeps the cost of one bounded when there are many leases.
    ///
    /// # Panics
    /// If an invariant does not hold: a fault of the pool.
    pub fn validate(&self) {
        let state = self.handle.shared.lock();
        state.validate();
        state.validate_directory();
    }
}

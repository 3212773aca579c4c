//! All streams of a device, and how their work reaches the driver.
//!
//! A submission goes to the driver once the driver has all that it waits for, so a queue that several
//! streams share never stands still for work that is not there yet. Work is held back here only
//! behind a closed gate; otherwise everything goes to the driver at once, and waits are the device's.
//!
//! Locks: that of the table, then that of one stream, then that of one queue. No two streams' locks
//! are held at once.

use crate::context::{Context, Handed};
use crate::fence::Known;
use crate::options::QueueLock;
use crate::queue::Queue;
use crate::stream::{BIND_STREAM, Keep, Kind, State, Stream, Submission, Wait, Work};
use ash::vk;
use ash::vk::Handle;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use vmm_core::units::{Fence, StreamId};

/// So many unseen fences of a stream make it look how far the device is.
const MANY_FENCES: usize = 64;

/// All streams of a device.
pub(crate) struct Streams {
    context: Arc<Context>,
    queues: Vec<Queue>,
    /// How many of the queues, from the first, are for streams.
    work_queues: usize,
    table: RwLock<HashMap<StreamId, Entry>>,
    next_id: AtomicU64,
    pub(crate) bind: Arc<Stream>,
    /// Streams with deferred work, each once.
    blocked: Mutex<Vec<Arc<Stream>>>,
    /// The length of `blocked`, to be read without its lock.
    blocked_count: AtomicUsize,
}

enum Entry {
    Live(Arc<Stream>),
    /// Destroyed, with all work done; the value of its last fence.
    Gone(u64),
}

/// Why something cannot be done with a stream or a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    UnknownStream,
    Destroyed,
    DevicesOwn,
    NeverRecorded,
    /// What the stream shall wait for is behind a gate and would come to the same queue.
    BehindAGate,
    Driver(vk::Result),
}

impl From<vk::Result> for Refusal {
    fn from(result: vk::Result) -> Self {
        Self::Driver(result)
    }
}

type Checked<T> = Result<T, Refusal>;

impl Streams {
    pub(crate) fn new(
        context: &Arc<Context>,
        handed: &Handed,
        lock: Option<&Arc<dyn QueueLock>>,
    ) -> Result<Self, vk::Result> {
        let mut queues: Vec<Queue> =
            handed.work.iter().map(|queue| Queue::new(*queue, lock)).collect();
        let work_queues = queues.len();
        let bind_queue = handed.work.iter().position(|queue| queue.queue == handed.bind.queue);
        let bind_queue = bind_queue.unwrap_or_else(|| {
            queues.push(Queue::new(handed.bind, lock));
            work_queues
        });
        queues[bind_queue].streams.fetch_add(1, Ordering::Relaxed);
        let bind = Arc::new(Stream::new(context, BIND_STREAM, Kind::Bind, bind_queue)?);
        Ok(Self {
            context: Arc::clone(context),
            queues,
            work_queues,
            table: RwLock::default(),
            next_id: AtomicU64::new(1),
            bind,
            blocked: Mutex::default(),
            blocked_count: AtomicUsize::new(0),
        })
    }

    pub(crate) fn queue_of(&self, stream: &Stream) -> &Queue {
        &self.queues[stream.queue]
    }

    /// Whether binds have a queue to themselves.
    pub(crate) fn binds_alone(&self) -> bool {
        self.bind.queue >= self.work_queues
    }

    /// How many queues streams are spread over.
    pub(crate) fn work_queues(&self) -> usize {
        self.work_queues
    }

    /// Makes a stream, on the queue with the fewest.
    pub(crate) fn make(&self) -> Result<Arc<Stream>, vk::Result> {
        self.forget_gone();
        let id = StreamId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let mut table = self.table.write();
        let queue = (0..self.work_queues).min_by_key(|index| self.queues[*index].stream_count());
        let queue = queue.unwrap_or(0);
        let stream = Arc::new(Stream::new(&self.context, id, Kind::Own, queue)?);
        self.queues[queue].streams.fetch_add(1, Ordering::Relaxed);
        table.insert(id, Entry::Live(Arc::clone(&stream)));
        Ok(stream)
    }

    /// The stream that is the queue itself; `None` if the device was not given it.
    pub(crate) fn of_queue(&self, queue: vk::Queue) -> Result<Option<StreamId>, vk::Result> {
        let id = StreamId(queue.as_raw());
        let mut table = self.table.write();
        if table.contains_key(&id) {
            return Ok(Some(id));
        }
        let work = &self.queues[..self.work_queues];
        let Some(index) = work.iter().position(|known| known.handle() == queue) else {
            return Ok(None);
        };
        let stream = Arc::new(Stream::new(&self.context, id, Kind::Queue, index)?);
        self.queues[index].streams.fetch_add(1, Ordering::Relaxed);
        table.insert(id, Entry::Live(stream));
        Ok(Some(id))
    }

    /// Marks a stream as destroyed. What is queued on it still runs.
    pub(crate) fn destroy(&self, id: StreamId) -> Checked<()> {
        let stream = self.usable(id)?;
        stream.destroyed.store(true, Ordering::Release);
        self.forget_gone();
        Ok(())
    }

    /// Lets go of destroyed streams whose work is done.
    fn forget_gone(&self) {
        let mut table = self.table.write();
        for entry in table.values_mut() {
            let Entry::Live(stream) = entry else { continue };
            let mut state = stream.state.lock();
            if !stream.is_destroyed()
                || stream.counter().is_ok_and(|point| point < state.last_point)
            {
                continue;
            }
            let reached = state.last_point;
            state.collect(reached);
            state.waits.clear();
            let last = state.fences.last();
            drop(state);
            self.queues[stream.queue].streams.fetch_sub(1, Ordering::Relaxed);
            *entry = Entry::Gone(last);
        }
    }

    /// A stream that can be given work.
    pub(crate) fn usable(&self, id: StreamId) -> Checked<Arc<Stream>> {
        if id == BIND_STREAM {
            return Err(Refusal::DevicesOwn);
        }
        match self.table.read().get(&id) {
            Some(Entry::Live(stream)) if !stream.is_destroyed() => Ok(Arc::clone(stream)),
            Some(_) => Err(Refusal::Destroyed),
            None => Err(Refusal::UnknownStream),
        }
    }

    /// Queues work on a stream. `prepare` says what, under the stream's lock.
    pub(crate) fn submit(
        &self,
        stream: &Arc<Stream>,
        prepare: impl FnOnce(&mut State) -> Result<(Work, Keep), vk::Result>,
    ) -> Result<u64, vk::Result> {
        let point = {
            let mut state = stream.state.lock();
            if !state.pending.is_empty() {
                let reached = stream.counter()?;
                state.collect(reached);
            }
            let (work, keep) = prepare(&mut state)?;
            self.enqueue(stream, &mut state, work, keep)?
        };
        self.pump();
        Ok(point)
    }

    /// Gives the work the stream's next point, and hands it to the driver if that has all that it
    /// waits for. On an error nothing has changed.
    fn enqueue(
        &self,
        stream: &Arc<Stream>,
        state: &mut State,
        work: Work,
        mut keep: Keep,
    ) -> Result<u64, vk::Result> {
        let point = state.last_point + 1;
        let submission = Submission { work, waits: state.waits.clone(), point };
        if !state.deferred.is_empty() || !self.is_ready(stream, &submission) {
            state.deferred.push_back(submission);
            let mut blocked = self.blocked.lock();
            if !blocked.iter().any(|other| Arc::ptr_eq(other, stream)) {
                blocked.push(Arc::clone(stream));
                self.blocked_count.store(blocked.len(), Ordering::SeqCst);
            }
        } else {
            if let Err(error) = self.hand_over(stream, &submission) {
                if let Some(commands) = &mut state.commands {
                    commands.recycle(keep.commands);
                }
                return Err(error);
            }
            stream.set_submitted(point);
        }
        state.last_point = point;
        keep.streams = std::mem::take(&mut state.waits);
        if !keep.commands.is_null() || !keep.streams.is_empty() || keep.other.is_some() {
            state.pending.push_back((point, keep));
        }
        Ok(point)
    }

    /// Whether the driver may have the submission.
    fn is_ready(&self, stream: &Stream, submission: &Submission) -> bool {
        // Behind a gate only the device itself can hold up a queue of the user's, who goes on to
        // submit there; and a queue that serves one stream may be held up, as nobody else suffers.
        let alone = stream.kind == Kind::Queue || self.queues[stream.queue].stream_count() == 1;
        submission.waits.iter().all(|wait| {
            wait.stream.has_submitted(wait.point)
                || stream.kind == Kind::Queue
                || (wait.stream.kind == Kind::Gate && alone)
        })
    }

    /// Hands deferred work to the driver as far as it has become possible.
    pub(crate) fn pump(&self) {
        while self.blocked_count.load(Ordering::SeqCst) > 0 {
            let blocked = self.blocked.lock().clone();
            let moved = blocked.iter().filter(|stream| self.flush(stream)).count();
            if moved == 0 {
                return;
            }
        }
    }

    /// Says whether anything was handed over.
    fn flush(&self, stream: &Arc<Stream>) -> bool {
        let mut state = stream.state.lock();
        let mut moved = false;
        while let Some(submission) = state.deferred.front() {
            if !self.is_ready(stream, submission) {
                return moved;
            }
            let point = submission.point;
            if self.hand_over(stream, submission).is_err() {
                // The next call tries again. Of a lost device that one will hear, too.
                return moved;
            }
            stream.set_submitted(point);
            state.deferred.pop_front();
            moved = true;
        }
        let mut blocked = self.blocked.lock();
        blocked.retain(|other| !Arc::ptr_eq(other, stream));
        self.blocked_count.store(blocked.len(), Ordering::SeqCst);
        moved
    }

    /// Gives one submission to the driver.
    fn hand_over(&self, stream: &Stream, submission: &Submission) -> Result<(), vk::Result> {
        let mut waits: SmallVec<[(vk::Semaphore, u64); 4]> = SmallVec::new();
        for Wait { stream: other, point } in &submission.waits {
            // The barrier in front of a stream's own work, and the scope of its signal, cover what is
            // earlier on the same queue. Not so for binds, on either side, and for users' own work.
            let covered = stream.kind == Kind::Own
                && matches!(other.kind, Kind::Own | Kind::Queue)
                && other.queue == stream.queue;
            if !covered {
                waits.push((other.timeline, *point));
            }
        }
        if stream.kind == Kind::Bind && submission.point > 1 {
            // Binds may overtake each other, even on one queue.
            waits.push((stream.timeline, submission.point - 1));
        }
        let mut signals: SmallVec<[(vk::Semaphore, u64); 2]> = SmallVec::new();
        signals.push((stream.timeline, submission.point));
        let mut commands: SmallVec<[vk::CommandBuffer; 4]> = SmallVec::new();
        match &submission.work {
            Work::Nothing | Work::Bind(_) => {}
            Work::Recorded(recorded) => commands.push(*recorded),
            Work::Commands { barrier, commands: users, user } => {
                commands.push(*barrier);
                commands.extend_from_slice(users);
                waits.extend_from_slice(&user.waits);
                signals.extend_from_slice(&user.signals);
            }
        }
        let (waits, wait_values): (SmallVec<[_; 4]>, SmallVec<[_; 4]>) = waits.into_iter().unzip();
        let (signals, signal_values): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
            signals.into_iter().unzip();
        let mut values = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&wait_values)
            .signal_semaphore_values(&signal_values);
        let (device, queue) = (&self.context.device, &self.queues[stream.queue]);
        let none = vk::Fence::null();
        if let Work::Bind(binds) = &submission.work {
            let buffers = binds.infos();
            let info = vk::BindSparseInfo::default()
                .wait_semaphores(&waits)
                .signal_semaphores(&signals)
                .buffer_binds(&buffers)
                .push_next(&mut values);
            // SAFETY: the arrays in `info` live; the queue binds and is ours for the call; buffers
            // and memory live until this bind is reached (`leaving` in `Regions` and `Memory`); the
            // bind stream's lock, held by all callers, keeps other binds of the buffers away.
            return queue.with(|queue| unsafe { device.queue_bind_sparse(queue, &[info], none) });
        }
        let stages: SmallVec<[_; 4]> =
            waits.iter().map(|_| vk::PipelineStageFlags::ALL_COMMANDS).collect();
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&waits)
            .wait_dst_stage_mask(&stages)
            .command_buffers(&commands)
            .signal_semaphores(&signals)
            .push_next(&mut values);
        // SAFETY: the arrays in `info` live; the queue is ours for the call; semaphores and command
        // buffers live until the point is reached (`State::pending`, or the user's promise).
        queue.with(|queue| unsafe { device.queue_submit(queue, &[info], none) })
    }

    /// Records a fence behind all work of a stream.
    pub(crate) fn record(&self, id: StreamId) -> Checked<u64> {
        let stream = self.usable(id)?;
        let value = {
            let mut state = stream.state.lock();
            // What a user submitted to the queue directly, only the queue itself knows.
            if stream.kind == Kind::Queue || !state.waits.is_empty() {
                self.enqueue(&stream, &mut state, Work::Nothing, Keep::default())?;
            }
            if state.fences.len() >= MANY_FENCES {
                let reached = stream.counter()?;
                state.fences.settle(reached);
                state.collect(reached);
            }
            let point = state.last_point;
            state.fences.record(point)
        };
        self.pump();
        Ok(value)
    }

    /// The highest value of a stream's fences that is reached.
    pub(crate) fn reached(&self, id: StreamId) -> Checked<u64> {
        if id == BIND_STREAM {
            return Ok(self.bind.counter()?);
        }
        let stream = match self.table.read().get(&id) {
            Some(Entry::Live(stream)) => Arc::clone(stream),
            Some(Entry::Gone(last)) => return Ok(*last),
            // On a stream that nobody has named nothing was recorded.
            None => return Ok(0),
        };
        let mut state = stream.state.lock();
        let reached = if state.fences.len() == 0 { 0 } else { stream.counter()? };
        Ok(state.fences.settle(reached))
    }

    /// Where a fence is on its stream's timeline; `None` if it is known to be reached.
    pub(crate) fn find(&self, fence: Fence) -> Checked<Option<Wait>> {
        if fence.value == 0 {
            return Ok(None);
        }
        if fence.stream == BIND_STREAM {
            let stream = Arc::clone(&self.bind);
            return Ok(Some(Wait { stream, point: fence.value }));
        }
        let stream = match self.table.read().get(&fence.stream) {
            Some(Entry::Live(stream)) => Arc::clone(stream),
            Some(Entry::Gone(last)) if fence.value <= *last => return Ok(None),
            _ => return Err(Refusal::NeverRecorded),
        };
        let known = stream.state.lock().fences.find(fence.value);
        match known {
            Known::Reached => Ok(None),
            Known::At(point) => Ok(Some(Wait { stream, point })),
            Known::Never => Err(Refusal::NeverRecorded),
        }
    }

    /// Orders later work of a stream behind a point.
    pub(crate) fn put_behind(&self, id: StreamId, wait: Wait) -> Checked<()> {
        let stream = self.usable(id)?;
        let own = Arc::ptr_eq(&stream, &wait.stream) && stream.kind == Kind::Own;
        if own || wait.stream.counter()? >= wait.point {
            return Ok(());
        }
        {
            let mut state = stream.state.lock();
            if stream.kind == Kind::Queue {
                let there = wait.stream.has_submitted(wait.point);
                if !there && wait.stream.kind != Kind::Gate && wait.stream.queue == stream.queue {
                    return Err(Refusal::BehindAGate);
                }
                state.add_wait(wait);
                let done = self.enqueue(&stream, &mut state, Work::Nothing, Keep::default());
                if done.is_err() {
                    state.waits.clear();
                }
                done?;
            } else {
                state.add_wait(wait);
            }
        }
        self.pump();
        Ok(())
    }

    /// Waits on the host for all work of all streams and all binds.
    pub(crate) fn wait_for_all(&self) -> Checked<()> {
        for stream in self.all() {
            if stream.kind == Kind::Queue && !stream.is_destroyed() {
                // Only the queue itself knows what the user has submitted.
                self.record(stream.id)?;
            }
            let point = stream.state.lock().last_point;
            stream.wait(point, u64::MAX)?;
        }
        Ok(())
    }

    /// Every stream that lives, that of binds first.
    fn all(&self) -> Vec<Arc<Stream>> {
        let live = |entry: &Entry| match entry {
            Entry::Live(stream) => Some(Arc::clone(stream)),
            Entry::Gone(_) => None,
        };
        let bind = Arc::clone(&self.bind);
        [bind].into_iter().chain(self.table.read().values().filter_map(live)).collect()
    }

    /// Waits for everything that the driver has, and lets go of everything else.
    pub(crate) fn finish(&self) {
        let all = self.all();
        for stream in &all {
            // An error means that the device is lost: then nothing runs any more.
            let _ = stream.wait(stream.submitted(), u64::MAX);
        }
        for queue in &self.queues {
            // The driver has nothing of it left then: see `Context::timelines`.
            // SAFETY: the queue is ours for the call.
            let _ = queue.with(|queue| unsafe { self.context.device.queue_wait_idle(queue) });
        }
        for stream in &all {
            let mut state = stream.state.lock();
            state.deferred.clear();
            state.waits.clear();
            state.collect(u64::MAX);
        }
        self.blocked.lock().clear();
    }
}

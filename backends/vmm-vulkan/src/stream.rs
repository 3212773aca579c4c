//! One stream: a timeline of its own, on a queue that it may share.

use crate::bind::Binds;
use crate::commands::Commands;
use crate::context::Context;
use crate::fence::Fences;
use ash::vk;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmm_core::units::StreamId;

/// The stream of all binds. It belongs to the device: its fences can be waited for, but nothing else
/// can be queued on it. Each bind is one point of its timeline and one fence of the same value.
pub const BIND_STREAM: StreamId = StreamId(u64::MAX);

/// What a timeline belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A stream made here: all its work comes through this crate.
    Own,
    /// A queue of the user's, who submits to it directly, too.
    Queue,
    Bind,
    /// Points that the host reaches.
    Gate,
}

/// A timeline and the work that moves it on.
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) kind: Kind,
    /// Which queue, by index.
    pub(crate) queue: usize,
    pub(crate) timeline: vk::Semaphore,
    /// The last point whose work the driver has, or that a gate has opened.
    submitted: AtomicU64,
    /// Nothing can be queued any more.
    pub(crate) destroyed: AtomicBool,
    pub(crate) state: Mutex<State>,
    context: Arc<Context>,
}

/// What changes.
#[derive(Default)]
pub(crate) struct State {
    /// The last point that was given out.
    pub(crate) last_point: u64,
    pub(crate) fences: Fences,
    /// What the next submission waits for.
    pub(crate) waits: Waits,
    /// Submissions that wait for points whose work the driver does not have yet.
    pub(crate) deferred: VecDeque<Submission>,
    /// What pending work uses, by the point behind it.
    pub(crate) pending: VecDeque<(u64, Keep)>,
    pub(crate) commands: Option<Commands>,
    /// A barrier for users' command buffers, recorded once.
    pub(crate) barrier: Option<vk::CommandBuffer>,
}

/// A point of another timeline.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) stream: Arc<Stream>,
    pub(crate) point: u64,
}

impl Wait {
    /// The later of two points of one timeline.
    pub(crate) fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let point = |wait: &Option<Self>| wait.as_ref().map(|wait| wait.point);
        if point(&one) < point(&other) { other } else { one }
    }

    /// Whether the device has reached the point. A lost device uses nothing any more.
    pub(crate) fn is_reached(&self) -> bool {
        match self.stream.counter() {
            Ok(counter) => counter >= self.point,
            Err(error) => error == vk::Result::ERROR_DEVICE_LOST,
        }
    }
}

/// A few points, one for each timeline.
pub(crate) type Waits = SmallVec<[Wait; 2]>;

/// What one submission does.
pub(crate) enum Work {
    /// It only waits and signals.
    Nothing,
    /// The command buffers of this crate, which begin with a barrier.
    Recorded(vk::CommandBuffer),
    /// The command buffers of a user, which do not, and semaphores of the user.
    Commands { barrier: vk::CommandBuffer, commands: Vec<vk::CommandBuffer>, user: UserSemaphores },
    /// Binds of memory.
    Bind(Binds),
}

/// Semaphores of the user; the value counts for timelines only.
#[derive(Default)]
pub(crate) struct UserSemaphores {
    pub(crate) waits: Vec<(vk::Semaphore, u64)>,
    pub(crate) signals: Vec<(vk::Semaphore, u64)>,
}

/// One submission, with the point that it signals.
pub(crate) struct Submission {
    pub(crate) work: Work,
    pub(crate) waits: Waits,
    pub(crate) point: u64,
}

/// What must live until a point is reached.
#[derive(Default)]
pub(crate) struct Keep {
    /// Goes back to the stream's command buffers.
    pub(crate) commands: vk::CommandBuffer,
    /// Streams whose semaphores the work waits for.
    pub(crate) streams: Waits,
    /// Anything else.
    pub(crate) other: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).field("kind", &self.kind).finish()
    }
}

impl Stream {
    pub(crate) fn new(
        context: &Arc<Context>,
        id: StreamId,
        kind: Kind,
        queue: usize,
    ) -> Result<Self, vk::Result> {
        let (timeline, reached) = context.take_timeline()?;
        let state = State { last_point: reached, ..State::default() };
        Ok(Self {
            id,
            kind,
            queue,
            timeline,
            submitted: AtomicU64::new(reached),
            destroyed: AtomicBool::new(false),
            state: Mutex::new(state),
            context: Arc::clone(context),
        })
    }

    /// The last point that the device has reached.
    pub(crate) fn counter(&self) -> Result<u64, vk::Result> {
        // SAFETY: the semaphore lives as long as `self`.
        unsafe { self.context.device.get_semaphore_counter_value(self.timeline) }
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.destroyed.load(Ordering::Acquire)
    }

    /// Whether the driver has the work of this point.
    pub(crate) fn has_submitted(&self, point: u64) -> bool {
        self.submitted.load(Ordering::SeqCst) >= point
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::SeqCst)
    }

    /// Says that the driver has the work of this point.
    pub(crate) fn set_submitted(&self, point: u64) {
        self.submitted.store(point, Ordering::SeqCst);
    }

    /// Waits on the host until the point is reached or the time is over; says whether it was.
    pub(crate) fn wait(&self, point: u64, nanos: u64) -> Result<bool, vk::Result> {
        let (semaphores, values) = ([self.timeline], [point]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore lives as long as `self`.
        match unsafe { self.context.device.wait_semaphores(&info, nanos) } {
            Ok(()) => Ok(true),
            Err(vk::Result::TIMEOUT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lets the host reach a point; for gates.
    pub(crate) fn signal(&self, point: u64) -> Result<(), vk::Result> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.timeline).value(point);
        // SAFETY: the semaphore lives, and nothing but the host moves it, one thread at a time, as
        // the gate's lock sees to.
        unsafe { self.context.device.signal_semaphore(&info) }
    }
}

impl State {
    /// Lets go of what work used that is over.
    pub(crate) fn collect(&mut self, reached: u64) {
        while self.pending.front().is_some_and(|(point, _)| *point <= reached) {
            let Some((_, keep)) = self.pending.pop_front() else { return };
            if let Some(commands) = &mut self.commands {
                commands.recycle(keep.commands);
            }
        }
    }

    /// Adds a point to what the next submission waits for.
    pub(crate) fn add_wait(&mut self, wait: Wait) {
        let same = |other: &&mut Wait| Arc::ptr_eq(&other.stream, &wait.stream);
        match self.waits.iter_mut().find(same) {
            Some(known) => known.point = known.point.max(wait.point),
            None => self.waits.push(wait),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Submissions that use the semaphore keep their stream (`Keep::streams`) or are its own, and a
        // stream goes only behind all of its work. What was never submitted was never signalled.
        let reached = self.submitted();
        self.context.give_timeline(self.timeline, reached);
    }
}

//! Queues, each used by one thread at a time.

use crate::options::{ExternalQueue, QueueLock};
use ash::vk;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A queue of the device and what guards it.
pub(crate) struct Queue {
    handle: vk::Queue,
    pub(crate) family: u32,
    guard: Guard,
    /// How many streams use it.
    pub(crate) streams: AtomicUsize,
}

enum Guard {
    Own(Mutex<()>),
    User(Arc<dyn QueueLock>),
}

impl Queue {
    pub(crate) fn new(queue: ExternalQueue, lock: Option<&Arc<dyn QueueLock>>) -> Self {
        Self {
            handle: queue.queue,
            family: queue.family,
            guard: lock.map_or_else(|| Guard::Own(Mutex::default()), |l| Guard::User(l.clone())),
            streams: AtomicUsize::new(0),
        }
    }

    pub(crate) fn handle(&self) -> vk::Queue {
        self.handle
    }

    /// Calls `f` while nobody else uses the queue.
    pub(crate) fn with<T>(&self, f: impl FnOnce(vk::Queue) -> T) -> T {
        match &self.guard {
            Guard::Own(mutex) => {
                let _held = mutex.lock();
                f(self.handle)
            }
            Guard::User(lock) => {
                let _held = Held::new(&**lock, self.handle);
                f(self.handle)
            }
        }
    }

    pub(crate) fn stream_count(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }
}

/// The user's lock, held. Unlocks even if the call in between panics.
struct Held<'a> {
    lock: &'a dyn QueueLock,
    queue: vk::Queue,
}

impl<'a> Held<'a> {
    fn new(lock: &'a dyn QueueLock, queue: vk::Queue) -> Self {
        lock.lock(queue);
        Self { lock, queue }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lock.unlock(self.queue);
    }
}

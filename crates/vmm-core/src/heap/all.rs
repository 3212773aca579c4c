//! The heaps over one pool, which it tells that a stream is forgotten.

use crate::units::StreamId;
use parking_lot::Mutex;
use std::sync::Weak;

/// What keeps something for each stream beside the pool: a heap, whatever the type of its device.
pub(super) trait KnowsStreams: Send + Sync {
    /// The pool has forgotten the stream. Called without a lock.
    fn forget(&self, stream: StreamId);
}

/// All heaps over a pool. They hold the pool, not the pool them.
#[derive(Default)]
pub(crate) struct Heaps(Mutex<Vec<Weak<dyn KnowsStreams>>>);

impl Heaps {
    pub(super) fn add(&self, heap: Weak<dyn KnowsStreams>) {
        let mut heaps = self.0.lock();
        heaps.retain(|heap| heap.strong_count() > 0);
        heaps.push(heap);
    }

    /// Tells all heaps that a stream is forgotten. They release leases, so no lock may be held.
    pub(crate) fn forget(&self, stream: StreamId) {
        let heaps = self.0.lock().clone();
        heaps.iter().filter_map(Weak::upgrade).for_each(|heap| heap.forget(stream));
    }
}

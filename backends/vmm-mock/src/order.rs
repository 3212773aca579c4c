//! What is known to come before what: a vector clock over streams.

use std::sync::Arc;
use vmm_core::units::StreamId;

/// For each stream, how many of its first pieces of work come before some point. Streams that are
/// missing have none. Copies are cheap, for the many fences that are recorded between two waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before(Arc<Vec<(StreamId, u64)>>);

impl Before {
    pub(crate) fn covers(&self, stream: StreamId, position: u64) -> bool {
        self.find(stream).is_ok_and(|i| self.0[i].1 >= position)
    }

    pub(crate) fn raise(&mut self, stream: StreamId, position: u64) {
        if self.covers(stream, position) {
            return;
        }
        let found = self.find(stream);
        let entries = Arc::make_mut(&mut self.0);
        match found {
            Ok(i) => entries[i].1 = position,
            Err(i) => entries.insert(i, (stream, position)),
        }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (stream, position) in other.0.iter() {
            self.raise(*stream, *position);
        }
    }

    fn find(&self, stream: StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(stream, _)| *stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_keeps_the_later_of_both() {
        let (a, b) = (StreamId(1), StreamId(2));
        let mut one = Before::default();
        one.raise(a, 5);
        let kept = one.clone();
        let mut two = Before::default();
        two.raise(a, 3);
        two.raise(b, 1);
        one.merge(&two);
        assert!(one.covers(a, 5) && !one.covers(a, 6));
        assert!(one.covers(b, 1) && !one.covers(b, 2));
        assert!(!kept.covers(b, 1), "a copy does not change with its original");
    }
}

//! Fences: events in the order in which they were recorded on each stream.

use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use vmm_core::units::StreamId;

/// The fences of one stream.
///
/// Invariant: `unreached` holds the events of the values `reached + 1 ..= last`, in this order.
#[derive(Debug)]
pub(crate) struct Line<E> {
    last: u64,
    reached: u64,
    unreached: VecDeque<E>,
}

impl<E> Default for Line<E> {
    fn default() -> Self {
        Self { last: 0, reached: 0, unreached: VecDeque::new() }
    }
}

impl<E: Copy> Line<E> {
    /// Notes an event that was recorded, and returns its value.
    pub(crate) fn push(&mut self, event: E) -> u64 {
        self.last += 1;
        self.unreached.push_back(event);
        self.last
    }

    pub(crate) fn reached(&self) -> u64 {
        self.reached
    }

    /// The event of a value; `None` if it is reached, or was never recorded.
    pub(crate) fn event(&self, value: u64) -> Option<E> {
        let index = value.checked_sub(self.reached + 1)?;
        self.unreached.get(usize::try_from(index).ok()?).copied()
    }

    /// Whether a value was ever recorded.
    pub(crate) fn knows(&self, value: u64) -> bool {
        value <= self.last
    }

    /// Takes what is reached, from the front only: when the handle of a destroyed stream comes back,
    /// later events may be done before earlier ones, and a value stands for all below it. Each event
    /// is found done once, so that the questions are as many as the fences, and one.
    pub(crate) fn settle<X>(
        &mut self,
        mut is_done: impl FnMut(E) -> Result<bool, X>,
        mut recycle: impl FnMut(E),
    ) -> Result<u64, X> {
        while let Some(&first) = self.unreached.front() {
            if !is_done(first)? {
                break;
            }
            self.unreached.pop_front();
            self.reached += 1;
            recycle(first);
        }
        Ok(self.reached)
    }
}

/// The fences of all streams and the events that are free.
///
/// Values of a stream go on when its handle comes back for another one, so lines are kept.
#[derive(Debug)]
pub(crate) struct Fences<E> {
    lines: Mutex<HashMap<StreamId, Arc<Mutex<Line<E>>>>>,
    free: Mutex<Vec<E>>,
}

impl<E: Copy> Fences<E> {
    pub(crate) fn new(free: Vec<E>) -> Self {
        Self { lines: Mutex::default(), free: Mutex::new(free) }
    }

    /// The line of a stream, which may be new.
    pub(crate) fn line(&self, stream: StreamId) -> Arc<Mutex<Line<E>>> {
        Arc::clone(self.lines.lock().entry(stream).or_default())
    }

    /// The line of a stream on which something was recorded.
    pub(crate) fn known(&self, stream: StreamId) -> Option<Arc<Mutex<Line<E>>>> {
        self.lines.lock().get(&stream).cloned()
    }

    pub(crate) fn take_free(&self) -> Option<E> {
        self.free.lock().pop()
    }

    pub(crate) fn recycle(&self, event: E) {
        self.free.lock().push(event);
    }

    /// Every event there is, for the end.
    pub(crate) fn drain(&mut self) -> Vec<E> {
        let mut all = std::mem::take(self.free.get_mut());
        for line in self.lines.get_mut().values() {
            all.extend(line.lock().unreached.drain(..));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::convert::Infallible;

    const A: StreamId = StreamId(7);
    const B: StreamId = StreamId(8);

    /// Settles with the events that are done by now.
    fn settle(fences: &Fences<u32>, stream: StreamId, done: &HashSet<u32>) -> u64 {
        let line = fences.line(stream);
        let is_done = |event| Ok::<_, Infallible>(done.contains(&event));
        let reached = line.lock().settle(is_done, |event| fences.recycle(event));
        reached.expect("cannot fail")
    }

    #[test]
    fn values_rise_and_are_reached_from_the_front() {
        let fences = Fences::new(Vec::new());
        let values: Vec<_> = (10..14).map(|event| fences.line(A).lock().push(event)).collect();
        assert_eq!(values, [1, 2, 3, 4]);
        assert_eq!(settle(&fences, A, &HashSet::from([11, 13])), 0, "10 comes first");
        assert_eq!(settle(&fences, A, &HashSet::from([10, 11, 13])), 2);
        assert_eq!(fences.line(A).lock().event(2), None);
        assert_eq!(fences.line(A).lock().event(3), Some(12));
        assert_eq!(fences.line(A).lock().event(5), None);
        assert!(fences.line(A).lock().knows(4) && !fences.line(A).lock().knows(5));
        assert_eq!(settle(&fences, B, &HashSet::new()), 0);
    }

    #[test]
    fn events_are_used_again_and_values_go_on() {
        let mut fences = Fences::new(vec![1]);
        let mut made = 1;
        for round in 1..=1_000_u64 {
            let event = fences.take_free().unwrap_or_else(|| {
                made += 1;
                made
            });
            assert_eq!(fences.line(A).lock().push(event), round);
            assert_eq!(settle(&fences, A, &HashSet::from([event])), round);
        }
        assert_eq!(made, 1);
        fences.line(B).lock().push(9);
        let mut all = fences.drain();
        all.sort_unstable();
        assert_eq!(all, [1, 9]);
    }

    #[test]
    fn an_error_changes_nothing() {
        let fences = Fences::new(Vec::new());
        fences.line(A).lock().push(1);
        fences.line(A).lock().push(2);
        let line = fences.line(A);
        let result =
            line.lock().settle(|event| if event == 1 { Ok(true) } else { Err("lost") }, |_| {});
        assert_eq!(result, Err("lost"));
        let line = line.lock();
        assert_eq!((line.reached(), line.event(2)), (1, Some(2)));
    }
}

//! Uses of a lease on streams other than its own: short chains in one table, so that noting a
//! use makes no heap allocation once the table has grown.

use crate::extent::NONE;
use crate::timeline::{Point, StreamSlot};

/// The epoch of a use whose end is not known yet: it ends with the lease.
const OPEN: u64 = u64::MAX;

#[derive(Debug)]
struct Use {
    point: Point,
    next: u32,
}

#[derive(Debug)]
pub(crate) struct Uses {
    table: Vec<Use>,
    unused: u32,
}

impl Default for Uses {
    fn default() -> Self {
        Self { table: Vec::new(), unused: NONE }
    }
}

impl Uses {
    /// Notes in the chain at `head` a use that ends at `point`.
    pub(crate) fn note(&mut self, head: &mut u32, point: Point) {
        let mut at = *head;
        while at != NONE {
            let known = &mut self.table[at as usize];
            if known.point.stream == point.stream {
                known.point.epoch = known.point.epoch.max(point.epoch);
                return;
            }
            at = known.next;
        }
        let entry = Use { point, next: *head };
        if self.unused == NONE {
            *head = u32::try_from(self.table.len()).expect("fewer than 2^32 uses");
            self.table.push(entry);
        } else {
            *head = self.unused;
            let place = &mut self.table[*head as usize];
            self.unused = place.next;
            *place = entry;
        }
    }

    /// Notes a use that ends only when the lease does.
    pub(crate) fn note_open(&mut self, head: &mut u32, stream: StreamSlot) {
        self.note(head, Point { stream, epoch: OPEN });
    }

    /// Ends all open uses of a chain: `now` gives each stream's present point.
    pub(crate) fn close(&mut self, head: u32, now: impl Fn(StreamSlot) -> Point) {
        let mut at = head;
        while at != NONE {
            let entry = &mut self.table[at as usize];
            if entry.point.epoch == OPEN {
                entry.point = now(entry.point.stream);
            }
            at = entry.next;
        }
    }

    pub(crate) fn iter(&self, head: u32) -> impl Iterator<Item = Point> + '_ {
        let mut at = head;
        std::iter::from_fn(move || {
            let entry = self.table.get(at as usize)?;
            at = entry.next;
            Some(entry.point)
        })
    }

    /// Every use in any chain, and some of chains that have ended.
    pub(crate) fn all(&self) -> impl Iterator<Item = Point> + '_ {
        self.table.iter().map(|entry| entry.point)
    }

    /// Empties a chain.
    pub(crate) fn clear(&mut self, head: &mut u32) {
        while *head != NONE {
            let entry = &mut self.table[*head as usize];
            entry.point = Point::REACHED;
            let next = std::mem::replace(&mut entry.next, self.unused);
            self.unused = *head;
            *head = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_noted_once_with_its_latest_use() {
        let mut uses = Uses::default();
        let mut head = NONE;
        uses.note(&mut head, Point { stream: 1, epoch: 5 });
        uses.note(&mut head, Point { stream: 2, epoch: 1 });
        uses.note(&mut head, Point { stream: 1, epoch: 3 });
        uses.note_open(&mut head, 2);
        uses.close(head, |stream| Point { stream, epoch: 9 });
        let mut points: Vec<_> = uses.iter(head).map(|p| (p.stream, p.epoch)).collect();
        points.sort_unstable();
        assert_eq!(points, [(1, 5), (2, 9)]);
        uses.clear(&mut head);
        assert_eq!(head, NONE);
        uses.note(&mut head, Point { stream: 3, epoch: 1 });
        assert_eq!(uses.table.len(), 2, "places are used again");
    }
}

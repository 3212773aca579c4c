//! Which arenas each stream has free memory in, so that a miss looks at these alone.

use crate::arena::ArenaId;
use crate::bins::Bins;
use crate::timeline::{READY, StreamSlot};

/// For each stream, the arenas where it has bins. In some these may be empty: they are struck out on a miss,
/// so that the hot path need not.
#[derive(Debug, Default)]
pub(crate) struct Holdings {
    by_stream: Vec<Vec<ArenaId>>,
    /// Empty bins of arenas that were struck out, for whoever needs some next: they are 17 KB each.
    spare: Vec<Box<Bins>>,
}

impl Holdings {
    /// Bins for an arena where a stream has free memory from now on.
    pub(crate) fn begin(&mut self, slot: StreamSlot, arena: ArenaId) -> Box<Bins> {
        // What is ready is nobody's, and is found by arena.
        if slot != READY {
            let index = slot as usize;
            if self.by_stream.len() <= index {
                self.by_stream.resize_with(index + 1, Vec::new);
            }
            self.by_stream[index].push(arena);
        }
        self.spare.pop().unwrap_or_else(|| Box::new(Bins::new()))
    }

    /// The arenas of a stream.
    pub(crate) fn of(&self, slot: StreamSlot) -> &[ArenaId] {
        self.by_stream.get(slot as usize).map_or(&[], Vec::as_slice)
    }

    /// Strikes out the arenas of a stream whose bins `take_empty` takes back, because there is nothing in
    /// them; says whether there are others.
    pub(crate) fn review(
        &mut self,
        slot: StreamSlot,
        mut take_empty: impl FnMut(ArenaId) -> Option<Box<Bins>>,
    ) -> bool {
        let held = self.by_stream.get_mut(slot as usize).filter(|held| !held.is_empty());
        let Some(held) = held else { return false };
        held.retain(|arena| {
            let empty = take_empty(*arena);
            let stays = empty.is_none();
            self.spare.extend(empty);
            stays
        });
        !held.is_empty()
    }
}

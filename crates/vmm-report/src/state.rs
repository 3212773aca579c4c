//! What lay where at one moment: every tensor and every hole.

use crate::memory::Block;
use crate::owners::{Names, size_class};
use crate::recorded::Recorded;

/// Most pieces that are kept: of more, the shortest are left out.
const MOST_PIECES: usize = 40_000;

/// A tensor or a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins, gaps between segments left out, in bytes.
    pub offset: u64,
    /// First address.
    pub address: u64,
    /// Bytes, rounding included.
    pub size: u64,
    /// What it is.
    pub content: Content,
}

/// What a piece is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Free memory.
    Hole {
        /// Index of its stream.
        stream: u16,
    },
    /// A tensor.
    Tensor {
        /// Bytes that were asked for.
        len: u64,
        /// Index into [`State::owners`].
        owner: usize,
        /// Whether the program has let go of it.
        is_fenced: bool,
    },
}

/// All memory at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// How many events had happened.
    pub events: usize,
    /// Microseconds since the first event.
    pub time_us: u64,
    /// Bytes of all segments, gaps left out.
    pub len: u64,
    /// Where segments begin, gaps left out.
    pub segments: Vec<u64>,
    /// Tensors and holes by ascending address.
    pub pieces: Vec<Piece>,
    /// Who holds tensors, the one with most first.
    pub owners: Vec<String>,
    /// Pieces left out because there were too many.
    pub left_out: usize,
}

impl State {
    /// The state after `count` events. Tensors outside of all segments are left out.
    #[must_use]
    pub fn new(recorded: &Recorded<'_>, names: &Names, count: usize) -> Self {
        let mut walk = recorded.walk();
        walk.advance_to(count);
        let memory = &walk.memory;
        let mut state = Self {
            events: count,
            time_us: crate::timeline::time_after(recorded, count),
            ..Self::default()
        };
        let mut starts = Vec::new();
        for (range, _) in memory.areas() {
            starts.push((range.start, state.len));
            state.segments.push(state.len);
            state.len += range.end - range.start;
        }
        let offset = |address: u64| {
            let after = starts.partition_point(|&(start, _)| start <= address);
            let (start, at) = starts[after.checked_sub(1)?];
            Some(at + (address - start))
        };
        for (range, kind) in memory.holes() {
            let Some(offset) = offset(range.start) else { continue };
            let content = Content::Hole { stream: kind.stream };
            let size = range.end - range.start;
            state.pieces.push(Piece { offset, address: range.start, size, content });
        }
        let mut numbers = std::collections::HashMap::new();
        let mut tensors: Vec<(u32, &Block)> =
            memory.blocks().filter(|(_, block)| !block.is_outside).collect();
        tensors.sort_by_key(|(_, block)| block.address);
        for (id, block) in tensors {
            let Some(offset) = offset(block.address) else { continue };
            let name = match recorded.details.stacks[id as usize] {
                Some(stack) => names.of(stack).to_owned(),
                None => size_class(block.len),
            };
            let owner = *numbers.entry(name.clone()).or_insert_with(|| {
                state.owners.push(name);
                state.owners.len() - 1
            });
            let content = Content::Tensor { len: block.len, owner, is_fenced: block.is_fenced };
            let (address, size) = (block.address, block.size);
            state.pieces.push(Piece { offset, address, size, content });
        }
        state.sort_owners();
        if state.pieces.len() > MOST_PIECES {
            state.left_out = state.pieces.len() - MOST_PIECES;
            state.pieces.sort_by_key(|piece| std::cmp::Reverse(piece.size));
            state.pieces.truncate(MOST_PIECES);
        }
        state.pieces.sort_by_key(|piece| piece.address);
        state
    }

    /// Puts the largest owners first: they get colours of their own.
    fn sort_owners(&mut self) {
        let mut sums = vec![0u64; self.owners.len()];
        for piece in &self.pieces {
            if let Content::Tensor { len, owner, .. } = piece.content {
                sums[owner] += len;
            }
        }
        let mut order: Vec<usize> = (0..sums.len()).collect();
        order.sort_by_key(|&owner| (std::cmp::Reverse(sums[owner]), &self.owners[owner]));
        let mut place = vec![0; order.len()];
        for (at, &owner) in order.iter().enumerate() {
            place[owner] = at;
        }
        self.owners = order.iter().map(|&owner| self.owners[owner].clone()).collect();
        for piece in &mut self.pieces {
            if let Content::Tensor { owner, .. } = &mut piece.content {
                *owner = place[*owner];
            }
        }
    }
}

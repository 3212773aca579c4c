//! Blocks: neighbours by address, free ones by stream and length, unmapped ones by stream and address.

use std::collections::BTreeSet;

/// Index of a block.
pub(super) type Id = u32;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The program holds it.
    Live,
    /// It waits for a request.
    Free,
    /// Addresses without memory, of an expandable segment.
    Unmapped,
}

/// A piece of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) stream: u16,
    /// Index of its pool.
    pub(super) pool: u32,
    pub(super) state: State,
    /// Whether its segment is expandable.
    pub(super) is_expandable: bool,
    pub(super) prev: Option<Id>,
    pub(super) next: Option<Id>,
    /// The pool's count of searches when the block became free, which gives its age.
    pub(super) since: u64,
}

impl Block {
    /// Whether it is a part of a segment.
    pub(super) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }
}

/// Free memory of one kind of request: small or large, of the program or of one captured graph.
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    pub(super) is_small: bool,
    /// Whether it belongs to captured graphs.
    pub(super) is_private: bool,
    /// Whether these graphs were destroyed.
    pub(super) is_ended: bool,
    /// Stream, length, address: the order of the best fit.
    pub(super) free: BTreeSet<(u16, u64, u64, Id)>,
    /// Stream, address.
    pub(super) unmapped: BTreeSet<(u16, u64, Id)>,
    /// How often a free block was searched.
    pub(super) searches: u64,
}

/// All blocks, and the pools that index them.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    table: Vec<Block>,
    unused: Vec<Id>,
    pub(super) pools: Vec<BlockPool>,
}

impl Blocks {
    pub(super) fn get(&self, id: Id) -> &Block {
        &self.table[id as usize]
    }

    fn get_mut(&mut self, id: Id) -> &mut Block {
        &mut self.table[id as usize]
    }

    /// Enters a block that is in no index yet.
    ///
    /// # Panics
    /// Beyond 2^32 blocks.
    pub(super) fn insert(&mut self, block: Block) -> Id {
        if let Some(id) = self.unused.pop() {
            self.table[id as usize] = block;
            return id;
        }
        self.table.push(block);
        Id::try_from(self.table.len() - 1).expect("fewer blocks than tensors and segments")
    }

    /// Forgets a block that is in no index.
    pub(super) fn remove(&mut self, id: Id) {
        self.unused.push(id);
    }

    /// Puts a block into the index of its state.
    pub(super) fn enter(&mut self, id: Id, state: State) {
        self.get_mut(id).state = state;
        let Block { addr, len, stream, pool, .. } = *self.get(id);
        let pool = &mut self.pools[pool as usize];
        match state {
            State::Live => {}
            State::Free => {
                pool.free.insert((stream, len, addr, id));
                self.table[id as usize].since = pool.searches;
            }
            State::Unmapped => {
                pool.unmapped.insert((stream, addr, id));
            }
        }
    }

    /// Takes a block out of the index of its state.
    pub(super) fn leave(&mut self, id: Id) {
        let Block { addr, len, stream, pool, state, .. } = *self.get(id);
        let pool = &mut self.pools[pool as usize];
        match state {
            State::Live => {}
            State::Free => {
                pool.free.remove(&(stream, len, addr, id));
            }
            State::Unmapped => {
                pool.unmapped.remove(&(stream, addr, id));
            }
        }
    }

    /// Cuts a block that is in no index after `len` bytes; the rest is a block in no index either.
    pub(super) fn cut(&mut self, id: Id, len: u64) -> Id {
        let whole = *self.get(id);
        let rest = self.insert(Block {
            addr: whole.addr + len,
            len: whole.len - len,
            prev: Some(id),
            ..whole
        });
        if let Some(next) = whole.next {
            self.get_mut(next).prev = Some(rest);
        }
        let front = self.get_mut(id);
        front.len = len;
        front.next = Some(rest);
        rest
    }

    /// Joins a block that is in no index with neighbours of that state, which leave theirs.
    pub(super) fn merge(&mut self, id: Id, state: State) {
        if let Some(prev) = self.get(id).prev.filter(|&prev| self.get(prev).state == state) {
            self.leave(prev);
            let Block { addr, len, prev: before, .. } = *self.get(prev);
            let block = self.get_mut(id);
            block.addr = addr;
            block.len += len;
            block.prev = before;
            if let Some(before) = before {
                self.get_mut(before).next = Some(id);
            }
            self.remove(prev);
        }
        if let Some(next) = self.get(id).next.filter(|&next| self.get(next).state == state) {
            self.leave(next);
            let Block { len, next: after, .. } = *self.get(next);
            let block = self.get_mut(id);
            block.len += len;
            block.next = after;
            if let Some(after) = after {
                self.get_mut(after).prev = Some(id);
            }
            self.remove(next);
        }
    }
}

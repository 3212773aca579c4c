//! A range that is cut into slots of one length.

/// The slots of one range. Those released last are taken first, then those never used, from the front.
#[derive(Debug)]
pub(super) struct Slots {
    len: u64,
    released: Vec<u64>,
    /// The first slot that was never used.
    next: u64,
    /// Where the last whole slot ends.
    end: u64,
    taken: u64,
}

impl Slots {
    /// Slots of `len` bytes in the range, as many as there is room for.
    pub(super) fn new(base: u64, range_len: u64, len: u64) -> Self {
        let end = base + range_len / len * len;
        Self { len, released: Vec::new(), next: base, end, taken: 0 }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.taken == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.released.is_empty() && self.next == self.end
    }

    /// The address of a free slot, which is in use from now on.
    pub(super) fn take(&mut self) -> Option<u64> {
        if self.is_full() {
            return None;
        }
        self.taken += 1;
        self.released.pop().or_else(|| {
            let addr = self.next;
            self.next += self.len;
            Some(addr)
        })
    }

    /// Ends the use of a slot.
    pub(super) fn give_back(&mut self, addr: u64) {
        self.taken -= 1;
        self.released.push(addr);
    }
}

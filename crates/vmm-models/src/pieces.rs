//! Byte ranges with free lists by stream, for the models of pools.

use std::collections::{BTreeMap, BTreeSet};

/// A range, live or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    len: u64,
    is_live: bool,
    /// The stream that it belongs to.
    stream: u16,
    /// When the device has done with it, if it is free.
    ready_ns: u64,
    /// It begins what came from the driver in one call, and never joins what lies before it.
    is_head: bool,
}

/// Memory in pieces. Free neighbours of one stream are one piece.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    /// By address.
    pieces: BTreeMap<u64, Piece>,
    /// Of each stream, the free pieces as length and address.
    free: BTreeMap<u16, BTreeSet<(u64, u64)>>,
}

impl Pieces {
    /// Adds new memory, free for a stream. `joins` says whether it may be one with what lies before.
    pub(crate) fn add(&mut self, addr: u64, len: u64, stream: u16, joins: bool) {
        let piece = Piece { len, is_live: true, stream, ready_ns: 0, is_head: !joins };
        let before = self.pieces.insert(addr, piece);
        debug_assert!(before.is_none(), "the driver gives no address twice");
        self.release(addr, stream, 0);
    }

    /// The shortest free piece of a stream that holds `len` bytes, the lowest of equals.
    pub(crate) fn best_fit(&self, stream: u16, len: u64) -> Option<u64> {
        self.free.get(&stream)?.range((len, 0)..).next().map(|&(_, addr)| addr)
    }

    /// The same among pieces of all streams.
    pub(crate) fn best_fit_of_all(&self, len: u64) -> Option<u64> {
        let fitting = self.free.values().filter_map(|list| list.range((len, 0)..).next());
        fitting.min().map(|&(_, addr)| addr)
    }

    /// Streams that have free memory.
    pub(crate) fn streams(&self) -> impl Iterator<Item = u16> + '_ {
        self.free.iter().filter(|(_, list)| !list.is_empty()).map(|(&stream, _)| stream)
    }

    /// Gives `len` bytes from the front of a free piece to a stream; the rest stays where it was.
    pub(crate) fn take(&mut self, addr: u64, len: u64, stream: u16) {
        let piece = self.unlist(addr);
        if piece.len > len {
            let rest = Piece { len: piece.len - len, is_head: false, ..piece };
            self.pieces.insert(addr + len, rest);
            self.enlist(addr + len, rest);
        }
        self.pieces.insert(addr, Piece { len, is_live: true, stream, ..piece });
    }

    /// Makes a live piece free for a stream and joins it with that stream's neighbours. Returns the
    /// address and the length of the free piece that comes of it.
    pub(crate) fn release(&mut self, addr: u64, stream: u16, ready_ns: u64) -> (u64, u64) {
        let mut addr = addr;
        let mut piece = self.pieces[&addr];
        debug_assert!(piece.is_live);
        (piece.is_live, piece.stream, piece.ready_ns) = (false, stream, ready_ns);
        if let Some((&next, &after)) = self.pieces.range(addr + piece.len..).next()
            && next == addr + piece.len
            && !after.is_live
            && !after.is_head
            && after.stream == stream
        {
            self.unlist(next);
            self.pieces.remove(&next);
            piece.len += after.len;
            piece.ready_ns = piece.ready_ns.max(after.ready_ns);
        }
        if let Some((&prev, &before)) = self.pieces.range(..addr).next_back()
            && prev + before.len == addr
            && !before.is_live
            && !piece.is_head
            && before.stream == stream
        {
            self.unlist(prev);
            self.pieces.remove(&addr);
            let ready_ns = piece.ready_ns.max(before.ready_ns);
            piece = Piece { len: before.len + piece.len, ready_ns, ..before };
            addr = prev;
        }
        self.pieces.insert(addr, piece);
        self.enlist(addr, piece);
        (addr, piece.len)
    }

    /// Moves all free pieces of a stream to another, where they join their neighbours.
    pub(crate) fn hand_over(&mut self, from: u16, to: u16) {
        let moved = self.free.get_mut(&from).map(std::mem::take).unwrap_or_default();
        for (_, addr) in moved {
            if let Some(piece) = self.pieces.get_mut(&addr) {
                piece.is_live = true;
                let ready_ns = piece.ready_ns;
                self.release(addr, to, ready_ns);
            }
        }
    }

    /// The stream that a live piece was given to.
    pub(crate) fn stream(&self, addr: u64) -> u16 {
        self.pieces[&addr].stream
    }

    /// When the device has done with a free piece.
    pub(crate) fn ready_ns(&self, addr: u64) -> u64 {
        self.pieces[&addr].ready_ns
    }

    /// Takes note that the device has done everything.
    pub(crate) fn make_ready(&mut self) {
        for piece in self.pieces.values_mut() {
            piece.ready_ns = 0;
        }
    }

    /// Length of a piece.
    pub(crate) fn len(&self, addr: u64) -> u64 {
        self.pieces[&addr].len
    }

    /// Free pieces as stream, address and length, by stream and length.
    pub(crate) fn free_pieces(&self) -> impl Iterator<Item = (u16, u64, u64)> + '_ {
        self.free
            .iter()
            .flat_map(|(&stream, list)| list.iter().map(move |&(len, addr)| (stream, addr, len)))
    }

    /// Takes a part of a free piece away; what is left of it on either side stays free.
    pub(crate) fn remove(&mut self, addr: u64, start: u64, len: u64) {
        let piece = self.unlist(addr);
        self.pieces.remove(&addr);
        let (end, rest) = (addr + piece.len, start + len);
        debug_assert!(addr <= start && rest <= end);
        if addr < start {
            let before = Piece { len: start - addr, ..piece };
            self.pieces.insert(addr, before);
            self.enlist(addr, before);
        }
        if rest < end {
            let after = Piece { len: end - rest, is_head: false, ..piece };
            self.pieces.insert(rest, after);
            self.enlist(rest, after);
        }
    }

    fn enlist(&mut self, addr: u64, piece: Piece) {
        self.free.entry(piece.stream).or_default().insert((piece.len, addr));
    }

    /// Takes a free piece out of its list. It stays a piece.
    fn unlist(&mut self, addr: u64) -> Piece {
        let piece = self.pieces[&addr];
        debug_assert!(!piece.is_live);
        if let Some(list) = self.free.get_mut(&piece.stream) {
            list.remove(&(piece.len, addr));
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Pieces {
        /// Lists and pieces say the same, and nothing that could be one piece is two.
        fn validate(&self, bytes: u64) {
            let listed: BTreeSet<(u16, u64, u64)> = self.free_pieces().collect();
            let free = self.pieces.iter().filter(|(_, piece)| !piece.is_live);
            let of_pieces: BTreeSet<(u16, u64, u64)> =
                free.map(|(&addr, piece)| (piece.stream, addr, piece.len)).collect();
            assert_eq!(listed, of_pieces);
            assert_eq!(self.pieces.values().map(|piece| piece.len).sum::<u64>(), bytes);
            for ((a, before), (b, after)) in self.pieces.iter().zip(self.pieces.iter().skip(1)) {
                assert!(a + before.len <= *b, "pieces overlap");
                let joinable = !before.is_live
                    && !after.is_live
                    && !after.is_head
                    && before.stream == after.stream
                    && a + before.len == *b;
                assert!(!joinable, "{before:?} {after:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn lists_follow_the_pieces(
            ops in proptest::collection::vec((0..6_u8, 0..3_u16, 1..64_u64), 1..200),
        ) {
            let mut pieces = Pieces::default();
            let (mut end, mut bytes) = (0, 0);
            let mut live = Vec::new();
            for (op, stream, n) in ops {
                match op {
                    0 => {
                        pieces.add(end, n * 8, stream, n % 2 == 0);
                        end += n * 8 + n % 3;
                        bytes += n * 8;
                    }
                    1 | 2 => {
                        let found = pieces.best_fit(stream, n).or(pieces.best_fit_of_all(n));
                        if let Some(addr) = found {
                            pieces.take(addr, n, stream);
                            live.push(addr);
                        }
                    }
                    3 if !live.is_empty() => {
                        let at = usize::try_from(n).expect("small") % live.len();
                        pieces.release(live.swap_remove(at), stream, n);
                    }
                    4 => pieces.hand_over(stream, (stream + 1) % 3),
                    5 => {
                        let first = pieces.free_pieces().next();
                        if let Some((_, addr, len)) = first {
                            let cut = n.min(len);
                            pieces.remove(addr, addr + (len - cut) / 2, cut);
                            bytes -= cut;
                        }
                    }
                    _ => {}
                }
                pieces.validate(bytes);
            }
        }
    }
}

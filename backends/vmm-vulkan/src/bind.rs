//! Batches of binds, as the driver takes them.

use ash::vk;

/// One range of a sparse buffer, and the memory that is to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) buffer: vk::Buffer,
    /// In the buffer, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Null where the memory is taken away.
    pub(crate) memory: vk::DeviceMemory,
    /// In the memory, in bytes; 0 without memory.
    pub(crate) memory_offset: u64,
}

impl Piece {
    fn is_followed_by(&self, next: &Self) -> bool {
        let place = self.buffer == next.buffer && self.offset + self.len == next.offset;
        let none = vk::DeviceMemory::null();
        let memory = if self.memory == none {
            next.memory == none
        } else {
            self.memory == next.memory && self.memory_offset + self.len == next.memory_offset
        };
        place && memory
    }
}

/// One batch: ranges by buffer. No byte is in two of them.
#[derive(Debug, Default)]
pub(crate) struct Binds {
    buffers: Vec<(vk::Buffer, Vec<vk::SparseMemoryBind>)>,
}

impl Binds {
    /// A batch of pieces that do not overlap. With `join`, neighbours become one.
    pub(crate) fn new(mut pieces: Vec<Piece>, join: bool) -> Self {
        // By place, so that neighbours meet.
        pieces.sort_unstable_by_key(|piece| (piece.buffer, piece.offset));
        let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match joined.last_mut() {
                Some(last) if join && last.is_followed_by(&piece) => last.len += piece.len,
                _ => joined.push(piece),
            }
        }
        let mut binds = Self::default();
        for piece in joined {
            let bind = vk::SparseMemoryBind::default()
                .resource_offset(piece.offset)
                .size(piece.len)
                .memory(piece.memory)
                .memory_offset(piece.memory_offset);
            match binds.buffers.last_mut() {
                Some((buffer, of_buffer)) if *buffer == piece.buffer => of_buffer.push(bind),
                _ => binds.buffers.push((piece.buffer, vec![bind])),
            }
        }
        binds
    }

    /// The batch in the driver's form.
    pub(crate) fn infos(&self) -> Vec<vk::SparseBufferMemoryBindInfo<'_>> {
        let info = |(buffer, binds): &'_ (vk::Buffer, Vec<vk::SparseMemoryBind>)| {
            // The lifetime of `binds` is that of `self`, which the closure cannot say.
            vk::SparseBufferMemoryBindInfo {
                buffer: *buffer,
                bind_count: u32::try_from(binds.len()).expect("fewer than 2^32 binds in a batch"),
                p_binds: binds.as_ptr(),
                ..Default::default()
            }
        };
        self.buffers.iter().map(info).collect()
    }

    #[cfg(test)]
    fn list(&self) -> Vec<(u64, u64, u64)> {
        let all = self.buffers.iter().flat_map(|(_, binds)| binds);
        all.map(|bind| (bind.resource_offset, bind.size, bind.memory_offset)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ash::vk::Handle;

    fn piece(buffer: u64, offset: u64, len: u64, memory: u64, memory_offset: u64) -> Piece {
        let (buffer, memory) = (vk::Buffer::from_raw(buffer), vk::DeviceMemory::from_raw(memory));
        Piece { buffer, offset, len, memory, memory_offset }
    }

    #[test]
    fn neighbours_become_one_where_their_memory_does_too() {
        let pieces = vec![
            piece(1, 8, 4, 9, 104),
            piece(1, 4, 4, 9, 100),
            // The memory has a gap; then another memory; then another buffer.
            piece(1, 12, 4, 9, 112),
            piece(1, 16, 4, 8, 116),
            piece(2, 20, 4, 8, 120),
        ];
        let joined = Binds::new(pieces.clone(), true);
        let expected = [(4, 8, 100), (12, 4, 112), (16, 4, 116), (20, 4, 120)];
        assert_eq!(joined.list(), expected);
        assert_eq!(joined.infos().len(), 2);
        assert_eq!(Binds::new(pieces, false).list().len(), 5);
    }

    #[test]
    fn neighbours_without_memory_become_one() {
        let pieces = vec![piece(1, 0, 4, 0, 0), piece(1, 4, 8, 0, 0), piece(1, 16, 4, 0, 0)];
        assert_eq!(Binds::new(pieces, true).list(), [(0, 12, 0), (16, 4, 0)]);
    }
}

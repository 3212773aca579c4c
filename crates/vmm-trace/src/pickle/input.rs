//! Bytes in, with the offset of each kept for messages.

use std::io::Read;

use crate::error::{Fault, Place};

/// Refilled in this step, in bytes: large enough that the reader below is called rarely.
const BUFFER_LEN: usize = 128 << 10;
/// Lengths above this, in bytes, are not taken for those of a file that was merely cut.
const MAX_CUT: u64 = 16 << 20;

/// A buffered reader that counts bytes and never allocates by a length that the file merely claims.
pub(crate) struct Input<'r> {
    reader: Box<dyn Read + 'r>,
    buffer: Box<[u8]>,
    next: usize,
    end: usize,
    /// Offset of `buffer[0]`.
    base: u64,
    /// Bytes that the file can hold at most, where that is known.
    most: u64,
}

impl<'r> Input<'r> {
    /// Reads `reader`, which yields at most `most` bytes.
    pub(crate) fn new(reader: Box<dyn Read + 'r>, most: u64) -> Self {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Input { reader, buffer, next: 0, end: 0, base: 0, most }
    }

    /// Bytes consumed so far.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.next as u64
    }

    /// The next byte.
    #[inline]
    pub(crate) fn byte(&mut self) -> Result<u8, Fault> {
        if self.next == self.end {
            self.refill()?;
        }
        let byte = self.buffer[self.next];
        self.next += 1;
        Ok(byte)
    }

    /// The next `N` bytes.
    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        if let Some(ready) = self.buffer[self.next..self.end].first_chunk::<N>() {
            bytes = *ready;
            self.next += N;
        } else {
            for byte in &mut bytes {
                *byte = self.byte()?;
            }
        }
        Ok(bytes)
    }

    /// Calls `f` with the next `len` bytes.
    ///
    /// # Errors
    /// A length beyond the end of the file is refused before anything is allocated for it.
    pub(crate) fn with_bytes<T>(
        &mut self,
        len: u64,
        f: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Fault> {
        self.check_len(len)?;
        if let Ok(len) = usize::try_from(len)
            && self.end - self.next >= len
        {
            self.next += len;
            return Ok(f(&self.buffer[self.next - len..self.next]));
        }
        let mut long = Vec::new();
        self.for_parts(len, |part| long.extend_from_slice(part))?;
        Ok(f(&long))
    }

    /// Passes over the next `len` bytes.
    pub(crate) fn skip(&mut self, len: u64) -> Result<(), Fault> {
        self.check_len(len)?;
        self.for_parts(len, |_| ())
    }

    /// Refuses a length that ends beyond the file: a short one means that the file was cut, a long
    /// one that it lies.
    pub(crate) fn check_len(&self, len: u64) -> Result<(), Fault> {
        if self.offset().saturating_add(len) <= self.most {
            return Ok(());
        }
        if len <= MAX_CUT {
            return Err(Fault::Truncated { offset: self.most });
        }
        let what = format!("a length of {len} bytes, more than the file holds");
        Err(Fault::malformed(Place::Byte(self.offset()), what))
    }

    /// Bytes up to and without the next line end, at most 256, as text.
    pub(crate) fn line(&mut self) -> Result<String, Fault> {
        let mut line = Vec::new();
        while line.len() < 256 {
            match self.byte()? {
                b'\n' => break,
                byte => line.push(byte),
            }
        }
        Ok(String::from_utf8_lossy(&line).escape_debug().to_string())
    }

    /// Whether nothing is left. Reading to the end also makes gzip check its sums.
    pub(crate) fn at_end(&mut self) -> Result<bool, Fault> {
        if self.next < self.end {
            return Ok(false);
        }
        Ok(self.fill()? == 0)
    }

    fn for_parts(&mut self, mut len: u64, mut f: impl FnMut(&[u8])) -> Result<(), Fault> {
        while len > 0 {
            if self.next == self.end {
                self.refill()?;
            }
            let ready = self.end - self.next;
            let part = usize::try_from(len).map_or(ready, |len| len.min(ready));
            f(&self.buffer[self.next..self.next + part]);
            self.next += part;
            len -= part as u64;
        }
        Ok(())
    }

    #[cold]
    fn refill(&mut self) -> Result<(), Fault> {
        match self.fill()? {
            0 => Err(Fault::Truncated { offset: self.offset() }),
            _ => Ok(()),
        }
    }

    fn fill(&mut self) -> Result<usize, Fault> {
        self.base += self.end as u64;
        self.next = 0;
        self.end = 0;
        loop {
            match self.reader.read(&mut self.buffer) {
                Ok(read) => {
                    self.end = read;
                    return Ok(read);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::from_io(error, self.base)),
            }
        }
    }
}

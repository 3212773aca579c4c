//! Puts plain values into pickle opcodes.

use std::collections::HashMap;
use std::io::{self, Write};

/// Items between a mark and the opcode that ends it, as in Python's pickler: a reader's stack stays
/// small.
const BATCH: usize = 1000;

/// A pickle protocol that this writer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Read by every Python since 2.3.
    Two,
    /// Read by every Python since 3.4; shorter, and what `PyTorch` users have.
    #[default]
    Four,
}

/// Writes one pickle. Strings are written once and then referred to.
pub(crate) struct Pickler<W> {
    out: W,
    protocol: Protocol,
    memo: HashMap<String, u32>,
}

impl<W: Write> Pickler<W> {
    pub(crate) fn new(mut out: W, protocol: Protocol) -> io::Result<Self> {
        let version = match protocol {
            Protocol::Two => 2,
            Protocol::Four => 4,
        };
        out.write_all(&[0x80, version])?;
        Ok(Pickler { out, protocol, memo: HashMap::new() })
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b".")?;
        Ok(self.out)
    }

    pub(crate) fn bool(&mut self, value: bool) -> io::Result<()> {
        self.out.write_all(if value { &[0x88] } else { &[0x89] })
    }

    pub(crate) fn int(&mut self, number: i128) -> io::Result<()> {
        if let Ok(number) = u8::try_from(number) {
            return self.out.write_all(&[b'K', number]);
        }
        if let Ok(number) = u16::try_from(number) {
            let [low, high] = number.to_le_bytes();
            return self.out.write_all(&[b'M', low, high]);
        }
        if let Ok(number) = i32::try_from(number) {
            self.out.write_all(b"J")?;
            return self.out.write_all(&number.to_le_bytes());
        }
        let bytes = number.to_le_bytes();
        // One byte is enough as soon as the sign can be told from the last one kept.
        let spare = if number < 0 { number.leading_ones() } else { number.leading_zeros() };
        let len = 16 - (spare as usize - 1) / 8;
        self.out.write_all(&[0x8a, len.to_le_bytes()[0]])?;
        self.out.write_all(&bytes[..len])
    }

    pub(crate) fn str(&mut self, text: &str) -> io::Result<()> {
        if let Some(&place) = self.memo.get(text) {
            return match u8::try_from(place) {
                Ok(place) => self.out.write_all(&[b'h', place]),
                Err(_) => self.with_u32(b'j', place),
            };
        }
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidInput, "a string above 4 GiB");
        match (u8::try_from(text.len()), self.protocol) {
            (Ok(len), Protocol::Four) => self.out.write_all(&[0x8c, len])?,
            _ => self.with_u32(b'X', u32::try_from(text.len()).map_err(too_long)?)?,
        }
        self.out.write_all(text.as_bytes())?;
        let place = u32::try_from(self.memo.len()).map_err(too_long)?;
        self.memo.insert(text.into(), place);
        match (self.protocol, u8::try_from(place)) {
            (Protocol::Four, _) => self.out.write_all(&[0x94]),
            (Protocol::Two, Ok(place)) => self.out.write_all(&[b'q', place]),
            (Protocol::Two, Err(_)) => self.with_u32(b'r', place),
        }
    }

    /// Writes a pair.
    pub(crate) fn pair(&mut self, (a, b): (u64, u64)) -> io::Result<()> {
        self.int(a.into())?;
        self.int(b.into())?;
        self.out.write_all(&[0x86])
    }

    /// Writes a list, with `item` for each of `items`.
    pub(crate) fn list<T>(
        &mut self,
        items: &[T],
        mut item: impl FnMut(&mut Self, &T) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"]")?;
        for batch in items.chunks(BATCH) {
            self.out.write_all(b"(")?;
            for value in batch {
                item(self, value)?;
            }
            self.out.write_all(b"e")?;
        }
        Ok(())
    }

    /// Writes a dict; `items` writes keys and values in turn.
    pub(crate) fn dict(
        &mut self,
        items: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> io::Result<()> {
        self.out.write_all(b"}(")?;
        items(self)?;
        self.out.write_all(b"u")
    }

    /// Writes a key and a number.
    pub(crate) fn int_item(&mut self, key: &str, number: impl Into<i128>) -> io::Result<()> {
        self.str(key)?;
        self.int(number.into())
    }

    /// Writes a key and a string.
    pub(crate) fn str_item(&mut self, key: &str, text: &str) -> io::Result<()> {
        self.str(key)?;
        self.str(text)
    }

    fn with_u32(&mut self, opcode: u8, number: u32) -> io::Result<()> {
        self.out.write_all(&[opcode])?;
        self.out.write_all(&number.to_le_bytes())
    }
}

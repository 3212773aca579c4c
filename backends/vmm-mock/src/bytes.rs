//! The bytes of a frame, kept as runs: filling a gigabyte costs one entry.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// What fresh memory holds. Not zero, so that memory taken for cleared is noticed.
pub(crate) const POISON: u8 = 0xdb;

/// A piece of content. It can be longer than the run that shows it, for runs are cut short.
#[derive(Clone, Debug)]
enum Content {
    Fill(u8),
    Data(Arc<[u8]>, usize),
}

impl Content {
    /// The content without its first `len` bytes.
    fn skip(&self, len: u64) -> Self {
        match self {
            Self::Fill(byte) => Self::Fill(*byte),
            Self::Data(data, at) => Self::Data(Arc::clone(data), at + index(len)),
        }
    }
}

#[derive(Clone, Debug)]
struct Run {
    len: u64,
    content: Content,
}

/// Data runs are held in host memory, so their lengths fit.
fn index(len: u64) -> usize {
    usize::try_from(len).expect("more bytes than the host can hold")
}

/// Invariant: runs lie end to end from 0 to the frame's length.
#[derive(Clone, Debug)]
pub(crate) struct Bytes {
    runs: BTreeMap<u64, Run>,
}

impl Bytes {
    pub(crate) fn poisoned(len: u64) -> Self {
        Self { runs: BTreeMap::from([(0, Run { len, content: Content::Fill(POISON) })]) }
    }

    pub(crate) fn fill(&mut self, at: Range<u64>, byte: u8) {
        let len = at.end - at.start;
        self.replace(at, [Run { len, content: Content::Fill(byte) }]);
    }

    pub(crate) fn write(&mut self, offset: u64, data: Arc<[u8]>) {
        let len = data.len() as u64;
        self.replace(offset..offset + len, [Run { len, content: Content::Data(data, 0) }]);
    }

    /// A copy of a part, to be pasted elsewhere.
    pub(crate) fn cut_out(&self, at: Range<u64>) -> Self {
        let mut part = BTreeMap::new();
        for (offset, run) in self.within(at.clone()) {
            part.insert(offset - at.start, run);
        }
        Self { runs: part }
    }

    pub(crate) fn paste(&mut self, offset: u64, part: Self) {
        let len: u64 = part.runs.values().map(|run| run.len).sum();
        self.replace(offset..offset + len, part.runs.into_values());
    }

    pub(crate) fn read(&self, at: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(index(at.end - at.start));
        for (_, run) in self.within(at) {
            match run.content {
                Content::Fill(byte) => bytes.resize(bytes.len() + index(run.len), byte),
                Content::Data(data, from) => bytes.extend(&data[from..from + index(run.len)]),
            }
        }
        bytes
    }

    /// How many bytes differ from `expected`, and the first that does: its offset and value.
    pub(crate) fn mismatches(&self, at: Range<u64>, expected: u8) -> (u64, Option<(u64, u8)>) {
        let mut count = 0;
        let mut first = None;
        for (offset, run) in self.within(at) {
            match run.content {
                Content::Fill(byte) if byte == expected => {}
                Content::Fill(byte) => {
                    count += run.len;
                    first = first.or(Some((offset, byte)));
                }
                Content::Data(data, from) => {
                    for (i, byte) in data[from..from + index(run.len)].iter().enumerate() {
                        if *byte != expected {
                            count += 1;
                            first = first.or(Some((offset + i as u64, *byte)));
                        }
                    }
                }
            }
        }
        (count, first)
    }

    /// The runs that show in `at`, cut to it.
    fn within(&self, at: Range<u64>) -> impl Iterator<Item = (u64, Run)> + '_ {
        let first = self.runs.range(..=at.start).next_back().map_or(0, |(offset, _)| *offset);
        let end = at.end;
        self.runs.range(first..end).map(move |(offset, run)| {
            let start = at.start.max(*offset);
            let stop = end.min(offset + run.len);
            (start, Run { len: stop - start, content: run.content.skip(start - offset) })
        })
    }

    fn replace(&mut self, at: Range<u64>, with: impl IntoIterator<Item = Run>) {
        if at.is_empty() {
            return;
        }
        self.split(at.start);
        self.split(at.end);
        let covered: Vec<u64> = self.runs.range(at.clone()).map(|(offset, _)| *offset).collect();
        for offset in covered {
            self.runs.remove(&offset);
        }
        let mut offset = at.start;
        for run in with {
            let len = run.len;
            self.runs.insert(offset, run);
            offset += len;
        }
        debug_assert_eq!(offset, at.end, "the runs fill the range");
    }

    /// Makes a run begin at `offset`, unless that is the end.
    fn split(&mut self, offset: u64) {
        let Some((start, run)) = self.runs.range_mut(..offset).next_back() else {
            return;
        };
        let head = offset - start;
        if run.len <= head {
            return;
        }
        let tail = Run { len: run.len - head, content: run.content.skip(head) };
        run.len = head;
        self.runs.insert(offset, tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies the same steps to runs and to a plain vector.
    #[test]
    fn runs_behave_like_a_vector() {
        const LEN: usize = 64;
        let mut runs = Bytes::poisoned(LEN as u64);
        let mut plain = vec![POISON; LEN];
        let mut state = 1_u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 40).unwrap() % n
        };
        for step in 0..2_000_u32 {
            let byte = u8::try_from(step % 256).unwrap();
            let start = below(LEN);
            let len = below(LEN - start) + 1;
            match below(3) {
                0 => {
                    runs.fill(start as u64..(start + len) as u64, byte);
                    plain[start..start + len].fill(byte);
                }
                1 => {
                    let data: Vec<u8> =
                        (0..len).map(|_| u8::try_from(below(256)).unwrap()).collect();
                    runs.write(start as u64, data.as_slice().into());
                    plain[start..start + len].copy_from_slice(&data);
                }
                _ => {
                    let to = below(LEN - len + 1);
                    let part = runs.cut_out(start as u64..(start + len) as u64);
                    runs.paste(to as u64, part);
                    plain.copy_within(start..start + len, to);
                }
            }
            assert_eq!(runs.read(0..LEN as u64), plain, "step {step}");
            let (count, first) = runs.mismatches(0..LEN as u64, byte);
            assert_eq!(count, plain.iter().filter(|b| **b != byte).count() as u64);
            let found = plain.iter().position(|b| *b != byte).map(|i| (i as u64, plain[i]));
            assert_eq!(first, found);
        }
    }

    #[test]
    fn filling_gigabytes_costs_one_run() {
        let mut bytes = Bytes::poisoned(64 << 30);
        bytes.fill(0..64 << 30, 1);
        bytes.fill(1 << 30..2 << 30, 2);
        assert_eq!(bytes.runs.len(), 3);
        assert_eq!(bytes.mismatches(0..64 << 30, 1), (1 << 30, Some((1 << 30, 2))));
    }
}

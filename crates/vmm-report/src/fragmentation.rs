//! Why memory that is reserved does not hold what the program asked for.

use serde::Serialize;

use crate::memory::Memory;
use crate::recorded::Request;

/// Where the reserved bytes are, seen by one request: `reserved` is the sum of all others.
///
/// Free memory is sorted by the first reason why the request cannot have it: it belongs to another
/// pool or size class, it belongs to another stream, its hole is too short. What is left could serve
/// the request, and is cached without need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Causes {
    /// Held from the device.
    pub reserved: u64,
    /// In use, as asked for.
    pub requested: u64,
    /// Rounding inside blocks in use.
    pub rounding: u64,
    /// Let go of by the program, while another stream still uses it.
    pub fenced: u64,
    /// Free, in segments of another pool or size class.
    pub other_pool: u64,
    /// Free, in segments of another stream.
    pub other_stream: u64,
    /// Free, in holes that are shorter than the request.
    pub too_small: u64,
    /// Free, and long enough for the request: cached beyond need.
    pub cached: u64,
}

/// How bad fragmentation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Below a tenth.
    Low,
    /// Below three tenths.
    Medium,
    /// Below six tenths.
    High,
    /// All above.
    Severe,
}

impl Level {
    /// The level of a share.
    #[must_use]
    pub fn of(share: f64) -> Self {
        match share {
            s if s < 0.1 => Self::Low,
            s if s < 0.3 => Self::Medium,
            s if s < 0.6 => Self::High,
            _ => Self::Severe,
        }
    }

    /// The level as a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Severe => "severe",
        }
    }
}

/// A cause by name, and what it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cause {
    /// A word for programs.
    pub key: &'static str,
    /// What people read.
    pub title: &'static str,
    /// Bytes.
    pub bytes: u64,
}

impl Causes {
    /// What the request finds in memory.
    pub(crate) fn of(memory: &Memory, request: &Request) -> Self {
        let totals = memory.totals();
        let mut causes = Self {
            reserved: totals.reserved,
            requested: totals.requested,
            rounding: totals.rounding,
            fenced: totals.fenced,
            ..Self::default()
        };
        for (range, kind) in memory.holes() {
            let len = range.end - range.start;
            let cause = if (kind.pool, kind.is_small) != (request.kind.pool, request.kind.is_small)
            {
                &mut causes.other_pool
            } else if kind.stream != request.kind.stream {
                &mut causes.other_stream
            } else if len < request.len {
                &mut causes.too_small
            } else {
                &mut causes.cached
            };
            *cause += len;
        }
        causes
    }

    /// What keeps the request from reserved memory, in the order of the fields.
    #[must_use]
    pub fn all(&self) -> [Cause; 6] {
        [
            Cause { key: "rounding", title: "rounding inside blocks", bytes: self.rounding },
            Cause {
                key: "fenced",
                title: "released, still in use by a stream",
                bytes: self.fenced,
            },
            Cause {
                key: "other_pool",
                title: "free in another pool or size class",
                bytes: self.other_pool,
            },
            Cause {
                key: "other_stream",
                title: "free on another stream",
                bytes: self.other_stream,
            },
            Cause { key: "too_small", title: "free in holes too small", bytes: self.too_small },
            Cause {
                key: "cached",
                title: "free and usable, cached beyond need",
                bytes: self.cached,
            },
        ]
    }

    /// Bytes that are reserved and of no use to the request. Usable memory does not count.
    #[must_use]
    pub fn fragmented(&self) -> u64 {
        self.rounding + self.fenced + self.other_pool + self.other_stream + self.too_small
    }

    /// Free bytes, whoever may use them.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.other_pool + self.other_stream + self.too_small + self.cached
    }

    /// [`Self::fragmented`] as a share of what is reserved; 0 where nothing is.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a share for people needs no 53 bits")]
    pub fn share(&self) -> f64 {
        if self.reserved == 0 { 0.0 } else { self.fragmented() as f64 / self.reserved as f64 }
    }

    /// How bad that is.
    #[must_use]
    pub fn level(&self) -> Level {
        Level::of(self.share())
    }

    /// The cause that takes most, usable memory left out; `None` where none takes anything.
    #[must_use]
    pub fn main(&self) -> Option<Cause> {
        let causes = self.all().into_iter().filter(|cause| cause.key != "cached");
        causes.filter(|cause| cause.bytes > 0).max_by_key(|cause| cause.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Kind;

    #[test]
    fn every_hole_has_one_cause() {
        let kind = |stream, pool, is_small| Kind { stream, pool, is_small };
        let mut memory = Memory::default();
        memory.grow(0..100, kind(0, 0, false), false);
        memory.grow(1000..1030, kind(0, 0, false), false);
        memory.grow(2000..2007, kind(1, 0, false), false);
        memory.grow(3000..3005, kind(1, 1, false), false);
        memory.grow(4000..4003, kind(0, 0, true), false);
        let request = Request { len: 50, kind: kind(0, 0, false), stack: None };
        let causes = Causes::of(&memory, &request);
        assert_eq!(
            causes,
            Causes {
                reserved: 145,
                other_pool: 8,
                other_stream: 7,
                too_small: 30,
                cached: 100,
                ..Causes::default()
            }
        );
        assert_eq!(causes.fragmented(), 45);
        assert_eq!(causes.level(), Level::High, "45 of 145");
        assert_eq!(causes.main().map(|cause| cause.key), Some("too_small"));
        assert_eq!(Causes::default().level(), Level::Low);
    }

    #[test]
    fn levels_begin_where_they_should() {
        let levels = [0.0, 0.099, 0.1, 0.299, 0.3, 0.599, 0.6, 1.0].map(|s| Level::of(s).name());
        assert_eq!(levels, ["low", "low", "medium", "medium", "high", "high", "severe", "severe"]);
    }
}

//! Device calls and their time, by operation.

use serde::ser::{Serialize, SerializeMap, Serializer};
use vmm_core::DeviceOp;

/// Calls of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCalls {
    /// How many, failed ones included.
    pub count: u64,
    /// The time that they took, in nanoseconds of the calling thread.
    pub time_ns: u64,
}

/// Calls of every operation.
///
/// Serialized, it is an object with the name of each operation that was called, and for each
/// `count` and `time_us`, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallAccount {
    ops: [OpCalls; DeviceOp::ALL.len()],
}

impl CallAccount {
    /// An account with what `of` says of each operation.
    #[must_use]
    pub fn new(of: impl FnMut(DeviceOp) -> OpCalls) -> Self {
        Self { ops: DeviceOp::ALL.map(of) }
    }

    /// What was called of one operation.
    #[must_use]
    pub fn of(&self, op: DeviceOp) -> OpCalls {
        self.ops[op as usize]
    }

    /// The operations that were called, in the order of the interface.
    pub fn made(&self) -> impl Iterator<Item = (DeviceOp, OpCalls)> + '_ {
        DeviceOp::ALL.into_iter().zip(self.ops).filter(|(_, calls)| calls.count > 0)
    }

    /// All operations together.
    #[must_use]
    pub fn total(&self) -> OpCalls {
        self.ops.iter().fold(OpCalls::default(), |sum, op| OpCalls {
            count: sum.count + op.count,
            time_ns: sum.time_ns + op.time_ns,
        })
    }

    /// Both accounts together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    /// What this account has and `earlier` had not.
    ///
    /// # Panics
    /// If `earlier` has more of anything: then it is not an earlier account of the same device.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        self.zip(earlier, |now, before| now.checked_sub(before).expect("accounts only grow"))
    }

    fn zip(&self, other: &Self, both: impl Fn(u64, u64) -> u64) -> Self {
        Self::new(|op| OpCalls {
            count: both(self.of(op).count, other.of(op).count),
            time_ns: both(self.of(op).time_ns, other.of(op).time_ns),
        })
    }
}

impl Serialize for CallAccount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (op, calls) in self.made() {
            map.serialize_entry(op.name(), &calls)?;
        }
        map.end()
    }
}

impl Serialize for OpCalls {
    #[expect(clippy::cast_precision_loss, reason = "below 2^53 ns, 104 days, nothing is lost")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("count", &self.count)?;
        map.serialize_entry("time_us", &(self.time_ns as f64 / 1e3))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(map: OpCalls, fill: OpCalls) -> CallAccount {
        CallAccount::new(|op| match op {
            DeviceOp::Map => map,
            DeviceOp::Fill => fill,
            _ => OpCalls::default(),
        })
    }

    #[test]
    fn sums_and_differences() {
        let earlier = account(OpCalls { count: 2, time_ns: 30 }, OpCalls { count: 1, time_ns: 5 });
        let later = account(OpCalls { count: 5, time_ns: 70 }, OpCalls { count: 1, time_ns: 5 });
        let between = later.since(&earlier);
        assert_eq!(
            between.made().collect::<Vec<_>>(),
            [(DeviceOp::Map, OpCalls { count: 3, time_ns: 40 })]
        );
        assert_eq!(between.plus(&earlier), later);
        assert_eq!(later.total(), OpCalls { count: 6, time_ns: 75 });
    }
}

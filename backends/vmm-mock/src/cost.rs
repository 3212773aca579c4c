//! What driver calls cost, as measured on one NVIDIA H200 with driver 580.159 and CUDA 13.0, and
//! the account of it.

use std::sync::atomic::{AtomicU64, Ordering};
use vmm_core::device::DeviceOp;

/// Mebibyte, in bytes.
const MIB: u64 = 1 << 20;

/// Nanoseconds by length: straight lines between the given points on logarithmic axes, the last one
/// extended beyond the end, and constant below the first point.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Lengths in bytes and nanoseconds, rising.
    points: Vec<(u64, u64)>,
}

impl Curve {
    /// A curve through points of bytes and nanoseconds.
    ///
    /// # Panics
    /// Where [`Curve::try_new`] fails.
    #[must_use]
    pub fn new(points: &[(u64, u64)]) -> Self {
        Self::try_new(points).unwrap_or_else(|rule| panic!("{rule}"))
    }

    /// A curve through points of bytes and nanoseconds that come from outside.
    ///
    /// # Errors
    /// The rule that is broken: there is a point, no value is zero, and the lengths rise.
    pub fn try_new(points: &[(u64, u64)]) -> Result<Self, &'static str> {
        if points.is_empty() {
            return Err("a curve needs a point");
        }
        if points.iter().any(|(len, nanos)| *len == 0 || *nanos == 0) {
            return Err("lengths and times must be above zero");
        }
        if !points.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("lengths must rise");
        }
        Ok(Self { points: points.to_vec() })
    }

    /// The same for every length.
    #[must_use]
    pub fn flat(nanos: u64) -> Self {
        Self { points: vec![(1, nanos)] }
    }

    /// The value at `len` bytes, in nanoseconds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate from measurements of two digits, never negative"
    )]
    pub fn at(&self, len: u64) -> u64 {
        let next = self.points.partition_point(|(point, _)| *point < len);
        if let Some((_, nanos)) = self.points.get(next).filter(|(point, _)| *point == len) {
            return *nanos;
        }
        if next == 0 || self.points.len() == 1 {
            return self.points[0].1;
        }
        let i = next.min(self.points.len() - 1);
        let ((x0, y0), (x1, y1)) = (self.points[i - 1], self.points[i]);
        let ln = |value: u64| (value as f64).ln();
        let slope = (ln(y1) - ln(y0)) / (ln(x1) - ln(x0));
        (ln(y0) + slope * (ln(len) - ln(x0))).exp().round() as u64
    }
}

/// What each call costs the calling thread.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// `make_frame`, by its length.
    pub make_frame: Curve,
    /// `release_frame`, by its length.
    pub release_frame: Curve,
    /// `map`, for each frame by its length.
    pub map: Curve,
    /// `unmap`, for each mapping by its length.
    pub unmap: Curve,
    /// `set_access`, for each mapping by its length.
    pub set_access: Curve,
    /// What `set_access` costs beyond that, for each mapping and each peer that is new to it.
    pub peer_access: Curve,
    /// `reserve` and `free_region`, in nanoseconds.
    pub reserve: u64,
    /// `record`, in nanoseconds.
    pub record: u64,
    /// `reached`, `is_capturing`, and waits for what is over, in nanoseconds.
    pub query: u64,
    /// `stream_wait`, in nanoseconds.
    pub stream_wait: u64,
    /// `memory_info`, in nanoseconds.
    pub memory_info: u64,
    /// Queuing a copy or a fill, in nanoseconds.
    pub launch: u64,
    /// How long a copy or a fill of a length occupies its stream; not a cost of the caller.
    pub copy: Curve,
    /// Multiplies the cost of the slow calls (frames, mappings, access), for a device on which
    /// kernels run. 1.0 is an idle device; a kernel on another stream was measured at 3.
    pub busy_factor: f64,
}

impl CostModel {
    /// An idle NVIDIA H200.
    #[must_use]
    pub fn h200() -> Self {
        Self {
            make_frame: curve([11_000, 11_000, 14_000, 17_000, 39_000, 1_384_000]),
            map: curve([1_000, 1_000, 1_300, 1_500, 2_900, 5_400]),
            set_access: curve([41_000, 42_000, 47_000, 51_000, 97_000, 250_000]),
            unmap: curve([25_000, 25_000, 27_000, 30_000, 57_000, 111_000]),
            release_frame: curve([12_000, 23_000, 62_000, 205_000, 635_000, 3_504_000]),
            // Measured with one peer; each further one is taken to cost the same.
            peer_access: Curve::new(&[
                (2 * MIB, 976_000),
                (64 * MIB, 976_000),
                (1024 * MIB, 9_653_000),
            ]),
            reserve: 21_000,
            record: 200,
            query: 140,
            stream_wait: 230,
            // cuMemGetInfo and launches were not measured by themselves; a launch takes 4.3 µs.
            memory_info: 1_000,
            launch: 4_300,
            copy: Curve::new(&[
                (2 * MIB, 5_600),
                (16 * MIB, 6_600),
                (64 * MIB, 34_000),
                (256 * MIB, 128_000),
            ]),
            busy_factor: 1.0,
        }
    }

    /// An idle NVIDIA H200 that is used by `cudaMalloc` and `cudaFree` alone.
    #[must_use]
    pub fn h200_without_remapping() -> Self {
        Self {
            make_frame: curve([42_000, 44_000, 80_000, 82_000, 358_000, 364_000]),
            release_frame: curve([36_000, 47_000, 105_000, 251_000, 896_000, 2_426_000]),
            ..Self::h200()
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate from measurements of two digits, never negative"
    )]
    pub(crate) fn busy(&self, nanos: u64) -> u64 {
        if self.busy_factor == 1.0 {
            return nanos;
        }
        (nanos as f64 * self.busy_factor).round() as u64
    }
}

/// A curve through measurements at 2, 16, 64, 256, 1024 and 4096 MiB.
fn curve(nanos: [u64; 6]) -> Curve {
    let lens = [2, 16, 64, 256, 1024, 4096].map(|mib| mib * MIB);
    let points: Vec<_> = lens.into_iter().zip(nanos).collect();
    Curve::new(&points)
}

/// Calls of one operation and their cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpCost {
    /// How many calls, refused ones included.
    pub calls: u64,
    /// Their cost in nanoseconds of the calling thread.
    pub nanos: u64,
}

/// Calls of every operation and their cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostSnapshot {
    ops: [OpCost; DeviceOp::ALL.len()],
}

impl CostSnapshot {
    /// What one operation cost.
    #[must_use]
    pub fn of(&self, op: DeviceOp) -> OpCost {
        self.ops[op as usize]
    }

    /// What all cost together.
    #[must_use]
    pub fn total(&self) -> OpCost {
        self.ops.iter().fold(OpCost::default(), |sum, op| OpCost {
            calls: sum.calls + op.calls,
            nanos: sum.nanos + op.nanos,
        })
    }

    /// What was added since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut ops = self.ops;
        for (op, earlier) in ops.iter_mut().zip(earlier.ops) {
            op.calls -= earlier.calls;
            op.nanos -= earlier.nanos;
        }
        Self { ops }
    }
}

/// The running account. Counters are independent statistics, so relaxed order suffices.
#[derive(Debug, Default)]
pub(crate) struct Account {
    calls: [AtomicU64; DeviceOp::ALL.len()],
    nanos: [AtomicU64; DeviceOp::ALL.len()],
    total_calls: AtomicU64,
    total_nanos: AtomicU64,
}

impl Account {
    pub(crate) fn call(&self, op: DeviceOp) {
        self.calls[op as usize].fetch_add(1, Ordering::Relaxed);
        self.total_calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn charge(&self, op: DeviceOp, nanos: u64) {
        self.nanos[op as usize].fetch_add(nanos, Ordering::Relaxed);
        self.total_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn total_calls(&self) -> u64 {
        self.total_calls.load(Ordering::Relaxed)
    }

    pub(crate) fn total_nanos(&self) -> u64 {
        self.total_nanos.load(Ordering::Relaxed)
    }

    pub(crate) fn snapshot(&self) -> CostSnapshot {
        let mut snapshot = CostSnapshot::default();
        for (i, op) in snapshot.ops.iter_mut().enumerate() {
            op.calls = self.calls[i].load(Ordering::Relaxed);
            op.nanos = self.nanos[i].load(Ordering::Relaxed);
        }
        snapshot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_the_index_of_its_place() {
        for (i, op) in DeviceOp::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, i, "{op}");
        }
    }

    #[test]
    fn curves_pass_through_their_points_and_rise_between_them() {
        let model = CostModel::h200();
        assert_eq!(model.set_access.at(2 * MIB), 41_000);
        assert_eq!(model.set_access.at(1024 * MIB), 97_000);
        let between = model.set_access.at(512 * MIB);
        assert!((60_000..90_000).contains(&between), "{between}");
        assert_eq!(model.set_access.at(4096), 41_000, "constant below the first point");
        assert!(model.release_frame.at(8192 * MIB) > 6_000_000, "extended beyond the last");
        assert_eq!(Curve::flat(7).at(12_345), 7);
    }

    #[test]
    fn points_that_make_no_curve() {
        assert_eq!(Curve::try_new(&[(5, 1), (9, 3)]).map(|curve| curve.at(9)), Ok(3));
        assert!(Curve::try_new(&[]).is_err());
        for wrong in [[(0, 1), (9, 3)], [(5, 0), (9, 3)], [(5, 1), (5, 3)], [(9, 1), (5, 3)]] {
            assert!(Curve::try_new(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_busy_factor_multiplies() {
        let model = CostModel { busy_factor: 3.0, ..CostModel::h200() };
        assert_eq!(model.busy(47_000), 141_000);
    }
}

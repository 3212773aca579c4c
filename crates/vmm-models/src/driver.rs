//! The account that models keep of a device: memory taken, calls made, time spent.

use crate::costs::Costs;
use crate::space::Space;
use serde::ser::{Serialize, SerializeMap, Serializer};
use vmm_replay::OpCalls;

/// A call of the driver that some model makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `cudaMalloc`.
    Malloc,
    /// `cudaFree`.
    Free,
    /// `cuMemCreate`.
    MakeFrame,
    /// `cuMemMap`.
    Map,
    /// `cuMemSetAccess`.
    SetAccess,
    /// `cuMemUnmap`.
    Unmap,
    /// `cuMemRelease`.
    ReleaseFrame,
    /// `cudaMallocAsync`.
    MallocAsync,
    /// `cudaFreeAsync`.
    FreeAsync,
    /// `cudaEventRecord`.
    Record,
    /// `cudaStreamWaitEvent`.
    StreamWait,
}

impl Call {
    /// All calls, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::Malloc,
        Self::Free,
        Self::MakeFrame,
        Self::Map,
        Self::SetAccess,
        Self::Unmap,
        Self::ReleaseFrame,
        Self::MallocAsync,
        Self::FreeAsync,
        Self::Record,
        Self::StreamWait,
    ];

    /// The name in reports; what a replay of the pool calls as well has the same name there.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Malloc => "cuda_malloc",
            Self::Free => "cuda_free",
            Self::MakeFrame => "make_frame",
            Self::Map => "map",
            Self::SetAccess => "set_access",
            Self::Unmap => "unmap",
            Self::ReleaseFrame => "release_frame",
            Self::MallocAsync => "cuda_malloc_async",
            Self::FreeAsync => "cuda_free_async",
            Self::Record => "record",
            Self::StreamWait => "stream_wait",
        }
    }
}

/// The calls that a model made, by name.
///
/// Serialized, it is an object with the name of each call that was made, and for each `count` and
/// `time_us`, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCalls {
    calls: [OpCalls; Call::ALL.len()],
}

impl ModelCalls {
    /// What was called of one kind.
    #[must_use]
    pub fn of(&self, call: Call) -> OpCalls {
        self.calls[call as usize]
    }

    /// What was called, in the order of [`Call::ALL`].
    pub fn made(&self) -> impl Iterator<Item = (Call, OpCalls)> + '_ {
        Call::ALL.into_iter().zip(self.calls).filter(|(_, calls)| calls.count > 0)
    }

    /// All calls together.
    #[must_use]
    pub fn total(&self) -> OpCalls {
        self.calls.iter().fold(OpCalls::default(), |sum, calls| OpCalls {
            count: sum.count + calls.count,
            time_ns: sum.time_ns.saturating_add(calls.time_ns),
        })
    }
}

impl Serialize for ModelCalls {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (call, calls) in self.made() {
            map.serialize_entry(call.name(), &calls)?;
        }
        map.end()
    }
}

/// Bytes of a device without a limit: more than there is, and few enough that no sum overflows.
const LARGEST_DEVICE: u64 = 1 << 50;

/// A device as a model sees it: endless but for the limit, and every call has its price.
#[derive(Debug)]
pub(crate) struct Driver {
    limit: Option<u64>,
    costs: Costs,
    space: Space,
    pub(crate) reserved: u64,
    pub(crate) peak_reserved: u64,
    pub(crate) calls: ModelCalls,
    /// How often the host waited for the device.
    pub(crate) waits: u64,
    /// Time of calls and waits since [`Driver::begin`], in nanoseconds.
    pub(crate) spent_ns: u64,
    /// The host has waited since [`Driver::begin`], so the device has nothing left to do.
    idle: bool,
}

impl Driver {
    pub(crate) fn new(costs: Costs, limit: Option<u64>) -> Self {
        Self {
            limit,
            costs,
            space: Space::default(),
            reserved: 0,
            peak_reserved: 0,
            calls: ModelCalls::default(),
            waits: 0,
            spent_ns: 0,
            idle: false,
        }
    }

    /// Begins an event of the program, which has queued work since the last one.
    pub(crate) fn begin(&mut self) {
        self.spent_ns = 0;
        self.idle = false;
    }

    /// Forgets what was called so far: the clock starts.
    pub(crate) fn start_clock(&mut self) {
        self.calls = ModelCalls::default();
        self.waits = 0;
    }

    /// The most that may be reserved, in bytes.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Whether `len` bytes more stay within the limit.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        let most = self.limit.unwrap_or(LARGEST_DEVICE);
        self.reserved.saturating_add(len) <= most
    }

    /// `cudaMalloc`: the address, or `None` beyond the limit.
    pub(crate) fn malloc(&mut self, len: u64) -> Option<u64> {
        let addr = self.take_memory(len)?;
        self.charge(Call::Malloc, len);
        Some(addr)
    }

    /// `cudaFree`, which waits for the whole device.
    pub(crate) fn free(&mut self, addr: u64, len: u64) {
        self.wait();
        self.charge(Call::Free, len);
        self.give_memory(addr, len);
    }

    /// Memory at an address, or `None` beyond the limit. No call is charged.
    pub(crate) fn take_memory(&mut self, len: u64) -> Option<u64> {
        self.take(len).then(|| self.space.take(len))
    }

    /// Gives memory back that came from [`Driver::take_memory`].
    pub(crate) fn give_memory(&mut self, addr: u64, len: u64) {
        self.space.give_back(addr, len);
        self.reserved -= len;
    }

    /// Makes so many frames and maps them. `false`, and nothing is done, beyond the limit.
    pub(crate) fn map(&mut self, len: u64, frames: u64) -> bool {
        if !self.take(len.saturating_mul(frames)) {
            return false;
        }
        for call in [Call::MakeFrame, Call::Map, Call::SetAccess] {
            self.charge_times(call, len, frames);
        }
        true
    }

    /// Maps so many frames at other addresses.
    pub(crate) fn remap(&mut self, len: u64, frames: u64) {
        for call in [Call::Unmap, Call::Map, Call::SetAccess] {
            self.charge_times(call, len, frames);
        }
    }

    /// Unmaps so many frames and releases them. Whoever does so has waited for the work that uses them.
    pub(crate) fn unmap(&mut self, len: u64, frames: u64) {
        self.charge_times(Call::Unmap, len, frames);
        self.charge_times(Call::ReleaseFrame, len, frames);
        self.reserved -= len * frames;
    }

    /// Charges a call that changes no memory.
    pub(crate) fn charge(&mut self, call: Call, len: u64) {
        self.charge_times(call, len, 1);
    }

    fn charge_times(&mut self, call: Call, len: u64, times: u64) {
        if times == 0 {
            return;
        }
        let time_ns = self.costs.of(call, len).saturating_mul(times);
        let calls = &mut self.calls.calls[call as usize];
        calls.count += times;
        calls.time_ns = calls.time_ns.saturating_add(time_ns);
        self.spent_ns = self.spent_ns.saturating_add(time_ns);
    }

    /// Waits until the device has done all that is queued.
    pub(crate) fn wait(&mut self) {
        if !std::mem::replace(&mut self.idle, true) {
            self.waits += 1;
            self.spent_ns = self.spent_ns.saturating_add(self.costs.lag_ns);
        }
    }

    fn take(&mut self, len: u64) -> bool {
        if !self.has_room(len) {
            return false;
        }
        self.reserved += len;
        self.peak_reserved = self.peak_reserved.max(self.reserved);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn every_call_has_the_index_of_its_place() {
        for (i, call) in Call::ALL.into_iter().enumerate() {
            assert_eq!(call as usize, i, "{}", call.name());
        }
    }

    #[test]
    fn the_limit_holds_and_a_wait_counts_once_an_event() {
        let mut driver = Driver::new(Costs::h200(), Some(4 * MIB));
        let a = driver.malloc(2 * MIB).expect("within the limit");
        let b = driver.malloc(2 * MIB).expect("within the limit");
        assert_eq!(driver.malloc(2 * MIB), None);
        assert_eq!(driver.spent_ns, 84_000);
        driver.begin();
        driver.free(a, 2 * MIB);
        driver.free(b, 2 * MIB);
        assert_eq!((driver.reserved, driver.peak_reserved, driver.waits), (0, 4 * MIB, 1));
        assert_eq!(driver.spent_ns, 5_000_000 + 72_000);
        assert_eq!(driver.calls.total(), OpCalls { count: 4, time_ns: 156_000 });
    }
}

//! What the calls of models cost.

use crate::driver::Call;
use std::time::Duration;
use vmm_mock::{CostModel, Curve};

/// Mebibyte, in bytes.
const MIB: u64 = 1 << 20;

/// What each call costs the calling thread, and how long a wait for the device takes.
#[derive(Clone, Debug)]
pub struct Costs {
    /// `cudaMalloc`, by length.
    pub malloc: Curve,
    /// `cudaFree`, by length, without the wait for the device.
    pub free: Curve,
    /// `cudaMallocAsync` from a pool that has the memory, by length.
    pub malloc_async: Curve,
    /// `cudaFreeAsync`, by length.
    pub free_async: Curve,
    /// Calls on virtual memory and events.
    pub virtual_memory: CostModel,
    /// How far the device runs behind the host, which is what a wait takes. In nanoseconds.
    pub lag_ns: u64,
}

impl Costs {
    /// An idle NVIDIA H200 with driver 580.159, 5 ms behind the host.
    #[must_use]
    pub fn h200() -> Self {
        let plain = CostModel::h200_without_remapping();
        Self {
            malloc: plain.make_frame,
            free: plain.release_frame,
            malloc_async: curve([2_200, 1_900, 5_400, 4_700, 8_100, 24_000]),
            free_async: curve([900, 1_000, 2_000, 1_700, 3_500, 4_900]),
            virtual_memory: CostModel::h200(),
            lag_ns: 5_000_000,
        }
    }

    /// The same with another lag.
    #[must_use]
    pub fn with_lag(self, lag: Duration) -> Self {
        Self { lag_ns: u64::try_from(lag.as_nanos()).unwrap_or(u64::MAX), ..self }
    }

    /// What a call costs, in nanoseconds.
    pub(crate) fn of(&self, call: Call, len: u64) -> u64 {
        match call {
            Call::Malloc => self.malloc.at(len),
            Call::Free => self.free.at(len),
            Call::MakeFrame => self.virtual_memory.make_frame.at(len),
            Call::Map => self.virtual_memory.map.at(len),
            Call::SetAccess => self.virtual_memory.set_access.at(len),
            Call::Unmap => self.virtual_memory.unmap.at(len),
            Call::ReleaseFrame => self.virtual_memory.release_frame.at(len),
            Call::MallocAsync => self.malloc_async.at(len),
            Call::FreeAsync => self.free_async.at(len),
            Call::Record => self.virtual_memory.record,
            Call::StreamWait => self.virtual_memory.stream_wait,
        }
    }
}

/// A curve through measurements at 2, 16, 64, 256, 1024 and 4096 MiB.
fn curve(nanos: [u64; 6]) -> Curve {
    let lens = [2, 16, 64, 256, 1024, 4096].map(|mib| mib * MIB);
    let points: Vec<_> = lens.into_iter().zip(nanos).collect();
    Curve::new(&points)
}

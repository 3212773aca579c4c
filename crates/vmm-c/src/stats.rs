//! The figures of a pool.

use crate::guard;
use crate::options::vmm_frame_kind_t;
use crate::pool::vmm_pool_t;
use crate::sized::SizedStruct;
use crate::status::vmm_status_t;
use vmm_core::Stats;

/// The figures of a pool at one moment. Lengths are in bytes, of whole units of 512.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_stats_t {
    /// Set it to `sizeof(vmm_stats_t)` before the call. Later versions have more fields behind the
    /// last.
    pub size: usize,
    /// In leases.
    pub live_bytes: u64,
    /// In leases as they were asked for, before rounding.
    pub requested_bytes: u64,
    /// Leases that somebody holds.
    pub live_leases: u64,
    /// Physical memory of the pool, what is being made included.
    pub reserved_bytes: u64,
    /// Released with uses on several streams that are not over.
    pub retired_bytes: u64,
    /// Addresses whose memory has moved on but that are still mapped. They hold no memory.
    pub stale_bytes: u64,
    /// The highest `live_bytes` so far.
    pub peak_live_bytes: u64,
    /// The highest `requested_bytes` so far.
    pub peak_requested_bytes: u64,
    /// The most bytes that frames had so far. Those that other threads were making or releasing when some were
    /// made count; a request that the device refused does not.
    pub peak_reserved_bytes: u64,
    /// Leases made.
    pub allocations: u64,
    /// Leases ended.
    pub releases: u64,
    /// Allocations that memory at hand could not serve.
    pub misses: u64,
    /// Allocations that failed, also those that could never be served.
    pub failures: u64,
    /// Frames (pieces of physical memory) made.
    pub frames_made: u64,
    /// Idle frames that moved to another address.
    pub frames_moved: u64,
    /// Frames that went back to an address that they were still mapped at.
    pub frames_recalled: u64,
    /// Frames released.
    pub frames_released: u64,
    /// In frames released.
    pub frames_released_bytes: u64,
    /// Mappings removed.
    pub unmaps: u64,
    /// Times that a stream was made to wait on the device for another.
    pub device_waits: u64,
    /// Times that the host waited for the device.
    pub host_waits: u64,
    /// Steps that the device refused.
    pub failed_steps: u64,
    /// The limit; 0: none.
    pub limit: u64,
    /// The target; 0: none of its own.
    pub target: u64,
    /// Frames of the pool.
    pub frames: u64,
    /// Mappings of the pool.
    pub mappings: u64,
    /// Address space reserved.
    pub address_bytes: u64,
    /// Private pools that were made and not released.
    pub private_pools: u64,
    /// Of `reserved_bytes`, what serves private pools and leases that these have left.
    pub private_reserved_bytes: u64,
    /// The highest `live_bytes` and `retired_bytes` together so far, as found whenever memory at hand did
    /// not serve a request.
    pub peak_active_bytes: u64,
    /// The most frames that there were at once so far.
    pub peak_frames: u64,
    /// The kind of frames that are made, a `vmm_frame_kind_t`: that of the options, or `VMM_FRAME_DEVICE`
    /// once the device refused it.
    pub frame_kind: u64,
    /// Nanoseconds that threads took to find memory in `misses`: device calls, waits and callbacks. It is what
    /// the pool costs beyond the fixed price of an allocation, which is below a microsecond.
    pub miss_ns: u64,
}

// SAFETY: `size` comes first, and all other fields are 64-bit integers.
unsafe impl SizedStruct for vmm_stats_t {}

impl From<Stats> for vmm_stats_t {
    fn from(stats: Stats) -> Self {
        Self {
            size: size_of::<Self>(),
            live_bytes: stats.live_bytes,
            requested_bytes: stats.requested_bytes,
            live_leases: stats.live_leases,
            reserved_bytes: stats.reserved_bytes,
            retired_bytes: stats.retired_bytes,
            stale_bytes: stats.stale_bytes,
            peak_live_bytes: stats.peak_live_bytes,
            peak_requested_bytes: stats.peak_requested_bytes,
            peak_reserved_bytes: stats.peak_reserved_bytes,
            allocations: stats.allocations,
            releases: stats.releases,
            misses: stats.misses,
            failures: stats.failures,
            frames_made: stats.frames_made,
            frames_moved: stats.frames_moved,
            frames_recalled: stats.frames_recalled,
            frames_released: stats.frames_released,
            frames_released_bytes: stats.frames_released_bytes,
            unmaps: stats.unmaps,
            device_waits: stats.device_waits,
            host_waits: stats.host_waits,
            failed_steps: stats.failed_steps,
            limit: stats.limit.unwrap_or(0),
            target: stats.target.unwrap_or(0),
            frames: stats.frames,
            mappings: stats.mappings,
            address_bytes: stats.address_bytes,
            private_pools: stats.private_pools,
            private_reserved_bytes: stats.private_reserved_bytes,
            peak_active_bytes: stats.peak_active_bytes,
            peak_frames: stats.peak_frames,
            frame_kind: vmm_frame_kind_t::from(stats.frame_kind) as u64,
            miss_ns: stats.miss_ns,
        }
    }
}

/// Writes the figures of this moment to `stats`.
///
/// # Safety
/// `pool` is NULL or lives, `stats` is NULL or points to a `vmm_stats_t`
/// whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_stats(pool: *mut vmm_pool_t, stats: *mut vmm_stats_t) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let figures = vmm_stats_t::from(pool.pool.stats());
        // SAFETY: by this function's contract.
        unsafe { figures.write_to(stats, "stats") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Lets the three peaks among the figures begin anew, at what there is now.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_reset_peaks(pool: *mut vmm_pool_t) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        pool.pool.reset_peaks();
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_core::Counters;

    /// `Counters` may get fields without breaking the code above; C would not see them then.
    #[test]
    fn every_counter_has_a_field() {
        let ours = (size_of::<vmm_stats_t>() - size_of::<usize>()) / size_of::<u64>();
        // The fields of `Stats` itself, but for `remapping`, which is the device's.
        let others = 8;
        let counters = size_of::<Counters>() / size_of::<u64>();
        assert_eq!(ours, counters + others, "a new counter belongs at the end");
    }
}

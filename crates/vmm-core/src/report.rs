//! Counters and snapshots: what a pool has and did.

use crate::device::{AddrRange, FrameKind};
use crate::frame::Held;
use crate::tenancy::PrivateId;
use crate::units::{DeviceAddr, DeviceOrdinal, StreamId};
use std::time::Duration;

/// Figures that change with every operation. Bytes count whole units of 512.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Bytes in leases.
    pub live_bytes: u64,
    /// Bytes in leases as they were asked for, before rounding.
    pub requested_bytes: u64,
    /// Leases that somebody holds.
    pub live_leases: u64,
    /// Physical memory of the pool: frames made and not released, and frames being made.
    pub reserved_bytes: u64,
    /// Released with uses on several streams that are not over.
    pub retired_bytes: u64,
    /// Addresses whose memory has moved on, but which are still mapped. They hold no memory.
    pub stale_bytes: u64,
    /// The highest `live_bytes` so far, or since [`Pool::reset_peaks`](crate::Pool::reset_peaks). So with the other
    /// peaks.
    pub peak_live_bytes: u64,
    /// The highest `requested_bytes` so far.
    pub peak_requested_bytes: u64,
    /// The highest `live_bytes` and `retired_bytes` together so far: what leases, and work of several streams
    /// on such as were released, kept from being used again. It is looked at when memory at hand does
    /// not serve a request, since only then the pool learns which work is over.
    pub peak_active_bytes: u64,
    /// The most bytes that frames had so far. Those that other threads were making or releasing when some were
    /// made count; a request that the device refused does not.
    pub peak_reserved_bytes: u64,
    /// The most frames that there were at once so far, counted alike.
    pub peak_frames: u64,
    /// Leases made.
    pub allocations: u64,
    /// Leases ended.
    pub releases: u64,
    /// Allocations that memory at hand could not serve, or not well: near the limit frames may move for one
    /// so that others can be served later.
    pub misses: u64,
    /// Nanoseconds that the threads of those took to find memory, by the clock of the options: what the pool
    /// costs beyond the fixed price of an allocation, which is below a microsecond. Device calls, waits
    /// and callbacks are in it.
    pub miss_ns: u64,
    /// Allocations that failed, also those that could never be served.
    pub failures: u64,
    /// Frames made.
    pub frames_made: u64,
    /// Idle frames that moved to another address.
    pub frames_moved: u64,
    /// Frames that went back to an address that they were still mapped at.
    pub frames_recalled: u64,
    /// Frames released.
    pub frames_released: u64,
    /// Bytes of frames released.
    pub frames_released_bytes: u64,
    /// Mappings removed.
    pub unmaps: u64,
    /// Times that a stream was made to wait on the device for another.
    pub device_waits: u64,
    /// Times that the host waited for the device.
    pub host_waits: u64,
    /// Steps that the device refused.
    pub failed_steps: u64,
}

impl Counters {
    #[inline]
    pub(crate) fn allocated(&mut self, len: u64, requested: u64) {
        self.live_bytes += len;
        self.requested_bytes += requested;
        self.live_leases += 1;
        self.allocations += 1;
        self.peak_live_bytes = self.peak_live_bytes.max(self.live_bytes);
        self.peak_requested_bytes = self.peak_requested_bytes.max(self.requested_bytes);
        self.peak_active_bytes = self.peak_active_bytes.max(self.live_bytes);
    }

    /// Notes what is active, when it is known which work is over.
    pub(crate) fn note_active(&mut self) {
        self.peak_active_bytes = self.peak_active_bytes.max(self.live_bytes + self.retired_bytes);
    }

    /// Notes how long a miss took.
    pub(crate) fn missed(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.miss_ns = self.miss_ns.saturating_add(nanos);
    }

    #[inline]
    pub(crate) fn released(&mut self, len: u64, requested: u64) {
        self.live_bytes -= len;
        self.requested_bytes -= requested;
        self.live_leases -= 1;
        self.releases += 1;
    }

    /// Notes frames that are to be made, of `len` bytes in all; returns `reserved_bytes` with them.
    pub(crate) fn reserve(&mut self, len: u64) -> u64 {
        self.reserved_bytes += len;
        self.reserved_bytes
    }

    /// Notes that frames were made. What was planned counts: others may have gone since, but perhaps
    /// after these were there.
    pub(crate) fn made(&mut self, planned: Held) {
        self.peak_frames = self.peak_frames.max(planned.frames as u64);
        self.peak_reserved_bytes = self.peak_reserved_bytes.max(planned.bytes);
    }

    /// Begins the peaks anew, when so much is held.
    pub(crate) fn reset_peaks(&mut self, held: Held) {
        self.peak_live_bytes = self.live_bytes;
        self.peak_requested_bytes = self.requested_bytes;
        self.peak_active_bytes = self.live_bytes + self.retired_bytes;
        self.peak_frames = held.frames as u64;
        self.peak_reserved_bytes = held.bytes;
    }

    pub(crate) fn unreserve(&mut self, len: u64) {
        self.reserved_bytes -= len;
    }
}

/// The figures of a pool at one moment. Reading them takes the pool's lock for a copy of this size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// What changes with every operation.
    pub counters: Counters,
    /// The limit in bytes, if there is one.
    pub limit: Option<u64>,
    /// The target in bytes, if there is one.
    pub target: Option<u64>,
    /// Frames of the pool.
    pub frames: u64,
    /// Mappings of the pool, stale ones included.
    pub mappings: u64,
    /// Address space reserved, in bytes; of the frames themselves without `remapping`.
    pub address_bytes: u64,
    /// Private pools that live.
    pub private_pools: u64,
    /// Bytes of frames that serve private pools, or the leases that these have left.
    pub private_reserved_bytes: u64,
    /// Whether the device can map frames, so that memory that is free in pieces serves a long request.
    /// Without [`crate::Capabilities::remapping`] each frame stays where it was made.
    pub remapping: bool,
    /// The kind of frames that are made: that of the options, or `Device` once the device refused it.
    pub frame_kind: FrameKind,
}

impl std::ops::Deref for Stats {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        &self.counters
    }
}

/// Everything a pool has, at one moment. Taken under the lock in one pass, without a device call.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The figures.
    pub stats: Stats,
    /// Reserved addresses.
    pub regions: Vec<AddrRange>,
    /// Mapped pages, as runs of one mapping each, by address within each region.
    pub mappings: Vec<MappingView>,
    /// Frames.
    pub frames: Vec<FrameView>,
    /// Peers of the pool: devices that have access to all its memory.
    pub peers: Vec<DeviceOrdinal>,
    /// Leases that somebody holds, in no order.
    pub leases: Vec<LeaseView>,
    /// Free ranges, in no order.
    pub free: Vec<FreeView>,
    /// Private pools that live, in no order.
    pub private_pools: Vec<PrivateView>,
}

/// A private pool in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateView {
    /// Which one.
    pub id: PrivateId,
    /// Its addresses, which are among [`Snapshot::regions`].
    pub regions: Vec<AddrRange>,
    /// Bytes of its frames.
    pub reserved_bytes: u64,
}

/// A mapping in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingView {
    /// Its pages.
    pub range: AddrRange,
    /// The index of its frame in [`Snapshot::frames`].
    pub frame: usize,
    /// Its memory has moved on; it is to be unmapped.
    pub stale: bool,
    /// How many peers have access to it: those of the pool and those of leases.
    pub peers: usize,
}

/// A frame in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameView {
    /// Its length in bytes.
    pub len: u64,
    /// How many mappings it has.
    pub mappings: usize,
    /// It is to be released.
    pub leaving: bool,
}

/// A lease in a [`Snapshot`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Where it begins.
    pub addr: DeviceAddr,
    /// Its length in bytes, rounded to whole units.
    pub len: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// The name it is accounted to.
    pub owner: String,
    /// The stream it was allocated on.
    pub stream: StreamId,
    /// How many hold it; 0 when it is retired.
    pub count: u32,
    /// The private pool that it was allocated from, if that lives.
    pub private_pool: Option<PrivateId>,
}

/// A free range in a [`Snapshot`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeView {
    /// Where it lies.
    pub range: AddrRange,
    /// The only stream that may take it without a wait; `None`: any.
    pub stream: Option<StreamId>,
    /// The private pool that it is free for, if not for all.
    pub private_pool: Option<PrivateId>,
}

//! The device: what the pool needs of a GPU's virtual memory, and nothing else.
//!
//! **Validation is the pool's responsibility.** A backend reports only what a caller cannot
//! foresee: exhausted memory, a lost device, a refused flag. A precondition (`pre:` below) that does
//! not hold is a bug in the pool; a strict device (the mock) refuses it, a fast one need not look.
//!
//! Each bullet is one case of the conformance suite. The life of an address and of a frame:
//!
//! ```text
//!             reserve            map                   set_access
//!  (nothing) ────────► reserved ─────► mapped, no access ─────► usable
//!            ◄────────          ◄──────────────────────────────
//!           free_region                     unmap
//!
//!             make_frame         map (once per alias)
//!  (nothing) ───────────► frame ◄────────────────────► frame with n mappings
//!            ◄───────────          unmap
//!           release_frame (n = 0)
//! ```

use crate::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};
use std::fmt;
use std::time::Duration;

/// The result of a device call.
pub type DeviceResult<T> = Result<T, DeviceError>;

/// Physical memory, addresses, fences and copies of one device.
///
/// Every method may be called from any thread. All are cheap enough to be called under a lock
/// (below a microsecond, no wait) but for `reserve`, `free_region`, `make_frame`, `release_frame`,
/// `map`, `unmap`, `set_access`, `wait` and `wait_idle`.
pub trait VirtualMemoryDevice: Send + Sync {
    /// What this device is and can do.
    /// - The same for the life of the device.
    fn properties(&self) -> &Properties;

    /// Free and total physical bytes.
    /// - `free` falls by the length of each frame made and rises when it is released.
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// Whether `stream` is capturing a graph.
    /// - Legal on any stream at any time.
    /// - While true: `record`, `reached`, `wait` and `stream_wait` of that stream are illegal.
    /// - All other calls stay legal and break no capture: the device sees to that (CUDA: by the
    ///   calling thread's capture mode). A pool that knows of a capture still makes no call that it
    ///   can do without.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool>;

    /// Reserves `len` bytes of addresses and returns their base.
    /// - The base is a multiple of `alignment`, and never zero.
    /// - Reserved ranges never overlap.
    /// - pre: `len` and `alignment` are multiples of the granule, `alignment` a power of two.
    /// - Beyond what the device can address: [`DeviceErrorKind::OutOfAddresses`], and a smaller
    ///   reservation may succeed.
    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr>;

    /// Gives a reserved range back.
    /// - pre: exactly a range that `reserve` returned, with nothing mapped in it.
    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()>;

    /// Makes a frame of `len` bytes.
    /// - pre: `len` is a positive multiple of the granule of `kind`.
    /// - No physical memory left: [`DeviceErrorKind::OutOfMemory`], and nothing has changed.
    /// - A kind without a granule: [`DeviceErrorKind::NotSupported`].
    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle>;

    /// Where a frame lies on a device without [`Capabilities::remapping`].
    /// - With remapping: `None`. A frame has no address until it is mapped.
    /// - Without: its one address, a multiple of the granule and never zero, the same and usable by
    ///   all work of the device from `make_frame` to `release_frame`.
    /// - Without: `reserve`, `free_region`, `map`, `unmap` and `set_access` are
    ///   [`DeviceErrorKind::NotSupported`], whatever is passed to them.
    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr>;

    /// Releases a frame.
    /// - pre: the frame lives and has no mapping.
    /// - pre: without remapping, no queued work uses the frame. Even so the call may wait there until
    ///   the device has done all its work, as `cuMemFree` does.
    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()>;

    /// Maps frames, each whole, once every fence in `after` is reached.
    /// - pre: each target range is reserved, granule-aligned, of the frame's length and free of
    ///   mappings; ranges of one batch do not overlap.
    /// - One frame may be mapped at several addresses where [`Capabilities::aliases`] is set; all
    ///   show the same bytes to work that is ordered after the write.
    /// - pre: fences in `after` are reached, unless [`Capabilities::queued_binds`] is set.
    /// - All or nothing: on an error no mapping of the batch is left.
    /// - The fence that it returns says when the mappings exist; with immediate binds it is
    ///   [`Fence::REACHED`].
    /// - An empty batch does nothing.
    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence>;

    /// Removes the mappings in each range, once every fence in `after` is reached.
    /// - pre: each range covers whole mappings and nothing unmapped.
    /// - pre: no work that was queued and is not ordered before `after` uses the range.
    /// - pre: fences in `after` are reached, unless [`Capabilities::queued_binds`] is set.
    /// - All or nothing: on an error the whole batch is still mapped.
    /// - An empty batch does nothing.
    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence>;

    /// Lets this device, and each peer in `peers`, read and write the range.
    /// - Memory that was mapped and has no access yet faults when used.
    /// - pre: the range covers whole mappings.
    /// - Access that was granted before stays.
    /// - All or nothing in its effect on this device's access.
    /// - A peer sees what this device wrote, once that work is done, and can use no mapping that it
    ///   was not given access to: another mapping of the same frame needs its own.
    /// - Peers where [`Capabilities::peers`] is missing, and a peer that cannot reach this device:
    ///   [`DeviceErrorKind::NotSupported`], and nothing has changed.
    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()>;

    /// Records a fence behind all work queued on `stream` so far.
    /// - Its value is higher than that of every earlier fence of the stream.
    /// - pre: the stream is not capturing.
    fn record(&self, stream: StreamId) -> DeviceResult<Fence>;

    /// The highest recorded value of `stream` that is reached. Never waits.
    /// - Never falls; 0 for a stream on which nothing was recorded.
    /// - Fences whose value is reached need no further care: the device recycles them.
    ///
    /// Stays legal, as does `wait`, when the stream is destroyed: fences outlive their stream.
    fn reached(&self, stream: StreamId) -> DeviceResult<u64>;

    /// Waits on the host until `fence` is reached or `timeout` has passed; says whether it was.
    /// - A reached fence returns at once.
    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool>;

    /// Waits on the host until all work is over that was queued before the call, on whatever stream, and be
    /// it destroyed.
    /// - Every fence that was recorded before the call is reached then.
    /// - pre: no stream is capturing.
    ///
    /// A driver that finds a capture says [`DeviceErrorKind::NotReady`]. The pool calls this for what nothing
    /// else tells: where the work ends of a stream that cannot be recorded on. Without it such memory serves
    /// nobody else.
    fn wait_idle(&self) -> DeviceResult<()> {
        Err(DeviceError::new(
            DeviceOp::WaitIdle,
            DeviceErrorKind::NotSupported,
            "this device cannot wait for all its work",
        ))
    }

    /// Makes later work of `stream` wait, on the device, for `fence`. The host does not wait.
    /// - A reached fence costs nothing.
    /// - pre: neither stream is capturing.
    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()>;

    /// Queues a copy of `len` bytes between two usable ranges.
    /// - Ordered with all other work of `stream`.
    /// - pre: the ranges do not overlap.
    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()>;

    /// Queues the filling of a usable range with one byte value.
    /// - Ordered with all other work of `stream`.
    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()>;
}

/// A range of device addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddrRange {
    /// Where it begins.
    pub addr: DeviceAddr,
    /// Its length in bytes.
    pub len: u64,
}

impl AddrRange {
    /// The first address behind the range.
    #[must_use]
    pub fn end(self) -> DeviceAddr {
        self.addr.offset(self.len)
    }
}

/// One frame to be mapped, whole, at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Where.
    pub range: AddrRange,
    /// What. Its length equals that of the range.
    pub frame: FrameHandle,
}

/// Where a frame's memory lies and what else can be done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Memory of the device.
    #[default]
    Device,
    /// Memory of the device that can be exported to another process.
    Exportable,
    /// Memory of the device that network cards can register, and that can be exported.
    Rdma,
    /// Pinned memory of the host.
    Host,
}

/// What a device is and can do, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// For people: the device's name.
    pub name: String,
    /// The smallest mappable length of [`FrameKind::Device`] memory, in bytes; a power of two.
    pub granule: u64,
    /// Granules of the other kinds; a kind that is missing is not supported.
    pub other_granules: Vec<(FrameKind, u64)>,
    /// The largest reservation worth asking for, in bytes.
    pub max_reservation: u64,
    /// Optional abilities.
    pub capabilities: Capabilities,
}

impl Properties {
    /// The granule of a kind of frame, if the device has that kind.
    #[must_use]
    pub fn granule_of(&self, kind: FrameKind) -> Option<u64> {
        if kind == FrameKind::Device {
            return Some(self.granule);
        }
        self.other_granules.iter().find(|(k, _)| *k == kind).map(|(_, granule)| *granule)
    }
}

/// Optional abilities of a device. The pool takes another way where one is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Frames can be mapped and unmapped after they were made. Without it the device only offers
    /// plain allocations: [`VirtualMemoryDevice::fixed_addr`]. Excludes `aliases`, `queued_binds` and
    /// `peers` if it is missing.
    pub remapping: bool,
    /// One frame can be mapped at several addresses at once.
    pub aliases: bool,
    /// Binds are queued on the device and may wait there for fences (Vulkan). Without it they
    /// happen during the call (CUDA). Excludes `capture`: a queued bind orders a stream, which a
    /// capture forbids.
    pub queued_binds: bool,
    /// Other devices can be given access. Needs `aliases`: a frame that had to be unmapped in order to
    /// move would take their access away for a moment.
    pub peers: bool,
    /// Streams can capture graphs.
    pub capture: bool,
}

/// Physical memory of the device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not in use by anybody.
    pub free: u64,
    /// What the device has.
    pub total: u64,
}

/// A call of the device interface, for errors, statistics and faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceOp {
    /// `memory_info`
    MemoryInfo,
    /// `is_capturing`
    IsCapturing,
    /// `reserve`
    Reserve,
    /// `free_region`
    FreeRegion,
    /// `make_frame`
    MakeFrame,
    /// `release_frame`
    ReleaseFrame,
    /// `map`
    Map,
    /// `unmap`
    Unmap,
    /// `set_access`
    SetAccess,
    /// `record`
    Record,
    /// `reached`
    Reached,
    /// `wait`
    Wait,
    /// `wait_idle`
    WaitIdle,
    /// `stream_wait`
    StreamWait,
    /// `copy`
    Copy,
    /// `fill`
    Fill,
}

impl DeviceOp {
    /// Every operation, in the order of the trait.
    pub const ALL: [Self; 16] = [
        Self::MemoryInfo,
        Self::IsCapturing,
        Self::Reserve,
        Self::FreeRegion,
        Self::MakeFrame,
        Self::ReleaseFrame,
        Self::Map,
        Self::Unmap,
        Self::SetAccess,
        Self::Record,
        Self::Reached,
        Self::Wait,
        Self::WaitIdle,
        Self::StreamWait,
        Self::Copy,
        Self::Fill,
    ];

    /// The name of the trait's method.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::MemoryInfo => "memory_info",
            Self::IsCapturing => "is_capturing",
            Self::Reserve => "reserve",
            Self::FreeRegion => "free_region",
            Self::MakeFrame => "make_frame",
            Self::ReleaseFrame => "release_frame",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::SetAccess => "set_access",
            Self::Record => "record",
            Self::Reached => "reached",
            Self::Wait => "wait",
            Self::WaitIdle => "wait_idle",
            Self::StreamWait => "stream_wait",
            Self::Copy => "copy",
            Self::Fill => "fill",
        }
    }
}

impl fmt::Display for DeviceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a device call failed; a kind exists because the pool acts differently on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceErrorKind {
    /// No physical memory left. Less may still be had, and more once others let go.
    OutOfMemory,
    /// No addresses left for a reservation of this length.
    OutOfAddresses,
    /// The device cannot do this at all, or not with this kind of frame.
    NotSupported,
    /// The device was busy; the same call may succeed shortly.
    NotReady,
    /// The driver or its context has shut down: everything the pool had is gone.
    Deinitialized,
    /// The call broke the contract of the interface.
    Illegal,
    /// Any other failure of the driver.
    Failed,
}

/// A device call that failed, with the facts of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{op}({addr}, {len} bytes) failed: {kind:?} (driver code {code}{})", Detail(detail))]
pub struct DeviceError {
    /// Which call.
    pub op: DeviceOp,
    /// Why.
    pub kind: DeviceErrorKind,
    /// The address it was about, or zero.
    pub addr: DeviceAddr,
    /// The length it was about in bytes, or zero.
    pub len: u64,
    /// The driver's own code.
    pub code: i64,
    /// What the device has to say about it; may be empty.
    pub detail: &'static str,
}

impl DeviceError {
    /// An error that no driver has named, about no address.
    #[must_use]
    pub const fn new(op: DeviceOp, kind: DeviceErrorKind, detail: &'static str) -> Self {
        Self { op, kind, addr: DeviceAddr(0), len: 0, code: 0, detail }
    }
}

struct Detail(&'static str);

impl fmt::Display for Detail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, ": {}", self.0) }
    }
}

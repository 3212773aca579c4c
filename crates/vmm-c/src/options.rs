//! How a pool is to be.

use crate::device::{AnyDevice, vmm_device_kind_t};
use crate::error::Fault;
use crate::sized::SizedStruct;
use std::time::Duration;
use vmm_core::{CrossStream, DeviceOrdinal, FrameKind, Maintenance, PoolOptions};
use vmm_cuda::VirtualMemory;

/// The memory of an NVIDIA H200 in bytes, which a mock device has unless told otherwise.
const MOCK_MEMORY: u64 = 141 << 30;

/// Beyond it a number of peers was never set.
const MOST_PEERS: usize = 1024;

/// As a target: none, also where there is a limit. The pool follows what is needed.
pub const VMM_NO_TARGET: u64 = u64::MAX;

const _: () = assert!(VMM_NO_TARGET == PoolOptions::NO_TARGET);

/// How memory that one stream released becomes usable by another.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_cross_stream_t {
    /// The taker's stream waits on the device for the work that may still use it. The host never
    /// does.
    VMM_CROSS_STREAM_WAIT_ON_DEVICE = 0,
    /// Only once that work is over.
    VMM_CROSS_STREAM_WHEN_REACHED = 1,
    /// Never, short of an allocation that would fail.
    VMM_CROSS_STREAM_NEVER = 2,
}

/// Who makes memory ahead of need and gives back what is above the target.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_maintenance_t {
    /// A thread of the pool.
    VMM_MAINTENANCE_WORKER = 0,
    /// The user, by calling `vmm_maintain`.
    VMM_MAINTENANCE_USER_LOOP = 1,
    /// Allocations that must call the device anyway do a step more.
    VMM_MAINTENANCE_INLINE = 2,
}

/// Where memory lies and what else can be done with it. If the device refuses the kind, plain
/// device memory is used from then on.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_frame_kind_t {
    /// Memory of the device.
    VMM_FRAME_DEVICE = 0,
    /// Memory of the device that can be exported to another process.
    VMM_FRAME_EXPORTABLE = 1,
    /// Memory of the device that network cards can register, and that can be exported.
    VMM_FRAME_RDMA = 2,
    /// Pinned memory of the host.
    VMM_FRAME_HOST = 3,
}

impl From<FrameKind> for vmm_frame_kind_t {
    fn from(kind: FrameKind) -> Self {
        match kind {
            FrameKind::Device => Self::VMM_FRAME_DEVICE,
            FrameKind::Exportable => Self::VMM_FRAME_EXPORTABLE,
            FrameKind::Rdma => Self::VMM_FRAME_RDMA,
            FrameKind::Host => Self::VMM_FRAME_HOST,
        }
    }
}

/// Whether the device's virtual memory is used.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_virtual_memory_t {
    /// Where the device has it.
    VMM_VIRTUAL_MEMORY_AUTO = 0,
    /// Never: memory stays where the driver has put it, and none moves.
    VMM_VIRTUAL_MEMORY_PLAIN = 1,
}

/// How a pool is to be. Zero is the default of each field, so that
///
/// ```c
/// vmm_pool_options_t options = {0};
/// options.size = sizeof options;
/// ```
///
/// gives a pool on CUDA device 0 for a program that has it to itself and whose needs are not known.
/// Lengths are in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct vmm_pool_options_t {
    /// `sizeof(vmm_pool_options_t)`. Later versions have more fields behind the last.
    pub size: usize,
    /// A `vmm_device_kind_t`.
    pub device_kind: u32,
    /// Which device of that kind, counted from 0.
    pub device_ordinal: u32,
    /// Physical memory of a mock device. 0: that of an H200.
    pub mock_memory: u64,
    /// Physical memory that is never passed, not even for a moment. 0: no limit.
    pub limit: u64,
    /// Physical memory that the pool makes ahead of need and tries to stay under. 0: the limit;
    /// `VMM_NO_TARGET`: none, so that the limit is only not passed. The last run's peak, where it is known,
    /// serves best. All that the device has, or more, is as good as none.
    pub target: u64,
    /// The longest range of addresses to reserve at once. A device that refuses it is asked for
    /// less. 0: 16 times the device's memory.
    pub reservation: u64,
    /// How long memory above the target stays after it was last needed, in nanoseconds. 0: 10
    /// seconds.
    pub time_to_live_ns: u64,
    /// A `vmm_cross_stream_t`.
    pub cross_stream: u32,
    /// A `vmm_maintenance_t`.
    pub maintenance: u32,
    /// A `vmm_frame_kind_t`.
    pub frame_kind: u32,
    /// A `vmm_virtual_memory_t`.
    pub virtual_memory: u32,
    /// Ordinals of the devices that can use all memory of the pool beside its own; read during the
    /// call only. NULL if there are none.
    pub peers: *const u32,
    /// How many `peers` has.
    pub peer_count: usize,
}

// SAFETY: `size` comes first; all other fields are integers, and a pointer that may have any value
// until somebody reads through it. There is no gap: 64-bit fields, and 32-bit ones in pairs.
unsafe impl SizedStruct for vmm_pool_options_t {}

/// What the caller wants, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) device: AnyDevice,
    pub(crate) options: PoolOptions,
    pub(crate) ordinal: u32,
}

impl vmm_pool_options_t {
    /// Checks the options, and opens the device.
    ///
    /// # Safety
    /// `options` is NULL or points to options whose size is set, and `peers` in them is NULL or
    /// points to `peer_count` ordinals.
    pub(crate) unsafe fn open(options: *const Self) -> Result<Wanted, Fault> {
        // SAFETY: by this function's contract.
        let given = unsafe { Self::read_from(options, "options")? };
        // SAFETY: by this function's contract; fields that the caller's struct lacks are zero.
        let peers = unsafe { ordinals(given.peers, given.peer_count)? };
        let some = |number: u64| (number != 0).then_some(number);
        let options = PoolOptions {
            limit: some(given.limit),
            target: some(given.target),
            cross_stream: choice(
                "cross_stream",
                given.cross_stream,
                [CrossStream::WaitOnDevice, CrossStream::WhenReached, CrossStream::Never],
            )?,
            maintenance: choice(
                "maintenance",
                given.maintenance,
                [Maintenance::Worker, Maintenance::UserLoop, Maintenance::Inline],
            )?,
            time_to_live: some(given.time_to_live_ns)
                .map_or(PoolOptions::default().time_to_live, Duration::from_nanos),
            frame_kind: choice(
                "frame_kind",
                given.frame_kind,
                [FrameKind::Device, FrameKind::Exportable, FrameKind::Rdma, FrameKind::Host],
            )?,
            reservation: some(given.reservation),
            peers,
            ..PoolOptions::default()
        };
        let virtual_memory = choice(
            "virtual_memory",
            given.virtual_memory,
            [VirtualMemory::Auto, VirtualMemory::Plain],
        )?;
        let device = match vmm_device_kind_t::from_number(given.device_kind)? {
            vmm_device_kind_t::VMM_DEVICE_CUDA => {
                AnyDevice::cuda(given.device_ordinal, virtual_memory)?
            }
            vmm_device_kind_t::VMM_DEVICE_MOCK => {
                AnyDevice::mock(some(given.mock_memory).unwrap_or(MOCK_MEMORY), virtual_memory)
            }
        };
        Ok(Wanted { device, options, ordinal: given.device_ordinal })
    }
}

/// One of the values that a field can have, by its number.
fn choice<T: Copy, const N: usize>(field: &str, number: u32, values: [T; N]) -> Result<T, Fault> {
    values.get(number as usize).copied().ok_or_else(|| {
        Fault::argument(format!(
            "{field} is {number}: use a value of the enum vmm_{field}_t, 0 to {}",
            N - 1
        ))
    })
}

/// A list of device ordinals from the caller.
///
/// # Safety
/// `at` is NULL or points to `count` ordinals.
pub(crate) unsafe fn ordinals(at: *const u32, count: usize) -> Result<Vec<DeviceOrdinal>, Fault> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if at.is_null() || !at.is_aligned() || count > MOST_PEERS {
        return Err(Fault::argument(format!(
            "peers: {count} ordinals at {at:p}: give the address of an array of uint32_t and how \
             many it has"
        )));
    }
    // SAFETY: aligned and not NULL as checked, and `count` long by this function's contract.
    let numbers = unsafe { std::slice::from_raw_parts(at, count) };
    Ok(numbers.iter().map(|number| DeviceOrdinal(*number)).collect())
}

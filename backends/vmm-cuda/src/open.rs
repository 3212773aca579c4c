//! What a device is and can do, asked of the driver once.

use crate::driver::Driver;
use crate::ffi::{
    self, ALLOCATION_TYPE_PINNED, AllocationFlags, AllocationProp, Code, GRANULARITY_MINIMUM,
    HANDLE_POSIX_FILE_DESCRIPTOR, LOCATION_DEVICE, LOCATION_HOST_NUMA, Location, attribute, code,
};
use crate::options::{CudaOptions, VirtualMemory};
use crate::unavailable::Unavailable;
use std::ffi::{CStr, c_int};
use std::ptr;
use vmm_core::device::{Capabilities, FrameKind, Properties};

/// The granule of a device without virtual memory: the length in which the driver itself takes
/// memory for `cuMemAlloc` on current devices.
const PLAIN_GRANULE: u64 = 2 << 20;

/// The longest reservation that was seen to succeed (64 TiB on an H200).
const MAX_RESERVATION: u64 = 64 << 40;

/// From which version of CUDA on frames can lie in host memory.
const HOST_FRAMES_SINCE: (u32, u32) = (12, 2);

/// Another device that can be given access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) ordinal: u32,
    pub(crate) device: ffi::Device,
}

/// What is known of a device before it is used.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) device: ffi::Device,
    pub(crate) properties: Properties,
    pub(crate) peers: Vec<Peer>,
    /// The NUMA node of host frames.
    pub(crate) node: c_int,
    pub(crate) multiprocessors: u32,
    pub(crate) uuid: [u8; 16],
}

/// How many devices the driver sees.
pub(crate) fn count(driver: &Driver) -> Result<u32, Unavailable> {
    let mut count = 0;
    // SAFETY: the driver is initialised and writes the number.
    driver.check("cuDeviceGetCount", unsafe { (driver.device_get_count)(&raw mut count) })?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// Looks at the device of these options.
pub(crate) fn facts(driver: &'static Driver, options: CudaOptions) -> Result<Facts, Unavailable> {
    let count = count(driver)?;
    if count == 0 {
        return Err(Unavailable::NoDevice);
    }
    if options.ordinal >= count {
        return Err(Unavailable::NoSuchDevice { ordinal: options.ordinal, count });
    }
    let device = device_of(driver, options.ordinal)?;
    let asker = Asker { driver, device };
    let maps = options.virtual_memory == VirtualMemory::Auto
        && asker.attribute(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    let node = match options.numa_node {
        Some(node) => c_int::try_from(node).map_err(|_| Unavailable::NoSuchNode { node })?,
        None => asker.attribute(attribute::HOST_NUMA_ID).max(0),
    };
    let peers = if maps { asker.peers(count)? } else { Vec::new() };
    let (granule, other_granules) =
        if maps { asker.granules(node)? } else { (PLAIN_GRANULE, vec![]) };
    let has_host = other_granules.iter().any(|(kind, _)| *kind == FrameKind::Host);
    if let (true, Some(node), false) = (maps, options.numa_node, has_host) {
        return Err(Unavailable::NoSuchNode { node });
    }
    let capabilities = Capabilities {
        remapping: maps,
        aliases: maps,
        queued_binds: false,
        peers: !peers.is_empty(),
        capture: true,
    };
    let (name, uuid) = (asker.name()?, asker.uuid()?);
    let max_reservation = MAX_RESERVATION;
    let properties = Properties { name, granule, other_granules, max_reservation, capabilities };
    let multiprocessors = asker.attribute(attribute::MULTIPROCESSOR_COUNT);
    let multiprocessors = u32::try_from(multiprocessors).unwrap_or(0).max(1);
    Ok(Facts { device, properties, peers, node, multiprocessors, uuid })
}

fn device_of(driver: &Driver, ordinal: u32) -> Result<ffi::Device, Unavailable> {
    let mut device = 0;
    let wanted = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: the driver checks the ordinal and writes the device.
    driver.check("cuDeviceGet", unsafe { (driver.device_get)(&raw mut device, wanted) })?;
    Ok(device)
}

/// How a frame of this kind is made.
pub(crate) fn prop(device: ffi::Device, node: c_int, kind: FrameKind) -> AllocationProp {
    let location = match kind {
        FrameKind::Host => Location { kind: LOCATION_HOST_NUMA, id: node },
        FrameKind::Device | FrameKind::Exportable | FrameKind::Rdma => {
            Location { kind: LOCATION_DEVICE, id: device }
        }
    };
    // NCCL exports the buffers that it registers, and wants them for network cards at the same time.
    let exportable = matches!(kind, FrameKind::Exportable | FrameKind::Rdma);
    let flags = AllocationFlags {
        gpu_direct_rdma_capable: u8::from(kind == FrameKind::Rdma),
        ..AllocationFlags::default()
    };
    AllocationProp {
        kind: ALLOCATION_TYPE_PINNED,
        handle_types: if exportable { HANDLE_POSIX_FILE_DESCRIPTOR } else { 0 },
        location,
        win32_metadata: ptr::null_mut(),
        flags,
    }
}

struct Asker {
    driver: &'static Driver,
    device: ffi::Device,
}

impl Asker {
    /// 0 for what the driver does not know: it is older than the attribute.
    fn attribute(&self, which: c_int) -> c_int {
        let mut value = 0;
        // SAFETY: the driver checks the attribute and writes the number.
        let result =
            unsafe { (self.driver.device_get_attribute)(&raw mut value, which, self.device) };
        if result == code::SUCCESS { value } else { 0 }
    }

    fn name(&self) -> Result<String, Unavailable> {
        let mut name = [0; 256];
        // SAFETY: the driver writes at most that many bytes, the last of them NUL.
        let result = unsafe { (self.driver.device_get_name)(name.as_mut_ptr(), 256, self.device) };
        self.driver.check("cuDeviceGetName", result)?;
        // SAFETY: the array ends in NUL, for it was zeroed and the driver ends what it writes.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    fn uuid(&self) -> Result<[u8; 16], Unavailable> {
        let mut uuid = [0; 16];
        // SAFETY: the driver writes sixteen bytes.
        let result = unsafe { (self.driver.device_get_uuid)(&raw mut uuid, self.device) };
        self.driver.check("cuDeviceGetUuid", result)?;
        Ok(uuid)
    }

    fn peers(&self, count: u32) -> Result<Vec<Peer>, Unavailable> {
        let mut peers = Vec::new();
        for ordinal in 0..count {
            let device = device_of(self.driver, ordinal)?;
            let mut can = 0;
            // SAFETY: both devices come from the driver, which writes the number.
            let result =
                unsafe { (self.driver.device_can_access_peer)(&raw mut can, device, self.device) };
            // A device that cannot be asked is one that cannot be given access.
            if device != self.device && result == code::SUCCESS && can != 0 {
                peers.push(Peer { ordinal, device });
            }
        }
        Ok(peers)
    }

    /// The granule of device memory, and those of the other kinds that the device has.
    fn granules(&self, node: c_int) -> Result<(u64, Vec<(FrameKind, u64)>), Unavailable> {
        let granule = self.granule(node, FrameKind::Device);
        let granule = granule.map_err(|result| Unavailable::Call {
            call: "cuMemGetAllocationGranularity",
            code: result,
            detail: self.driver.name_of(result),
        })?;
        let posix = self.attribute(attribute::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0;
        let rdma = self.attribute(attribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
        let host =
            self.driver.version() >= HOST_FRAMES_SINCE && self.can_make(node, FrameKind::Host);
        let kinds = [
            (FrameKind::Exportable, posix),
            (FrameKind::Rdma, posix && rdma),
            (FrameKind::Host, host),
        ];
        let others = kinds.into_iter().filter(|(_, offered)| *offered);
        let others = others.filter_map(|(kind, _)| Some((kind, self.granule(node, kind).ok()?)));
        Ok((granule, others.collect()))
    }

    fn granule(&self, node: c_int, kind: FrameKind) -> Result<u64, Code> {
        let prop = prop(self.device, node, kind);
        let mut granule = 0;
        // SAFETY: the driver reads the properties and writes the number.
        let result = unsafe {
            (self.driver.mem_get_allocation_granularity)(
                &raw mut granule,
                &raw const prop,
                GRANULARITY_MINIMUM,
            )
        };
        match (result, u64::try_from(granule)) {
            (code::SUCCESS, Ok(granule)) if granule.is_power_of_two() => Ok(granule),
            (code::SUCCESS, _) => Err(code::INVALID_VALUE),
            _ => Err(result),
        }
    }

    /// Makes the shortest frame of a kind that no attribute tells of in every driver that has it.
    fn can_make(&self, node: c_int, kind: FrameKind) -> bool {
        let Ok(granule) = self.granule(node, kind) else { return false };
        let Ok(len) = usize::try_from(granule) else { return false };
        let prop = prop(self.device, node, kind);
        let mut handle = 0;
        // SAFETY: the driver reads the properties and writes the handle.
        let made = unsafe { (self.driver.mem_create)(&raw mut handle, len, &raw const prop, 0) };
        if made != code::SUCCESS {
            return false;
        }
        // SAFETY: the handle that was just made, and that nobody else knows.
        unsafe { (self.driver.mem_release)(handle) };
        true
    }
}

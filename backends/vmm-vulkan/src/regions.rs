//! Reserved addresses: sparse buffers, and what is mapped in them.

use crate::context::Context;
use crate::error::Call;
use crate::stream::Wait;
use ash::vk;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use vmm_core::device::{AddrRange, DeviceErrorKind, DeviceResult, Mapping};
use vmm_core::units::{DeviceAddr, FrameHandle};

/// What a region's memory may be used for.
const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::UNIFORM_BUFFER.as_raw()
        | vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::VERTEX_BUFFER.as_raw()
        | vk::BufferUsageFlags::INDIRECT_BUFFER.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw(),
);

/// One sparse buffer.
#[derive(Debug)]
struct Region {
    buffer: vk::Buffer,
    /// The address of the buffer's first byte.
    start: u64,
    /// Where the reservation begins: further on, if the buffer's address was not aligned enough.
    base: u64,
    len: u64,
    /// The length of the buffer.
    size: u64,
    /// The last bind that took memory from it.
    unbound: Option<Wait>,
}

/// One mapping.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    len: u64,
    frame: FrameHandle,
}

/// A place in a sparse buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) buffer: vk::Buffer,
    /// In bytes.
    pub(crate) offset: u64,
}

/// All reserved addresses of a device.
pub(crate) struct Regions {
    context: Arc<Context>,
    /// The driver's granule, in bytes, and the one that counts here, a multiple of it.
    finest: u64,
    granule: u64,
    by_base: BTreeMap<u64, Region>,
    mapped: BTreeMap<u64, Mapped>,
    /// All buffers together, in bytes.
    reserved: u64,
    /// Regions that were freed while binds of them were pending.
    leaving: Vec<Region>,
}

impl fmt::Debug for Regions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Regions").field("by_base", &self.by_base).finish_non_exhaustive()
    }
}

/// A sparse buffer of some length, without memory.
pub(crate) fn sparse_buffer(context: &Context, size: u64) -> Result<vk::Buffer, vk::Result> {
    let mut flags = vk::BufferCreateFlags::SPARSE_BINDING | vk::BufferCreateFlags::SPARSE_RESIDENCY;
    if context.facts.aliased {
        flags |= vk::BufferCreateFlags::SPARSE_ALIASED;
    }
    let mut info = vk::BufferCreateInfo::default().flags(flags).size(size).usage(USAGE);
    if context.families.len() > 1 {
        info =
            info.sharing_mode(vk::SharingMode::CONCURRENT).queue_family_indices(&context.families);
    }
    // SAFETY: `info` is valid: the features for its flags are enabled, and the caller has compared
    // the size with the device's limits.
    unsafe { context.device.create_buffer(&info, None) }
}

impl Regions {
    pub(crate) fn new(context: &Arc<Context>, finest: u64, granule: u64) -> Self {
        Self {
            context: Arc::clone(context),
            finest,
            granule,
            by_base: BTreeMap::new(),
            mapped: BTreeMap::new(),
            reserved: 0,
            leaving: Vec::new(),
        }
    }

    pub(crate) fn reserve(&mut self, call: Call, len: u64, alignment: u64) -> DeviceResult<u64> {
        self.collect();
        let region = match self.make(call, len, len, alignment)? {
            Some(region) => region,
            None => {
                // Drivers know no alignment of addresses, so there must be room for one.
                let none = call.error(DeviceErrorKind::OutOfAddresses, "");
                let size = len.checked_add(alignment - self.finest).ok_or(none)?;
                self.make(call, size, len, alignment)?.ok_or_else(|| {
                    let detail = "the address of a sparse buffer is no multiple of the granule";
                    call.error(DeviceErrorKind::OutOfAddresses, detail)
                })?
            }
        };
        self.reserved += region.size;
        let base = region.base;
        self.by_base.insert(base, region);
        Ok(base)
    }

    /// Makes a buffer; `None` if no aligned range of the length is in it.
    fn make(
        &self,
        call: Call,
        size: u64,
        len: u64,
        alignment: u64,
    ) -> DeviceResult<Option<Region>> {
        let facts = &self.context.facts;
        let left = facts.sparse_space.saturating_sub(self.reserved);
        if size > facts.max_buffer || size > left {
            let detail = "beyond the device's largest buffer or its sparse address space";
            return Err(call.error(DeviceErrorKind::OutOfAddresses, detail));
        }
        let device = &self.context.device;
        let buffer =
            sparse_buffer(&self.context, size).map_err(|error| call.failed_to_reserve(error))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer is valid and was made for having its address asked for; sparse ones
        // have theirs without memory.
        let (start, needs) = unsafe {
            (device.get_buffer_device_address(&info), device.get_buffer_memory_requirements(buffer))
        };
        let base = start.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let fits = base - start <= size - len
            && (base - start).is_multiple_of(needs.alignment)
            && self.finest.is_multiple_of(needs.alignment);
        if start == 0 || !fits {
            // SAFETY: nobody else has seen the buffer.
            unsafe { device.destroy_buffer(buffer, None) };
            return Ok(None);
        }
        Ok(Some(Region { buffer, start, base, len, size, unbound: None }))
    }

    /// Frees a region; its buffer goes once the device has taken the last memory from it.
    pub(crate) fn free(&mut self, range: AddrRange) -> Result<(), &'static str> {
        let base = range.addr.0;
        if self.by_base.get(&base).is_none_or(|region| region.len != range.len) {
            return Err("no such region");
        }
        if self.mapped.range(base..base + range.len).next().is_some() {
            return Err("something is mapped in the region");
        }
        if let Some(region) = self.by_base.remove(&base) {
            self.leaving.push(region);
        }
        self.collect();
        Ok(())
    }

    /// Destroys what has left.
    fn collect(&mut self) {
        let Self { context, leaving, reserved, .. } = self;
        leaving.retain(|region| {
            let gone = region.unbound.as_ref().is_none_or(Wait::is_reached);
            if gone {
                // SAFETY: the device is past all binds of the buffer, and nothing is mapped in it, so
                // that no work may use it.
                unsafe { context.device.destroy_buffer(region.buffer, None) };
                *reserved -= region.size;
            }
            !gone
        });
    }

    /// Destroys every buffer.
    ///
    /// # Safety
    /// The device has finished all work and all binds.
    pub(crate) unsafe fn destroy_all(&mut self) {
        let living = std::mem::take(&mut self.by_base).into_values();
        let leaving = std::mem::take(&mut self.leaving).into_iter();
        for region in living.chain(leaving) {
            // SAFETY: the caller's promise.
            unsafe { self.context.device.destroy_buffer(region.buffer, None) };
        }
        self.mapped.clear();
        self.reserved = 0;
    }

    /// Where a range is; `None` if it is not all in one region.
    pub(crate) fn find(&self, range: AddrRange) -> Option<Place> {
        let (_, region) = self.by_base.range(..=range.addr.0).next_back()?;
        let end = range.addr.0.checked_add(range.len)?;
        let offset = range.addr.0 - region.start;
        (end <= region.base + region.len).then_some(Place { buffer: region.buffer, offset })
    }

    /// Notes a mapping.
    pub(crate) fn map(&mut self, mapping: &Mapping) -> Result<Place, &'static str> {
        let AddrRange { addr, len } = mapping.range;
        if len == 0 || !len.is_multiple_of(self.granule) || !addr.0.is_multiple_of(self.granule) {
            return Err("the range is not of whole granules");
        }
        let place = self.find(mapping.range).ok_or("the range is not reserved")?;
        let before = self.mapped.range(..addr.0 + len).next_back();
        if before.is_some_and(|(base, mapped)| base + mapped.len > addr.0) {
            return Err("the range is mapped already");
        }
        self.mapped.insert(addr.0, Mapped { len, frame: mapping.frame });
        Ok(place)
    }

    /// Forgets the mapping that begins at an address, which is gone with the bind `unbound` or never
    /// came to be; says which frame it had.
    pub(crate) fn forget(
        &mut self,
        addr: DeviceAddr,
        unbound: Option<Wait>,
    ) -> Option<FrameHandle> {
        let mapped = self.mapped.remove(&addr.0)?;
        if let Some((_, region)) = self.by_base.range_mut(..=addr.0).next_back() {
            region.unbound = Wait::later(region.unbound.take(), unbound);
        }
        Some(mapped.frame)
    }

    /// Where the mappings begin that make up a range, and the range's place.
    pub(crate) fn whole(&self, range: AddrRange) -> Result<(Place, Vec<u64>), &'static str> {
        const PART: &str = "the range does not cover whole mappings and nothing else";
        let place = self.find(range).ok_or("the range is not reserved")?;
        let end = range.addr.0 + range.len;
        let mut next = range.addr.0;
        let mut starts = Vec::new();
        for (base, mapped) in self.mapped.range(range.addr.0..end) {
            if *base != next {
                return Err(PART);
            }
            starts.push(*base);
            next += mapped.len;
        }
        if next == end && range.len > 0 { Ok((place, starts)) } else { Err(PART) }
    }

    /// Every region, and every mapping with its frame.
    pub(crate) fn list(&self) -> (Vec<AddrRange>, Vec<Mapping>) {
        let regions = self.by_base.values();
        let regions = regions.map(|r| AddrRange { addr: DeviceAddr(r.base), len: r.len }).collect();
        let mapping = |(base, mapped): (&u64, &Mapped)| Mapping {
            range: AddrRange { addr: DeviceAddr(*base), len: mapped.len },
            frame: mapped.frame,
        };
        (regions, self.mapped.iter().map(mapping).collect())
    }
}

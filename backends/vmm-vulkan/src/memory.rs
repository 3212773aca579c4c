//! Physical memory: frames, cut from blocks that come from the driver.

use crate::context::Context;
use crate::error::Call;
use crate::stream::Wait;
use ash::vk;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings, MemoryLocation};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use vmm_core::device::{DeviceErrorKind, DeviceResult, MemoryInfo};
use vmm_core::units::FrameHandle;

/// How long memory is waited for that the device still fills or unbinds, in nanoseconds.
pub(crate) const PATIENCE: u64 = 1_000_000_000;

/// What others take or give back is noticed from this many bytes on: the driver's own needs come and go
/// with what it is asked to do, and would blur the accounts of frames.
const NOTICED: u64 = 64 << 20;

/// The least length of a block, in bytes.
const SMALL_BLOCK: u64 = 4 << 20;

/// A frame longer than this part of a block has a block of its own, so that what is left over at the
/// end of a block, where no frame fits any more, is a ninth of it at most.
const FRAMES_PER_BLOCK: u64 = 8;

/// A piece of a block.
pub(crate) struct Held {
    allocation: Allocation,
    from: Source,
}

/// The pieces of a frame, in their order: one, unless the frame is longer than what the driver gives at
/// a time.
type Pieces = SmallVec<[Held; 1]>;

/// Which allocator a piece comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Blocks,
    SmallBlocks,
    Transfers,
}

impl Held {
    pub(crate) fn memory(&self) -> vk::DeviceMemory {
        // SAFETY: asks only that the handle is not freed and not used beyond the allocation's life,
        // which `Memory` sees to.
        unsafe { self.allocation.memory() }
    }

    pub(crate) fn offset(&self) -> u64 {
        self.allocation.offset()
    }

    pub(crate) fn len(&self) -> u64 {
        self.allocation.size()
    }

    /// The bytes, where the host sees them.
    pub(crate) fn bytes(&mut self) -> Option<&mut [u8]> {
        self.allocation.mapped_slice_mut()
    }
}

pub(crate) struct Frame {
    pieces: Pieces,
    len: u64,
    /// When it has its first contents.
    ready: Option<Wait>,
    mappings: u32,
    /// The last bind that took it from an address.
    unbound: Option<Wait>,
}

impl Frame {
    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// When it has its first contents.
    pub(crate) fn ready(&self) -> Option<&Wait> {
        self.ready.as_ref()
    }

    /// At how many addresses it is.
    pub(crate) fn mappings(&self) -> u32 {
        self.mappings
    }

    /// Where its bytes are, in their order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Span> {
        self.pieces.iter().map(|held| Span {
            memory: held.memory(),
            offset: held.offset(),
            len: held.len(),
        })
    }
}

/// A part of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) memory: vk::DeviceMemory,
    /// In bytes.
    pub(crate) offset: u64,
    /// In bytes.
    pub(crate) len: u64,
}

/// A frame that was released while the device had yet to unbind or fill it.
struct Leaving {
    pieces: Pieces,
    len: u64,
    waits: [Option<Wait>; 2],
}

/// All memory of a device.
///
/// Invariant: `used` is the sum of the lengths of frames, those that leave included.
pub(crate) struct Memory {
    blocks: Allocator,
    /// Takes over where no whole block is left. What is longer than its blocks gets one of its own
    /// length, and so does every long frame.
    small_blocks: Allocator,
    /// From more than this on a frame is long, in bytes.
    long: u64,
    /// For buffers that the host uses, too; not on the accounts of frames.
    transfers: Allocator,
    /// Which types of memory to try, in order.
    types: Vec<u32>,
    /// Where pieces may begin, in bytes.
    alignment: u64,
    /// The longest piece, in bytes.
    longest: u64,
    frames: HashMap<FrameHandle, Frame>,
    leaving: Vec<Leaving>,
    next: u64,
    used: u64,
    /// What others have of the device's memory, as far as it was last seen, in bytes.
    outside: u64,
    // The last to be dropped: the allocators give their blocks back to it.
    context: Arc<Context>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

impl Memory {
    /// Frames begin at multiples of `alignment`; `bits` are the types that can be bound.
    pub(crate) fn new(
        context: &Arc<Context>,
        alignment: u64,
        bits: u32,
        block: u64,
        spill: bool,
    ) -> Result<Self, AllocationError> {
        // What is left at the end is freed with the allocators; nobody needs to be warned of it.
        let mut debug_settings = AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let allocator = |block| {
            Allocator::new(&AllocatorCreateDesc {
                instance: context.instance.clone(),
                device: context.device.clone(),
                physical_device: context.physical,
                debug_settings,
                buffer_device_address: true,
                allocation_sizes: AllocationSizes::new(block, block),
            })
        };
        let block = block.clamp(SMALL_BLOCK, 256 << 20) / SMALL_BLOCK * SMALL_BLOCK;
        Ok(Self {
            context: Arc::clone(context),
            blocks: allocator(block)?,
            small_blocks: allocator(SMALL_BLOCK)?,
            long: (block / FRAMES_PER_BLOCK).max(SMALL_BLOCK),
            transfers: allocator(SMALL_BLOCK)?,
            types: type_order(&context.facts.memory, bits, spill),
            alignment,
            longest: (context.facts.max_allocation / alignment).max(1) * alignment,
            frames: HashMap::new(),
            leaving: Vec::new(),
            next: 1,
            used: 0,
            outside: 0,
        })
    }

    /// Makes a frame.
    pub(crate) fn make(&mut self, call: Call, len: u64) -> DeviceResult<FrameHandle> {
        self.collect();
        let mut allocated = self.allocate(len);
        if matches!(allocated, Err(AllocationError::OutOfMemory)) && self.wait_for_leaving() {
            allocated = self.allocate(len);
        }
        let pieces = allocated.map_err(|error| failed(call, &error))?;
        let handle = FrameHandle(self.next);
        self.next += 1;
        self.used += len;
        self.frames.insert(handle, Frame { pieces, len, ready: None, mappings: 0, unbound: None });
        Ok(handle)
    }

    fn allocate(&mut self, len: u64) -> Result<Pieces, AllocationError> {
        let taken = if self.over_commits() { self.used } else { 0 };
        if len > self.total().saturating_sub(taken) {
            // No need to find out with all the memory that there is.
            return Err(AllocationError::OutOfMemory);
        }
        let mut pieces = Pieces::new();
        let mut left = len;
        while left > 0 {
            match self.allocate_piece(left.min(self.longest)) {
                Ok(piece) => pieces.push(piece),
                Err(error) => {
                    pieces.into_iter().for_each(|piece| self.free(piece));
                    return Err(error);
                }
            }
            left = left.saturating_sub(self.longest);
        }
        Ok(pieces)
    }

    fn allocate_piece(&mut self, len: u64) -> Result<Held, AllocationError> {
        let Self { blocks, small_blocks, types, alignment, long, .. } = self;
        // The number of blocks that a driver gives is limited, too, so each makes up for the other.
        let order = match len > *long {
            true => [Source::SmallBlocks, Source::Blocks],
            false => [Source::Blocks, Source::SmallBlocks],
        };
        let mut allocate = |index: u32, from: Source| {
            let allocator = if from == Source::Blocks { &mut *blocks } else { &mut *small_blocks };
            let requirements = vk::MemoryRequirements {
                size: len,
                alignment: *alignment,
                memory_type_bits: 1 << index,
            };
            let allocation = allocator.allocate(&AllocationCreateDesc {
                name: "frame",
                requirements,
                location: MemoryLocation::Unknown,
                linear: true,
                allocation_scheme: AllocationScheme::GpuAllocatorManaged,
            })?;
            Ok(Held { allocation, from })
        };
        first_with_room(types, |index| match allocate(index, order[0]) {
            Err(AllocationError::OutOfMemory | AllocationError::Internal(_)) => {
                allocate(index, order[1])
            }
            other => other,
        })
    }

    /// Says when a new frame has its contents.
    pub(crate) fn set_ready(&mut self, frame: FrameHandle, ready: Wait) {
        if let Some(frame) = self.frames.get_mut(&frame) {
            frame.ready = Some(ready);
        }
    }

    pub(crate) fn frame(&self, frame: FrameHandle) -> Option<&Frame> {
        self.frames.get(&frame)
    }

    /// Counts one mapping more.
    pub(crate) fn note_mapped(&mut self, frame: FrameHandle) {
        if let Some(frame) = self.frames.get_mut(&frame) {
            frame.mappings += 1;
        }
    }

    /// Counts one mapping less, which is gone with the bind `unbound`.
    pub(crate) fn note_unmapped(&mut self, frame: FrameHandle, unbound: Wait) {
        if let Some(frame) = self.frames.get_mut(&frame) {
            frame.mappings -= 1;
            frame.unbound = Wait::later(frame.unbound.take(), Some(unbound));
        }
    }

    /// Counts one mapping less, that never came to be.
    pub(crate) fn note_never_mapped(&mut self, frame: FrameHandle) {
        if let Some(frame) = self.frames.get_mut(&frame) {
            frame.mappings -= 1;
        }
    }

    /// Releases a frame; its memory goes once the device has taken it from its last address.
    pub(crate) fn release(&mut self, frame: FrameHandle) -> Result<(), &'static str> {
        match self.frames.get(&frame) {
            None => return Err("no such frame"),
            Some(frame) if frame.mappings > 0 => return Err("the frame is still mapped"),
            Some(_) => {}
        }
        if let Some(Frame { pieces, len, ready, unbound, .. }) = self.frames.remove(&frame) {
            self.leaving.push(Leaving { pieces, len, waits: [unbound, ready] });
        }
        self.collect();
        Ok(())
    }

    /// Frees what has left.
    fn collect(&mut self) {
        let mut i = 0;
        while i < self.leaving.len() {
            if self.leaving[i].waits.iter().flatten().all(Wait::is_reached) {
                let gone = self.leaving.swap_remove(i);
                self.used -= gone.len;
                gone.pieces.into_iter().for_each(|piece| self.free(piece));
            } else {
                i += 1;
            }
        }
    }

    /// Says whether there is anything that was waited for.
    fn wait_for_leaving(&mut self) -> bool {
        let some = !self.leaving.is_empty();
        for wait in self.leaving.iter().flat_map(|leaving| leaving.waits.iter().flatten()) {
            // A point that does not come leaves the memory where it is.
            let _ = wait.stream.wait(wait.point, PATIENCE);
        }
        self.collect();
        some
    }

    fn free(&mut self, held: Held) {
        let allocator = match held.from {
            Source::Blocks => &mut self.blocks,
            Source::SmallBlocks => &mut self.small_blocks,
            Source::Transfers => &mut self.transfers,
        };
        allocator.free(held.allocation).expect("an allocation of this allocator");
    }

    /// Memory for a buffer that the host uses, too.
    pub(crate) fn hold(
        &mut self,
        requirements: vk::MemoryRequirements,
        location: MemoryLocation,
    ) -> Result<Held, AllocationError> {
        let allocation = self.transfers.allocate(&AllocationCreateDesc {
            name: "transfer",
            requirements,
            location,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        })?;
        Ok(Held { allocation, from: Source::Transfers })
    }

    /// Gives such memory back.
    pub(crate) fn let_go(&mut self, held: Held) {
        self.free(held);
    }

    /// Whether the driver gives more memory than there is, as those do that run on the host. There, what
    /// is made here is all that counts.
    fn over_commits(&self) -> bool {
        self.context.facts.kind == vk::PhysicalDeviceType::CPU
    }

    /// The heaps that frames may come from.
    pub(crate) fn heaps(&self) -> Vec<usize> {
        let types = &self.context.facts.memory.memory_types;
        let heap = |index: &u32| types[*index as usize].heap_index as usize;
        let mut heaps: Vec<usize> = self.types.iter().map(heap).collect();
        heaps.sort_unstable();
        heaps.dedup();
        heaps
    }

    /// What they have, in bytes.
    fn total(&self) -> u64 {
        let heaps = &self.context.facts.memory.memory_heaps;
        self.heaps().iter().map(|heap| heaps[*heap].size).sum()
    }

    /// What is free and what there is, of the memory that frames may come from.
    pub(crate) fn info(&mut self) -> MemoryInfo {
        let total = self.total();
        if self.context.facts.budget && !self.over_commits() {
            // Blocks are ours as a whole; what is in them is counted below.
            let blocks = self.blocks.capacity() + self.small_blocks.capacity();
            let outside = total.saturating_sub(self.left() + blocks);
            if outside.abs_diff(self.outside) >= NOTICED {
                self.outside = outside;
            }
        }
        let taken = self.outside.saturating_add(self.used);
        MemoryInfo { free: total.saturating_sub(taken), total }
    }

    /// What the driver would still give, in bytes.
    fn left(&self) -> u64 {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut properties = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        let (instance, physical) = (&self.context.instance, self.context.physical);
        // SAFETY: the device is one of the instance's, and it has the extension of the chained
        // structure, as the caller has looked.
        unsafe { instance.get_physical_device_memory_properties2(physical, &mut properties) };
        let left =
            |heap: &usize| budget.heap_budget[*heap].saturating_sub(budget.heap_usage[*heap]);
        self.heaps().iter().map(left).sum()
    }

    /// Every frame and its length.
    pub(crate) fn list(&self) -> Vec<(FrameHandle, u64)> {
        let mut all: Vec<_> =
            self.frames.iter().map(|(handle, frame)| (*handle, frame.len)).collect();
        all.sort_unstable();
        all
    }
}

/// What the allocator says.
pub(crate) fn failed(call: Call, error: &AllocationError) -> vmm_core::device::DeviceError {
    match error {
        AllocationError::OutOfMemory => call.failed(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY),
        AllocationError::NoCompatibleMemoryTypeFound => {
            call.error(DeviceErrorKind::NotSupported, "no type of memory fits")
        }
        AllocationError::FailedToMap(_) => call.failed(vk::Result::ERROR_MEMORY_MAP_FAILED),
        _ => call.error(DeviceErrorKind::Failed, "vkAllocateMemory failed"),
    }
}

/// The types of memory that frames may come from, best first: the device's own, and before others
/// those that the host does not see, for these are the larger and the faster. Host memory comes last,
/// and only with `spill` or if there is nothing else.
fn type_order(memory: &vk::PhysicalDeviceMemoryProperties, bits: u32, spill: bool) -> Vec<u32> {
    use vk::MemoryPropertyFlags as Flags;
    let never = Flags::PROTECTED | Flags::LAZILY_ALLOCATED | Flags::DEVICE_UNCACHED_AMD;
    let heap = |kind: &vk::MemoryType| memory.memory_heaps[kind.heap_index as usize].size;
    let mut fitting: Vec<(u32, &vk::MemoryType)> = (0..)
        .zip(memory.memory_types_as_slice())
        .filter(|(index, kind)| bits >> index & 1 == 1 && !kind.property_flags.intersects(never))
        .collect();
    fitting.sort_by_key(|(_, kind)| {
        let device = kind.property_flags.contains(Flags::DEVICE_LOCAL);
        let host = kind.property_flags.contains(Flags::HOST_VISIBLE);
        (!device, host, std::cmp::Reverse(heap(kind)))
    });
    let local = |kind: &vk::MemoryType| kind.property_flags.contains(Flags::DEVICE_LOCAL);
    let any_local = fitting.iter().any(|(_, kind)| local(kind));
    fitting.retain(|(_, kind)| spill || !any_local || local(kind));
    fitting.into_iter().map(|(index, _)| index).collect()
}

/// Tries one type after the other until one has room.
fn first_with_room<T>(
    types: &[u32],
    mut allocate: impl FnMut(u32) -> Result<T, AllocationError>,
) -> Result<T, AllocationError> {
    for index in types {
        match allocate(*index) {
            Err(AllocationError::OutOfMemory) => {}
            other => return other,
        }
    }
    if types.is_empty() {
        return Err(AllocationError::NoCompatibleMemoryTypeFound);
    }
    Err(AllocationError::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flags;

    /// A card as most are: its memory, host memory, and a window through which the host sees a
    /// part of the former.
    fn card() -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_heap_count: 3,
            memory_type_count: 5,
            ..Default::default()
        };
        memory.memory_heaps[0].size = 64 << 30;
        memory.memory_heaps[1].size = 80 << 30;
        memory.memory_heaps[2].size = 256 << 20;
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let types = [
            (host, 0),
            (Flags::DEVICE_LOCAL | host, 2),
            (Flags::DEVICE_LOCAL, 1),
            (Flags::DEVICE_LOCAL | Flags::PROTECTED, 1),
            (host | Flags::HOST_CACHED, 0),
        ];
        for (slot, (property_flags, heap_index)) in memory.memory_types.iter_mut().zip(types) {
            *slot = vk::MemoryType { property_flags, heap_index };
        }
        memory
    }

    #[test]
    fn the_mask_is_respected() {
        assert_eq!(type_order(&card(), !0, false), [2, 1]);
        assert_eq!(type_order(&card(), !0, true), [2, 1, 0, 4]);
        assert_eq!(type_order(&card(), 0b1_1011, true), [1, 0, 4]);
        assert_eq!(type_order(&card(), 0b1_0001, false), [0, 4], "nothing but host memory");
        assert_eq!(type_order(&card(), 0b1000, false), [0; 0]);
    }

    /// vkd3d-proton#2258
    #[test]
    fn a_full_heap_makes_the_next_type_be_tried() {
        let mut tried = Vec::new();
        let full_but = |room: u32, tried: &mut Vec<u32>| {
            tried.clear();
            first_with_room(&[2, 1, 0], |index| {
                tried.push(index);
                if index == room { Ok(index) } else { Err(AllocationError::OutOfMemory) }
            })
        };
        assert!(matches!(full_but(1, &mut tried), Ok(1)));
        assert_eq!(tried, [2, 1], "no type is tried twice");
        assert!(matches!(full_but(9, &mut tried), Err(AllocationError::OutOfMemory)));
        assert_eq!(tried, [2, 1, 0]);
        // Any other failure is one.
        let lost = || AllocationError::Internal(String::new());
        let failed = first_with_room(&[2, 1], |_| Err::<(), _>(lost()));
        assert!(matches!(failed, Err(AllocationError::Internal(_))));
    }
}

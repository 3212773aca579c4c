//! What a device is, for people and tools.

use crate::device::VulkanDevice;
use ash::vk;

/// What a device is and has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// The name of the driver and its version.
    pub driver: String,
    /// The device's version of Vulkan: major, minor, patch.
    pub api_version: [u32; 3],
    /// Whether it is a GPU and not a program on the host.
    pub is_gpu: bool,
    /// Its memory.
    pub heaps: Vec<Heap>,
    /// Whether one piece of memory may be bound at several places (`sparseResidencyAliased`), and the
    /// options have not forbidden it.
    pub aliases: bool,
    /// Whether work that uses addresses without memory reads zeros and writes nothing
    /// (`residencyNonResidentStrict`).
    pub strict_residency: bool,
    /// All sparse buffers together, in bytes.
    pub sparse_address_space: u64,
    /// The longest buffer, in bytes; `None` if the device does not say.
    pub longest_buffer: Option<u64>,
    /// Queues that streams are spread over, and their family.
    pub queues: usize,
    /// See `queues`.
    pub queue_family: u32,
    /// The family of the queue that binds go to.
    pub bind_family: u32,
    /// Whether no stream uses that queue.
    pub binds_alone: bool,
}

/// A part of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heap {
    /// Its length in bytes.
    pub len: u64,
    /// Whether it is the device's own, and not the host's.
    pub device_local: bool,
    /// Whether frames come from it.
    pub frames: bool,
}

impl VulkanDevice {
    /// What the device is and has. Never changes.
    #[must_use]
    pub fn about(&self) -> About {
        let facts = &self.context.facts;
        let of_frames = self.memory.lock().heaps();
        let heap = |(index, heap): (usize, &vk::MemoryHeap)| Heap {
            len: heap.size,
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
            frames: of_frames.contains(&index),
        };
        let heaps = facts.memory.memory_heaps_as_slice();
        About {
            driver: facts.driver.clone(),
            api_version: facts.api_version,
            is_gpu: self.is_gpu(),
            heaps: heaps.iter().enumerate().map(heap).collect(),
            aliases: facts.aliased,
            strict_residency: facts.strict_residency,
            sparse_address_space: facts.sparse_space,
            longest_buffer: Some(facts.max_buffer).filter(|len| *len < u64::MAX),
            queues: self.streams.work_queues(),
            queue_family: self.streams.queue_of(&self.inner).family,
            bind_family: self.streams.queue_of(&self.streams.bind).family,
            binds_alone: self.streams.binds_alone(),
        }
    }
}

//! What users of Vulkan need beside the pool: streams, handles, their own submits.

use crate::commands::Commands;
use crate::device::{VulkanDevice, refused};
use crate::error::Call;
use crate::messages::MessageLog;
use crate::options::ExternalQueue;
use crate::stream::{Keep, UserSemaphores, Work};
use ash::vk;
use vmm_core::Lease;
use vmm_core::device::{AddrRange, DeviceOp, DeviceResult, Mapping};
use vmm_core::units::{DeviceAddr, Fence, FrameHandle, StreamId};

/// Where memory is, in the terms of Vulkan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRange {
    /// The sparse buffer.
    pub buffer: vk::Buffer,
    /// Where the range begins in the buffer, in bytes.
    pub offset: vk::DeviceSize,
    /// Its length in bytes.
    pub len: vk::DeviceSize,
    /// Its address for shaders with buffer references.
    pub address: vk::DeviceAddress,
}

impl BufferRange {
    /// For a descriptor set. A storage buffer must not be longer than the device's
    /// `maxStorageBufferRange`; buffer references have no such limit.
    pub fn descriptor(self) -> vk::DescriptorBufferInfo {
        vk::DescriptorBufferInfo { buffer: self.buffer, offset: self.offset, range: self.len }
    }
}

/// What a user submits to a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct Submit<'a> {
    /// Command buffers, recorded for the family of the stream's queue.
    pub commands: &'a [vk::CommandBuffer],
    /// Semaphores to wait for before; the value counts for timelines only.
    pub waits: &'a [(vk::Semaphore, u64)],
    /// Semaphores to signal behind; the value counts for timelines only.
    pub signals: &'a [(vk::Semaphore, u64)],
}

/// What lives on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Living {
    /// Reserved ranges.
    pub regions: Vec<AddrRange>,
    /// Frames and their lengths in bytes.
    pub frames: Vec<(FrameHandle, u64)>,
    /// Mappings.
    pub mappings: Vec<Mapping>,
}

/// Streams.
impl VulkanDevice {
    /// Makes a stream: a timeline of its own on the queue that has the fewest streams. All its work
    /// goes through this crate ([`VulkanDevice::submit`]), so that recording a fence on it costs no
    /// call of the driver.
    ///
    /// # Errors
    /// What the driver says.
    pub fn make_stream(&self) -> DeviceResult<StreamId> {
        let made = self.streams.make();
        made.map(|stream| stream.id).map_err(|error| Call::of(DeviceOp::Record).failed(error))
    }

    /// Destroys a stream. What is queued on it still runs, and its fences stay; nothing can be queued
    /// on it any more.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let destroyed = self.streams.destroy(stream);
        destroyed.map_err(|refusal| refused(Call::of(DeviceOp::Record), refusal))
    }

    /// The stream that is a whole queue, to which the user submits directly. The queue is one of
    /// those that were handed over, or of a stream made here. Recording a fence on it is an empty
    /// submit, some microseconds on most drivers.
    ///
    /// # Errors
    /// If the device does not know the queue.
    pub fn queue_stream(&self, queue: vk::Queue) -> DeviceResult<StreamId> {
        let call = Call::of(DeviceOp::Record);
        let id = self.streams.of_queue(queue).map_err(|error| call.failed(error))?;
        id.ok_or_else(|| call.illegal("the queue is not one of those for streams"))
    }

    /// The queue of a stream and its family.
    ///
    /// # Errors
    /// If there is no such stream.
    pub fn queue_of(&self, stream: StreamId) -> DeviceResult<ExternalQueue> {
        let stream = self.streams.usable(stream);
        let stream = stream.map_err(|refusal| refused(Call::of(DeviceOp::Record), refusal))?;
        let queue = self.streams.queue_of(&stream);
        Ok(ExternalQueue { queue: queue.handle(), family: queue.family })
    }

    /// How many queues streams are spread over; with more streams some share one.
    #[must_use]
    pub fn queue_count(&self) -> usize {
        self.streams.work_queues()
    }

    /// Whether binds go to a queue that no stream uses.
    #[must_use]
    pub fn binds_have_own_queue(&self) -> bool {
        self.streams.binds_alone()
    }

    /// Queues a user's command buffers, behind all work of the stream and all that it waits for, and
    /// with its writes visible. Later work of the stream comes behind them.
    ///
    /// # Errors
    /// If there is no such stream, or what the driver says; then nothing was queued.
    ///
    /// # Safety
    /// - The command buffers are recorded and valid to be submitted, for the family of the stream's
    ///   queue ([`VulkanDevice::queue_of`]). They, what they use and the semaphores live until a
    ///   fence is reached that was recorded behind them.
    /// - What signals the semaphores that it waits for has been submitted already, or comes from
    ///   another queue than the stream's.
    /// - The memory that they use is mapped, as far as the stream is ordered, until they end.
    pub unsafe fn submit(&self, stream: StreamId, submit: &Submit<'_>) -> DeviceResult<()> {
        let call = Call::of(DeviceOp::Record);
        let stream = self.streams.usable(stream).map_err(|refusal| refused(call, refusal))?;
        let queued = self.streams.submit(&stream, |state| {
            let barrier = match state.barrier {
                Some(barrier) => barrier,
                None => {
                    let family = self.streams.queue_of(&stream).family;
                    let commands = match &mut state.commands {
                        Some(commands) => commands,
                        none => none.insert(Commands::new(&self.context, family)?),
                    };
                    let again = vk::CommandBufferUsageFlags::SIMULTANEOUS_USE;
                    *state.barrier.insert(commands.record(again, |_, _| {})?)
                }
            };
            let commands = submit.commands.to_vec();
            let user =
                UserSemaphores { waits: submit.waits.to_vec(), signals: submit.signals.to_vec() };
            Ok((Work::Commands { barrier, commands, user }, Keep::default()))
        });
        queued.map(drop).map_err(|error| call.failed(error))
    }

    /// The timeline semaphore and the value that say when a fence is reached, so that users' own
    /// submits can wait for it; `None` if it is reached. The semaphore lives as long as the device.
    ///
    /// # Errors
    /// If the fence was never recorded.
    pub fn semaphore_of(&self, fence: Fence) -> DeviceResult<Option<(vk::Semaphore, u64)>> {
        let at = self.streams.find(fence);
        let at = at.map_err(|refusal| refused(Call::of(DeviceOp::Wait), refusal))?;
        Ok(at.map(|at| (at.stream.timeline, at.point)))
    }

    /// Waits on the host for all work of a stream.
    ///
    /// # Errors
    /// If there is no such stream, or what the driver says.
    pub fn synchronize_stream(&self, stream: StreamId) -> DeviceResult<()> {
        use vmm_core::device::VirtualMemoryDevice;
        let fence = self.record(stream)?;
        self.wait(fence, std::time::Duration::MAX).map(drop)
    }

    /// Waits on the host for all work of all streams made here, and for all binds.
    ///
    /// # Errors
    /// What the driver says.
    pub fn synchronize(&self) -> DeviceResult<()> {
        self.streams.wait_for_all().map_err(|e| refused(Call::of(DeviceOp::Wait), e))
    }
}

/// Handles and facts.
impl VulkanDevice {
    /// Where a lease is.
    ///
    /// # Panics
    /// If the lease is of a pool on another device.
    #[must_use]
    pub fn lease_range(&self, lease: &Lease<Self>) -> BufferRange {
        let range = AddrRange { addr: lease.addr(), len: lease.len() };
        self.buffer_range(range).expect("a lease of this device")
    }

    /// Where a range of addresses is; `None` if it is not all in one region.
    #[must_use]
    pub fn buffer_range(&self, range: AddrRange) -> Option<BufferRange> {
        let place = self.regions.read().find(range)?;
        let DeviceAddr(address) = range.addr;
        Some(BufferRange { buffer: place.buffer, offset: place.offset, len: range.len, address })
    }

    /// The instance.
    #[must_use]
    pub fn instance(&self) -> &ash::Instance {
        &self.context.instance
    }

    /// The physical device.
    #[must_use]
    pub fn physical_device(&self) -> vk::PhysicalDevice {
        self.context.physical
    }

    /// The device. It has the features in [`crate::FEATURES`], and `shaderInt64` where it was opened
    /// here and the hardware has it.
    #[must_use]
    pub fn device(&self) -> &ash::Device {
        &self.context.device
    }

    /// The name of the driver and its version.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.context.facts.driver
    }

    /// Whether it is a GPU and not a program on the host.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.context.facts.kind != vk::PhysicalDeviceType::CPU
    }

    /// Whether work that uses reserved addresses without memory reads zeros and writes nothing
    /// (`residencyNonResidentStrict`). Without it anything may be read there, and what is written may
    /// show up later.
    #[must_use]
    pub fn strict_residency(&self) -> bool {
        self.context.facts.strict_residency
    }

    /// What the validation layer has said so far, if it watches
    /// ([`crate::VulkanOptions::validation`]).
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        self.message_log().list()
    }

    /// The same, to be read when the device is gone.
    #[must_use]
    pub fn message_log(&self) -> MessageLog {
        self.context.messages()
    }

    /// What lives on the device.
    #[must_use]
    pub fn living(&self) -> Living {
        let (regions, mappings) = self.regions.read().list();
        Living { regions, mappings, frames: self.memory.lock().list() }
    }
}

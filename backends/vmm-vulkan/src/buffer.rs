//! Small buffers of this crate's own: for transfers, counters, first contents.

use crate::context::Context;
use crate::error::Call;
use crate::memory::{self, Held, Memory};
use ash::vk;
use gpu_allocator::MemoryLocation;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use vmm_core::device::{DeviceErrorKind, DeviceResult};

/// A buffer that the host sees.
pub(crate) struct HostBuffer {
    context: Arc<Context>,
    memory: Arc<Mutex<Memory>>,
    buffer: vk::Buffer,
    held: Option<Held>,
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuffer").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl HostBuffer {
    pub(crate) fn new(
        context: &Arc<Context>,
        memory: &Arc<Mutex<Memory>>,
        call: Call,
        size: u64,
    ) -> DeviceResult<Self> {
        let usage = vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: `info` is valid, for the callers ask for more than zero and much less than any
        // device's limit. The buffer is used on queues of one family only.
        let buffer = unsafe { context.device.create_buffer(&info, None) };
        let buffer = buffer.map_err(|error| call.failed(error))?;
        let mut made =
            Self { context: Arc::clone(context), memory: Arc::clone(memory), buffer, held: None };
        // SAFETY: the buffer was made just now.
        let needs = unsafe { context.device.get_buffer_memory_requirements(buffer) };
        let held = memory.lock().hold(needs, MemoryLocation::GpuToCpu);
        let mut held = held.map_err(|error| memory::failed(call, &error))?;
        if held.bytes().is_none() {
            memory.lock().let_go(held);
            return Err(call.error(DeviceErrorKind::Failed, "host memory is not visible"));
        }
        // SAFETY: the memory is of a fitting type, long enough and aligned, as `needs` asked.
        let bound =
            unsafe { context.device.bind_buffer_memory(buffer, held.memory(), held.offset()) };
        made.held = Some(held);
        bound.map_err(|error| call.failed(error))?;
        Ok(made)
    }

    pub(crate) fn handle(&self) -> vk::Buffer {
        self.buffer
    }

    /// Its address for shaders.
    pub(crate) fn address(&self) -> u64 {
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.buffer);
        // SAFETY: the buffer is bound and was made for that.
        unsafe { self.context.device.get_buffer_device_address(&info) }
    }

    /// Its bytes. The device must not use them meanwhile.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.held.as_mut().and_then(Held::bytes).expect("mapped, as `new` has checked")
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: it is dropped by whoever waited for the work that uses it, or with that work
        // (`Keep::other`).
        unsafe { self.context.device.destroy_buffer(self.buffer, None) };
        if let Some(held) = self.held.take() {
            self.memory.lock().let_go(held);
        }
    }
}

/// A second view of a frame's memory, for its first contents.
pub(crate) struct View {
    context: Arc<Context>,
    pub(crate) buffer: vk::Buffer,
}

impl View {
    pub(crate) fn new(
        context: &Arc<Context>,
        size: u64,
        memory: vk::DeviceMemory,
        offset: u64,
    ) -> Result<Self, vk::Result> {
        let usage = vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: `info` is valid; the caller keeps the size below the device's limits.
        let buffer = unsafe { context.device.create_buffer(&info, None) }?;
        let view = Self { context: Arc::clone(context), buffer };
        // SAFETY: the memory is bound to nothing else that is in use: the frame is not mapped yet.
        // Frames begin at granules, which suit any plain buffer.
        unsafe { context.device.bind_buffer_memory(buffer, memory, offset) }?;
        Ok(view)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: dropped with the work that uses it (`Keep::other`), once the device is past it.
        unsafe { self.context.device.destroy_buffer(self.buffer, None) };
    }
}

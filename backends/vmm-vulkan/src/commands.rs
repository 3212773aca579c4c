//! Command buffers of a stream, recorded here and used again once the stream is past them.

use crate::context::Context;
use ash::vk;
use ash::vk::Handle;
use std::sync::Arc;

/// The command buffers of one stream. Used under that stream's lock, as a pool must be.
pub(crate) struct Commands {
    context: Arc<Context>,
    pool: vk::CommandPool,
    free: Vec<vk::CommandBuffer>,
}

impl Commands {
    pub(crate) fn new(context: &Arc<Context>, family: u32) -> Result<Self, vk::Result> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: `info` is valid and the family is one of the device's.
        let pool = unsafe { context.device.create_command_pool(&info, None) }?;
        Ok(Self { context: Arc::clone(context), pool, free: Vec::new() })
    }

    /// A command buffer with a barrier behind all earlier work of its queue, and then what `record`
    /// adds.
    pub(crate) fn record(
        &mut self,
        usage: vk::CommandBufferUsageFlags,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<vk::CommandBuffer, vk::Result> {
        let device = &self.context.device;
        let commands = match self.free.pop() {
            Some(commands) => commands,
            None => {
                let info = vk::CommandBufferAllocateInfo::default()
                    .command_pool(self.pool)
                    .level(vk::CommandBufferLevel::PRIMARY)
                    .command_buffer_count(1);
                // SAFETY: the pool lives and `&mut self` keeps other threads from it.
                unsafe { device.allocate_command_buffers(&info) }?[0]
            }
        };
        let begin = vk::CommandBufferBeginInfo::default().flags(usage);
        // SAFETY: the buffer is not pending: it is new, or its stream has passed it before it came
        // to `free`. Beginning resets it, for which its pool was made.
        let recorded = unsafe {
            device.begin_command_buffer(commands, &begin).and_then(|()| {
                all_before_all(device, commands);
                record(device, commands);
                device.end_command_buffer(commands)
            })
        };
        match recorded {
            Ok(()) => Ok(commands),
            Err(error) => {
                self.free.push(commands);
                Err(error)
            }
        }
    }

    /// Takes back a command buffer that the stream is past.
    pub(crate) fn recycle(&mut self, commands: vk::CommandBuffer) {
        if !commands.is_null() {
            self.free.push(commands);
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        // SAFETY: the stream is dropped only when it is past all its work, so nothing is pending.
        unsafe { self.context.device.destroy_command_pool(self.pool, None) };
    }
}

/// Orders everything later on the queue behind everything earlier, with all that it wrote. This is
/// what makes a stream of a queue, whose commands would overlap otherwise.
///
/// # Safety
/// `commands` is being recorded.
pub(crate) unsafe fn all_before_all(device: &ash::Device, commands: vk::CommandBuffer) {
    let all = vk::PipelineStageFlags::ALL_COMMANDS;
    let barrier = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE);
    // SAFETY: the caller's promise, and the barrier is valid on every kind of queue.
    unsafe {
        device.cmd_pipeline_barrier(
            commands,
            all,
            all,
            vk::DependencyFlags::empty(),
            &[barrier],
            &[],
            &[],
        );
    }
}

/// Makes what was written visible to the host, which waits for the work's fence before it reads.
///
/// # Safety
/// `commands` is being recorded.
pub(crate) unsafe fn all_before_host(device: &ash::Device, commands: vk::CommandBuffer) {
    let barrier = vk::MemoryBarrier::default()
        .src_access_mask(vk::AccessFlags::MEMORY_WRITE)
        .dst_access_mask(vk::AccessFlags::HOST_READ);
    // SAFETY: the caller's promise.
    unsafe {
        device.cmd_pipeline_barrier(
            commands,
            vk::PipelineStageFlags::ALL_COMMANDS,
            vk::PipelineStageFlags::HOST,
            vk::DependencyFlags::empty(),
            &[barrier],
            &[],
            &[],
        );
    }
}

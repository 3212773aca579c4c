//! Compute pipelines that get all they need by push constants.

use crate::context::Context;
use ash::vk;
use std::fmt;
use std::sync::Arc;

/// One compute shader.
pub(crate) struct Pipeline {
    context: Arc<Context>,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline").field("pipeline", &self.pipeline).finish_non_exhaustive()
    }
}

impl Pipeline {
    /// A shader whose entry point is `main` and whose push constants are `constants` bytes long.
    /// `code` is a valid shader of this crate.
    pub(crate) fn new(
        context: &Arc<Context>,
        code: &[u8],
        constants: u32,
    ) -> Result<Self, vk::Result> {
        let device = &context.device;
        let words: Vec<u32> = code
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let range = vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(constants);
        let ranges = [range];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        // SAFETY: `info` is valid: every device has 128 bytes of push constants.
        let layout = unsafe { device.create_pipeline_layout(&info, None) }?;
        let mut made =
            Self { context: Arc::clone(context), layout, pipeline: vk::Pipeline::null() };
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: the code was checked when it was compiled, and needs no feature but buffer device
        // addresses, which the device has.
        let module = unsafe { device.create_shader_module(&info, None) }?;
        let stage = vk::PipelineShaderStageCreateInfo::default()
            .stage(vk::ShaderStageFlags::COMPUTE)
            .module(module)
            .name(c"main");
        let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
        // SAFETY: module and layout were made just now; the module may go once the pipeline is made.
        let pipelines = unsafe {
            let cache = vk::PipelineCache::null();
            let pipelines = device.create_compute_pipelines(cache, &[info], None);
            device.destroy_shader_module(module, None);
            pipelines
        };
        made.pipeline = pipelines.map_err(|(_, error)| error)?[0];
        Ok(made)
    }

    /// Records a launch.
    ///
    /// # Safety
    /// `commands` is being recorded for a queue with compute, the constants are of the shader's
    /// length, and the addresses in them are valid for what the shader does.
    pub(crate) unsafe fn launch(
        &self,
        commands: vk::CommandBuffer,
        constants: &[u32],
        groups: u32,
    ) {
        let device = &self.context.device;
        let bytes: Vec<u8> = constants.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let compute = vk::ShaderStageFlags::COMPUTE;
        // SAFETY: the caller's promise; pipeline and layout live as long as `self`, which the work
        // keeps.
        unsafe {
            device.cmd_bind_pipeline(commands, vk::PipelineBindPoint::COMPUTE, self.pipeline);
            device.cmd_push_constants(commands, self.layout, compute, 0, &bytes);
            device.cmd_dispatch(commands, groups, 1, 1);
        }
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // SAFETY: work that uses the pipeline keeps it, so there is none.
        unsafe {
            self.context.device.destroy_pipeline(self.pipeline, None);
            self.context.device.destroy_pipeline_layout(self.layout, None);
        }
    }
}

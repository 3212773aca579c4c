//! A compute shader on memory of the pool: through a descriptor set, through a buffer reference, and
//! on a buffer that grows in place. The validation layer watches.
//!
//! ```sh
//! cargo run -p vmm-vulkan --example compute -- [DEVICE]
//! ```

use ash::vk;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::StreamId;
use vmm_core::{Pool, PoolOptions};
use vmm_vulkan::{BufferRange, DeviceChoice, Submit, VulkanDevice, VulkanOptions, ash};

/// `compute.comp`: element i becomes i * i, in memory given by its address and by a descriptor.
const BY_ADDRESS: &[u8] = include_bytes!("../shaders/compute.spv");
const BY_DESCRIPTOR: &[u8] = include_bytes!("../shaders/compute_descriptor.spv");

/// Threads of a group, as in the shader.
const GROUP: u32 = 64;

/// Bytes of an element.
const ELEMENT: u64 = 4;

fn main() -> ExitCode {
    let choice = DeviceChoice::parse(&std::env::args().nth(1).unwrap_or_default());
    let options = VulkanOptions { validation: true, ..VulkanOptions::of_device(choice) };
    let device = match VulkanDevice::new(options) {
        Ok(device) => Arc::new(device),
        Err(why) => {
            println!("skipped: {why}");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Everything, on one device.
pub fn run(device: &Arc<VulkanDevice>) -> Result<(), Box<dyn Error>> {
    println!("on {} ({})", device.properties().name, device.driver());
    let by_address = Shader::new(device, BY_ADDRESS)?;
    let by_descriptor = Shader::new(device, BY_DESCRIPTOR)?;
    on_leases(device, &by_address, &by_descriptor)?;
    on_a_growing_buffer(device, &by_address)?;
    drop((by_address, by_descriptor));
    match device.messages().as_slice() {
        [] => Ok(()),
        messages => Err(format!("the validation layer says: {messages:#?}").into()),
    }
}

/// Two leases of a pool: one as a descriptor, one by its address.
fn on_leases(
    device: &Arc<VulkanDevice>,
    by_address: &Shader,
    by_descriptor: &Shader,
) -> Result<(), Box<dyn Error>> {
    let options = PoolOptions { limit: Some(64 << 20), ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(device), options)?;
    let stream = device.make_stream()?;
    let count = 300_000_u32;
    let len = u64::from(count) * ELEMENT;
    let first = pool.allocate(len, stream, pool.owner("by descriptor"))?;
    let second = pool.allocate(len, stream, pool.owner("by address"))?;
    by_descriptor.describe(device.lease_range(&first));
    by_descriptor.launch(device, stream, 0, 0..count)?;
    let address = device.lease_range(&second).address;
    by_address.launch(device, stream, address, 0..count)?;
    for (lease, how) in [(&first, "descriptor"), (&second, "address")] {
        check(device, stream, AddrRange { addr: lease.addr(), len }, count)?;
        println!("{count} squares through a lease's {how}: right");
    }
    by_address.forget(device, stream)?;
    by_descriptor.forget(device, stream)?;
    drop((first, second));
    drop(pool);
    device.destroy_stream(stream)?;
    Ok(())
}

/// Addresses for the largest length, memory for what is needed so far. Growing moves nothing: the
/// address stays, and work that is queued goes on.
fn on_a_growing_buffer(device: &Arc<VulkanDevice>, shader: &Shader) -> Result<(), Box<dyn Error>> {
    let granule = device.properties().granule;
    let (step, steps) = (granule.max(64 << 10), 8_u64);
    let stream = device.make_stream()?;
    let base = device.reserve(steps * step, granule)?;
    let mut frames = Vec::new();
    let mut written = 0;
    for i in 0..steps {
        let frame = device.make_frame(step, FrameKind::Device)?;
        frames.push(frame);
        let range = AddrRange { addr: base.offset(i * step), len: step };
        // No wait of the host: the stream waits for the bind, on the device.
        let bound = device.map(&[Mapping { range, frame }], &[])?;
        device.stream_wait(stream, bound)?;
        let end = u32::try_from((i + 1) * step / ELEMENT)?;
        shader.launch(device, stream, base.0, written..end)?;
        written = end;
    }
    let whole = AddrRange { addr: base, len: steps * step };
    check(device, stream, whole, written)?;
    println!("a buffer grew in place to {} KiB in {steps} steps: right", (steps * step) >> 10);
    shader.forget(device, stream)?;
    // The bind waits for the work, and the memory goes when both are done.
    let used = device.record(stream)?;
    let unbound = device.unmap(&[whole], &[used])?;
    device.wait(unbound, Duration::MAX)?;
    for frame in frames {
        device.release_frame(frame)?;
    }
    device.free_region(base, whole.len)?;
    device.destroy_stream(stream)?;
    Ok(())
}

fn check(
    device: &VulkanDevice,
    stream: StreamId,
    range: AddrRange,
    count: u32,
) -> Result<(), Box<dyn Error>> {
    let bytes = device.read_bytes(stream, range)?;
    for (i, four) in (0..count).zip(bytes.chunks_exact(4)) {
        let found = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        if found != i.wrapping_mul(i) {
            return Err(format!("element {i} is {found}").into());
        }
    }
    Ok(())
}

/// What a program of its own would have: a pipeline, a descriptor set, command buffers.
struct Shader {
    device: ash::Device,
    set_layout: vk::DescriptorSetLayout,
    set_pool: vk::DescriptorPool,
    set: vk::DescriptorSet,
    layout: vk::PipelineLayout,
    pipeline: vk::Pipeline,
    commands: vk::CommandPool,
    // Outlives all of these.
    _owner: Arc<VulkanDevice>,
}

impl Shader {
    fn new(owner: &Arc<VulkanDevice>, code: &[u8]) -> Result<Self, Box<dyn Error>> {
        let device = owner.device().clone();
        let stream = owner.make_stream()?;
        let family = owner.queue_of(stream)?.family;
        owner.destroy_stream(stream)?;
        let words: Vec<u32> = code
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
            .collect();
        let compute = vk::ShaderStageFlags::COMPUTE;
        let kind = vk::DescriptorType::STORAGE_BUFFER;
        let bindings = [vk::DescriptorSetLayoutBinding::default()
            .descriptor_type(kind)
            .descriptor_count(1)
            .stage_flags(compute)];
        let sizes = [vk::DescriptorPoolSize { ty: kind, descriptor_count: 1 }];
        let constants = [vk::PushConstantRange::default().stage_flags(compute).size(16)];
        // SAFETY: every structure is complete, the handles in it were made just before, and the
        // shader is valid for Vulkan 1.2 with buffer device addresses, which the device has.
        unsafe {
            let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let set_layout = device.create_descriptor_set_layout(&info, None)?;
            let info = vk::DescriptorPoolCreateInfo::default().max_sets(1).pool_sizes(&sizes);
            let set_pool = device.create_descriptor_pool(&info, None)?;
            let layouts = [set_layout];
            let info = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(set_pool)
                .set_layouts(&layouts);
            let set = device.allocate_descriptor_sets(&info)?[0];
            let info = vk::PipelineLayoutCreateInfo::default()
                .set_layouts(&layouts)
                .push_constant_ranges(&constants);
            let layout = device.create_pipeline_layout(&info, None)?;
            let info = vk::ShaderModuleCreateInfo::default().code(&words);
            let module = device.create_shader_module(&info, None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(compute)
                .module(module)
                .name(c"main");
            let info = vk::ComputePipelineCreateInfo::default().stage(stage).layout(layout);
            let pipeline = device
                .create_compute_pipelines(vk::PipelineCache::null(), &[info], None)
                .map_err(|(_, error)| error)?[0];
            device.destroy_shader_module(module, None);
            let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
            let commands = device.create_command_pool(&info, None)?;
            let _owner = Arc::clone(owner);
            let shader =
                Self { device, set_layout, set_pool, set, layout, pipeline, commands, _owner };
            Ok(shader)
        }
    }

    /// Puts memory into the descriptor set.
    fn describe(&self, range: BufferRange) {
        let buffers = [range.descriptor()];
        let write = vk::WriteDescriptorSet::default()
            .dst_set(self.set)
            .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
            .buffer_info(&buffers);
        // SAFETY: no work that was queued uses the set, and the range is a lease's.
        unsafe { self.device.update_descriptor_sets(&[write], &[]) };
    }

    /// Queues a launch for some elements; the address does not count for the shader with a descriptor.
    fn launch(
        &self,
        owner: &VulkanDevice,
        stream: StreamId,
        address: u64,
        elements: std::ops::Range<u32>,
    ) -> Result<(), Box<dyn Error>> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(self.commands)
            .command_buffer_count(1);
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let mut constants = address.to_ne_bytes().to_vec();
        constants.extend(elements.start.to_ne_bytes());
        constants.extend(elements.end.to_ne_bytes());
        let groups = (elements.end - elements.start).div_ceil(GROUP);
        let (device, compute) = (&self.device, vk::PipelineBindPoint::COMPUTE);
        // SAFETY: this thread alone uses the pool; the constants are the shader's; the memory is
        // mapped in the order of the stream; command buffers and set stay until `forget`, which waits.
        unsafe {
            let commands = device.allocate_command_buffers(&info)?[0];
            device.begin_command_buffer(commands, &begin)?;
            device.cmd_bind_pipeline(commands, compute, self.pipeline);
            // The shader that goes by the address does not look at it.
            device.cmd_bind_descriptor_sets(commands, compute, self.layout, 0, &[self.set], &[]);
            let stage = vk::ShaderStageFlags::COMPUTE;
            device.cmd_push_constants(commands, self.layout, stage, 0, &constants);
            device.cmd_dispatch(commands, groups, 1, 1);
            device.end_command_buffer(commands)?;
            owner.submit(stream, &Submit { commands: &[commands], ..Submit::default() })?;
        }
        Ok(())
    }

    /// Waits for the stream and lets go of its command buffers.
    fn forget(&self, owner: &VulkanDevice, stream: StreamId) -> Result<(), Box<dyn Error>> {
        owner.synchronize_stream(stream)?;
        // SAFETY: all command buffers of the pool went to this stream, which is done.
        unsafe {
            let all = vk::CommandPoolResetFlags::RELEASE_RESOURCES;
            self.device.reset_command_pool(self.commands, all)?;
        }
        Ok(())
    }
}

impl Drop for Shader {
    fn drop(&mut self) {
        // A launch may run if an error has ended the program early.
        let _ = self._owner.synchronize();
        // SAFETY: nothing is in use any more.
        unsafe {
            self.device.destroy_command_pool(self.commands, None);
            self.device.destroy_pipeline(self.pipeline, None);
            self.device.destroy_pipeline_layout(self.layout, None);
            self.device.destroy_descriptor_pool(self.set_pool, None);
            self.device.destroy_descriptor_set_layout(self.set_layout, None);
        }
    }
}

//! The device: the trait's methods, each a few steps of the modules below it.

use crate::bind::{Binds, Piece};
use crate::buffer::HostBuffer;
use crate::context::{Context, Handed};
use crate::error::Call;
use crate::memory::{Memory, PATIENCE, Span};
use crate::options::{ExternalDevice, VulkanOptions};
use crate::regions::{Place, Regions, sparse_buffer};
use crate::stream::{BIND_STREAM, Keep, Stream, Wait, Work};
use crate::streams::{Refusal, Streams};
use crate::unavailable::{Unavailable, call};
use ash::vk;
use parking_lot::{Mutex, RwLock};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, Capabilities, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind,
    Mapping, MemoryInfo, Properties, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};

/// How much of the sparse address space one reservation may take: there must be room for others.
const SPACE_PER_RESERVATION: u64 = 4;

/// A pool of GPU memory on Vulkan's sparse buffers. See the crate's documentation.
pub struct VulkanDevice {
    properties: Properties,
    pub(crate) options: VulkanOptions,
    pub(crate) regions: RwLock<Regions>,
    pub(crate) streams: Streams,
    /// The stream of this crate's own work: first contents of frames.
    pub(crate) inner: Arc<Stream>,
    /// Each byte value four times, to fill what is not aligned to four bytes.
    pub(crate) bytes: Arc<HostBuffer>,
    pub(crate) memory: Arc<Mutex<Memory>>,
    // The last to be dropped: everything above is made on it.
    pub(crate) context: Arc<Context>,
}

impl fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VulkanDevice").field("properties", &self.properties).finish_non_exhaustive()
    }
}

impl VulkanDevice {
    /// Opens a device of this machine, with an instance, a device and queues of its own.
    ///
    /// # Errors
    /// If there is no such device or it cannot be used.
    pub fn new(options: VulkanOptions) -> Result<Self, Unavailable> {
        let (context, handed) = Context::open(&options)?;
        Self::on(context, &handed, None, options)
    }

    /// Uses an instance, a device and queues of the user's. Of the options, `choice`, `validation`
    /// and `queues` do not count.
    ///
    /// # Errors
    /// If the device cannot be used, or its parts do not fit.
    ///
    /// # Safety
    /// - The parts are valid and belong together, and they live until this value and everything made
    ///   from it is dropped ([`ExternalDevice::keep`] may see to that).
    /// - The features in [`crate::FEATURES`] are enabled on the device, and `sparseResidencyAliased`
    ///   if `aliased` says so.
    /// - Whoever else uses one of the queues does so under `lock`. That includes `vkDeviceWaitIdle`.
    pub unsafe fn from_external(
        parts: ExternalDevice,
        options: VulkanOptions,
    ) -> Result<Self, Unavailable> {
        let lock = parts.lock.clone();
        // SAFETY: the caller's promise.
        let (context, handed) = unsafe { Context::from_external(parts, &options) }?;
        Self::on(context, &handed, lock.as_ref(), options)
    }

    fn on(
        context: Context,
        handed: &Handed,
        lock: Option<&Arc<dyn crate::options::QueueLock>>,
        options: VulkanOptions,
    ) -> Result<Self, Unavailable> {
        let context = Arc::new(context);
        let (finest, bits) = granule(&context)?;
        if !options.granule.is_power_of_two() {
            let device = context.facts.name.clone();
            let reason =
                "the granule in the options must be a power of two: 1 for the driver's own";
            return Err(Unavailable::BadParts { device, reason });
        }
        let granule = finest.max(options.granule);
        let streams = Streams::new(&context, handed, lock).map_err(call("vkCreateSemaphore"))?;
        let inner = streams.make().map_err(call("vkCreateSemaphore"))?;
        let memory = Memory::new(&context, finest, bits, options.block, options.spill);
        let failed = vk::Result::ERROR_INITIALIZATION_FAILED;
        let memory = memory.map_err(|_| call("the setup of gpu-allocator")(failed))?;
        let memory = Arc::new(Mutex::new(memory));
        let bytes = HostBuffer::new(&context, &memory, Call::of(DeviceOp::Fill), 4 * 256);
        let mut bytes = bytes.map_err(|error| {
            let code = i32::try_from(error.code).unwrap_or(failed.as_raw());
            call("vkAllocateMemory")(vk::Result::from_raw(code))
        })?;
        for (value, four) in (0_u8..=255).zip(bytes.bytes().chunks_exact_mut(4)) {
            four.fill(value);
        }
        let facts = &context.facts;
        let most = (facts.sparse_space / SPACE_PER_RESERVATION).min(facts.max_buffer);
        let properties = Properties {
            name: facts.name.clone(),
            granule,
            other_granules: Vec::new(),
            max_reservation: (most / granule).max(1) * granule,
            capabilities: Capabilities {
                remapping: true,
                aliases: facts.aliased,
                queued_binds: true,
                peers: false,
                capture: false,
            },
        };
        Ok(Self {
            properties,
            options,
            regions: RwLock::new(Regions::new(&context, finest, granule)),
            streams,
            inner,
            bytes: Arc::new(bytes),
            memory,
            context,
        })
    }

    /// Queues a batch of binds behind the fences and `ready`.
    fn bind(
        &self,
        call: Call,
        pieces: Vec<Piece>,
        after: &[Fence],
        ready: Vec<Wait>,
    ) -> DeviceResult<Fence> {
        let mut waits = ready;
        for fence in after {
            waits.extend(self.streams.find(*fence).map_err(|refusal| refused(call, refusal))?);
        }
        let binds = Binds::new(pieces, self.context.facts.joins_binds);
        let point = self.streams.submit(&self.streams.bind, |state| {
            state.waits.clear();
            waits.into_iter().for_each(|wait| state.add_wait(wait));
            Ok((Work::Bind(binds), Keep::default()))
        });
        let value = point.map_err(|error| call.failed(error))?;
        Ok(Fence { stream: BIND_STREAM, value })
    }

    /// Fills a new frame, if the options say so.
    fn first_contents(&self, call: Call, frame: FrameHandle) -> DeviceResult<()> {
        let Some(byte) = self.options.fresh.byte() else { return Ok(()) };
        let spans: Vec<Span> = match self.memory.lock().frame(frame) {
            Some(frame) => frame.pieces().collect(),
            None => return Ok(()),
        };
        let point = self.fill_memory(&spans, byte);
        let point = point.map_err(|error| call.failed(error))?;
        let ready = Wait { stream: Arc::clone(&self.inner), point };
        self.memory.lock().set_ready(frame, ready);
        Ok(())
    }
}

/// The granule of sparse buffers, in bytes, and the types of memory that they can have.
fn granule(context: &Context) -> Result<(u64, u32), Unavailable> {
    let probe = sparse_buffer(context, 1 << 16).map_err(call("vkCreateBuffer"))?;
    // SAFETY: the buffer was made just now and is used for nothing else.
    let needs = unsafe {
        let needs = context.device.get_buffer_memory_requirements(probe);
        context.device.destroy_buffer(probe, None);
        needs
    };
    if !needs.alignment.is_power_of_two() {
        let device = context.facts.name.clone();
        let feature = "granule of sparse buffers that is a power of two";
        return Err(Unavailable::MissingFeature { device, feature });
    }
    Ok((needs.alignment, needs.memory_type_bits))
}

/// A refusal as an error of the call.
pub(crate) fn refused(call: Call, refusal: Refusal) -> DeviceError {
    match refusal {
        Refusal::UnknownStream => {
            call.illegal("no such stream: make_stream or queue_stream names one")
        }
        Refusal::Destroyed => call.illegal("the stream was destroyed"),
        Refusal::DevicesOwn => call.illegal("the stream belongs to the device"),
        Refusal::NeverRecorded => call.illegal("the fence was never recorded"),
        Refusal::BehindAGate => {
            let detail = "the fence is behind a closed gate on the same queue";
            call.error(DeviceErrorKind::NotReady, detail)
        }
        Refusal::Driver(result) => call.failed(result),
    }
}

impl VirtualMemoryDevice for VulkanDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(self.memory.lock().info())
    }

    fn is_capturing(&self, _stream: StreamId) -> DeviceResult<bool> {
        Ok(false)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        let call = Call::with_len(DeviceOp::Reserve, len);
        let granule = self.properties.granule;
        let whole = len > 0 && len.is_multiple_of(granule);
        if !whole || !alignment.is_power_of_two() || alignment < granule {
            return Err(call.illegal("length and alignment are of whole granules"));
        }
        self.regions.write().reserve(call, len, alignment).map(DeviceAddr)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        let range = AddrRange { addr: base, len };
        let call = Call::on(DeviceOp::FreeRegion, range);
        self.regions.write().free(range).map_err(|detail| call.illegal(detail))
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        let call = Call::with_len(DeviceOp::MakeFrame, len);
        if kind != FrameKind::Device {
            return Err(call.error(DeviceErrorKind::NotSupported, "no memory of this kind"));
        }
        if len == 0 || !len.is_multiple_of(self.properties.granule) {
            return Err(call.illegal("the length is not a positive multiple of the granule"));
        }
        let frame = self.memory.lock().make(call, len)?;
        if let Err(error) = self.first_contents(call, frame) {
            self.memory.lock().release(frame).map_err(|detail| call.illegal(detail))?;
            return Err(error);
        }
        Ok(frame)
    }

    fn fixed_addr(&self, _frame: FrameHandle) -> Option<DeviceAddr> {
        None
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        let ready = self.memory.lock().frame(frame).and_then(|frame| frame.ready().cloned());
        if let Some(ready) = ready {
            // The device's own work, which is short; and without it the memory goes a little later.
            let _ = ready.stream.wait(ready.point, PATIENCE);
        }
        let released = self.memory.lock().release(frame);
        released.map_err(|detail| Call::of(DeviceOp::ReleaseFrame).illegal(detail))
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        let Some(first) = batch.first() else { return Ok(Fence::REACHED) };
        let call = Call::on(DeviceOp::Map, first.range);
        let mut pieces = Vec::with_capacity(batch.len());
        let mut ready: Vec<Wait> = Vec::new();
        // Both locks for the whole batch, so that it is noted as a whole.
        let mut regions = self.regions.write();
        let mut memory = self.memory.lock();
        let undo = |regions: &mut Regions, memory: &mut Memory, noted: usize| {
            for mapping in &batch[..noted] {
                regions.forget(mapping.range.addr, None);
                memory.note_never_mapped(mapping.frame);
            }
        };
        for (noted, mapping) in batch.iter().enumerate() {
            let placed = match memory.frame(mapping.frame) {
                None => Err("no such frame"),
                Some(frame) if frame.len() != mapping.range.len => Err("a frame is mapped whole"),
                Some(frame) if !self.aliases() && frame.mappings() > 0 => {
                    Err("the frame is mapped already, and this device has no aliases")
                }
                Some(frame) => regions.map(mapping).map(|place| (frame, place)),
            };
            let (frame, Place { buffer, mut offset }) = match placed {
                Ok(found) => found,
                Err(detail) => {
                    undo(&mut regions, &mut memory, noted);
                    return Err(Call::on(DeviceOp::Map, mapping.range).illegal(detail));
                }
            };
            for Span { memory, offset: memory_offset, len } in frame.pieces() {
                pieces.push(Piece { buffer, offset, len, memory, memory_offset });
                offset += len;
            }
            ready.extend(frame.ready().cloned());
            memory.note_mapped(mapping.frame);
        }
        drop((regions, memory));
        let bound = self.bind(call, pieces, after, ready);
        if bound.is_err() {
            undo(&mut self.regions.write(), &mut self.memory.lock(), batch.len());
        }
        bound
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        let Some(first) = ranges.first() else { return Ok(Fence::REACHED) };
        let call = Call::on(DeviceOp::Unmap, *first);
        let mut pieces = Vec::with_capacity(ranges.len());
        let mut starts = Vec::new();
        {
            let regions = self.regions.read();
            for range in ranges {
                let whole = regions.whole(*range);
                let call = Call::on(DeviceOp::Unmap, *range);
                let (place, found) = whole.map_err(|detail| call.illegal(detail))?;
                starts.extend(found);
                pieces.push(Piece {
                    buffer: place.buffer,
                    offset: place.offset,
                    len: range.len,
                    memory: vk::DeviceMemory::null(),
                    memory_offset: 0,
                });
            }
            let mut sorted = starts.clone();
            sorted.sort_unstable();
            if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(call.illegal("ranges of the batch overlap"));
            }
        }
        let unbound = self.bind(call, pieces, after, Vec::new())?;
        // Only now, so that neither addresses nor frames are taken for free before the bind is queued.
        let mut regions = self.regions.write();
        let mut memory = self.memory.lock();
        let gone = Wait { stream: Arc::clone(&self.streams.bind), point: unbound.value };
        for start in starts {
            if let Some(frame) = regions.forget(DeviceAddr(start), Some(gone.clone())) {
                memory.note_unmapped(frame, gone.clone());
            }
        }
        Ok(unbound)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        if peers.is_empty() {
            // Memory that is bound can be used.
            return Ok(());
        }
        let call = Call::on(DeviceOp::SetAccess, range);
        Err(call.error(DeviceErrorKind::NotSupported, "this device has no peers"))
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        let value = self.streams.record(stream);
        let value = value.map_err(|refusal| refused(Call::of(DeviceOp::Record), refusal))?;
        Ok(Fence { stream, value })
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        let reached = self.streams.reached(stream);
        reached.map_err(|refusal| refused(Call::of(DeviceOp::Reached), refusal))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        let call = Call::of(DeviceOp::Wait);
        let Some(at) = self.streams.find(fence).map_err(|refusal| refused(call, refusal))? else {
            return Ok(true);
        };
        let nanos = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        at.stream.wait(at.point, nanos).map_err(|error| call.failed(error))
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        let refuse = |refusal| refused(Call::of(DeviceOp::WaitIdle), refusal);
        self.streams.wait_for_all().map_err(refuse)
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        let call = Call::of(DeviceOp::StreamWait);
        let refuse = |refusal| refused(call, refusal);
        match self.streams.find(fence).map_err(refuse)? {
            Some(at) => self.streams.put_behind(stream, at).map_err(refuse),
            None => self.streams.usable(stream).map(drop).map_err(refuse),
        }
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.queue_copy(to, from, len, stream)
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.queue_fill(to, byte, len, stream)
    }
}

impl VulkanDevice {
    fn aliases(&self) -> bool {
        self.properties.capabilities.aliases
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        self.streams.finish();
        // SAFETY: `finish` has waited for all work that the driver had, and dropped the rest.
        unsafe { self.regions.get_mut().destroy_all() };
    }
}

//! Copies and fills, and bytes to and from the host.

use crate::buffer::{HostBuffer, View};
use crate::commands::{Commands, all_before_all, all_before_host};
use crate::device::{VulkanDevice, refused};
use crate::error::Call;
use crate::memory::Span;
use crate::regions::Place;
use crate::stream::{Keep, Kind, Stream, Work};
use ash::vk;
use std::any::Any;
use std::sync::Arc;
use vmm_core::device::{AddrRange, DeviceOp, DeviceResult};
use vmm_core::units::{DeviceAddr, StreamId};

/// How many bytes go through host memory at a time.
const STAGE: u64 = 16 << 20;

/// Every device makes buffers of this length, in bytes.
const LONGEST_VIEW: u64 = 1 << 30;

/// `len` bytes from `offset` on: those before the first multiple of four, then whole fours, then
/// those behind.
fn fours(offset: u64, len: u64) -> [u64; 3] {
    let head = offset.next_multiple_of(4).saturating_sub(offset).min(len);
    let middle = (len - head) / 4 * 4;
    [head, middle, len - head - middle]
}

impl VulkanDevice {
    /// Records commands and queues them on a stream, ordered with all other work of it.
    pub(crate) fn run(
        &self,
        stream: &Arc<Stream>,
        keep: Option<Box<dyn Any + Send + Sync>>,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<u64, vk::Result> {
        self.streams.submit(stream, |state| {
            let commands = match &mut state.commands {
                Some(commands) => commands,
                none => {
                    let family = self.streams.queue_of(stream).family;
                    none.insert(Commands::new(&self.context, family)?)
                }
            };
            let once = vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT;
            let recorded = commands.record(once, |device, commands| {
                record(device, commands);
                if stream.kind == Kind::Queue {
                    // The next is the user's own submit, which has no barrier of ours.
                    // SAFETY: `Commands::record` is recording.
                    unsafe { all_before_all(device, commands) };
                }
            })?;
            let keep = Keep { commands: recorded, other: keep, ..Keep::default() };
            Ok((Work::Recorded(recorded), keep))
        })
    }

    fn stream_for(&self, call: Call, stream: StreamId) -> DeviceResult<Arc<Stream>> {
        self.streams.usable(stream).map_err(|refusal| refused(call, refusal))
    }

    fn place_of(&self, call: Call, range: AddrRange) -> DeviceResult<Place> {
        let place = self.regions.read().find(range);
        place.ok_or_else(|| call.illegal("the range is not in one region"))
    }

    pub(crate) fn queue_copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let (target, source) = (AddrRange { addr: to, len }, AddrRange { addr: from, len });
        let call = Call::on(DeviceOp::Copy, target);
        let stream = self.stream_for(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let target = self.place_of(call, target)?;
        let source = self.place_of(Call::on(DeviceOp::Copy, source), source)?;
        let region =
            vk::BufferCopy { src_offset: source.offset, dst_offset: target.offset, size: len };
        let queued = self.run(&stream, None, |device, commands| {
            // SAFETY: both ranges are in their buffers, and do not overlap, as the caller of the
            // trait promises. `commands` is being recorded.
            unsafe { device.cmd_copy_buffer(commands, source.buffer, target.buffer, &[region]) };
        });
        queued.map(drop).map_err(|error| call.failed(error))
    }

    pub(crate) fn queue_fill(
        &self,
        to: DeviceAddr,
        byte: u8,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let target = AddrRange { addr: to, len };
        let call = Call::on(DeviceOp::Fill, target);
        let stream = self.stream_for(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let Place { buffer, offset } = self.place_of(call, target)?;
        let [head, middle, tail] = fours(offset, len);
        let odd =
            |dst_offset, size| vk::BufferCopy { src_offset: 4 * u64::from(byte), dst_offset, size };
        let all = [odd(offset, head), odd(offset + head + middle, tail)];
        let odds: Vec<vk::BufferCopy> = all.into_iter().filter(|copy| copy.size > 0).collect();
        let queued = self.run(&stream, None, |device, commands| {
            // SAFETY: the range is in the buffer; offset and length of the fill are multiples of four
            // and the length is not zero; at most three bytes are read from the four of the value.
            // `commands` is being recorded.
            unsafe {
                if middle > 0 {
                    let word = u32::from_ne_bytes([byte; 4]);
                    device.cmd_fill_buffer(commands, buffer, offset + head, middle, word);
                }
                if !odds.is_empty() {
                    device.cmd_copy_buffer(commands, self.bytes.handle(), buffer, &odds);
                }
            }
        });
        queued.map(drop).map_err(|error| call.failed(error))
    }

    /// Fills memory that is not mapped anywhere yet; returns the point of the device's own stream at
    /// which that is done.
    pub(crate) fn fill_memory(&self, spans: &[Span], byte: u8) -> Result<u64, vk::Result> {
        let mut views = Vec::new();
        for Span { memory, offset, len } in spans {
            let mut at = 0;
            while at < *len {
                let size = LONGEST_VIEW.min(len - at);
                views.push(View::new(&self.context, size, *memory, offset + at)?);
                at += size;
            }
        }
        let buffers: Vec<vk::Buffer> = views.iter().map(|view| view.buffer).collect();
        self.run(&self.inner, Some(Box::new(views)), |device, commands| {
            let word = u32::from_ne_bytes([byte; 4]);
            for buffer in buffers {
                // SAFETY: the buffers live until the work is done, as it keeps the views; their
                // lengths are multiples of four, as granules are. `commands` is being recorded.
                unsafe { device.cmd_fill_buffer(commands, buffer, 0, vk::WHOLE_SIZE, word) };
            }
        })
    }

    /// Writes bytes behind all work of a stream, and waits for it.
    ///
    /// # Errors
    /// If the range is not reserved, or what the driver says.
    pub fn write_bytes(&self, stream: StreamId, to: DeviceAddr, bytes: &[u8]) -> DeviceResult<()> {
        let len = bytes.len() as u64;
        let call = Call::on(DeviceOp::Fill, AddrRange { addr: to, len });
        self.in_stages(call, stream, to, len, |stage, place, at| {
            let part = &bytes[usize_of(at)..];
            let part = &part[..usize_of(stage.len).min(part.len())];
            stage.buffer.bytes()[..part.len()].copy_from_slice(part);
            let region =
                vk::BufferCopy { src_offset: 0, dst_offset: place.offset, size: part.len() as u64 };
            let from = stage.buffer.handle();
            stage.run(|device, commands| {
                // SAFETY: the bytes are in both buffers, which live until the work is waited for.
                // `commands` is being recorded.
                unsafe { device.cmd_copy_buffer(commands, from, place.buffer, &[region]) };
            })
        })
    }

    /// Reads bytes behind all work of a stream, and waits for it.
    ///
    /// # Errors
    /// As [`VulkanDevice::write_bytes`].
    pub fn read_bytes(&self, stream: StreamId, range: AddrRange) -> DeviceResult<Vec<u8>> {
        let call = Call::on(DeviceOp::Copy, range);
        let mut found = Vec::with_capacity(usize_of(range.len));
        self.in_stages(call, stream, range.addr, range.len, |stage, place, at| {
            let size = stage.len.min(range.len - at);
            let region = vk::BufferCopy { src_offset: place.offset, dst_offset: 0, size };
            let to = stage.buffer.handle();
            stage.run(|device, commands| {
                // SAFETY: the bytes are in both buffers, which live until the work is waited for.
                // `commands` is being recorded.
                unsafe {
                    device.cmd_copy_buffer(commands, place.buffer, to, &[region]);
                    all_before_host(device, commands);
                }
            })?;
            found.extend_from_slice(&stage.buffer.bytes()[..usize_of(size)]);
            Ok(())
        })?;
        Ok(found)
    }

    /// Calls `part` with a host buffer for each part of a range that fits into it.
    fn in_stages(
        &self,
        call: Call,
        stream: StreamId,
        addr: DeviceAddr,
        len: u64,
        mut part: impl FnMut(&mut Stage<'_>, Place, u64) -> Result<(), vk::Result>,
    ) -> DeviceResult<()> {
        let stream = self.stream_for(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let place = self.place_of(call, AddrRange { addr, len })?;
        let len_of_stage = len.min(STAGE);
        let buffer = HostBuffer::new(&self.context, &self.memory, call, len_of_stage)?;
        let mut stage = Stage { device: self, stream, buffer, len: len_of_stage };
        let mut at = 0;
        while at < len {
            let place = Place { offset: place.offset + at, ..place };
            part(&mut stage, place, at).map_err(|error| call.failed(error))?;
            at += len_of_stage;
        }
        Ok(())
    }
}

/// Host memory on the way to or from a stream.
struct Stage<'a> {
    device: &'a VulkanDevice,
    stream: Arc<Stream>,
    buffer: HostBuffer,
    len: u64,
}

impl Stage<'_> {
    /// Queues what `record` records and waits for it.
    fn run(&self, record: impl FnOnce(&ash::Device, vk::CommandBuffer)) -> Result<(), vk::Result> {
        let point = self.device.run(&self.stream, None, record)?;
        self.stream.wait(point, u64::MAX).map(drop)
    }
}

fn usize_of(len: u64) -> usize {
    usize::try_from(len).expect("a length that the host can hold")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_are_cut_at_multiples_of_four() {
        assert_eq!(fours(8, 12), [0, 12, 0]);
        assert_eq!(fours(3, 7), [1, 4, 2]);
        assert_eq!(fours(1, 2), [2, 0, 0]);
        assert_eq!(fours(1, 3), [3, 0, 0]);
        assert_eq!(fours(4, 3), [0, 0, 3]);
        assert_eq!(fours(2, 4), [2, 0, 2]);
    }
}

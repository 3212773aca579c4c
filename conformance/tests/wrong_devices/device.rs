//! A mock with one flaw.

use crate::flaw::Flaw;
use std::collections::HashMap;
use std::sync::Mutex;
use std::thread::{self, ThreadId};
use std::time::Duration;
use vmm_conformance::OverMock;
use vmm_core::device::{
    AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping,
    MemoryInfo, Properties, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};
use vmm_mock::{MockDevice, MockOptions};

#[derive(Default)]
struct Memo {
    mapped: Vec<Mapping>,
    /// Frames that stand for others.
    instead: HashMap<FrameHandle, FrameHandle>,
    was_mapped: Vec<FrameHandle>,
    usable: Vec<AddrRange>,
    by_len: HashMap<u64, FrameHandle>,
    last_region: Option<AddrRange>,
    released: u64,
    lens: HashMap<FrameHandle, u64>,
    records: u64,
    asked: u64,
    even: bool,
    last_fence: HashMap<StreamId, Fence>,
    thread: Option<ThreadId>,
}

/// A mock with one flaw.
pub(crate) struct Wrong {
    mock: MockDevice,
    flaw: Flaw,
    renamed: Properties,
    memo: Mutex<Memo>,
    aside: StreamId,
}

impl OverMock for Wrong {
    fn mock(&self) -> &MockDevice {
        &self.mock
    }
}

fn failed(op: DeviceOp) -> DeviceError {
    let (kind, addr) = (DeviceErrorKind::Failed, DeviceAddr(0));
    DeviceError { op, kind, addr, len: 0, code: 1, detail: "" }
}

impl Wrong {
    pub(crate) fn new(flaw: Flaw, options: MockOptions) -> Self {
        let mock = MockDevice::new(options);
        let mut renamed = mock.properties().clone();
        renamed.name.push_str(", renamed");
        let aside = mock.make_stream();
        Self { mock, flaw, renamed, memo: Mutex::default(), aside }
    }

    fn memo(&self) -> std::sync::MutexGuard<'_, Memo> {
        self.memo.lock().expect("no panic under the lock")
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    /// Lets a refused call pass if the flaw is that.
    fn lax<T>(&self, op: DeviceOp, result: DeviceResult<T>, instead: T) -> DeviceResult<T> {
        match result {
            Err(error) if error.kind == DeviceErrorKind::Illegal && self.is(Flaw::Lax(op)) => {
                Ok(instead)
            }
            other => other,
        }
    }

    fn on_its_thread(&self, op: DeviceOp) -> DeviceResult<()> {
        let first = *self.memo().thread.get_or_insert_with(|| thread::current().id());
        if self.is(Flaw::OneThreadOnly) && first != thread::current().id() {
            return Err(failed(op));
        }
        Ok(())
    }

    /// The batch as the flaw makes it.
    fn distorted(&self, batch: &[Mapping]) -> DeviceResult<Vec<Mapping>> {
        let mut batch = batch.to_vec();
        let same_len = |batch: &[Mapping], i: usize| {
            (i + 1..batch.len()).find(|j| batch[*j].range.len == batch[i].range.len)
        };
        for i in 0..batch.len() {
            let Some(j) = same_len(&batch, i) else { continue };
            if self.is(Flaw::FirstFrameAgain) {
                batch[j].frame = batch[i].frame;
            } else if self.is(Flaw::SwappedFrames) {
                (batch[i].frame, batch[j].frame) = (batch[j].frame, batch[i].frame);
                break;
            }
        }
        let mut memo = self.memo();
        for mapping in &mut batch {
            let wanted = mapping.frame;
            let again = memo.was_mapped.contains(&wanted);
            let now = memo.mapped.iter().any(|m| m.frame == wanted);
            if (self.is(Flaw::ForgottenBytes) && again && !now)
                || (self.is(Flaw::CopiedAliases) && now)
            {
                mapping.frame = self.mock.make_frame(mapping.range.len, FrameKind::Device)?;
                memo.instead.insert(wanted, mapping.frame);
            }
        }
        Ok(batch)
    }

    /// The frames whose mappings in the ranges are gone.
    fn forget(&self, ranges: &[AddrRange]) -> Vec<FrameHandle> {
        let within = |addr: DeviceAddr| ranges.iter().any(|r| r.addr <= addr && addr < r.end());
        let mut memo = self.memo();
        memo.usable.retain(|range| !within(range.addr));
        let gone = memo.mapped.extract_if(.., |mapping| within(mapping.range.addr));
        gone.map(|mapping| mapping.frame).collect()
    }

    /// Looks at the streams that the mock makes first: the cases use fewer.
    fn any_stream_captures(&self) -> bool {
        let first = self.mock.make_stream().0;
        (first.saturating_sub(64)..first)
            .any(|id| self.mock.is_capturing(StreamId(id)).unwrap_or(false))
    }
}

impl VirtualMemoryDevice for Wrong {
    fn properties(&self) -> &Properties {
        if self.is(Flaw::ChangingProperties) && !self.memo().was_mapped.is_empty() {
            return &self.renamed;
        }
        self.mock.properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let mut info = self.mock.memory_info()?;
        if self.is(Flaw::ForgottenMemory) {
            info.free = info.free.saturating_sub(self.memo().released);
        }
        Ok(info)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        Ok(self.mock.is_capturing(stream)? && !self.is(Flaw::NeverCapturing))
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.on_its_thread(DeviceOp::Reserve)?;
        let granule = self.mock.properties().granule;
        let last = self.memo().last_region;
        let result = match (self.flaw, last) {
            (Flaw::Misaligned, _) if alignment > granule => {
                Ok(self.mock.reserve(len + alignment, alignment)?.offset(granule))
            }
            (Flaw::Overlapping, Some(last)) if last.len >= len => Ok(last.addr),
            _ => self.mock.reserve(len, alignment),
        };
        if let Ok(addr) = result {
            self.memo().last_region = Some(AddrRange { addr, len });
        }
        let result = result.map_err(|mut error| {
            if self.is(Flaw::OutOfTheWrongThing) {
                error.kind = DeviceErrorKind::OutOfMemory;
            }
            error
        });
        self.lax(DeviceOp::Reserve, result, DeviceAddr(granule))
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        self.lax(DeviceOp::FreeRegion, self.mock.free_region(base, len), ())
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        self.on_its_thread(DeviceOp::MakeFrame)?;
        let known = self.memo().by_len.get(&len).copied();
        if let (Flaw::SameHandle, Some(frame)) = (self.flaw, known) {
            return Ok(frame);
        }
        let kind = if self.is(Flaw::AnyKind) { FrameKind::Device } else { kind };
        let result = self.mock.make_frame(len, kind);
        if let Err(error) = result
            && error.kind == DeviceErrorKind::OutOfMemory
            && self.is(Flaw::LeakWhenExhausted)
        {
            self.mock.make_frame(self.mock.properties().granule, kind)?;
        }
        if let Ok(frame) = result {
            let mut memo = self.memo();
            memo.by_len.insert(len, frame);
            memo.lens.insert(frame, len);
        }
        self.lax(DeviceOp::MakeFrame, result, FrameHandle(u64::MAX))
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        let granule = self.mock.properties().granule;
        let fixed = self.mock.fixed_addr(frame);
        if self.is(Flaw::EarlyAddress) {
            return fixed.or(Some(DeviceAddr(granule)));
        }
        let mut memo = self.memo();
        memo.asked += u64::from(self.is(Flaw::WanderingAddress));
        fixed.map(|addr| addr.offset(memo.asked / 8 * granule))
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        let result = self.mock.release_frame(frame);
        if result.is_ok() {
            let mut memo = self.memo();
            memo.released += memo.lens.get(&frame).copied().unwrap_or(0);
        }
        self.lax(DeviceOp::ReleaseFrame, result, ())
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        self.on_its_thread(DeviceOp::Map)?;
        if batch.is_empty() && self.is(Flaw::EmptyMapFails) {
            return Err(failed(DeviceOp::Map));
        }
        if batch.is_empty() && self.is(Flaw::MapsNothing) {
            return Ok(Fence::REACHED);
        }
        let batch = self.distorted(batch)?;
        let after = if self.is(Flaw::IgnoresAfter) { &[] } else { after };
        let result = self.mock.map(&batch, after);
        match result {
            Ok(_) => {
                let mut memo = self.memo();
                memo.was_mapped.extend(batch.iter().map(|mapping| mapping.frame));
                memo.mapped.extend(&batch);
            }
            Err(_) if self.is(Flaw::PartialMap) => {
                for mapping in &batch {
                    if self.mock.map(&[*mapping], after).is_err() {
                        break;
                    }
                }
            }
            Err(_) => {}
        }
        let result = self.lax(DeviceOp::Map, result, Fence::REACHED);
        match self.flaw {
            Flaw::EarlyFence => result.map(|_| Fence::REACHED),
            Flaw::LateFence if result.is_ok() => {
                self.mock.launch(self.aside, 1_000, &[])?;
                self.mock.record(self.aside)
            }
            _ => result,
        }
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        if ranges.is_empty() && self.is(Flaw::EmptyUnmapFails) {
            return Err(failed(DeviceOp::Unmap));
        }
        if self.is(Flaw::CaptureForbidsUnmap) && self.any_stream_captures() {
            return Err(failed(DeviceOp::Unmap));
        }
        let after = if self.is(Flaw::IgnoresAfter) { &[] } else { after };
        let result = self.mock.unmap(ranges, after);
        match result {
            Ok(_) => {
                let gone = self.forget(ranges);
                let left = self.memo().mapped.clone();
                let aliases = left.iter().filter(|mapping| gone.contains(&mapping.frame));
                let aliases: Vec<AddrRange> = aliases.map(|mapping| mapping.range).collect();
                if self.is(Flaw::UnmapsAliases) {
                    self.mock.unmap(&aliases, after)?;
                }
            }
            Err(_) if self.is(Flaw::PartialUnmap) => {
                for range in ranges {
                    let _ = self.mock.unmap(&[*range], after);
                }
            }
            Err(_) => {}
        }
        self.lax(DeviceOp::Unmap, result, Fence::REACHED)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        let known = |peer: &&DeviceOrdinal| self.mock.peers().contains(peer);
        let peers: Vec<DeviceOrdinal> = match self.flaw {
            Flaw::ForgottenPeers => Vec::new(),
            Flaw::AnyPeer => peers.iter().filter(known).copied().collect(),
            _ => peers.to_vec(),
        };
        let peers = peers.as_slice();
        let result = self.mock.set_access(range, peers);
        let mapped = self.memo().mapped.clone();
        if self.is(Flaw::PeersOfFrames) && result.is_ok() {
            // Given to one mapping, and on the alias again to all who have the first.
            let had = |one: &&Mapping| {
                self.mock.peers().iter().any(|peer| self.mock.peer_has_access(*peer, one.range))
            };
            for one in mapped.iter().filter(had) {
                for alias in mapped.iter().filter(|other| other.frame == one.frame) {
                    self.mock.set_access(alias.range, self.mock.peers())?;
                }
            }
        }
        if result.is_ok() && self.is(Flaw::RevokedAccess) {
            let usable = std::mem::take(&mut self.memo().usable);
            for mapping in mapped.iter().filter(|m| usable.contains(&m.range)) {
                if mapping.range.addr < range.addr || mapping.range.addr >= range.end() {
                    self.mock.unmap(&[mapping.range], &[])?;
                    self.mock.map(&[*mapping], &[])?;
                }
            }
        }
        if result.is_ok() {
            self.memo().usable.push(range);
        } else if self.is(Flaw::PartialAccess) {
            for mapping in &mapped {
                self.mock.set_access(mapping.range, peers)?;
            }
        }
        self.lax(DeviceOp::SetAccess, result, ())
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        let mut memo = self.memo();
        memo.records += 1;
        if self.is(Flaw::FewEvents) && memo.records > 5_000 {
            return Err(failed(DeviceOp::Record));
        }
        if let (Flaw::EqualValues, Some(last)) = (self.flaw, memo.last_fence.remove(&stream)) {
            return Ok(last);
        }
        let result = self.mock.record(stream);
        if let Ok(fence) = result {
            memo.last_fence.insert(stream, fence);
        }
        drop(memo);
        self.lax(DeviceOp::Record, result, Fence { stream, value: 1 })
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        let result = self.mock.reached(stream);
        let mut memo = self.memo();
        memo.even = !memo.even;
        if self.is(Flaw::FallingReached) && memo.even {
            return result.map(|value| value.saturating_sub(1));
        }
        self.lax(DeviceOp::Reached, result, 0)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        match self.flaw {
            Flaw::EarlyWait => Ok(true),
            Flaw::LateWait if timeout.is_zero() => Ok(false),
            _ => self.lax(DeviceOp::Wait, self.mock.wait(fence, timeout), true),
        }
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        if self.is(Flaw::NeverWaitsForAll) {
            return Ok(());
        }
        self.lax(DeviceOp::WaitIdle, self.mock.wait_idle(), ())
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        let result = match self.flaw {
            Flaw::NoStreamWait => return Ok(()),
            Flaw::WaitsForTooMuch if fence.stream != StreamId(0) => {
                let everything = self.mock.record(fence.stream)?;
                self.mock.stream_wait(stream, everything)
            }
            _ => self.mock.stream_wait(stream, fence),
        };
        self.lax(DeviceOp::StreamWait, result, ())
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let stream = if self.is(Flaw::CopiesElsewhere) { self.aside } else { stream };
        self.lax(DeviceOp::Copy, self.mock.copy(to, from, len, stream), ())
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        let stream = if self.is(Flaw::FillsElsewhere) { self.aside } else { stream };
        self.lax(DeviceOp::Fill, self.mock.fill(to, byte, len, stream), ())
    }
}

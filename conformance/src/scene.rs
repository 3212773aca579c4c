//! What device cases have in common: usable memory that is put away at the end.

use crate::harness::Harness;
use crate::outcome::{CaseResult, Need, Stop, ensure, ensure_eq};
use std::cell::{Cell, RefCell};
use std::time::Duration;
use vmm_core::device::{
    AddrRange, Capabilities, DeviceErrorKind, DeviceResult, FrameKind, Mapping, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, Fence, FrameHandle, StreamId};

/// Longer than any work that a case does not hold up itself.
pub(crate) const LONG: Duration = Duration::from_secs(10);
/// Long enough to notice that something does not happen.
pub(crate) const SHORT: Duration = Duration::from_millis(2);

/// The device of a case, and what the case has made on it.
pub(crate) struct Scene<'a, H: Harness> {
    pub(crate) harness: &'a H,
    pub(crate) device: &'a H::Device,
    pub(crate) granule: u64,
    regions: RefCell<Vec<AddrRange>>,
    frames: RefCell<Vec<FrameHandle>>,
    mapped: RefCell<Vec<AddrRange>>,
    streams: RefCell<Vec<StreamId>>,
    refusals: Cell<usize>,
}

impl<'a, H: Harness> Scene<'a, H> {
    pub(crate) fn new(harness: &'a H) -> Self {
        let device = &**harness.device();
        Self {
            harness,
            device,
            granule: device.properties().granule,
            regions: RefCell::default(),
            frames: RefCell::default(),
            mapped: RefCell::default(),
            streams: RefCell::default(),
            refusals: Cell::new(0),
        }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.device.properties().capabilities
    }

    /// Rules the case out unless the backend has what it needs.
    pub(crate) fn need(&self, need: Need) -> CaseResult {
        let (can, abilities) = (self.capabilities(), self.harness.abilities());
        let met = match need {
            Need::Remapping => can.remapping,
            Need::NoRemapping => !can.remapping,
            Need::Aliases => can.aliases,
            Need::QueuedBinds => can.remapping && can.queued_binds,
            Need::ImmediateBinds => can.remapping && !can.queued_binds,
            Need::Capture => can.capture && abilities.capture,
            Need::Peers => can.peers && !self.harness.peers().is_empty(),
            Need::MissingKind => self.missing_kind().is_some(),
            Need::RdmaFrames => self.device.properties().granule_of(FrameKind::Rdma).is_some(),
            Need::Strict => abilities.strict,
            Need::Occupy => abilities.occupy,
            Need::Exhaustible => abilities.exhaustible,
            Need::MemoryControl => abilities.memory_control,
            Need::Leftovers => abilities.leftovers,
        };
        if met { Ok(()) } else { Err(Stop::RuledOut(need)) }
    }

    pub(crate) fn missing_kind(&self) -> Option<FrameKind> {
        [FrameKind::Exportable, FrameKind::Rdma, FrameKind::Host]
            .into_iter()
            .find(|kind| self.device.properties().granule_of(*kind).is_none())
    }

    pub(crate) fn stream(&self) -> Result<StreamId, Stop> {
        let stream = self.harness.make_stream()?;
        self.streams.borrow_mut().push(stream);
        Ok(stream)
    }

    /// Reserves a number of granules. Rules the case out where nothing can be mapped.
    pub(crate) fn region(&self, granules: u64) -> Result<AddrRange, Stop> {
        self.need(Need::Remapping)?;
        let len = granules * self.granule;
        let range = AddrRange { addr: self.device.reserve(len, self.granule)?, len };
        self.regions.borrow_mut().push(range);
        Ok(range)
    }

    /// Makes a frame of a number of granules.
    pub(crate) fn frame(&self, granules: u64) -> Result<FrameHandle, Stop> {
        let frame = self.device.make_frame(granules * self.granule, FrameKind::Device)?;
        self.frames.borrow_mut().push(frame);
        Ok(frame)
    }

    /// A part of a region, in granules.
    pub(crate) fn part(&self, region: AddrRange, at: u64, granules: u64) -> AddrRange {
        let addr = region.addr.offset(at * self.granule);
        AddrRange { addr, len: granules * self.granule }
    }

    /// Maps frames and waits until they are there.
    pub(crate) fn map(&self, batch: &[Mapping]) -> CaseResult {
        let fence = self.device.map(batch, &[])?;
        self.mapped.borrow_mut().extend(batch.iter().map(|mapping| mapping.range));
        self.wait(fence)
    }

    /// Notes mappings that the case made itself.
    pub(crate) fn note_mapped(&self, range: AddrRange) {
        self.mapped.borrow_mut().push(range);
    }

    /// Unmaps ranges and waits until that is done.
    pub(crate) fn unmap(&self, ranges: &[AddrRange]) -> CaseResult {
        let fence = self.device.unmap(ranges, &[])?;
        self.note_unmapped(ranges);
        self.wait(fence)
    }

    /// Notes that the case itself unmapped what begins in the ranges.
    pub(crate) fn note_unmapped(&self, ranges: &[AddrRange]) {
        let gone = |mapped: &AddrRange| {
            ranges.iter().any(|range| range.addr <= mapped.addr && mapped.addr < range.end())
        };
        self.mapped.borrow_mut().retain(|mapped| !gone(mapped));
    }

    /// Frees a region before the end.
    pub(crate) fn free(&self, region: AddrRange) -> CaseResult {
        self.device.free_region(region.addr, region.len)?;
        self.regions.borrow_mut().retain(|kept| *kept != region);
        Ok(())
    }

    /// Releases a frame before the end.
    pub(crate) fn release(&self, frame: FrameHandle) -> CaseResult {
        self.device.release_frame(frame)?;
        self.frames.borrow_mut().retain(|kept| *kept != frame);
        Ok(())
    }

    /// Usable memory of one new frame: in a new region, or where it lies if nothing can be mapped.
    pub(crate) fn usable(&self, granules: u64) -> Result<Mapping, Stop> {
        if !self.capabilities().remapping {
            let frame = self.frame(granules)?;
            let addr = self.device.fixed_addr(frame);
            let addr = addr.ok_or_else(|| format!("{frame:?} has no address"))?;
            let range = AddrRange { addr, len: granules * self.granule };
            return Ok(Mapping { range, frame });
        }
        let mapping = Mapping { range: self.region(granules)?, frame: self.frame(granules)? };
        self.map(&[mapping])?;
        self.device.set_access(mapping.range, &[])?;
        Ok(mapping)
    }

    pub(crate) fn wait(&self, fence: Fence) -> CaseResult {
        ensure!(self.device.wait(fence, LONG)?, "{fence:?} is not reached after {LONG:?}");
        Ok(())
    }

    /// Writes a pattern that depends on the seed, over the whole range.
    pub(crate) fn write(&self, stream: StreamId, range: AddrRange, seed: u8) -> CaseResult {
        Ok(self.harness.write(stream, range.addr, &pattern(range.len, seed))?)
    }

    /// Checks that the range holds the pattern of the seed.
    pub(crate) fn expect(&self, stream: StreamId, range: AddrRange, seed: u8) -> CaseResult {
        let found = self.harness.read(stream, range)?;
        compare(&found, &pattern(range.len, seed), range.addr)
    }

    /// Checks that the range holds one byte everywhere.
    pub(crate) fn expect_byte(&self, stream: StreamId, range: AddrRange, byte: u8) -> CaseResult {
        let found = self.harness.read(stream, range)?;
        compare(&found, &vec![byte; found.len()], range.addr)
    }

    /// Checks that a call is refused because it breaks the contract.
    pub(crate) fn refused<T: std::fmt::Debug>(
        &self,
        what: &str,
        result: DeviceResult<T>,
    ) -> CaseResult {
        match result {
            Err(error) if error.kind == DeviceErrorKind::Illegal => {
                self.refusals.set(self.refusals.get() + 1);
                Ok(())
            }
            other => Err(format!("{what}: not refused but {other:?}").into()),
        }
    }

    /// Puts everything away and checks that the device has noticed nothing that the case has not.
    pub(crate) fn close(self) -> CaseResult {
        self.harness.synchronize()?;
        let mapped = self.mapped.take();
        if !mapped.is_empty() {
            self.unmap(&mapped)?;
        }
        for frame in self.frames.take() {
            self.device.release_frame(frame)?;
        }
        for region in self.regions.take() {
            self.device.free_region(region.addr, region.len)?;
        }
        for stream in self.streams.take() {
            self.harness.destroy_stream(stream)?;
        }
        if self.harness.abilities().strict {
            ensure_eq!(self.harness.refusals(), self.refusals.get(), "refused calls");
        }
        let complaints = self.harness.complaints();
        ensure!(complaints.is_empty(), "the device complains: {complaints:?}");
        Ok(())
    }
}

fn pattern(len: u64, seed: u8) -> Vec<u8> {
    // 251 is prime, so that the pattern differs from granule to granule.
    let period: Vec<u8> = (0..251).map(|i: u8| seed.wrapping_add(i)).collect();
    let len = usize::try_from(len).expect("a pattern fits the host");
    let mut bytes = period.repeat(len.div_ceil(period.len()));
    bytes.truncate(len);
    bytes
}

fn compare(found: &[u8], expected: &[u8], addr: DeviceAddr) -> CaseResult {
    ensure_eq!(found.len(), expected.len(), "bytes read");
    if found == expected {
        return Ok(());
    }
    let wrong = found.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(i) = wrong {
        let (at, found, expected) = (addr.offset(i as u64), found[i], expected[i]);
        return Err(format!("{found:#04x} where {expected:#04x} was written, at {at}").into());
    }
    Ok(())
}

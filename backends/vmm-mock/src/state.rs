//! Everything of a mock device that changes, and the checks that need it.

use crate::address::Addresses;
use crate::graph::{Graph, Node};
use crate::memory::{Bind, Memory, Segment};
use crate::observe::{Race, Waits};
use crate::options::MockOptions;
use crate::order::Before;
use crate::stream::{BIND_STREAM, FenceState, Streams};
use crate::work::{Effect, Work};
use std::collections::HashMap;
use vmm_core::device::{AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, Mapping};
use vmm_core::units::{DeviceAddr, Fence, FrameHandle, StreamId};

/// How long a queued bind takes, in nanoseconds: one page, as measured on NVIDIA's Vulkan driver.
const BIND_NANOS: u64 = 150_000;

/// Everything that changes, under the one lock.
#[derive(Debug)]
pub(crate) struct State {
    granule: u64,
    aliases: bool,
    pub(crate) addresses: Addresses,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) work: Work,
    /// What capturing streams have captured so far.
    pub(crate) captures: HashMap<StreamId, Graph>,
    pub(crate) waits: Waits,
    pub(crate) violations: Vec<DeviceError>,
    pub(crate) races: Vec<Race>,
}

/// What a call is about, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) op: DeviceOp,
    pub(crate) addr: DeviceAddr,
    pub(crate) len: u64,
}

impl Call {
    pub(crate) fn of(op: DeviceOp) -> Self {
        Self { op, addr: DeviceAddr(0), len: 0 }
    }

    pub(crate) fn on(op: DeviceOp, range: AddrRange) -> Self {
        Self { op, addr: range.addr, len: range.len }
    }

    pub(crate) fn with_len(op: DeviceOp, len: u64) -> Self {
        Self { op, addr: DeviceAddr(0), len }
    }

    pub(crate) fn error(self, kind: DeviceErrorKind, detail: &'static str) -> DeviceError {
        DeviceError { addr: self.addr, len: self.len, ..DeviceError::new(self.op, kind, detail) }
    }
}

impl State {
    pub(crate) fn new(options: &MockOptions) -> Self {
        Self {
            granule: options.granule,
            aliases: options.capabilities.aliases,
            addresses: Addresses::new(options.address_space, options.granule),
            memory: Memory::new(options.memory),
            streams: Streams::new(options.lag),
            work: Work::default(),
            captures: HashMap::new(),
            waits: Waits::default(),
            violations: Vec::new(),
            races: Vec::new(),
        }
    }

    /// Refuses a call that broke the contract, and remembers it.
    pub(crate) fn refuse<T>(&mut self, call: Call, detail: &'static str) -> DeviceResult<T> {
        let error = call.error(DeviceErrorKind::Illegal, detail);
        self.violations.push(error);
        Err(error)
    }

    pub(crate) fn check<T>(
        &mut self,
        call: Call,
        checked: Result<T, &'static str>,
    ) -> DeviceResult<T> {
        checked.or_else(|detail| self.refuse(call, detail))
    }

    pub(crate) fn advance_to(&mut self, time: u64) {
        self.work.run_until(time, &mut self.memory);
        self.streams.set_now(time);
    }

    pub(crate) fn check_stream(&mut self, call: Call, stream: StreamId) -> DeviceResult<()> {
        if self.streams.is_destroyed(stream) {
            return self.refuse(call, "the stream was destroyed");
        }
        if stream == BIND_STREAM {
            return self.refuse(call, "the stream belongs to the device");
        }
        if self.streams.is_unknown(stream) {
            return self.refuse(call, "there is no such stream");
        }
        Ok(())
    }

    pub(crate) fn check_not_capturing(&mut self, call: Call, stream: StreamId) -> DeviceResult<()> {
        if self.streams.is_capturing(stream) {
            return self.refuse(call, "the stream is capturing");
        }
        Ok(())
    }

    pub(crate) fn check_known(&mut self, call: Call, fence: Fence) -> DeviceResult<()> {
        if matches!(self.streams.fence(fence), FenceState::Unknown) {
            return self.refuse(call, "the fence was never recorded");
        }
        Ok(())
    }

    /// What must be checked of the fences that a bind comes after.
    pub(crate) fn check_after(
        &mut self,
        call: Call,
        after: &[Fence],
        queued: bool,
    ) -> DeviceResult<()> {
        for fence in after {
            self.check_known(call, *fence)?;
            let unreached = !matches!(self.streams.fence(*fence), FenceState::Reached);
            if unreached && !queued {
                return self.refuse(call, "a fence in `after` is not reached");
            }
        }
        Ok(())
    }

    pub(crate) fn resolve(
        &mut self,
        call: Call,
        range: AddrRange,
        stream: StreamId,
    ) -> DeviceResult<Vec<Segment>> {
        let resolved = self.memory.resolve(range, stream, &self.streams);
        self.check(call, resolved)
    }

    /// Queues one piece of work that uses `uses` (and writes where it says so), unless the stream
    /// is capturing: then the work goes into the graph.
    pub(crate) fn queue(
        &mut self,
        stream: StreamId,
        duration: u64,
        uses: &[(AddrRange, Vec<Segment>, bool)],
        effects: Vec<Effect>,
    ) {
        if self.streams.is_capturing(stream) {
            let node = Node { duration, uses: uses.to_vec(), effects };
            self.captures.entry(stream).or_default().0.push(node);
            return;
        }
        let place = self.streams.queue(stream, duration);
        for (range, segments, writes) in uses {
            for segment in segments {
                let unordered =
                    self.memory.note_use(segment, *writes, stream, &place, &self.streams);
                let race = |earlier| Race { earlier, later: stream, range: *range };
                self.races.extend(unordered.into_iter().map(race));
            }
        }
        for effect in effects {
            self.work.push(place.end, effect);
        }
        // Work without a duration has happened by now.
        self.work.run_until(self.streams.now(), &mut self.memory);
    }

    pub(crate) fn whole_granules(&self, range: AddrRange) -> Result<(), &'static str> {
        if range.len == 0 || !range.len.is_multiple_of(self.granule) {
            return Err("the length is not a positive multiple of the granule");
        }
        if !range.addr.0.is_multiple_of(self.granule) {
            return Err("the address is not a multiple of the granule");
        }
        if range.addr.0.checked_add(range.len).is_none() {
            return Err("the range ends beyond 2^64");
        }
        Ok(())
    }

    pub(crate) fn map_one(&mut self, mapping: &Mapping) -> Result<(), &'static str> {
        self.whole_granules(mapping.range)?;
        if !self.addresses.contains(mapping.range) {
            return Err("the range is not reserved");
        }
        self.memory.map(mapping, self.aliases)
    }

    /// Gives a new frame of a device that cannot map its one address.
    pub(crate) fn fix(&mut self, frame: FrameHandle, len: u64) -> Result<(), &'static str> {
        let fixed = match self.addresses.reserve(len, self.granule) {
            Some(addr) => self.memory.fix(frame, addr),
            None => Err("no addresses are left"),
        };
        if fixed.is_err() {
            self.memory.release(frame, self.streams.now())?;
        }
        fixed
    }

    /// Takes a frame's one address away before it is released, if it has one, and waits for all work
    /// of the device, as `cuMemFree` does.
    pub(crate) fn unfix(&mut self, frame: FrameHandle, len: u64) -> Result<(), &'static str> {
        let Some(addr) = self.memory.fixed(frame) else { return Ok(()) };
        let now = self.streams.now();
        if self.memory.is_used(addr, now, &Before::default()) {
            return Err("queued work still uses the frame");
        }
        let end = self.wait_for_all();
        self.memory.unmap(addr, 0);
        self.addresses.release(AddrRange { addr, len }, end)
    }

    /// Lets the host wait for all work that is queued; says when that is done.
    pub(crate) fn wait_for_all(&mut self) -> u64 {
        let (now, end) = (self.streams.now(), self.streams.end_of_all());
        if end > now {
            self.waits.count += 1;
            self.waits.nanos += end - now;
            self.advance_to(end);
        }
        end
    }

    /// The mappings that a batch of ranges covers, each once, if they may be unmapped by a bind that
    /// comes after `before`.
    pub(crate) fn covered(
        &self,
        ranges: &[AddrRange],
        before: &Before,
    ) -> Result<Vec<(DeviceAddr, u64)>, (AddrRange, &'static str)> {
        let mut all = Vec::new();
        for range in ranges {
            let found = self.whole_granules(*range).and_then(|()| self.memory.whole(*range));
            all.extend(found.map_err(|detail| (*range, detail))?);
        }
        let mut starts: Vec<_> = all.iter().map(|(addr, _)| *addr).collect();
        starts.sort_unstable();
        if let Some(twice) = starts.windows(2).find(|pair| pair[0] == pair[1]) {
            let range = AddrRange { addr: twice[0], len: 0 };
            return Err((range, "ranges of the batch overlap"));
        }
        let now = self.streams.now();
        let used = |(addr, _): &&(DeviceAddr, u64)| self.memory.is_used(*addr, now, before);
        if let Some((addr, len)) = all.iter().find(used) {
            let range = AddrRange { addr: *addr, len: *len };
            return Err((range, "queued work still uses the range"));
        }
        Ok(all)
    }

    /// Queues a bind behind `after`.
    pub(crate) fn queue_bind(&mut self, after: &[Fence]) -> (Bind, Fence) {
        for fence in after {
            self.streams.put_behind(BIND_STREAM, *fence);
        }
        let place = self.streams.queue(BIND_STREAM, BIND_NANOS);
        (Bind { position: place.position, end: place.end }, self.streams.record(BIND_STREAM))
    }

    /// All work that is done once the fences are reached.
    pub(crate) fn before_fences(&self, after: &[Fence]) -> Before {
        let mut all = Before::default();
        for fence in after {
            if let FenceState::Unreached { before, .. } = self.streams.fence(*fence) {
                all.merge(before);
            }
        }
        all
    }
}

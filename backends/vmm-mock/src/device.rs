//! The device: every call is checked, carried out under one lock, and put on the account.

use crate::cost::{Account, CostModel};
use crate::options::MockOptions;
use crate::state::{Call, State};
use crate::stream::FenceState;
use crate::work::Effect;
use parking_lot::Mutex;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping, MemoryInfo, Properties,
    VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};

/// A strict device without hardware. See the crate's documentation.
#[derive(Debug)]
pub struct MockDevice {
    properties: Properties,
    pub(crate) peers: Vec<DeviceOrdinal>,
    cost: CostModel,
    pub(crate) account: Account,
    pub(crate) state: Mutex<State>,
}

impl MockDevice {
    /// A device as described.
    ///
    /// # Panics
    /// Unless the granules are powers of two, and for peers without [`Capabilities::peers`].
    ///
    /// [`Capabilities::peers`]: vmm_core::device::Capabilities::peers
    #[must_use]
    pub fn new(options: MockOptions) -> Self {
        let others = options.other_granules.iter().map(|(_, granule)| *granule);
        for granule in others.chain([options.granule]) {
            assert!(granule.is_power_of_two(), "a granule of {granule} bytes");
        }
        assert!(
            options.capabilities.peers || options.peers.is_empty(),
            "peers of a device without that capability"
        );
        let state = Mutex::new(State::new(&options));
        Self {
            peers: options.peers,
            properties: Properties {
                name: options.name,
                granule: options.granule,
                other_granules: options.other_granules,
                max_reservation: options.max_reservation,
                capabilities: options.capabilities,
            },
            cost: options.cost,
            account: Account::default(),
            state,
        }
    }

    fn charge(&self, op: DeviceOp, nanos: u64) {
        self.account.charge(op, nanos);
    }

    fn charge_slow(&self, op: DeviceOp, nanos: u64) {
        self.account.charge(op, self.cost.busy(nanos));
    }

    fn queued_binds(&self) -> bool {
        self.properties.capabilities.queued_binds
    }

    pub(crate) fn can_map(&self) -> bool {
        self.properties.capabilities.remapping
    }

    fn needs_remapping(&self, call: Call) -> DeviceResult<()> {
        if self.can_map() {
            return Ok(());
        }
        Err(call.error(DeviceErrorKind::NotSupported, "this device cannot map"))
    }
}

impl VirtualMemoryDevice for MockDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.account.call(DeviceOp::MemoryInfo);
        self.charge(DeviceOp::MemoryInfo, self.cost.memory_info);
        Ok(self.state.lock().memory.info())
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        let call = Call::of(DeviceOp::IsCapturing);
        self.account.call(call.op);
        self.charge(call.op, self.cost.query);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        Ok(state.streams.is_capturing(stream))
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        let call = Call::with_len(DeviceOp::Reserve, len);
        self.account.call(call.op);
        self.needs_remapping(call)?;
        let mut state = self.state.lock();
        let granule = self.properties.granule;
        if len == 0 || !len.is_multiple_of(granule) {
            return state.refuse(call, "the length is not a positive multiple of the granule");
        }
        if !alignment.is_power_of_two() || !alignment.is_multiple_of(granule) {
            return state.refuse(call, "the alignment is not a power of two of whole granules");
        }
        self.charge(call.op, self.cost.reserve);
        let none = call.error(DeviceErrorKind::OutOfAddresses, "");
        if len > self.properties.max_reservation {
            return Err(none);
        }
        state.addresses.reserve(len, alignment).ok_or(none)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        let range = AddrRange { addr: base, len };
        let call = Call::on(DeviceOp::FreeRegion, range);
        self.account.call(call.op);
        self.needs_remapping(call)?;
        let mut state = self.state.lock();
        let whole = state.whole_granules(range);
        state.check(call, whole)?;
        if state.memory.touches(range) {
            return state.refuse(call, "something is mapped in the region");
        }
        let now = state.streams.now();
        let released = state.addresses.release(range, now);
        state.check(call, released)?;
        self.charge(call.op, self.cost.reserve);
        Ok(())
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        let call = Call::with_len(DeviceOp::MakeFrame, len);
        self.account.call(call.op);
        let Some(granule) = self.properties.granule_of(kind) else {
            return Err(call.error(DeviceErrorKind::NotSupported, "no memory of this kind"));
        };
        let mut state = self.state.lock();
        if len == 0 || !len.is_multiple_of(granule) {
            return state.refuse(call, "the length is not a positive multiple of the granule");
        }
        self.charge_slow(call.op, self.cost.make_frame.at(len));
        let none = call.error(DeviceErrorKind::OutOfMemory, "");
        let frame = state.memory.make(len, kind).ok_or(none)?;
        if !self.can_map() {
            let fixed = state.fix(frame, len);
            fixed.map_err(|detail| call.error(DeviceErrorKind::OutOfMemory, detail))?;
        }
        Ok(frame)
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        self.state.lock().memory.fixed(frame)
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let len = state.memory.frame_len(frame).unwrap_or(0);
        let call = Call::with_len(DeviceOp::ReleaseFrame, len);
        self.account.call(call.op);
        let unfixed = state.unfix(frame, len);
        state.check(call, unfixed)?;
        let now = state.streams.now();
        let released = state.memory.release(frame, now);
        state.check(call, released)?;
        self.charge_slow(call.op, self.cost.release_frame.at(len));
        Ok(())
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        let whole = batch.first().map_or(AddrRange { addr: DeviceAddr(0), len: 0 }, |m| m.range);
        let call = Call::on(DeviceOp::Map, whole);
        self.account.call(call.op);
        self.needs_remapping(call)?;
        let mut state = self.state.lock();
        state.check_after(call, after, self.queued_binds())?;
        if batch.is_empty() {
            return Ok(Fence::REACHED);
        }
        for (i, mapping) in batch.iter().enumerate() {
            if let Err(detail) = state.map_one(mapping) {
                for mapped in &batch[..i] {
                    state.memory.unmap(mapped.range.addr, 0);
                }
                return state.refuse(Call::on(DeviceOp::Map, mapping.range), detail);
            }
        }
        let cost = batch.iter().map(|m| self.cost.map.at(m.range.len)).sum();
        self.charge_slow(call.op, cost);
        if !self.queued_binds() {
            return Ok(Fence::REACHED);
        }
        let (bind, fence) = state.queue_bind(after);
        for mapping in batch {
            state.memory.set_bind(mapping.range.addr, bind);
        }
        Ok(fence)
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        let whole = ranges.first().copied().unwrap_or(AddrRange { addr: DeviceAddr(0), len: 0 });
        let call = Call::on(DeviceOp::Unmap, whole);
        self.account.call(call.op);
        self.needs_remapping(call)?;
        let mut state = self.state.lock();
        state.check_after(call, after, self.queued_binds())?;
        let before = state.before_fences(after);
        let covered = match state.covered(ranges, &before) {
            Ok(covered) => covered,
            Err((range, detail)) => {
                return state.refuse(Call::on(DeviceOp::Unmap, range), detail);
            }
        };
        if covered.is_empty() {
            return Ok(Fence::REACHED);
        }
        let cost = covered.iter().map(|(_, len)| self.cost.unmap.at(*len)).sum();
        self.charge_slow(call.op, cost);
        let (done, fence) = if self.queued_binds() {
            let (bind, fence) = state.queue_bind(after);
            (bind.end, fence)
        } else {
            (state.streams.now(), Fence::REACHED)
        };
        for (addr, _) in covered {
            state.memory.unmap(addr, done);
            state.addresses.unbinds_until(addr, done);
        }
        Ok(fence)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        let call = Call::on(DeviceOp::SetAccess, range);
        self.account.call(call.op);
        self.needs_remapping(call)?;
        if peers.iter().any(|peer| !self.peers.contains(peer)) {
            return Err(call.error(DeviceErrorKind::NotSupported, "no such peer"));
        }
        let mut state = self.state.lock();
        let whole = state.whole_granules(range).and_then(|()| state.memory.whole(range));
        let covered = state.check(call, whole)?;
        let mut cost = 0;
        for (addr, len) in covered {
            let new = state.memory.grant_access(addr, peers);
            cost += self.cost.set_access.at(len) + new * self.cost.peer_access.at(len);
        }
        self.charge_slow(call.op, cost);
        Ok(())
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        let call = Call::of(DeviceOp::Record);
        self.account.call(call.op);
        self.charge(call.op, self.cost.record);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        state.check_not_capturing(call, stream)?;
        Ok(state.streams.record(stream))
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        let call = Call::of(DeviceOp::Reached);
        self.account.call(call.op);
        self.charge(call.op, self.cost.query);
        let mut state = self.state.lock();
        state.check_not_capturing(call, stream)?;
        Ok(state.streams.reached(stream))
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        let call = Call::of(DeviceOp::Wait);
        self.account.call(call.op);
        self.charge(call.op, self.cost.query);
        let mut state = self.state.lock();
        state.check_known(call, fence)?;
        state.check_not_capturing(call, fence.stream)?;
        let FenceState::Unreached { completion, .. } = state.streams.fence(fence) else {
            return Ok(true);
        };
        let now = state.streams.now();
        let patience = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = completion.min(now.saturating_add(patience));
        state.waits.count += u64::from(patience > 0);
        state.waits.nanos += until - now;
        state.advance_to(until);
        Ok(until == completion)
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        let call = Call::of(DeviceOp::WaitIdle);
        self.account.call(call.op);
        self.charge(call.op, self.cost.query);
        let mut state = self.state.lock();
        if state.streams.is_any_capturing() {
            return state.refuse(call, "a stream is capturing");
        }
        state.wait_for_all();
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        let call = Call::of(DeviceOp::StreamWait);
        self.account.call(call.op);
        self.charge(call.op, self.cost.stream_wait);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        state.check_known(call, fence)?;
        state.check_not_capturing(call, stream)?;
        state.check_not_capturing(call, fence.stream)?;
        state.streams.put_behind(stream, fence);
        Ok(())
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let target = AddrRange { addr: to, len };
        let source = AddrRange { addr: from, len };
        let call = Call::on(DeviceOp::Copy, target);
        self.account.call(call.op);
        self.charge(call.op, self.cost.launch);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let reads = state.resolve(Call::on(DeviceOp::Copy, source), source, stream)?;
        let writes = state.resolve(call, target, stream)?;
        if writes.iter().any(|write| reads.iter().any(|read| read.shares_bytes_with(write))) {
            return state.refuse(call, "source and target of the copy overlap");
        }
        let effect = Effect::Copy { to: writes.clone(), from: reads.clone() };
        let uses = [(source, reads, false), (target, writes, true)];
        state.queue(stream, self.cost.copy.at(len), &uses, vec![effect]);
        Ok(())
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        let target = AddrRange { addr: to, len };
        let call = Call::on(DeviceOp::Fill, target);
        self.account.call(call.op);
        self.charge(call.op, self.cost.launch);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        if len == 0 {
            return Ok(());
        }
        let writes = state.resolve(call, target, stream)?;
        let effect = Effect::Fill(writes.clone(), byte);
        state.queue(stream, self.cost.copy.at(len), &[(target, writes, true)], vec![effect]);
        Ok(())
    }
}

//! A device whose chosen calls fail.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping,
    MemoryInfo, Properties, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};

/// What can be known of a call before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultyCall {
    /// Which call.
    pub op: DeviceOp,
    /// The kind of the frame: of the one to be made or released, of the first one of a batch, or of
    /// the first one in a range.
    pub kind: Option<FrameKind>,
    /// The address of the call, or of the first range of its batch, or zero.
    pub addr: DeviceAddr,
    /// The length of the call, or of its whole batch, in bytes, or zero.
    pub len: u64,
    /// How many frames a `map` or ranges an `unmap` has in its batch; 1 for any other call.
    pub units: u64,
}

type Hook = Box<dyn FnOnce() + Send>;
type Predicate = Box<dyn Fn(&FaultyCall) -> Option<DeviceErrorKind> + Send>;

enum Rule {
    /// Fails with `kind` once `left` more units have come, and from then on if `for_good`.
    Counted {
        op: DeviceOp,
        left: u64,
        for_good: bool,
        kind: DeviceErrorKind,
    },
    When(Predicate),
}

impl Rule {
    fn fault(&mut self, call: &FaultyCall) -> Option<DeviceErrorKind> {
        match self {
            Self::When(predicate) => predicate(call),
            Self::Counted { op, left, for_good, kind } => {
                if *op != call.op {
                    return None;
                }
                let due = (1..=call.units).contains(left);
                *left = match due {
                    true if *for_good => 1,
                    true => 0,
                    false => left.saturating_sub(call.units),
                };
                due.then_some(*kind)
            }
        }
    }

    /// A rule that counted down to its only fault.
    fn is_spent(&self) -> bool {
        matches!(self, Self::Counted { left: 0, .. })
    }
}

#[derive(Default)]
struct Plan {
    rules: Vec<Rule>,
    hook: Option<(DeviceOp, Hook)>,
    calls: [u64; DeviceOp::ALL.len()],
    units: [u64; DeviceOp::ALL.len()],
    faults: u64,
    log: Option<Vec<FaultyCall>>,
    frames: HashMap<FrameHandle, (FrameKind, u64)>,
    /// Kinds of mapped frames, by address.
    mapped: BTreeMap<u64, FrameKind>,
}

/// A device around another that makes chosen calls fail before they reach it.
///
/// A call that fails changes nothing on the device. In a batch each frame counts: if the one that is
/// to fail is in it, the whole batch fails, as the interface demands. An empty batch counts nothing.
pub struct Faulty<D> {
    device: Arc<D>,
    plan: Mutex<Plan>,
}

impl<D> fmt::Debug for Faulty<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan.lock();
        f.debug_struct("Faulty")
            .field("rules", &plan.rules.len())
            .field("faults", &plan.faults)
            .finish_non_exhaustive()
    }
}

impl<D> Faulty<D> {
    /// A device that has no faults yet, around one that may be used without faults elsewhere.
    pub fn new(device: impl Into<Arc<D>>) -> Self {
        Self { device: device.into(), plan: Mutex::new(Plan::default()) }
    }

    /// The device inside, for calls that cannot fail.
    pub fn inner(&self) -> &Arc<D> {
        &self.device
    }

    /// The `k`-th call of `op` from now fails, once.
    ///
    /// # Panics
    /// If `k` is zero: the first call is number 1.
    pub fn fail(&self, op: DeviceOp, k: u64, kind: DeviceErrorKind) {
        self.add_counted(op, k, kind, false);
    }

    /// The `k`-th call of `op` from now fails, and so does each later one.
    ///
    /// # Panics
    /// If `k` is zero: the first call is number 1.
    pub fn fail_from(&self, op: DeviceOp, k: u64, kind: DeviceErrorKind) {
        self.add_counted(op, k, kind, true);
    }

    /// Every call for which `predicate` names an error fails with it. The predicate is called under
    /// a lock and must not call the device.
    pub fn fail_when(
        &self,
        predicate: impl Fn(&FaultyCall) -> Option<DeviceErrorKind> + Send + 'static,
    ) {
        self.plan.lock().rules.push(Rule::When(Box::new(predicate)));
    }

    /// Runs `hook` once, before the next call of `op` and without any lock: what another thread might
    /// do at that moment. It may call the device.
    pub fn once_before(&self, op: DeviceOp, hook: impl FnOnce() + Send + 'static) {
        self.plan.lock().hook = Some((op, Box::new(hook)));
    }

    /// No more faults. Counters stay.
    pub fn clear(&self) {
        self.plan.lock().rules.clear();
    }

    /// How often `op` was called, failures included.
    pub fn calls(&self, op: DeviceOp) -> u64 {
        self.plan.lock().calls[op as usize]
    }

    /// How many units were passed to `op`: frames for `map`, ranges for `unmap`, else calls. This is
    /// what [`Faulty::fail`] counts.
    pub fn units(&self, op: DeviceOp) -> u64 {
        self.plan.lock().units[op as usize]
    }

    /// Bytes of the frames that were made through here and are not released.
    pub fn frame_bytes(&self) -> u64 {
        self.plan.lock().frames.values().map(|(_, len)| len).sum()
    }

    /// Forgets those frames: for tests that pretend that the driver was lost with all it had.
    pub fn forget_frames(&self) {
        self.plan.lock().frames.clear();
    }

    /// How many calls were made to fail.
    pub fn faults(&self) -> u64 {
        self.plan.lock().faults
    }

    /// Starts a log of calls, empty.
    pub fn start_log(&self) {
        self.plan.lock().log = Some(Vec::new());
    }

    /// Ends the log and returns it; empty if none was started.
    pub fn take_log(&self) -> Vec<FaultyCall> {
        self.plan.lock().log.take().unwrap_or_default()
    }

    fn add_counted(&self, op: DeviceOp, k: u64, kind: DeviceErrorKind, for_good: bool) {
        assert!(k > 0, "the first call is number 1");
        self.plan.lock().rules.push(Rule::Counted { op, left: k, for_good, kind });
    }

    fn pass(&self, call: FaultyCall) -> DeviceResult<()> {
        let FaultyCall { op, addr, len, .. } = call;
        let hook = self.plan.lock().hook.take_if(|(before, _)| *before == op);
        if let Some((_, hook)) = hook {
            hook();
        }
        let mut plan = self.plan.lock();
        plan.calls[op as usize] += 1;
        plan.units[op as usize] += call.units;
        if let Some(log) = &mut plan.log {
            log.push(call);
        }
        // Every rule sees every call, or its count would depend on the others.
        let mut fault = None;
        for rule in &mut plan.rules {
            fault = rule.fault(&call).or(fault);
        }
        let Some(kind) = fault else { return Ok(()) };
        plan.rules.retain(|rule| !rule.is_spent());
        plan.faults += 1;
        Err(DeviceError { op, kind, addr, len, code: 0, detail: "injected fault" })
    }

    fn pass_op(&self, op: DeviceOp) -> DeviceResult<()> {
        self.pass_range(op, AddrRange { addr: DeviceAddr(0), len: 0 })
    }

    fn pass_range(&self, op: DeviceOp, range: AddrRange) -> DeviceResult<()> {
        let AddrRange { addr, len } = range;
        self.pass(FaultyCall { op, kind: self.kind_in(range), addr, len, units: 1 })
    }

    /// The kind of the first frame in a range, where anybody asks.
    fn kind_in(&self, range: AddrRange) -> Option<FrameKind> {
        let plan = self.plan.lock();
        if plan.rules.is_empty() && plan.log.is_none() {
            return None;
        }
        let end = range.addr.0.saturating_add(range.len);
        plan.mapped.range(range.addr.0..end).next().map(|(_, kind)| *kind)
    }
}

impl<D: VirtualMemoryDevice> VirtualMemoryDevice for Faulty<D> {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.pass_op(DeviceOp::MemoryInfo)?;
        self.device.memory_info()
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.pass_op(DeviceOp::IsCapturing)?;
        self.device.is_capturing(stream)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.pass_range(DeviceOp::Reserve, AddrRange { addr: DeviceAddr(0), len })?;
        self.device.reserve(len, alignment)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        self.pass_range(DeviceOp::FreeRegion, AddrRange { addr: base, len })?;
        self.device.free_region(base, len)
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        let (op, addr) = (DeviceOp::MakeFrame, DeviceAddr(0));
        self.pass(FaultyCall { op, kind: Some(kind), addr, len, units: 1 })?;
        let frame = self.device.make_frame(len, kind)?;
        self.plan.lock().frames.insert(frame, (kind, len));
        Ok(frame)
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        self.device.fixed_addr(frame)
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        let kind = self.plan.lock().frames.get(&frame).map(|(kind, _)| *kind);
        let (op, addr) = (DeviceOp::ReleaseFrame, DeviceAddr(0));
        self.pass(FaultyCall { op, kind, addr, len: 0, units: 1 })?;
        // Before the call: from then on another thread may be given the same handle.
        let noted = self.plan.lock().frames.remove(&frame);
        self.device.release_frame(frame).inspect_err(|_| {
            self.plan.lock().frames.extend(noted.map(|noted| (frame, noted)));
        })
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        let first = batch.first();
        let kind = first.and_then(|m| self.plan.lock().frames.get(&m.frame).map(|(kind, _)| *kind));
        self.pass(FaultyCall {
            op: DeviceOp::Map,
            kind,
            addr: first.map_or(DeviceAddr(0), |m| m.range.addr),
            len: batch.iter().map(|m| m.range.len).sum(),
            units: batch.len() as u64,
        })?;
        let fence = self.device.map(batch, after)?;
        let mut plan = self.plan.lock();
        for mapping in batch {
            let kind = plan.frames.get(&mapping.frame).map(|(kind, _)| *kind).unwrap_or_default();
            plan.mapped.insert(mapping.range.addr.0, kind);
        }
        Ok(fence)
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        let range = ranges.first().copied().unwrap_or(AddrRange { addr: DeviceAddr(0), len: 0 });
        self.pass(FaultyCall {
            op: DeviceOp::Unmap,
            kind: self.kind_in(range),
            addr: range.addr,
            len: ranges.iter().map(|range| range.len).sum(),
            units: ranges.len() as u64,
        })?;
        let fence = self.device.unmap(ranges, after)?;
        let mut plan = self.plan.lock();
        for range in ranges {
            let within = plan.mapped.range(range.addr.0..range.end().0);
            let gone: Vec<u64> = within.map(|(addr, _)| *addr).collect();
            for addr in gone {
                plan.mapped.remove(&addr);
            }
        }
        Ok(fence)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        self.pass_range(DeviceOp::SetAccess, range)?;
        self.device.set_access(range, peers)
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        self.pass_op(DeviceOp::Record)?;
        self.device.record(stream)
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        self.pass_op(DeviceOp::Reached)?;
        self.device.reached(stream)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        self.pass_op(DeviceOp::Wait)?;
        self.device.wait(fence, timeout)
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        self.pass_op(DeviceOp::WaitIdle)?;
        self.device.wait_idle()
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        self.pass_op(DeviceOp::StreamWait)?;
        self.device.stream_wait(stream, fence)
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.pass_range(DeviceOp::Copy, AddrRange { addr: to, len })?;
        self.device.copy(to, from, len, stream)
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.pass_range(DeviceOp::Fill, AddrRange { addr: to, len })?;
        self.device.fill(to, byte, len, stream)
    }
}

//! What only a mock offers: its clock, its work, its captures, and a view of everything.

use crate::cost::CostSnapshot;
use crate::device::MockDevice;
use crate::graph::{Graph, Node};
use crate::observe::{Leftovers, Mismatch, Race, Waits};
use crate::state::Call;
use crate::work::{Access, AccessKind, Effect, ReadId};
use std::sync::Arc;
use vmm_core::device::{AddrRange, DeviceError, DeviceOp, DeviceResult};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, StreamId};

/// The clock.
impl MockDevice {
    /// The logical time, in nanoseconds from the start of the device.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.state.lock().streams.now()
    }

    /// Lets `nanos` nanoseconds pass.
    pub fn advance(&self, nanos: u64) {
        let mut state = self.state.lock();
        let time = state.streams.now().saturating_add(nanos);
        state.advance_to(time);
    }

    /// Lets time pass until `time`, in nanoseconds from the start. The clock never goes back.
    pub fn advance_to(&self, time: u64) {
        self.state.lock().advance_to(time);
    }

    /// Lets time pass until all queued work is done.
    pub fn finish_all(&self) {
        let mut state = self.state.lock();
        let end = state.streams.end_of_all();
        state.advance_to(end);
    }

    /// Lets time pass until the work of one stream is done.
    pub fn finish(&self, stream: StreamId) {
        let mut state = self.state.lock();
        let end = state.streams.end_of(stream);
        state.advance_to(end);
    }

    /// From now on no recorded fence is reached sooner than `nanos` nanoseconds after its recording,
    /// as on a machine whose host runs ahead of the device.
    pub fn set_lag(&self, nanos: u64) {
        self.state.lock().streams.set_lag(nanos);
    }
}

/// Streams and their work.
///
/// A stream comes to be when it is first named; [`MockDevice::make_stream`] gives names that nobody
/// uses yet. Errors of work name the operation [`DeviceOp::Fill`] for writing and
/// [`DeviceOp::Copy`] for reading, since the interface of devices has no launches.
impl MockDevice {
    /// A new stream. From the first one on the device refuses streams that it has never seen, which
    /// crash a driver; without any, all numbers are streams.
    pub fn make_stream(&self) -> StreamId {
        self.state.lock().streams.make()
    }

    /// Destroys a stream. What is queued on it still runs, and its fences can still be asked for;
    /// whoever wants to queue or record on it later is refused.
    pub fn destroy_stream(&self, stream: StreamId) {
        self.state.lock().streams.destroy(stream);
    }

    /// Queues work of `duration` nanoseconds that uses the given ranges; what it writes and reads
    /// happens at its end. On a capturing stream it is checked and does not run.
    ///
    /// # Errors
    /// `Illegal` if a range is not usable by work on this stream.
    pub fn launch(&self, stream: StreamId, duration: u64, uses: &[Access]) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let mut resolved = Vec::with_capacity(uses.len());
        let mut effects = Vec::new();
        for Access { range, kind } in uses {
            let writes = matches!(kind, AccessKind::Write(_));
            let op = if writes { DeviceOp::Fill } else { DeviceOp::Copy };
            let call = Call::on(op, *range);
            state.check_stream(call, stream)?;
            let segments = state.resolve(call, *range, stream)?;
            match *kind {
                AccessKind::Read => {}
                AccessKind::Write(byte) => effects.push(Effect::Fill(segments.clone(), byte)),
                AccessKind::Check(expected) => effects.push(Effect::Check {
                    stream,
                    range: *range,
                    segments: segments.clone(),
                    expected,
                }),
            }
            resolved.push((*range, segments, writes));
        }
        state.queue(stream, duration, &resolved, effects);
        Ok(())
    }

    /// Queues work that expects `byte` all over the range; see [`MockDevice::mismatches`].
    ///
    /// # Errors
    /// As [`MockDevice::launch`].
    pub fn launch_check(
        &self,
        stream: StreamId,
        duration: u64,
        range: AddrRange,
        byte: u8,
    ) -> DeviceResult<()> {
        self.launch(stream, duration, &[Access::check(range, byte)])
    }

    /// Queues work that writes `data` at `to`.
    ///
    /// # Errors
    /// As [`MockDevice::launch`].
    pub fn launch_write(
        &self,
        stream: StreamId,
        duration: u64,
        to: DeviceAddr,
        data: &[u8],
    ) -> DeviceResult<()> {
        let range = AddrRange { addr: to, len: data.len() as u64 };
        let call = Call::on(DeviceOp::Fill, range);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        let segments = state.resolve(call, range, stream)?;
        let effect = Effect::Write(segments.clone(), Arc::from(data));
        state.queue(stream, duration, &[(range, segments, true)], vec![effect]);
        Ok(())
    }

    /// Queues work that reads the range; [`MockDevice::take_read`] gives what it read.
    ///
    /// # Errors
    /// As [`MockDevice::launch`].
    pub fn launch_read(
        &self,
        stream: StreamId,
        duration: u64,
        range: AddrRange,
    ) -> DeviceResult<ReadId> {
        let call = Call::on(DeviceOp::Copy, range);
        let mut state = self.state.lock();
        state.check_stream(call, stream)?;
        let segments = state.resolve(call, range, stream)?;
        let id = state.work.new_read();
        let effect = Effect::Read(segments.clone(), id);
        state.queue(stream, duration, &[(range, segments, false)], vec![effect]);
        Ok(id)
    }

    /// As [`MockDevice::launch`], for work of another device that uses this device's memory. The
    /// stream stands for one of that device.
    ///
    /// # Errors
    /// As [`MockDevice::launch`], and `Illegal` if the peer was not given access to a range: on a card
    /// such work faults.
    pub fn launch_as_peer(
        &self,
        peer: DeviceOrdinal,
        stream: StreamId,
        duration: u64,
        uses: &[Access],
    ) -> DeviceResult<()> {
        for used in uses {
            self.check_peer(peer, used.range)?;
        }
        self.launch(stream, duration, uses)
    }

    /// As [`MockDevice::launch_read`], for work of another device.
    ///
    /// # Errors
    /// As [`MockDevice::launch_as_peer`].
    pub fn launch_read_as_peer(
        &self,
        peer: DeviceOrdinal,
        stream: StreamId,
        duration: u64,
        range: AddrRange,
    ) -> DeviceResult<ReadId> {
        self.check_peer(peer, range)?;
        self.launch_read(stream, duration, range)
    }

    fn check_peer(&self, peer: DeviceOrdinal, range: AddrRange) -> DeviceResult<()> {
        let mut state = self.state.lock();
        if state.memory.peer_has_access(range, peer) {
            return Ok(());
        }
        state.refuse(Call::on(DeviceOp::Copy, range), "the range is used by a peer without access")
    }

    /// What a read has found, once; `None` while its work has not ended.
    #[must_use]
    pub fn take_read(&self, id: ReadId) -> Option<Vec<u8>> {
        self.state.lock().work.take_read(id)
    }

    /// Lets a stream begin to capture a graph.
    ///
    /// # Panics
    /// If it is capturing already, or the device cannot capture.
    pub fn begin_capture(&self, stream: StreamId) {
        use vmm_core::device::VirtualMemoryDevice;
        assert!(self.properties().capabilities.capture, "this device cannot capture");
        let begun = self.state.lock().streams.set_capturing(stream, true);
        assert!(begun, "{stream:?} is capturing already");
    }

    /// Ends a capture. The graph can be launched with [`MockDevice::launch_graph`].
    ///
    /// # Panics
    /// If the stream is not capturing.
    pub fn end_capture(&self, stream: StreamId) -> Graph {
        let mut state = self.state.lock();
        let ended = state.streams.set_capturing(stream, false);
        assert!(ended, "{stream:?} is not capturing");
        state.captures.remove(&stream).unwrap_or_default()
    }

    /// Queues all work of a graph, in its order.
    ///
    /// # Errors
    /// `Illegal` if the memory that the graph was captured with is not usable any more where it was: on
    /// a card it would fault, or meet the bytes of others.
    pub fn launch_graph(&self, graph: &Graph, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.state.lock();
        for Node { duration, uses, effects } in &graph.0 {
            for (range, captured, writes) in uses {
                let op = if *writes { DeviceOp::Fill } else { DeviceOp::Copy };
                let call = Call::on(op, *range);
                state.check_stream(call, stream)?;
                if state.resolve(call, *range, stream)? != *captured {
                    return state.refuse(call, "the memory of a graph has moved");
                }
            }
            state.queue(stream, *duration, uses, effects.clone());
        }
        Ok(())
    }
}

/// What others do to the device, and what can be seen of it.
impl MockDevice {
    /// From now on somebody else uses `bytes` bytes of the card.
    pub fn other_use(&self, bytes: u64) {
        self.state.lock().memory.set_other(bytes);
    }

    /// Other devices that can be given access.
    #[must_use]
    pub fn peers(&self) -> &[DeviceOrdinal] {
        &self.peers
    }

    /// Whether a peer was given access to every byte of the range.
    #[must_use]
    pub fn peer_has_access(&self, peer: DeviceOrdinal, range: AddrRange) -> bool {
        self.state.lock().memory.peer_has_access(range, peer)
    }

    /// Every call that was refused because it broke the contract, in order.
    #[must_use]
    pub fn violations(&self) -> Vec<DeviceError> {
        self.state.lock().violations.clone()
    }

    /// Every race of queued work, in the order in which it was queued.
    #[must_use]
    pub fn races(&self) -> Vec<Race> {
        self.state.lock().races.clone()
    }

    /// What checking work found so far.
    #[must_use]
    pub fn mismatches(&self) -> Vec<Mismatch> {
        self.state.lock().work.mismatches.clone()
    }

    /// How often and how long the host waited.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.state.lock().waits
    }

    /// What lives on the device.
    #[must_use]
    pub fn leftovers(&self) -> Leftovers {
        let state = self.state.lock();
        // The one address of a frame is neither a region nor a mapping.
        let fixed = !self.can_map();
        Leftovers {
            regions: if fixed { Vec::new() } else { state.addresses.iter().collect() },
            frames: state.memory.list_frames(),
            mappings: if fixed { Vec::new() } else { state.memory.list_mappings() },
        }
    }

    /// Calls and their cost by operation. Takes no lock.
    #[must_use]
    pub fn cost(&self) -> CostSnapshot {
        self.account.snapshot()
    }

    /// The cost of all calls so far, in nanoseconds of the calling threads. Takes no lock.
    #[must_use]
    pub fn total_cost_ns(&self) -> u64 {
        self.account.total_nanos()
    }

    /// The number of all calls so far. Takes no lock.
    #[must_use]
    pub fn total_calls(&self) -> u64 {
        self.account.total_calls()
    }
}

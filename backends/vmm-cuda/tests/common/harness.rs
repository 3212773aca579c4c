//! The harness of the conformance suite on a card.

use super::{CaptureMode, Cards, begin_capture, end_capture, raw};
use cudarc::driver::sys;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use vmm_conformance::harness::{Abilities, Harness, HarnessResult, Use};
use vmm_core::device::{AddrRange, DeviceError, DeviceErrorKind, FrameKind, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, FrameHandle, StreamId};
use vmm_cuda::kernels::{Contents, Gate, nap};
use vmm_cuda::{CudaDevice, CudaOptions};

/// A card, or the fake of one, put to work for the suite.
pub(crate) struct CudaHarness {
    device: Arc<CudaDevice>,
    checks: Contents,
    /// For reads whose bytes do not matter.
    reads: Contents,
    gate: Gate,
    /// What takes memory away, so that it is in no account of the device under test.
    ballast: Arc<CudaDevice>,
    taken: Mutex<Vec<FrameHandle>>,
    peers: Vec<Arc<CudaDevice>>,
    /// Last: the next test begins when everything here is gone.
    cards: Cards,
}

impl CudaHarness {
    pub(crate) fn new(cards: Cards, device: Arc<CudaDevice>) -> Self {
        let contents = || Contents::new(&device).expect("kernels");
        let (checks, reads) = (contents(), contents());
        let gate = Gate::new(&device).expect("kernels");
        let open = |peer: DeviceOrdinal| cards.open(CudaOptions::of_device(peer.0));
        let peers = device.peers().into_iter().map(open).collect();
        let (ballast, taken) = (cards.first(), Mutex::default());
        Self { device, checks, reads, gate, ballast, taken, peers, cards }
    }

    fn give_back(&self) -> HarnessResult<()> {
        self.taken
            .lock()
            .drain(..)
            .try_for_each(|frame| self.ballast.release_frame(frame))
            .map_err(say)
    }

    fn use_all(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()> {
        for used in uses {
            match *used {
                Use::Read(range) => self.reads.check(range, 0, stream),
                Use::Write(AddrRange { addr, len }, byte) => {
                    self.device.fill(addr, byte, len, stream)
                }
                Use::Expect(range, byte) => self.checks.check_byte(range, byte, stream),
            }
            .map_err(say)?;
        }
        Ok(())
    }
}

impl Drop for CudaHarness {
    fn drop(&mut self) {
        self.gate.open();
        if let Err(error) = self.give_back() {
            println!("memory that a test took away stays so until the process ends: {error}");
        }
        let _ = &self.cards;
    }
}

fn say(error: DeviceError) -> String {
    error.to_string()
}

impl Harness for CudaHarness {
    type Device = CudaDevice;

    fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            strict: false,
            occupy: true,
            exhaustible: true,
            memory_control: true,
            capture: true,
            leftovers: true,
        }
    }

    fn make_stream(&self) -> HarnessResult<StreamId> {
        self.device.make_stream().map_err(say)
    }

    fn destroy_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.device.destroy_stream(stream).map_err(say)
    }

    fn work(&self, stream: StreamId, duration: Duration, uses: &[Use]) -> HarnessResult<()> {
        nap(&self.device, duration, stream).map_err(say)?;
        self.use_all(stream, uses)
    }

    fn occupy(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()> {
        self.gate.hold(stream).map_err(say)?;
        self.use_all(stream, uses)
    }

    fn let_go(&self) -> HarnessResult<()> {
        self.gate.open();
        Ok(())
    }

    fn write(&self, stream: StreamId, to: DeviceAddr, bytes: &[u8]) -> HarnessResult<()> {
        self.device.write(to, bytes, stream).map_err(say)
    }

    fn read(&self, stream: StreamId, range: AddrRange) -> HarnessResult<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.len).expect("fits in memory")];
        self.device.read(&mut bytes, range.addr, stream).map_err(say)?;
        Ok(bytes)
    }

    fn synchronize_stream(&self, stream: StreamId) -> HarnessResult<()> {
        self.device.synchronize_stream(stream).map_err(say)
    }

    fn synchronize(&self) -> HarnessResult<()> {
        self.device.synchronize().map_err(say)
    }

    fn leave_free(&self, free: u64) -> HarnessResult<()> {
        self.give_back()?;
        let granule = self.ballast.properties().granule;
        // What the driver says is free is a little more than what can be had. So all of it is taken,
        // down to single granules, and as much is given back as is to be had.
        let wanted = free.div_ceil(granule);
        let mut spare: Vec<FrameHandle> = (0..wanted)
            .map_while(|_| self.ballast.make_frame(granule, FrameKind::Device).ok())
            .collect();
        let mut len = self.ballast.memory_info().map_err(say)?.free / granule * granule;
        while len >= granule {
            match self.ballast.make_frame(len, FrameKind::Device) {
                Ok(frame) => self.taken.lock().push(frame),
                Err(error) if error.kind == DeviceErrorKind::OutOfMemory => {
                    len = len / 2 / granule * granule;
                }
                Err(error) => return Err(say(error)),
            }
        }
        spare.drain(..).try_for_each(|frame| self.ballast.release_frame(frame)).map_err(say)
    }

    fn begin_capture(&self, stream: StreamId) -> HarnessResult<()> {
        // The mode that forbids the most.
        begin_capture(&self.device, raw(stream), CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> HarnessResult<()> {
        end_capture(&self.device, raw(stream))
    }

    fn peers(&self) -> Vec<DeviceOrdinal> {
        self.device.peers()
    }

    fn read_as_peer(&self, peer: DeviceOrdinal, range: AddrRange) -> HarnessResult<Vec<u8>> {
        let card = self.peers.iter().find(|card| card.ordinal() == peer);
        let card = card.ok_or_else(|| format!("{peer:?} is no peer"))?;
        if !has_access(peer, range) {
            return Err(format!("{peer:?} has no access to {range:?}"));
        }
        let granule = card.properties().granule;
        let stream = card.make_stream().map_err(say)?;
        let len = range.len.div_ceil(granule) * granule;
        let room = super::Room::new(card, len).map_err(say)?;
        card.copy(room.addr(), range.addr, range.len, stream).map_err(say)?;
        let mut bytes = vec![0; usize::try_from(range.len).expect("fits in memory")];
        card.read(&mut bytes, room.addr(), stream).map_err(say)?;
        card.destroy_stream(stream).map_err(say)?;
        Ok(bytes)
    }

    fn leftovers(&self) -> Vec<String> {
        self.device.leftovers()
    }

    fn forget_leftovers(&self) -> HarnessResult<()> {
        self.device.remove_leftovers().map_err(say)
    }

    fn refusals(&self) -> usize {
        0
    }

    fn complaints(&self) -> Vec<String> {
        match self.checks.mismatches() {
            Ok(found) if found.count == 0 => Vec::new(),
            Ok(found) => vec![format!("{found:?}")],
            Err(error) => vec![error.to_string()],
        }
    }
}

/// Whether the driver lets a device use the beginning of a range.
pub(crate) fn has_access(device: DeviceOrdinal, range: AddrRange) -> bool {
    let ordinal = i32::try_from(device.0).expect("a small number");
    let (mut flags, location) = (0, [1, ordinal]);
    // SAFETY: a location is two numbers, its type (1 is a device) and its ordinal; the driver writes
    // the flags.
    let code =
        unsafe { sys::cuMemGetAccess(&raw mut flags, location.as_ptr().cast(), range.addr.0) };
    code == sys::CUresult::CUDA_SUCCESS && flags == 3
}

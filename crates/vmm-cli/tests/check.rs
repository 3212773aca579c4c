//! The check of a replay can fail: for each flaw of a device there is a trace on which it finds it.

use std::sync::{Arc, Mutex};
use std::time::Duration;
use vmm_cli::{MockContents, MockTimeline};
use vmm_core::device::{AddrRange, FrameKind, Mapping, MemoryInfo, Properties};
use vmm_core::placement::PlacementKind;
use vmm_core::{
    CrossStream, DeviceAddr, DeviceOrdinal, DeviceResult, Fence, FrameHandle, StreamId,
    VirtualMemoryDevice,
};
use vmm_mock::{MockDevice, MockOptions};
use vmm_replay::{Amount, CheckResult, Placed, ReplaySettings, replay_checked};
use vmm_trace::EventKind;

#[path = "../../vmm-replay/tests/support/two_streams.rs"]
mod two_streams;
use two_streams::{TENSORS, two_streams};

const MIB: u64 = 1 << 20;
const LAG: Duration = Duration::from_millis(5);

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The second frame of a batch is the first one once more: two places with one memory.
    OneFrameTwice,
    /// No stream ever waits for another.
    NoOrder,
    /// Every fence is reached as soon as it is recorded: memory is unmapped and reused early.
    EarlyFences,
}

/// A mock with one flaw.
struct Wrong {
    mock: Arc<MockDevice>,
    flaw: Flaw,
    /// The last fence of each stream.
    last: Mutex<Vec<Fence>>,
}

impl Wrong {
    /// The batch as the flaw makes it.
    fn distorted(&self, batch: &[Mapping]) -> Vec<Mapping> {
        let mut batch = batch.to_vec();
        if self.flaw == Flaw::OneFrameTwice
            && let [first, second, ..] = &mut batch[..]
            && first.range.len == second.range.len
        {
            second.frame = first.frame;
        }
        batch
    }
}

impl VirtualMemoryDevice for Wrong {
    fn properties(&self) -> &Properties {
        self.mock.properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.mock.memory_info()
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.mock.is_capturing(stream)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.mock.reserve(len, alignment)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        self.mock.free_region(base, len)
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        self.mock.make_frame(len, kind)
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        self.mock.fixed_addr(frame)
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        self.mock.release_frame(frame)
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        self.mock.map(&self.distorted(batch), after)
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        self.mock.unmap(ranges, after)
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        self.mock.set_access(range, peers)
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        let fence = self.mock.record(stream)?;
        let mut last = self.last.lock().expect("no panic under the lock");
        last.retain(|earlier| earlier.stream != stream);
        last.push(fence);
        Ok(fence)
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        let reached = self.mock.reached(stream)?;
        let last = self.last.lock().expect("no panic under the lock");
        let recorded = last.iter().find(|fence| fence.stream == stream);
        match (self.flaw, recorded) {
            (Flaw::EarlyFences, Some(fence)) => Ok(fence.value),
            _ => Ok(reached),
        }
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        self.mock.wait(fence, timeout)
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        self.mock.wait_idle()
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        if self.flaw == Flaw::NoOrder { Ok(()) } else { self.mock.stream_wait(stream, fence) }
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.mock.copy(to, from, len, stream)
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.mock.fill(to, byte, len, stream)
    }
}

/// What the check finds on the pool, or what stopped the replay.
fn check(flaw: Flaw, cross_stream: CrossStream) -> Result<CheckResult, String> {
    let limit = Some(Amount::OfPeak(1.3));
    check_with(flaw, &ReplaySettings { limit, cross_stream, ..Default::default() })
}

/// The same on a heap over the pool.
fn check_placed(flaw: Flaw, kind: PlacementKind, chunk: Amount) -> Result<CheckResult, String> {
    let placement = Some(Placed { kind, chunk });
    check_with(flaw, &ReplaySettings { placement, ..Default::default() })
}

fn check_with(flaw: Flaw, settings: &ReplaySettings) -> Result<CheckResult, String> {
    let lag = u64::try_from(LAG.as_nanos()).expect("short");
    let options = MockOptions { lag, memory: 1 << 30, ..MockOptions::default() };
    let mock = Arc::new(MockDevice::new(options));
    let timeline = Arc::new(MockTimeline::new(Arc::clone(&mock)));
    let contents = MockContents::new(Arc::clone(&mock));
    let device = Arc::new(Wrong { mock, flaw, last: Mutex::default() });
    let trace = two_streams(100);
    let result = replay_checked(&trace, settings, device, &timeline, &contents, &mut |_, _| {});
    let result = result.map_err(|error| error.to_string())?;
    // Every tensor came to be, so every one was checked.
    assert_eq!(result.failures, 0, "{flaw:?}");
    let check = result.check.expect("was asked for");
    assert_eq!(check.leases, u64::from(TENSORS));
    let bytes = trace.events.iter().map(|event| match event.kind {
        EventKind::Alloc { len, .. } => len,
        _ => 0,
    });
    assert_eq!(check.bytes, bytes.sum::<u64>());
    Ok(check)
}

#[test]
fn a_right_device_passes() {
    for cross_stream in [CrossStream::WaitOnDevice, CrossStream::WhenReached] {
        let found = check(Flaw::None, cross_stream).expect("can be replayed");
        assert!(found.is_clean(), "{cross_stream:?}: {found:?}");
    }
}

#[test]
fn every_placement_keeps_the_bytes_of_its_blocks() {
    for kind in PlacementKind::ALL {
        for chunk in [Placed::DEFAULT_CHUNK, Amount::Bytes(16 * MIB), Amount::OfPeak(1.0)] {
            let found = check_placed(Flaw::None, kind, chunk).expect("can be replayed");
            assert!(found.is_clean(), "{kind}, {chunk:?}: {found:?}");
        }
    }
}

#[test]
fn a_block_that_serves_again_too_early_is_noticed() {
    let found = check_placed(Flaw::EarlyFences, PlacementKind::BestFit, Amount::OfPeak(1.0));
    assert!(found.expect("can be replayed").complaints > 0);
}

#[test]
fn two_places_with_one_memory_show_as_wrong_bytes() {
    let found = check(Flaw::OneFrameTwice, CrossStream::WaitOnDevice).expect("can be replayed");
    assert!(found.wrong_bytes > 0, "{found:?}");
    let first = found.first_wrong.first().expect("is named");
    assert!(
        (1..=u64::from(TENSORS)).contains(&first.lease) && first.offset < 13 * MIB + 512,
        "{first:?}"
    );
}

#[test]
fn a_missing_order_between_streams_is_noticed() {
    let found = check(Flaw::NoOrder, CrossStream::WaitOnDevice).expect("can be replayed");
    assert!(found.complaints > 0, "{found:?}");
}

#[test]
fn memory_that_is_taken_early_is_noticed() {
    let found = check(Flaw::EarlyFences, CrossStream::WhenReached).expect("can be replayed");
    assert!(found.complaints > 0, "{found:?}");
}

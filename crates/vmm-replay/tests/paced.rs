//! A device without a clock of its own, held to the logical clock of a replay.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping};
use vmm_core::{CrossStream, DeviceOp, DeviceResult, Fence, StreamId, VirtualMemoryDevice};
use vmm_mock::{MockDevice, MockOptions};
use vmm_replay::{
    Amount, CallAccount, Ground, Metered, OpCalls, Paced, ReplayResult, ReplaySettings, Timeline,
    Upkeep, replay,
};
use vmm_trace::DeviceTrace;

#[path = "support/mock_timeline.rs"]
mod mock_timeline;
#[path = "support/two_streams.rs"]
mod two_streams;
use mock_timeline::{MockTimeline, calls_of};
use two_streams::two_streams;

const LAG: Duration = Duration::from_millis(5);

/// A mock whose streams end their work only when the host waits for it.
struct MockGround {
    device: Arc<MockDevice>,
    /// How long the stand-in for work runs, in the mock's own time.
    nap_ns: u64,
    catch_ups: AtomicU64,
}

impl MockGround {
    fn new(device: Arc<MockDevice>, nap_ns: u64) -> Self {
        Self { device, nap_ns, catch_ups: AtomicU64::new(0) }
    }
}

impl Ground for MockGround {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        Ok(StreamId(index as u64))
    }

    fn occupy(&self, stream: StreamId) -> DeviceResult<()> {
        self.device.launch(stream, self.nap_ns, &[])
    }

    fn catch_up(&self, fence: Fence) -> DeviceResult<()> {
        self.catch_ups.fetch_add(1, Ordering::Relaxed);
        // Not by a call, for that would be on the mock's account.
        self.device.finish(fence.stream);
        Ok(())
    }

    fn calls(&self) -> CallAccount {
        calls_of(&self.device)
    }
}

fn device(lag: Duration) -> Arc<MockDevice> {
    let lag = u64::try_from(lag.as_nanos()).expect("short");
    Arc::new(MockDevice::new(MockOptions { lag, memory: 141 << 30, ..MockOptions::default() }))
}

/// A device whose work takes no time, or long, under a paced clock.
fn paced(nap_ns: u64) -> (Arc<Paced<MockDevice, MockGround>>, Arc<MockDevice>) {
    paced_on(device(Duration::ZERO), nap_ns)
}

fn paced_on(
    mock: Arc<MockDevice>,
    nap_ns: u64,
) -> (Arc<Paced<MockDevice, MockGround>>, Arc<MockDevice>) {
    let ground = MockGround::new(Arc::clone(&mock), nap_ns);
    (Arc::new(Paced::new(Arc::clone(&mock), ground, LAG)), mock)
}

fn on_the_mocks_clock(trace: &DeviceTrace, settings: &ReplaySettings) -> ReplayResult {
    let device = device(LAG);
    let timeline = Arc::new(MockTimeline(Arc::clone(&device)));
    let result = replay(trace, settings, device, &timeline, &mut |_, _| {});
    ReplayResult { host_ns_per_op: None, ..result.expect("can be replayed") }
}

fn on_a_paced_clock(trace: &DeviceTrace, settings: &ReplaySettings, nap_ns: u64) -> ReplayResult {
    replayed(paced(nap_ns), trace, settings)
}

fn replayed(
    (device, mock): (Arc<Paced<MockDevice, MockGround>>, Arc<MockDevice>),
    trace: &DeviceTrace,
    settings: &ReplaySettings,
) -> ReplayResult {
    let result = replay(trace, settings, Arc::clone(&device), &device, &mut |_, _| {});
    drop(device);
    assert!(mock.leftovers().is_empty(), "the pool left something on the device");
    assert_eq!(mock.violations(), [], "the pool did something illegal");
    ReplayResult { host_ns_per_op: None, ..result.expect("can be replayed") }
}

/// Replays the trace with both clocks, and returns the figures, which are the same.
fn check(limit: f64, cross_stream: CrossStream, upkeep: Upkeep) -> ReplayResult {
    let limit = Some(Amount::OfPeak(limit));
    let settings = ReplaySettings { limit, cross_stream, upkeep, ..ReplaySettings::default() };
    let trace = two_streams(500);
    let expected = on_the_mocks_clock(&trace, &settings);
    // Work that the device has done long ago, and work that it is late with: the clock decides.
    for nap_ns in [0, 40_000_000] {
        let found = on_a_paced_clock(&trace, &settings, nap_ns);
        assert_eq!(found, expected, "with work of {nap_ns} ns before each fence");
    }
    expected
}

#[test]
fn a_paced_device_makes_the_calls_of_the_mock_with_a_worker() {
    let figures = check(1.2, CrossStream::WaitOnDevice, Upkeep::Worker);
    assert!(figures.worker_driver_calls > 100 && figures.driver_calls > 100, "{figures:?}");
    assert!(figures.device_calls.of(DeviceOp::StreamWait).count > 0, "{figures:?}");
}

#[test]
fn a_paced_device_makes_the_calls_of_the_mock_without_a_worker() {
    let figures = check(1.1, CrossStream::WhenReached, Upkeep::None);
    assert!(figures.driver_calls > 100 && figures.waits > 0, "{figures:?}");
}

fn queueing() -> Arc<MockDevice> {
    Arc::new(MockDevice::new(MockOptions::queued_binds()))
}

/// Nobody ends the mock's binds but who waits for them, so that every missing wait shows.
#[test]
fn binds_that_are_queued_are_waited_for() {
    let trace = two_streams(500);
    for upkeep in [Upkeep::Worker, Upkeep::None] {
        let limit = Some(Amount::OfPeak(1.1));
        let settings = ReplaySettings { limit, upkeep, ..ReplaySettings::default() };
        let figures = replayed(paced_on(queueing(), 40_000_000), &trace, &settings);
        assert_eq!(figures.failures, 0, "{upkeep:?}: {figures:?}");
        let calls = figures.device_calls.plus(&figures.worker_device_calls);
        assert!(calls.of(DeviceOp::Map).count > 50, "{upkeep:?}: {figures:?}");
        assert!(calls.of(DeviceOp::StreamWait).count > 0, "{upkeep:?}: {figures:?}");
        // What the host waits for is on the account.
        let waits = calls.of(DeviceOp::Wait).count;
        assert_eq!(waits > 0, upkeep == Upkeep::Worker, "{upkeep:?}: {figures:?}");
    }
}

#[test]
fn a_queued_bind_is_over_with_what_it_waits_for() {
    let (device, mock) = paced_on(queueing(), 1_000);
    let stream = device.stream(0).expect("always");
    let len = device.properties().granule;
    let addr = device.reserve(len, len).expect("legal");
    let frame = device.make_frame(len, FrameKind::Device).expect("legal");
    let range = AddrRange { addr, len };
    let before = device.record(stream).expect("legal");
    let bound = device.map(&[Mapping { range, frame }], &[before]).expect("legal");
    mock.finish_all();
    assert_eq!(device.reached(bound.stream), Ok(0), "the clock is not there");
    device.advance_to(5_000_000);
    assert_eq!(device.reached(bound.stream), Ok(bound.value));
    let gone = device.unmap(&[range], &[]).expect("legal");
    assert!(mock.reached(gone.stream).is_ok_and(|value| value < gone.value));
    assert_eq!(device.reached(gone.stream), Ok(gone.value), "the host waits for the device");
    assert_eq!(mock.reached(gone.stream), Ok(gone.value));
    device.release_frame(frame).expect("legal");
    device.free_region(addr, len).expect("legal");
}

#[test]
fn a_fence_is_reached_when_the_clock_says_so_and_the_device_has_got_there() {
    let (device, mock) = paced(1_000_000);
    let stream = device.stream(0).expect("always");
    let fence = device.record(stream).expect("legal");
    mock.advance(500_000_000);
    assert_eq!(mock.reached(stream), Ok(fence.value));
    assert_eq!(device.reached(stream), Ok(0), "the device got there, and the clock has not");

    device.advance_to(5_000_000);
    assert_eq!(device.reached(stream), Ok(fence.value));
    let late = device.record(stream).expect("legal");
    device.advance_to(20_000_000);
    assert_eq!(mock.reached(stream), Ok(fence.value));
    assert_eq!(device.reached(stream), Ok(late.value), "the host waits for the device");
}

#[test]
fn a_wait_moves_the_clock() {
    let (device, _mock) = paced(1_000);
    let (first, second) = (StreamId(0), StreamId(1));
    device.work_until(first, 30_000_000);
    let fence = device.record(first).expect("legal");
    assert_eq!(device.wait(Fence::REACHED, Duration::from_secs(1)), Ok(true));
    assert_eq!(device.now_ns(), 0, "nothing to wait for");
    assert_eq!(device.wait(fence, Duration::from_millis(7)), Ok(false));
    assert_eq!(device.now_ns(), 7_000_000);
    device.stream_wait(second, fence).expect("legal");
    let behind = device.record(second).expect("legal");
    assert_eq!(device.wait(behind, Duration::from_secs(1)), Ok(true));
    assert_eq!(device.now_ns(), 30_000_000, "it is behind the work of the other stream");
    assert_eq!(device.reached(first), Ok(fence.value));
    let later = device.record(first).expect("legal");
    assert_eq!(device.wait(fence, Duration::from_secs(1)), Ok(true));
    assert_eq!(device.now_ns(), 30_000_000, "a reached fence is not taken for a later one");
    assert_eq!(device.wait(later, Duration::ZERO), Ok(false));
}

#[test]
fn a_meter_counts_each_call_once() {
    let meter = Metered::new(device(Duration::ZERO));
    let stream = StreamId(3);
    let fence = meter.record(stream).expect("legal");
    meter.reached(stream).expect("legal");
    meter.reached(stream).expect("legal");
    meter.reserve(1, 1).expect_err("not a whole granule");
    assert_eq!(meter.wait(fence, Duration::ZERO), Ok(true));
    let counts: Vec<(DeviceOp, u64)> =
        meter.calls().made().map(|(op, calls)| (op, calls.count)).collect();
    assert_eq!(
        counts,
        [
            (DeviceOp::Reserve, 1),
            (DeviceOp::Record, 1),
            (DeviceOp::Reached, 2),
            (DeviceOp::Wait, 1)
        ]
    );
    assert_eq!(calls_of(meter.device()).total().count, 5, "all of them arrived");
}

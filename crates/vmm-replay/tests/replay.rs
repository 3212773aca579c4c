//! Replays of small traces on the mock device.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use vmm_core::{CrossStream, DeviceOp, VirtualMemoryDevice};
use vmm_mock::{MockDevice, MockOptions};
use vmm_replay::{
    Amount, CallAccount, OpCalls, ReplayError, ReplayResult, ReplaySettings, Timeline, Upkeep,
    replay,
};
use vmm_trace::{Census, DeviceTrace, Event, EventKind, StartTensor};

#[path = "support/mock_timeline.rs"]
mod mock_timeline;
use mock_timeline::MockTimeline;

const MIB: u64 = 1 << 20;
const LAG_NS: u64 = 5_000_000;

/// A trace of one stream from times in microseconds and events.
fn trace(events: &[(u64, EventKind)]) -> DeviceTrace {
    let tensors = events.iter().filter(|(_, kind)| matches!(kind, EventKind::Alloc { .. })).count();
    DeviceTrace {
        device: 0,
        streams: vec![0],
        pools: vec![(0, 0)],
        tensor_count: u32::try_from(tensors).expect("few"),
        start_live: Vec::new(),
        start_reserved: 0,
        events: events.iter().map(|&(time_us, kind)| Event { time_us, kind }).collect(),
        end_segments: Vec::new(),
        census: Census::default(),
    }
}

fn alloc(id: u32, len: u64) -> EventKind {
    EventKind::Alloc { id, len, stream: 0, pool: 0 }
}

fn requested(id: u32) -> EventKind {
    EventKind::FreeRequested { id }
}

fn completed(id: u32) -> EventKind {
    EventKind::FreeCompleted { id }
}

fn run(
    trace: &DeviceTrace,
    settings: &ReplaySettings,
) -> (Result<ReplayResult, ReplayError>, Arc<MockDevice>) {
    let options = MockOptions { lag: LAG_NS, memory: 1 << 30, ..MockOptions::default() };
    let device = Arc::new(MockDevice::new(options));
    let timeline = Arc::new(MockTimeline(Arc::clone(&device)));
    let result = replay(trace, settings, Arc::clone(&device), &timeline, &mut |_, _| {});
    (result, device)
}

fn figures(trace: &DeviceTrace, settings: &ReplaySettings) -> ReplayResult {
    let (result, device) = run(trace, settings);
    assert!(device.leftovers().is_empty(), "the pool left something on the device");
    result.expect("the trace can be replayed")
}

fn limit(bytes: u64) -> ReplaySettings {
    ReplaySettings { limit: Some(Amount::Bytes(bytes)), ..ReplaySettings::default() }
}

/// Allocations and releases of several lengths, in an order without a pattern.
fn busy_trace() -> DeviceTrace {
    let mut events = Vec::new();
    for id in 0..200_u32 {
        let at_us = u64::from(id) * 100;
        events.push((at_us, alloc(id, MIB * u64::from(1 + id * 7 % 13))));
        if id >= 8 {
            let gone = id - 8;
            events.push((at_us + 50, requested(gone)));
            events.push((at_us + 50, completed(gone)));
        }
    }
    trace(&events)
}

#[test]
fn figures_add_up() {
    let trace = busy_trace();
    let result = figures(&trace, &ReplaySettings::default());
    assert_eq!(result.failures, 0);
    assert_eq!(result.events, trace.events.len() as u64);
    assert_eq!(result.peak_requested_bytes, trace.peak_requested_bytes());
    assert_eq!(result.peak_live_bytes, result.peak_requested_bytes, "whole MiB need no rounding");
    assert!(result.peak_reserved_bytes >= result.peak_live_bytes);
    assert_eq!(result.recorded_peak_reserved_bytes, None);
    assert!(result.driver_calls > 0 && result.driver_time_us > 0.0);
    assert!(result.worst_allocation_us <= result.driver_time_us);
    assert_eq!(result.duration_us, 199 * 100 + 50);
}

#[test]
fn a_replay_gives_the_same_figures_every_time() {
    let trace = busy_trace();
    for upkeep in [Upkeep::Worker, Upkeep::Inline, Upkeep::None] {
        let settings = ReplaySettings { upkeep, ..limit(80 * MIB) };
        let once = ReplayResult { host_ns_per_op: None, ..figures(&trace, &settings) };
        let again = ReplayResult { host_ns_per_op: None, ..figures(&trace, &settings) };
        assert_eq!(once, again, "{upkeep:?}");
    }
}

/// 40 MiB in pool `pool` come and go; then 40 MiB are wanted by `next`, after the events between.
fn one_pool_then_another(pool: u16, between: &[EventKind], next: u16) -> DeviceTrace {
    let in_pool = |id, pool| EventKind::Alloc { id, len: 40 * MIB, stream: 0, pool };
    let mut events = vec![in_pool(0, pool), requested(0), completed(0)];
    events.extend(between);
    events.push(in_pool(1, next));
    // What was queued before is over by then.
    let timed: Vec<_> =
        events.into_iter().enumerate().map(|(i, e)| (20_000 * i as u64, e)).collect();
    DeviceTrace { pools: vec![(0, 0), (0, 1), (0, 2)], ..trace(&timed) }
}

fn placed(text: &str) -> ReplaySettings {
    let placement = Some(text.parse().expect("a placement"));
    ReplaySettings { placement, ..ReplaySettings::default() }
}

#[test]
fn a_placement_serves_a_trace_from_chunks_of_the_pool() {
    let trace = busy_trace();
    let figures_of = |text: &str| {
        let once = ReplayResult { host_ns_per_op: None, ..figures(&trace, &placed(text)) };
        let again = ReplayResult { host_ns_per_op: None, ..figures(&trace, &placed(text)) };
        assert_eq!(once, again, "{text}");
        assert_eq!((once.policy.as_str(), once.failures), (text, 0));
        once
    };
    let best = figures_of("best-fit:chunk=2x");
    assert_eq!(best.peak_live_bytes, 2 * best.peak_requested_bytes, "one chunk serves all");
    let first = figures_of("first-fit:chunk=16MiB");
    assert_eq!(first.peak_live_bytes % (16 * MIB), 0, "chunks are leases of the pool");
    let bump = figures_of("bump:chunk=2x");
    assert!(bump.peak_live_bytes > best.peak_live_bytes, "a bump arena reuses nothing in between");
    let fixed = figures_of("fixed:chunk=2x");
    assert!(fixed.peak_live_bytes > fixed.peak_requested_bytes, "a chunk, and longer ones alone");
}

#[test]
fn chunks_that_cannot_be_are_refused() {
    let (result, _) = run(&busy_trace(), &placed("buddy:chunk=2GiB"));
    let error = result.expect_err("the device has 1 GiB").to_string();
    assert!(
        error.ends_with("a chunk of a heap is longer than the device's memory: make it shorter")
    );
}

#[test]
fn blocks_of_a_private_pool_serve_nobody_else() {
    let run = |between: &[EventKind], next| {
        let settings =
            ReplaySettings { limit: Some(Amount::Bytes(64 * MIB)), ..placed("tlsf:chunk=1x") };
        figures(&one_pool_then_another(1, between, next), &settings).failures
    };
    assert_eq!(run(&[], 1), 0);
    assert_eq!(run(&[], 0), 1);
    let ended = EventKind::SegmentFree { len: 40 * MIB, pool: 1 };
    assert_eq!(run(&[ended], 0), 0, "it has ended");
}

#[test]
fn memory_of_a_private_pool_serves_nobody_else() {
    let run = |pool, between: &[EventKind], next| {
        figures(&one_pool_then_another(pool, between, next), &limit(64 * MIB)).failures
    };
    assert_eq!(run(0, &[], 0), 0);
    assert_eq!(run(0, &[], 1), 0, "idle memory of all goes to a private pool");
    assert_eq!(run(1, &[], 1), 0);
    assert_eq!(run(1, &[], 0), 1, "a graph may run at any time");
    assert_eq!(run(1, &[], 2), 1);
    let given_back = [EventKind::SegmentFree { len: 40 * MIB, pool: 1 }];
    assert_eq!(run(1, &given_back, 0), 0, "the graph is gone");
    assert_eq!(run(1, &given_back, 2), 0);
    assert_eq!(run(1, &given_back, 1), 0, "a new private pool in place of the old");
    let of_others = [EventKind::SegmentFree { len: 40 * MIB, pool: 2 }];
    assert_eq!(run(1, &of_others, 0), 1);
}

#[test]
fn what_lived_in_a_private_pool_before_the_recording_stays_there() {
    let mut program = one_pool_then_another(0, &[], 1);
    program.events.drain(..1);
    program.start_live = vec![StartTensor { id: 0, len: 40 * MIB, stream: 0, pool: 1 }];
    assert_eq!(figures(&program, &limit(64 * MIB)).failures, 0);
    program.start_live[0].pool = 2;
    assert_eq!(figures(&program, &limit(64 * MIB)).failures, 1);
}

#[test]
fn the_worker_takes_calls_from_the_allocating_thread() {
    let trace = busy_trace();
    let with = figures(&trace, &limit(120 * MIB));
    let without = figures(&trace, &ReplaySettings { upkeep: Upkeep::None, ..limit(120 * MIB) });
    assert!(with.worker_driver_calls > 0 && with.worker_driver_time_us > 0.0);
    assert_eq!((without.worker_driver_calls, without.worker_driver_time_us), (0, 0.0));
    assert!(with.driver_calls < without.driver_calls);
}

#[test]
fn failed_allocations_are_counted_and_the_rest_goes_on() {
    let trace = trace(&[
        (0, alloc(0, 40 * MIB)),
        (10, alloc(1, 40 * MIB)),
        (20, requested(1)),
        (20, completed(1)),
        (30, requested(0)),
        (30, completed(0)),
        (20_000, alloc(2, 40 * MIB)),
    ]);
    let result = figures(&trace, &limit(64 * MIB));
    assert_eq!(result.failures, 1);
    assert_eq!(result.peak_live_bytes, 40 * MIB);
    assert!(result.peak_reserved_bytes <= 64 * MIB);
    let stopped = ReplaySettings { stop_at_failure: true, ..limit(64 * MIB) };
    assert_eq!(figures(&trace, &stopped).failures, 1);
}

#[test]
fn a_limit_below_one_allocation_is_refused() {
    let trace = trace(&[(0, alloc(0, 40 * MIB))]);
    let (result, _) = run(&trace, &limit(39 * MIB));
    assert!(
        matches!(result, Err(ReplayError::LimitBelowAllocation { largest, .. }) if largest == 40 * MIB),
        "{result:?}"
    );
    let (result, _) = run(
        &trace,
        &ReplaySettings { limit: Some(Amount::OfPeak(0.5)), ..ReplaySettings::default() },
    );
    assert!(matches!(result, Err(ReplayError::LimitBelowAllocation { .. })), "{result:?}");
}

#[test]
fn a_trace_without_allocations_is_refused() {
    let (result, _) = run(&trace(&[(0, EventKind::Snapshot)]), &ReplaySettings::default());
    assert!(matches!(result, Err(ReplayError::NothingRecorded)), "{result:?}");
}

#[test]
fn a_deferred_free_keeps_its_memory_from_others_until_it_completes() {
    // Between request and completion another tensor comes, for which there is room only later.
    let trace = trace(&[
        (0, alloc(0, 40 * MIB)),
        (10, requested(0)),
        (20, alloc(1, 40 * MIB)),
        (50_000, completed(0)),
    ]);
    let settings = ReplaySettings {
        cross_stream: CrossStream::WhenReached,
        upkeep: Upkeep::None,
        ..limit(64 * MIB)
    };
    let result = figures(&trace, &settings);
    assert_eq!(result.failures, 0);
    assert!(result.waits >= 1, "the last rung waits for the deferred free");
    // It waited until 50 ms of the trace, and had begun a few ms after its start at the latest.
    assert!(result.worst_allocation_us >= 45_000.0, "{}", result.worst_allocation_us);
}

#[test]
fn what_was_live_at_the_start_counts_as_memory_and_not_as_driver_time() {
    let mut trace = trace(&[(0, alloc(0, 2 * MIB)), (10, requested(1)), (10, completed(1))]);
    trace.tensor_count = 2;
    trace.start_live = vec![StartTensor { id: 1, len: 100 * MIB, stream: 0, pool: 0 }];
    let result =
        figures(&trace, &ReplaySettings { upkeep: Upkeep::None, ..ReplaySettings::default() });
    assert_eq!(result.peak_live_bytes, 102 * MIB);
    trace.start_live.clear();
    trace.tensor_count = 1;
    trace.events.truncate(1);
    let small =
        figures(&trace, &ReplaySettings { upkeep: Upkeep::None, ..ReplaySettings::default() });
    assert!(result.driver_calls <= small.driver_calls, "the start's calls are not counted");
}

#[test]
fn curves_are_sampled() {
    let settings =
        ReplaySettings { curve_samples: NonZeroUsize::new(10), ..ReplaySettings::default() };
    let result = figures(&busy_trace(), &settings);
    assert!((10..=11).contains(&result.curve.len()), "{}", result.curve.len());
    assert!(result.curve.is_sorted_by_key(|sample| sample.time_us));
    assert!(
        result
            .curve
            .iter()
            .all(|s| s.requested_bytes <= s.live_bytes && s.live_bytes <= s.reserved_bytes)
    );
}

#[test]
fn time_follows_the_trace() {
    let (result, device) = run(
        &trace(&[(0, alloc(0, MIB)), (123_456, requested(0)), (123_456, completed(0))]),
        &ReplaySettings { lag: Duration::ZERO, ..ReplaySettings::default() },
    );
    result.expect("can be replayed");
    assert!(device.now() >= 123_456_000);
    assert!(device.cost().of(DeviceOp::MakeFrame).calls > 0);
    assert_eq!(device.properties().name, "mock");
}

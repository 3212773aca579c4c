//! Snapshots that read, and the events that come of them.

use super::*;

#[test]
fn a_ring_buffer_starts_mid_life() {
    let end = vec![segment(
        S,
        2 * MIB,
        vec![
            block(S, 512, 100, "active_allocated"),
            block(S + 512, 512, 300, "active_pending_free"),
            block(S + 1024, 512, 500, "active_allocated"),
            block(S + 1536, 2 * MIB - 1536, 0, "inactive"),
        ],
    )];
    let device = check(
        end,
        vec![
            at(1000, entry("free_completed", S + 1536, 700)),
            at(1002, entry("free_requested", S + 2048, 900)),
            at(1002, entry("free_completed", S + 2048, 900)),
            at(1001, entry("alloc", S + 1024, 500)),
            at(1010, entry("segment_free", S + 4 * MIB, 20)),
        ],
        &[
            (0, FreeRequested { id: 0 }),
            (0, FreeCompleted { id: 0 }),
            (2, FreeRequested { id: 1 }),
            (2, FreeCompleted { id: 1 }),
            (2, alloc(2, 500)),
            (10, SegmentFree { len: 20, pool: 0 }),
        ],
    );
    let start = |id, len| StartTensor { id, len, stream: 0, pool: 0 };
    assert_eq!(device.start_live, [start(0, 700), start(1, 900), start(3, 100), start(4, 300)]);
    assert_eq!(device.start_reserved, 2 * MIB + 20);
    assert_eq!(device.peak_requested_bytes(), 2000);
    let census = &device.census;
    assert_eq!((census.start_freed, census.start_kept, census.time_moved), (2, 2, 1));
    assert_eq!((census.made_requests, census.end_missing, census.end_unexplained), (1, 0, 0));
}

#[test]
fn an_address_comes_back_and_a_free_is_deferred() {
    let device = check(
        vec![free_segment(S, MIB)],
        vec![
            entry("alloc", S, 10),
            entry("free_requested", S, 10),
            entry("alloc", S + 512, 20),
            entry("free_completed", S, 10),
            entry("alloc", S, 30),
            entry("free_requested", S, 30),
        ],
        // Without times, entries are a microsecond apart.
        &[
            (0, alloc(0, 10)),
            (1, FreeRequested { id: 0 }),
            (2, alloc(1, 20)),
            (3, FreeCompleted { id: 0 }),
            (4, alloc(2, 30)),
            (5, FreeRequested { id: 2 }),
        ],
    );
    assert_eq!(device.peak_requested_bytes(), 50);
    assert_eq!((device.census.end_pending, device.census.end_missing), (1, 2));
    assert_eq!((device.census.without_time, device.duration_us()), (6, 5));
}

#[test]
fn files_that_lack_requests_or_completions() {
    for action in ["free_requested", "free_completed"] {
        check(
            vec![free_segment(S, MIB)],
            vec![entry("alloc", S, 10), entry(action, S, 10), entry("alloc", S, 20)],
            &[
                (0, alloc(0, 10)),
                (1, FreeRequested { id: 0 }),
                (1, FreeCompleted { id: 0 }),
                (2, alloc(1, 20)),
            ],
        );
    }
    let device = check(
        vec![free_segment(S, MIB)],
        vec![entry("alloc", S, 10), entry("alloc", S, 20)],
        &[
            (0, alloc(0, 10)),
            (1, FreeRequested { id: 0 }),
            (1, FreeCompleted { id: 0 }),
            (1, alloc(1, 20)),
        ],
    );
    assert_eq!(device.census.reused_while_live, 1);
}

#[test]
fn other_actions_are_kept_or_counted() {
    let oom = Dict(vec![("action", Str("oom")), ("size", Int(9)), ("device_free", Int(4))]);
    let device = check(
        vec![],
        vec![
            oom,
            Dict(vec![("action", Str("snapshot")), ("size", Int(0))]),
            entry("annotate", 0, 0),
            entry("dance", 0, 0),
            entry("alloc", S, 0),
            entry("free_completed", S, 0),
            entry("segment_free", S, 5),
            entry("segment_alloc", S, 3).with("frames", List(vec![])),
        ],
        &[
            (0, Oom { len: 9, device_free: 4 }),
            (1, EventKind::Snapshot),
            (2, EventKind::Annotate),
            (6, SegmentFree { len: 5, pool: 0 }),
            (7, SegmentAlloc { len: 3, stream: 0 }),
        ],
    );
    assert_eq!((device.census.skipped_unknown, device.census.skipped_zero_length), (1, 2));
    assert_eq!((device.start_reserved, device.census.with_frames), (5, 1));
}

#[test]
fn expandable_segments_map_and_unmap() {
    let expandable = free_segment(S, 4 * MIB).with("is_expandable", Plain::Bool(true));
    let device = check(
        vec![expandable],
        vec![
            entry("segment_map", S, 2 << 20),
            entry("alloc", S, 100),
            entry("segment_map", S + 2 * MIB, 4 << 20),
            entry("segment_unmap", S + 4 * MIB, 2 << 20),
        ],
        &[
            (0, SegmentAlloc { len: 2 * MIB, stream: 0 }),
            (1, alloc(0, 100)),
            (2, SegmentAlloc { len: 4 * MIB, stream: 0 }),
            (3, SegmentFree { len: 2 * MIB, pool: 0 }),
        ],
    );
    assert_eq!((device.start_reserved, device.recorded_peak_reserved_bytes()), (0, 6 * MIB));
    assert!(device.end_segments[0].is_expandable);
}

#[test]
fn pools_come_from_entries_or_from_final_segments() {
    let graph = || free_segment(S, MIB).with("segment_pool_id", Pair(3, 1));
    let in_pool = |id, pool| Alloc { id, len: 8, stream: 0, pool };
    let device = check(
        vec![graph()],
        vec![entry("alloc", S, 8), entry("alloc", S + 512, 8).with("pool_id", Pair(7, 0))],
        &[(0, in_pool(0, 1)), (1, in_pool(1, 2))],
    );
    assert_eq!(device.pools, [(0, 0), (3, 1), (7, 0)]);
    // An earlier segment at the same address was of an unknown pool.
    check(
        vec![graph()],
        vec![
            entry("alloc", S, 8),
            entry("free_completed", S, 8),
            entry("segment_free", S, 1 << 20),
            entry("segment_alloc", S, 1 << 20),
            entry("alloc", S, 8),
        ],
        &[
            (0, in_pool(0, 0)),
            (1, FreeRequested { id: 0 }),
            (1, FreeCompleted { id: 0 }),
            (2, SegmentFree { len: MIB, pool: 0 }),
            (3, SegmentAlloc { len: MIB, stream: 0 }),
            (4, in_pool(1, 1)),
        ],
    );
}

#[test]
fn several_devices() {
    let second = free_segment(S, MIB);
    let Dict(mut items) = second else { panic!("a segment is a dict") };
    items[0].1 = Int(5);
    let traces = vec![vec![], vec![entry("alloc", S, 1)], vec![], vec![entry("alloc", S, 2)]];
    let devices = read_plain(&snapshot(vec![Dict(items)], traces)).expect("reads");
    let found: Vec<_> =
        devices.iter().map(|one| (one.device, one.events.len(), one.end_segments.len())).collect();
    assert_eq!(found, [(1, 1, 0), (3, 1, 0), (5, 0, 1)]);
}

#[test]
fn the_oldest_form() {
    let history = |size| List(vec![Dict(vec![("addr", Int(1)), ("real_size", Int(size))])]);
    let block = |size, state| Dict(vec![("size", Int(size)), ("state", Str(state))]);
    let blocks = vec![
        block(512, "active_allocated").with("history", history(100)),
        block(512, "active_awaiting_free"),
        block(1024, "inactive").with("history", history(900)),
    ];
    let devices = read_plain(&List(vec![segment(S, 2048, blocks)])).expect("reads");
    let [device] = &devices[..] else { panic!("one device") };
    let found: Vec<_> = device.end_segments[0].blocks.iter().collect();
    assert_eq!((found[1].address, found[2].address), (S + 512, S + 1024));
    assert_eq!((found[0].requested_size, found[1].requested_size), (100, 512));
    assert_eq!(found[1].state, BlockState::PendingFree);
    assert_eq!((device.start_live.len(), device.start_reserved), (2, 2048));
}

#[test]
fn tensors_from_before_the_trace_have_the_stacks_of_their_blocks() {
    let frame = Dict(vec![("filename", Str("model.py")), ("line", Int(7)), ("name", Str("build"))]);
    let blocks = vec![
        block(S, 512, 100, "active_allocated").with("frames", List(vec![frame])),
        block(S + 512, 512, 300, "active_allocated").with("frames", List(Vec::new())),
        block(S + 1024, MIB - 1024, 0, "inactive"),
    ];
    let bytes = pickle(&snapshot(vec![segment(S, MIB, blocks)], Vec::new()));
    let mut input = Input::new(Box::new(&bytes[..]), bytes.len() as u64);
    let (mut heap, root) = read_pickle(&mut input).expect("reads");
    let contents = read_snapshot(&mut heap, root).expect("reads");
    let (_, details) = &contents.devices[0];
    assert_eq!(details.stacks, [Some(0), None]);
    let names: Vec<_> = contents.stacks.frames(0).map(|frame| frame.name.as_str()).collect();
    assert_eq!(names, ["build"]);
}

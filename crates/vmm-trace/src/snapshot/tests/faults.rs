//! Snapshots that contradict themselves.

use super::*;

#[test]
fn contradictions_name_the_entry() {
    let end = || vec![free_segment(S, MIB)];
    let twice =
        |action| vec![entry("alloc", S, 1), entry("free_completed", S, 1), entry(action, S, 1)];
    check_fault(
        end(),
        twice("free_completed"),
        "device 0, entry 2: frees 0x70000000, which is free",
    );
    check_fault(end(), twice("free_requested"), "entry 2: frees 0x70000000, which is free already");
    check_fault(end(), vec![entry("free_requested", 0xdead, 1)], "frees 0xdead, which was neither");
    let born = vec![entry("segment_alloc", S, 1 << 20), entry("free_completed", S, 1)];
    check_fault(end(), born, "entry 1: frees 0x70000000, which was neither");
    check_fault(end(), vec![entry("alloc", S, -5)], "entry 0: `size` is -5, which is no size");
    check_fault(end(), vec![entry("alloc", S, 1 << 49)], "which is no size in bytes");
    check_fault(end(), vec![entry("alloc", S, 1 << 90)], "which is no size in bytes");
    check_fault(end(), vec![entry("segment_alloc", S, -1)], "entry 0: `size` is -1");
    let oom = Dict(vec![("action", Str("oom")), ("size", Int(9)), ("device_free", Int(-4))]);
    check_fault(end(), vec![oom], "`device_free` is -4");
    let wrong = Dict(vec![("action", Str("alloc")), ("size", Str("big"))]);
    check_fault(end(), vec![wrong], "`size` has a value of the wrong kind");
    check_fault(end(), vec![Dict(vec![("size", Int(1))])], "is no trace entry");
    check_fault(
        end(),
        vec![Dict(vec![("action", Str("alloc")), ("size", Int(1))])],
        "has no `addr`",
    );
    let huge = vec![entry("alloc", S, 1 << 48), entry("alloc", S + 1, 1)];
    check_fault(end(), huge, "entry 1: 1 bytes more bring the live sizes above 2^48");
    let huge = vec![entry("segment_alloc", S, 1 << 48), entry("segment_alloc", S, 1 << 48)];
    check_fault(vec![], huge, "reserves more than 2^48 bytes");
}

#[test]
fn bad_segments_are_named() {
    let bad = |blocks| vec![free_segment(S, MIB), segment(S + MIB, MIB, blocks)];
    check_fault(bad(vec![]), vec![], "segment 1: its blocks do not add up to its total size");
    check_fault(bad(vec![block(S + MIB, 512, 0, "odd")]), vec![], "state `odd` is unknown");
    check_fault(
        bad(vec![block(S, MIB, 0, "inactive")]),
        vec![],
        "does not follow on the one before",
    );
    let overlap = vec![free_segment(S, MIB), free_segment(S + 512, MIB)];
    check_fault(overlap, vec![], "two segments overlap at 0x70000200");
    check_fault(vec![Dict(vec![("device", Int(-1))])], vec![], "segment 0: `device` is -1");
    check_fault(vec![Int(5)], vec![], "segment 0: has no `address`");
}

#[test]
fn other_pickles_are_no_snapshots() {
    for root in [Int(5), Dict(vec![("weights", Int(1))]), List(vec![Int(1)])] {
        assert!(matches!(read_plain(&root), Err(Fault::NotASnapshot(_))), "{root:?}");
    }
    let odd = Dict(vec![("segments", Int(1))]);
    assert!(matches!(read_plain(&odd), Err(Fault::Malformed { .. })));
}

#[test]
fn changed_bytes_never_panic() {
    let end = segment(
        S,
        MIB,
        vec![block(S, 512, 9, "active_allocated"), block(S + 512, MIB - 512, 0, "inactive")],
    );
    let trace = vec![
        entry("segment_alloc", S, 1 << 20),
        at(5, entry("alloc", S, 10).with("pool_id", Pair(1, 2))),
        at(6, entry("free_requested", S, 10)),
        at(7, entry("free_completed", S, 10)),
        entry("alloc", S, 9),
        entry("oom", 0, 9),
    ];
    let bytes = pickle(&snapshot(vec![end], vec![trace]));
    assert!(read_bytes(&bytes).is_ok());
    let mut seed = 3u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let mut read = 0;
    for _ in 0..20_000 {
        let mut bytes = bytes.clone();
        for _ in 0..=next() % 3 {
            let at = next() % bytes.len();
            bytes[at] = next().to_le_bytes()[0];
        }
        for device in read_bytes(&bytes).unwrap_or_default() {
            assert!(device.census.is_complete());
            let _ = (device.peak_requested_bytes(), device.recorded_peak_reserved_bytes());
            read += 1;
        }
    }
    assert!(read > 100, "most changes are caught: {read}");
}

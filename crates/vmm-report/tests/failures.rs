//! A program that leaks and then runs out of memory, written as a snapshot and looked at.

use std::path::Path;

use vmm_report::{
    Allocator, Content, Inspection, Level, Picture, Piece, PolicyRow, Recorded, State, Timeline,
    figures, html, with_failures_served,
};
use vmm_trace::write::{Entry, Frame, Segment, Snapshot, write_file};
use vmm_trace::{Action, BlockState, DetailedTrace, inspect_file};

const MIB: u64 = 1 << 20;
const BASE: u64 = 0x7f00_0000_0000;

/// A program under the rules of `PyTorch`, on one stream.
#[derive(Default)]
struct Program {
    entries: Vec<Entry>,
}

impl Program {
    fn entry(&mut self, action: Action, addr: u64, size: u64, asker: &str, line: u32) {
        self.entry_in((0, 0), action, addr, size, asker, line);
    }

    fn entry_in(
        &mut self,
        pool: (u64, u64),
        action: Action,
        addr: u64,
        size: u64,
        asker: &str,
        line: u32,
    ) {
        let frames = if asker.is_empty() {
            Vec::new()
        } else {
            let inner = Frame { filename: "??".into(), line: 0, name: "malloc".into() };
            let own = Frame { filename: "/home/me/train.py".into(), line, name: asker.into() };
            vec![inner, own]
        };
        let time_us = 1_000_000 + 10 * self.entries.len() as u64;
        let entry = Entry { action, addr, size, stream: 7, time_us, pool, frames };
        self.entries.push(entry);
    }

    fn alloc(&mut self, addr: u64, size: u64, asker: &str, line: u32) {
        self.entry(Action::Alloc, addr, size, asker, line);
    }

    fn free(&mut self, addr: u64, size: u64) {
        self.entry(Action::FreeRequested, addr, size, "", 0);
        self.entry(Action::FreeCompleted, addr, size, "", 0);
    }

    /// Two segments of 1 GiB; 200 steps of which each leaves 1.5 MiB; holes of 300 and 424 MiB, and
    /// then a request of 600 MiB with 95 MiB free.
    fn that_fails() -> Self {
        let mut program = Self::default();
        let second = BASE + (4 << 30);
        for segment in [BASE, second] {
            program.entry(Action::SegmentAlloc, segment, 1 << 30, "", 0);
            program.alloc(segment, 300 * MIB, "forward", 42);
        }
        for step in 0..200 {
            program.alloc(BASE + 300 * MIB + step * 3 * MIB / 2, 3 * MIB / 2, "log", 50);
            program.alloc(second + 300 * MIB, 700 * MIB, "step", 9);
            program.free(second + 300 * MIB, 700 * MIB);
        }
        program.alloc(second + 300 * MIB, 300 * MIB, "step", 9);
        program.free(BASE, 300 * MIB);
        program.entry(Action::Oom, 95 * MIB, 600 * MIB, "attention", 77);
        program
    }

    fn write(self, folder: &Path, segments: Vec<Segment>) -> DetailedTrace {
        let settings = [
            ("PYTORCH_CUDA_ALLOC_CONF", ""),
            ("max_split_size", "-1"),
            ("release_lock_on_cudamalloc", "True"),
        ];
        self.write_with(folder, segments, &settings)
    }

    fn write_with(
        self,
        folder: &Path,
        segments: Vec<Segment>,
        settings: &[(&str, &str)],
    ) -> DetailedTrace {
        let path = folder.join("run.pickle");
        let settings = settings.iter().map(|&(key, value)| (key.into(), value.into())).collect();
        let snapshot = Snapshot { segments, device_traces: vec![self.entries], settings };
        write_file(&path, &snapshot).expect("writable");
        inspect_file(&path, &mut |_| ()).expect("reads")
    }
}

fn row(policy: &str, budget: u64) -> PolicyRow {
    PolicyRow {
        policy: policy.into(),
        peak_reserved_bytes: Some(budget),
        smallest_budget_bytes: Some(budget),
        ..PolicyRow::default()
    }
}

#[test]
fn a_failure_is_explained() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::that_fails().write(folder.path(), Vec::new());
    let failed = PolicyRow { is_recorded: true, ..row("the one that failed", 1500 * MIB) };
    let rows = vec![row("a large one", 9 << 30), row("a good one", 1536 * MIB), failed];
    let found = Inspection::new(&file, 0, rows);
    assert_eq!((found.oom_count, found.ooms.len()), (1, 1));
    let oom = &found.ooms[0];
    assert_eq!(oom.wanted.bytes, 600 * MIB);
    assert_eq!(oom.wanted.owner.as_deref(), Some("attention (me/train.py:77)"));
    assert_eq!(oom.device_free_bytes, 95 * MIB);
    // The failure is the last entry; the one before lies 10 µs earlier.
    let sentence = oom.sentence(&found);
    assert_eq!((oom.moment.time_us, found.duration_us), (8_070, 8_070));
    assert!(sentence.starts_with("600 MiB were asked for at 8.07 ms by attention"), "{sentence}");
    assert_eq!(oom.capacity(), (2 << 30) + 95 * MIB);
    // In use: 300 + 300 + 200 x 1.5 MiB.
    assert_eq!(oom.moment.held_bytes, 900 * MIB);
    assert_eq!(oom.moment.causes.free(), (2048 - 900) * MIB);
    assert_eq!(oom.moment.causes.too_small, (2048 - 900) * MIB);
    assert_eq!(oom.moment.largest_free_bytes, 424 * MIB);
    assert_eq!(oom.moment.causes.level(), Level::High);
    assert!(oom.is_fragmentation());
    assert_eq!(found.settings, [("release_lock_on_cudamalloc".into(), "True".into())]);
    let first = &found.advice[0];
    assert!(first.contains("1.46 GiB would have sufficed"), "{first}");
    assert!(first.contains("These would have avoided it: a good one (1.50 GiB)."), "{first}");
    assert!(found.advice[1].contains("expandable_segments:True"), "{:?}", found.advice);
}

#[test]
fn what_failed_is_not_advised_under_another_name() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::that_fails().write(folder.path(), Vec::new());
    let failed = PolicyRow { is_recorded: true, ..row("native", 1536 * MIB) };
    let variant = |name: &str, budget| PolicyRow { is_variant: true, ..row(name, budget) };
    let rows = vec![
        failed,
        variant("a setting that changes nothing", 1536 * MIB),
        variant("a setting that helps", 1600 * MIB),
        row("another allocator", 1536 * MIB),
    ];
    let found = Inspection::new(&file, 0, rows);
    let advised: Vec<&str> = found.by_budget().iter().map(|(row, _)| &*row.policy).collect();
    assert_eq!(advised, ["another allocator", "a setting that helps"]);
}

#[test]
fn what_the_recording_shows_to_be_served_is_not_next_to_fail() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut program = Program::default();
    program.entry(Action::SegmentAlloc, BASE, 1 << 30, "", 0);
    program.alloc(BASE, 900 * MIB, "forward", 42);
    program.free(BASE, 900 * MIB);
    program.alloc(BASE, 500 * MIB, "backward", 43);
    let file = program.write(folder.path(), Vec::new());
    let found = Inspection::new(&file, 0, Vec::new());
    assert_eq!((found.peak.held_bytes, &found.peak.next), (900 * MIB, &None));
    let [_, outlook] = found.peak.outlook();
    assert!(outlook.starts_with("next to fail: nothing"), "{outlook}");
    // Behind the last allocation what was asked for lately tells.
    let next = found.end.next.as_ref().map(|next| next.bytes);
    assert_eq!(next, Some(900 * MIB));
    // The curve says the same.
    let recorded = Recorded::new(&file, 0);
    let samples = Timeline::new(&recorded).samples;
    let of = |events: usize| {
        let at = samples.iter().find(|sample| sample.events == events);
        at.expect("short traces have all moments").next
    };
    assert_eq!((of(found.peak.events), of(found.end.events)), (None, next));
}

/// A segment in use but for a hole of 20 MiB.
fn half_full() -> Segment {
    let parts = [
        (60 * MIB, 60 * MIB, BlockState::Active),
        (20 * MIB, 0, BlockState::Inactive),
        (20 * MIB, 20 * MIB, BlockState::Active),
    ];
    Segment { stream: 7, ..Segment::new(BASE, &parts) }
}

#[test]
fn a_snapshot_without_history_is_one_moment() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::default().write(folder.path(), vec![half_full()]);
    let found = Inspection::new(&file, 0, Vec::new());
    assert!(!found.has_history && found.reserved_peak.is_none() && found.growths.is_empty());
    assert_eq!((&found.peak, found.end.held_bytes), (&found.end, 80 * MIB));
    assert_eq!((found.end.causes.too_small, &found.end.next), (20 * MIB, &None));
    assert!(found.advice[0].contains("with the recording off"), "{:?}", found.advice);
    assert!(found.advice[0].contains("_record_memory_history()"), "{:?}", found.advice);
    assert!(!found.advice.iter().any(|line| line.contains("runs")), "{:?}", found.advice);
    let picture = Picture::new(&file, 0, Vec::new(), None);
    let names: Vec<_> = figures(&picture).iter().map(|figure| figure.name).collect();
    assert_eq!(names, ["peak"]);
    assert_eq!((picture.state.pieces.len(), picture.state.len), (3, 100 * MIB));
    let page = html("one moment", &[picture]);
    for kind in ["memory", "causes", "map"] {
        assert!(!page.contains(&format!("data-kind=\"{kind}\"")), "{kind} has nothing to show");
    }
    assert!(page.contains("What lay where when the snapshot was taken") && !page.contains("0 µs"));
}

#[test]
fn a_steady_program_is_judged_when_most_is_wasted() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut program = Program::default();
    // The oldest entries are gone: what was there at the start is all that is ever reserved.
    program.alloc(BASE + 60 * MIB, 15 * MIB, "step", 9);
    program.free(BASE + 60 * MIB, 15 * MIB);
    program.free(BASE + 80 * MIB, 20 * MIB);
    program.alloc(BASE + 80 * MIB, 20 * MIB, "step", 9);
    program.alloc(BASE + 60 * MIB, 10 * MIB, "step", 10);
    program.free(BASE + 60 * MIB, 10 * MIB);
    let file = program.write(folder.path(), vec![half_full()]);
    let found = Inspection::new(&file, 0, Vec::new());
    let worst = found.worst();
    assert_eq!((worst.events, worst.time_us), (5, 40));
    assert_eq!((worst.causes.reserved, worst.causes.requested), (100 * MIB, 60 * MIB));
}

#[test]
fn who_held_memory_at_a_failure_is_shown_beside_the_peak() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::that_fails().write(folder.path(), Vec::new());
    let row = PolicyRow { calls: vec![("map".into(), 12, 56.84)], ..row("a policy", 1500 * MIB) };
    let picture = Picture::new(&file, 0, vec![row], None);
    let failure = picture.failure.as_ref().expect("it fails after the peak");
    let moment = &picture.inspection.ooms[0].moment;
    assert_eq!((failure.time_us, failure.events), (moment.time_us, moment.events));
    let sum = |state: &State| {
        let len = |piece: &Piece| match piece.content {
            Content::Tensor { len, .. } => len,
            Content::Hole { .. } => 0,
        };
        state.pieces.iter().map(len).sum::<u64>()
    };
    assert_eq!(sum(failure), 900 * MIB);
    assert_eq!(sum(&picture.state), picture.inspection.peak_requested_bytes);
    let names: Vec<_> = figures(&picture).iter().map(|figure| figure.name).collect();
    assert_eq!(names, ["memory", "causes", "map", "peak", "failure", "policies", "calls"]);
    let page = html("a failure", &[picture]);
    let (_, list) = page.split_once("Held when it failed by").expect("a list of its own");
    let (list, _) = list.split_once("</table>").expect("a table");
    for part in ["forward (me/train.py:42)", "300 MiB", "33 %", "log (me/train.py:50)"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    assert!(page.contains("at the failure, 8.07 ms</button>"), "the figure can show it");
    assert!(page.contains("12 calls, 57 µs"), "times are rounded");
}

#[test]
fn owners_and_leaks_have_names() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::that_fails().write(folder.path(), Vec::new());
    let found = Inspection::new(&file, 0, Vec::new());
    let owners: Vec<_> =
        found.peak.owners.iter().map(|o| (o.name.as_str(), o.bytes / MIB, o.tensors)).collect();
    assert_eq!(
        owners,
        [
            ("step (me/train.py:9)", 700, 1),
            ("forward (me/train.py:42)", 600, 2),
            ("log (me/train.py:50)", 300, 200),
        ]
    );
    assert_eq!(found.growths.len(), 1, "only what never shrinks");
    let growth = &found.growths[0];
    assert_eq!((growth.name.as_str(), growth.tensors), ("log (me/train.py:50)", 200));
    assert!(growth.grown() > 250 * MIB && growth.rises >= 14, "{growth:?}");
}

#[test]
fn a_served_failure_raises_what_is_needed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = Program::that_fails().write(folder.path(), Vec::new());
    let recorded = Recorded::new(&file, 0);
    let served = with_failures_served(&recorded);
    assert_eq!(served.events.len(), recorded.trace.events.len() + 2);
    assert_eq!(served.tensor_count, recorded.trace.tensor_count + 1);
    let last: Vec<_> = served.requested_curve().map(|(_, bytes)| bytes / MIB).collect();
    assert_eq!(last[last.len() - 2..], [1500, 900]);
}

#[test]
fn what_no_allocator_can_serve_is_said_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut program = Program::default();
    program.entry(Action::SegmentAlloc, BASE, 1 << 30, "", 0);
    program.alloc(BASE, 900 * MIB, "forward", 42);
    program.entry(Action::Oom, 10 * MIB, 600 * MIB, "forward", 43);
    let found = Inspection::new(&program.write(folder.path(), Vec::new()), 0, Vec::new());
    let first = &found.advice[0];
    assert!(first.starts_with("No allocator avoids this failure: 900 MiB were in use"), "{first}");
    assert!(first.ends_with("held by forward (me/train.py:42)."), "{first}");
}

#[test]
fn a_snapshot_of_this_pool_has_no_classes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let parts = [
        (512, 500, BlockState::Active),
        (MIB - 512, 0, BlockState::Inactive),
        (MIB, MIB, BlockState::PendingFree),
    ];
    let segment = Segment { is_expandable: true, ..Segment::new(BASE, &parts) };
    let mut program = Program::default();
    program.alloc(BASE, 500, "kv", 0);
    let path = folder.path().join("own.pickle");
    let snapshot = Snapshot {
        segments: vec![segment],
        device_traces: vec![program.entries],
        settings: vec![("allocator".into(), "vmm 0.1.0".into())],
    };
    write_file(&path, &snapshot).expect("writable");
    let found = Inspection::new(&inspect_file(&path, &mut |_| ()).expect("reads"), 0, Vec::new());
    assert_eq!(found.allocator, Allocator::Vmm);
    let causes = found.end.causes;
    assert_eq!((causes.requested, causes.rounding, causes.fenced), (500, 12, MIB));
    assert_eq!((causes.reserved, causes.other_pool, causes.other_stream), (2 * MIB, 0, 0));
    assert_eq!(found.end.owners[0].name, "without a stack, 1 to 2 MiB");
    assert_eq!(found.end.owners[1].name, "kv");
    assert!(!found.has_history && found.peak == found.end && found.reserved_peak.is_none());
    assert!(found.advice[0].contains("snapshot of itself"), "{:?}", found.advice);

    // A program that runs on the pool and records itself has one.
    for setting in [("allocator", "vmm 0.1.0"), ("PYTORCH_CUDA_ALLOC_CONF", "vmm")] {
        let mut program = Program::default();
        program.alloc(BASE, 500, "kv", 0);
        program.alloc(BASE + MIB, MIB, "kv", 0);
        let settings = [setting, ("expandable_segments", "True")];
        let file = program.write_with(folder.path(), Vec::new(), &settings);
        let found = Inspection::new(&file, 0, Vec::new());
        assert!(found.has_history && found.allocator == Allocator::Vmm);
    }
}

#[test]
fn a_log_without_segments_tells_what_it_can() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("rmm.csv");
    let log = "Thread,Time,Action,Pointer,Size,Stream\n\
               1,10:00:00.000000,allocate,0x100000,1048576,0\n\
               1,10:00:00.000010,allocate,0x300000,3000,0\n\
               1,10:00:00.000020,allocate failure,0x0,999999999,0\n\
               1,10:00:00.000030,free,0x100000,1048576,0\n";
    std::fs::write(&path, log).expect("writable");
    let found = Inspection::new(&inspect_file(&path, &mut |_| ()).expect("reads"), 0, Vec::new());
    assert_eq!(found.allocator, Allocator::Unknown);
    assert_eq!(found.peak_reserved_bytes, None);
    assert_eq!(found.peak.held_bytes, MIB + 3000);
    assert_eq!(found.peak.owners[0].name, "1 to 2 MiB");
    assert_eq!(found.ooms[0].wanted.bytes, 999_999_999);
    let sentence = found.ooms[0].sentence(&found);
    assert!(sentence.starts_with("954 MiB were asked for at 20 µs"), "{sentence}");
    assert!(found.advice[0].contains("in vain"), "{:?}", found.advice);
}

#[test]
fn mapped_memory_joins_what_was_there_before_the_trace() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let page = 20 * MIB;
    let parts = [(page, page, BlockState::Active), (2 * page, 0, BlockState::Inactive)];
    let segment = Segment { stream: 7, is_expandable: true, ..Segment::new(BASE, &parts) };
    // Before the trace: pages 1 and 2. It maps page 0 and uses it, then asks for more than is free.
    let mut program = Program::default();
    program.entry(Action::SegmentMap, BASE, page, "", 0);
    program.alloc(BASE, page, "forward", 42);
    program.entry(Action::Oom, MIB, 3 * page, "forward", 43);
    let found = Inspection::new(&program.write(folder.path(), vec![segment]), 0, Vec::new());
    let causes = found.end.causes;
    assert_eq!((causes.reserved, causes.requested, causes.free()), (3 * page, page, 2 * page));
    assert_eq!(found.ooms[0].moment.largest_free_bytes, 2 * page);
    assert_eq!(found.ooms[0].moment.causes.too_small, 2 * page);
    assert!(!found.ooms[0].is_fragmentation());
}

/// A graph that keeps 400 MiB, none of which is live.
fn capture(program: &mut Program, graph: (u64, u64)) {
    program.entry_in(graph, Action::SegmentAlloc, BASE, 400 * MIB, "", 0);
    program.entry_in(graph, Action::Alloc, BASE, 400 * MIB, "capture", 5);
    program.entry_in(graph, Action::FreeRequested, BASE, 400 * MIB, "", 0);
    program.entry_in(graph, Action::FreeCompleted, BASE, 400 * MIB, "", 0);
}

#[test]
fn memory_of_a_graph_is_in_another_pool() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let graph = (0, 1);
    let mut program = Program::default();
    capture(&mut program, graph);
    program.entry(Action::SegmentAlloc, BASE + (4 << 30), 200 * MIB, "", 0);
    program.alloc(BASE + (4 << 30), 150 * MIB, "forward", 42);
    program.entry(Action::Oom, 10 * MIB, 100 * MIB, "attention", 77);
    let file = program.write(folder.path(), Vec::new());
    let found = Inspection::new(&file, 0, Vec::new());
    assert_eq!(found.graph_pools, 1);
    // At once 400 MiB were live, and then 150 beside 400 that the graph keeps.
    assert_eq!(found.peak_requested_bytes, 400 * MIB);
    assert_eq!(found.peak_with_graphs_bytes, 550 * MIB);
    let moment = &found.ooms[0].moment;
    assert_eq!((moment.causes.other_pool, moment.causes.too_small), (400 * MIB, 50 * MIB));
    assert_eq!((moment.largest_free_bytes, moment.largest_servable_bytes), (400 * MIB, 50 * MIB));
    // 150 + 400 + 100 MiB: what the graph keeps would have served nobody.
    let oom = &found.ooms[0];
    assert_eq!((oom.kept_by_graphs_bytes, oom.needed()), (400 * MIB, 650 * MIB));
    assert!(!oom.is_fragmentation(), "{} could be had", oom.capacity());
    assert!(found.advice[0].contains("400 MiB kept by pools"), "{}", found.advice[0]);
    assert_eq!(found.needed_bytes(), 650 * MIB);
    let about_pools = found.advice.iter().find(|advice| advice.contains("another pool"));
    let about_pools = about_pools.expect("it is most of what is free");
    assert!(about_pools.contains("graph_pool_handle"), "{about_pools}");

    // Given back before, it is nobody's.
    let mut program = Program::default();
    capture(&mut program, graph);
    program.entry_in(graph, Action::SegmentFree, BASE, 400 * MIB, "", 0);
    program.entry(Action::SegmentAlloc, BASE + (4 << 30), 200 * MIB, "", 0);
    program.alloc(BASE + (4 << 30), 150 * MIB, "forward", 42);
    let file = program.write(folder.path(), Vec::new());
    let found = Inspection::new(&file, 0, Vec::new());
    assert_eq!(found.peak_with_graphs_bytes, 400 * MIB);

    // Seen by the graph, the other memory is in another pool.
    let mut program = Program::default();
    program.entry(Action::SegmentAlloc, BASE, 400 * MIB, "", 0);
    program.alloc(BASE, 200 * MIB, "forward", 42);
    program.entry_in(graph, Action::Oom, 10 * MIB, 100 * MIB, "capture", 5);
    let file = program.write(folder.path(), Vec::new());
    let found = Inspection::new(&file, 0, Vec::new());
    assert_eq!(found.ooms[0].wanted.pool, 1);
    assert_eq!(found.ooms[0].moment.causes.other_pool, 200 * MIB);
}

#[test]
fn settings_that_change_lengths_are_followed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let causes = |settings: &[(&str, &str)]| {
        let mut program = Program::default();
        program.entry(Action::SegmentAlloc, BASE, 300 * MIB, "", 0);
        program.alloc(BASE, 130 * MIB, "forward", 42);
        program.entry(Action::Oom, 0, 200 * MIB, "forward", 43);
        let file = program.write_with(folder.path(), Vec::new(), settings);
        Inspection::new(&file, 0, Vec::new())
    };
    let plain = causes(&[]).end.causes;
    assert_eq!((plain.rounding, plain.too_small), (0, 170 * MIB));
    let found = causes(&[("roundup_power2_divisions.128", "4")]);
    assert_eq!((found.end.causes.rounding, found.end.causes.too_small), (30 * MIB, 140 * MIB));
    assert!(found.advice.iter().any(|line| line.contains("raise it")), "{:?}", found.advice);
    let unsplit = causes(&[("max_split_size", "134217728")]).end.causes;
    assert_eq!((unsplit.rounding, unsplit.too_small), (170 * MIB, 0));
}

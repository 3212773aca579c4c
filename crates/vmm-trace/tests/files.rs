//! Whole files: what is recognised, how damage is told, and what the writer makes.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use vmm_trace::write::{Entry, Frame, Protocol, Segment, Snapshot, write_file, write_snapshot};
use vmm_trace::{
    Action, BlockState, EventKind, Source, Trace, TraceError, inspect_file, read_file,
};

const BASE: u64 = 0x7f00_0000_0000;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("a vector takes all");
    encoder.finish().expect("a vector takes all")
}

fn entry(action: Action, addr: u64, size: u64) -> Entry {
    let time_us = 1_795_960_341_334_464 + size;
    Entry { stream: 7, time_us, ..Entry::new(action, addr, size) }
}

/// A segment of 2 MiB with one tensor, allocated in the trace together with another one.
fn sample() -> Snapshot {
    let parts = [
        (512, 100, BlockState::Active),
        (512, 500, BlockState::PendingFree),
        ((2 << 20) - 1024, 0, BlockState::Inactive),
    ];
    let segment = Segment {
        stream: u64::MAX - 1,
        pool: (2, 1),
        is_small: true,
        ..Segment::new(BASE, &parts)
    };
    let frame = Frame { filename: "train.py".into(), line: 70_000, name: "step".into() };
    let mut trace = vec![
        entry(Action::SegmentAlloc, BASE, 2 << 20),
        entry(Action::Alloc, BASE, 100),
        entry(Action::Alloc, BASE + 512, 500),
        entry(Action::FreeRequested, BASE + 512, 500),
        entry(Action::Oom, 12_345, 1 << 40),
        entry(Action::Alloc, BASE + 1024, 300),
        entry(Action::FreeRequested, BASE + 1024, 300),
        entry(Action::FreeCompleted, BASE + 1024, 300),
    ];
    trace[1].frames = vec![frame.clone(), frame];
    let settings = vec![("expandable_segments".into(), "False".into())];
    Snapshot { segments: vec![segment], device_traces: vec![Vec::new(), trace], settings }
}

fn bytes_of(snapshot: &Snapshot, protocol: Protocol) -> Vec<u8> {
    write_snapshot(Vec::new(), snapshot, protocol).expect("a vector takes all")
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().expect("a temporary folder"))
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("the folder is writable");
        path
    }

    fn check(&self, bytes: &[u8]) -> Trace {
        read_file(&self.put("good.pickle", bytes), &mut |_| ()).expect("reads")
    }

    /// The message must be one line that begins with the file.
    fn check_fault(&self, name: &str, bytes: &[u8], expected: &str) -> TraceError {
        let path = self.put(name, bytes);
        let error = read_file(&path, &mut |_| ()).expect_err("does not read");
        let text = error.to_string();
        assert!(text.starts_with(&format!("{}: ", path.display())), "{text}");
        assert!(text.contains(expected) && !text.contains('\n'), "{text}");
        assert_eq!(error.path(), path);
        error
    }
}

fn check_sample(trace: &Trace) {
    assert_eq!(trace.source, Source::PyTorch);
    assert_eq!(trace.settings, [("expandable_segments".into(), "False".into())]);
    // The segment is on device 0, the trace of device 0 is empty.
    let [first, second] = &trace.devices[..] else { panic!("two devices") };
    assert_eq!((first.device, second.device), (0, 1));
    let segment = &first.end_segments[0];
    assert_eq!((segment.address, segment.total_size, segment.is_small), (BASE, 2 << 20, true));
    assert_eq!(first.streams[segment.stream as usize], u64::MAX - 1);
    assert_eq!(first.pools[segment.pool as usize], (2, 1));
    assert_eq!(segment.blocks, sample().segments[0].blocks);
    assert_eq!(second.streams, [7]);
    assert_eq!(second.census.with_frames, 8);
    let kinds: Vec<_> = second.events.iter().map(|event| event.kind).collect();
    let alloc = |id, len| EventKind::Alloc { id, len, stream: 0, pool: 0 };
    assert_eq!(
        kinds,
        [
            EventKind::SegmentAlloc { len: 2 << 20, stream: 0 },
            alloc(0, 100),
            alloc(1, 500),
            EventKind::FreeRequested { id: 1 },
            EventKind::Oom { len: 1 << 40, device_free: 12_345 },
            alloc(2, 300),
            EventKind::FreeRequested { id: 2 },
            EventKind::FreeCompleted { id: 2 },
        ]
    );
}

#[test]
fn what_is_written_reads_back() {
    let files = Files::new();
    for protocol in [Protocol::Two, Protocol::Four] {
        let bytes = bytes_of(&sample(), protocol);
        check_sample(&files.check(&bytes));
        check_sample(&files.check(&gzip(&bytes)));
        // Members of a gzip file simply follow on each other.
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        check_sample(&files.check(&[gzip(head), gzip(tail)].concat()));
    }
    let path = files.0.path().join("run.7.pickle.gz");
    write_file(&path, &sample()).expect("the folder is writable");
    let mut last = None;
    let trace = read_file(&path, &mut |progress| last = Some(progress)).expect("reads");
    check_sample(&trace);
    assert_eq!(trace.name, "run.7");
    let last = last.expect("progress was told");
    assert_eq!(last.bytes, last.total);
}

#[test]
fn damage_is_told_apart() {
    let files = Files::new();
    let plain = bytes_of(&sample(), Protocol::Four);
    let packed = gzip(&plain);
    let cut = |bytes: &[u8], by: usize| bytes[..bytes.len() - by].to_vec();
    let error = files.check_fault("cut", &cut(&plain, 1), "ends too early, after byte");
    assert!(matches!(error, TraceError::Truncated { .. }));
    files.check_fault("cut.gz", &cut(&packed, 30), "ends too early");
    files.check_fault("tail.gz", &cut(&packed, 4), "ends too early");
    let mut sum = packed.clone();
    let at = sum.len() - 6;
    sum[at] ^= 1;
    files.check_fault("sum.gz", &sum, "checksum");
    let mut middle = packed.clone();
    middle[packed.len() / 2] ^= 0x55;
    let path = files.put("middle.gz", &middle);
    assert!(read_file(&path, &mut |_| ()).is_err());
    files.check_fault("more.gz", &[&packed[..], b"junk that is no header"].concat(), "gzip");
    files.check_fault("more", &[&plain[..], b"junk"].concat(), "more bytes follow");
    for len in 1..packed.len() {
        let path = files.put("part.gz", &packed[..len]);
        assert!(read_file(&path, &mut |_| ()).is_err(), "{len}");
    }
}

#[test]
fn other_files_are_no_traces() {
    let files = Files::new();
    let error = files.check_fault("empty.pickle", b"", "no segments and no events");
    assert!(matches!(error, TraceError::Empty { .. }));
    files.check_fault("empty.gz", &gzip(b""), "no segments and no events");
    files.check_fault("hollow", &bytes_of(&Snapshot::default(), Protocol::Two), "no events");
    files.check_fault("model.pt", b"PK\x03\x04rest", "a zip archive, as torch.save writes");
    files.check_fault("a.json", b"{\"a\": 1}", "JSON");
    files.check_fault("a.txt", b"hello, world\n", "neither a pickle");
    files.check_fault("twice.gz", &gzip(&gzip(b"x")), "gzip inside gzip");
    files.check_fault("weights", b"\x80\x04}.", "neither segments nor device_traces");
    let error = files.check_fault("evil", b"\x80\x04cos\nsystem\n.", "imports a name (os.system)");
    assert!(matches!(error, TraceError::Hostile { offset: 2, .. }));
    let error =
        files.check_fault("a.csv", b"Thread,Time,Action,Size,Stream\n", "`Pointer` is missing");
    assert!(matches!(error, TraceError::Columns { missing: "Pointer", .. }));

    let missing = files.0.path().join("missing");
    let error = read_file(&missing, &mut |_| ()).expect_err("there is no file");
    assert!(matches!(error, TraceError::Io { .. }) && error.to_string().contains("missing"));
    let error = read_file(files.0.path(), &mut |_| ()).expect_err("a folder is no file");
    assert!(matches!(error, TraceError::Io { .. }), "{error}");
}

#[test]
fn segments_alone_can_be_looked_at_but_not_replayed() {
    let files = Files::new();
    let snapshot = Snapshot { device_traces: Vec::new(), ..sample() };
    let bytes = bytes_of(&snapshot, Protocol::Four);
    let error =
        files.check_fault("still", &bytes, "1 segments and no allocation, nothing to replay");
    assert!(matches!(error, TraceError::NothingToReplay { segments: 1, .. }));
    let trace = inspect_file(error.path(), &mut |_| ()).expect("reads").trace;
    assert_eq!(trace.devices[0].start_live.len(), 2);
}

#[test]
fn a_log_is_known_by_its_header() {
    let files = Files::new();
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.5,allocate,0x10,64,0\n";
    for bytes in [log.as_bytes().to_vec(), gzip(log.as_bytes())] {
        let trace = files.check(&bytes);
        assert_eq!((trace.source, trace.event_count()), (Source::Rmm, 1));
    }
    files.check_fault("cut.csv.gz", &gzip(log.as_bytes())[..40], "ends too early");
    files.check_fault(
        "long.csv",
        format!("{log}{}", "x".repeat(2 << 20)).as_bytes(),
        "longer than 1 MiB",
    );
    let header = log.lines().next().expect("it has a header");
    files.check_fault("hollow.csv", header.as_bytes(), "no segments and no events");
}

/// Loads a file with Python's own pickle and checks the keys that the viewer reads.
const CHECK_KEYS: &str = r#"
import pickle, sys
d = pickle.load(open(sys.argv[1], "rb"))
assert set(d) >= {"segments", "device_traces", "allocator_settings", "external_annotations"}, d.keys()
for s in d["segments"]:
    assert set(s) == {"device", "address", "total_size", "allocated_size", "active_size", "requested_size",
        "stream", "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"}, s.keys()
    assert s["total_size"] == sum(b["size"] for b in s["blocks"])
    assert (s["allocated_size"], s["active_size"], s["requested_size"]) == (512, 1024, 600)
    assert (s["segment_type"], s["segment_pool_id"], s["stream"]) == ("small", (2, 1), 2**64 - 2)
    for b in s["blocks"]:
        assert set(b) == {"address", "size", "requested_size", "state", "frames"}, b.keys()
entries = d["device_traces"][1]
assert len(entries) == 8
for e in entries:
    where = "device_free" if e["action"] == "oom" else "addr"
    assert set(e) == {"action", where, "size", "stream", "time_us", "compile_context", "user_metadata",
        "pool_id", "frames"}, e.keys()
assert entries[1]["addr"] == 0x7F0000000000 and entries[4]["size"] == 2**40
assert entries[1]["frames"] == [{"name": "step", "filename": "train.py", "line": 70000}] * 2
"#;

#[test]
fn python_reads_what_is_written() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: python_reads_what_is_written: python3 is missing");
        return;
    }
    let files = Files::new();
    for protocol in [Protocol::Two, Protocol::Four] {
        let path = files.put("out.pickle", &bytes_of(&sample(), protocol));
        let run = Command::new("python3").args(["-c", CHECK_KEYS]).arg(path).output();
        let run = run.expect("python3 runs");
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
}

/// Pickles a snapshot with stacks, where entries, frames and stacks are shared as `PyTorch` shares them.
const MAKE_STACKS: &str = r#"
import pickle, sys
frames = [{"filename": "a%d.py" % (i % 40), "line": i, "name": "f"} for i in range(300)]
stacks = [frames[i:i + 20] for i in range(200)]
trace = []
for i in range(3000):
    common = {"addr": 2**46 + i % 7 * 512, "size": 100 + i, "stream": 0, "time_us": 10**15 + i, "frames": stacks[i % 200]}
    trace += [{"action": action, **common} for action in ("alloc", "free_requested", "free_completed")]
snap = {"action": "snapshot", "size": 0, "stream": 0}
trace = [snap] + trace + [snap]
pickle.dump({"segments": [], "device_traces": [[], trace]}, open(sys.argv[1], "wb"), int(sys.argv[2]))
"#;

#[test]
fn what_python_writes_reads() {
    let files = Files::new();
    for protocol in ["2", "3", "4", "5"] {
        let path = files.0.path().join("stacks.pickle");
        let run =
            Command::new("python3").args(["-c", MAKE_STACKS]).arg(&path).arg(protocol).output();
        let Ok(run) = run else {
            println!("skipped: what_python_writes_reads: python3 is missing");
            return;
        };
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let trace = read_file(&path, &mut |_| ()).expect("reads");
        let device = &trace.devices[0];
        assert_eq!((device.device, device.events.len(), device.tensor_count), (1, 9002, 3000));
        assert_eq!((device.census.with_frames, device.census.without_time), (9000, 2));
        assert_eq!(device.peak_requested_bytes(), 3099);
    }
}

#[test]
fn addresses_and_stacks_are_told() {
    let files = Files::new();
    let path = files.put("s.pickle", &bytes_of(&sample(), Protocol::Four));
    let seen = inspect_file(&path, &mut |_| ()).expect("reads");
    let details = &seen.details[1];
    let at = |offset| BASE + offset;
    assert_eq!(details.addresses, [at(0), at(512), at(1024)]);
    assert_eq!(details.stacks, [Some(0), None, None]);
    let frames: Vec<_> = seen.stacks.frames(0).map(|f| (f.filename.as_str(), f.line)).collect();
    assert_eq!(frames, [("train.py", 70_000); 2]);
    assert_eq!(seen.stacks.len(), 1);
    let segment = details.segments[0];
    assert_eq!((segment.address, segment.is_mapping), (BASE, false));
    assert_eq!(seen.trace.devices[1].pools[usize::from(segment.pool)], (0, 0));
    assert_eq!((details.ooms.len(), details.ooms[0].stack), (1, None));
}

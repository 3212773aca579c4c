//! Writes a small memory snapshot of `PyTorch`:
//! `cargo run -p vmm-trace --example write_snapshot -- OUT.pickle`.
//!
//! The viewer of `PyTorch` opens it: `python -m torch.cuda._memory_viz trace_plot OUT.pickle`, or
//! its page for memory snapshots.

use std::path::PathBuf;
use vmm_trace::write::{Entry, Frame, Segment, Snapshot, write_file};
use vmm_trace::{Action, BlockState};

const MIB: u64 = 1 << 20;

fn main() -> std::io::Result<()> {
    let Some(out) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: write_snapshot OUT.pickle[.gz]");
        std::process::exit(2);
    };
    write_file(&out, &snapshot())
}

/// One segment of 20 MiB: a tensor that stays, one that came and went.
fn snapshot() -> Snapshot {
    let base = 0x7f00_0000_0000;
    let frame = Frame { filename: "train.py".into(), line: 12, name: "forward".into() };
    let entry = |action, addr, size, time_us| Entry {
        time_us,
        frames: vec![frame.clone()],
        ..Entry::new(action, addr, size)
    };
    let parts = [(8 * MIB, 8 * MIB, BlockState::Active), (12 * MIB, 0, BlockState::Inactive)];
    Snapshot {
        segments: vec![Segment::new(base, &parts)],
        device_traces: vec![vec![
            entry(Action::SegmentAlloc, base, 20 * MIB, 10),
            entry(Action::Alloc, base, 8 * MIB, 11),
            entry(Action::Alloc, base + 8 * MIB, 4 * MIB, 20),
            entry(Action::FreeRequested, base + 8 * MIB, 4 * MIB, 30),
            entry(Action::FreeCompleted, base + 8 * MIB, 4 * MIB, 31),
        ]],
        settings: vec![("expandable_segments".into(), "False".into())],
    }
}

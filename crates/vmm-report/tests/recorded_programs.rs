//! Recorded programs: what is rebuilt from their events must be what their snapshots show.

use std::path::{Path, PathBuf};

use vmm_report::{Inspection, Picture, PngError, Recorded, Timeline, figures, png};
use vmm_trace::{BlockState, inspect_file};

/// The traces of the repository, and further ones where they lie beside the checkout.
fn traces() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in [root.join("traces"), root.join("../shared/traces")] {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            println!("skipped: the traces of {}, which is not there", folder.display());
            continue;
        };
        let paths = entries.map(|entry| entry.expect("readable").path());
        files.extend(paths.filter(|path| path.extension().is_some_and(|ending| ending == "gz")));
    }
    files.sort();
    files
}

#[test]
fn the_end_is_as_the_snapshot_shows_it() {
    for path in traces() {
        let file = inspect_file(&path, &mut |_| ()).expect("reads");
        for (index, device) in file.trace.devices.iter().enumerate() {
            let inspection = Inspection::new(&file, index, Vec::new());
            let end = inspection.end.causes;
            let blocks = || device.end_segments.iter().flat_map(|segment| &segment.blocks);
            let free = blocks().filter(|block| block.state == BlockState::Inactive);
            let name = &inspection.name;
            assert_eq!(end.reserved, device.end_reserved_bytes(), "{name}");
            assert_eq!(end.free(), free.map(|block| block.size).sum::<u64>(), "{name}");
            let in_use = blocks().filter(|block| block.state != BlockState::Inactive);
            let size: u64 = in_use.map(|block| block.size).sum();
            assert_eq!(end.requested + end.rounding + end.fenced, size, "{name}");
            assert_eq!(inspection.peak.held_bytes, device.peak_requested_bytes(), "{name}");
            let reserved = inspection.worst().causes.reserved;
            assert_eq!(reserved, device.recorded_peak_reserved_bytes(), "{name}");
        }
    }
}

#[test]
fn causes_add_up_at_every_sample() {
    for path in traces() {
        let file = inspect_file(&path, &mut |_| ()).expect("reads");
        for index in 0..file.trace.devices.len() {
            let recorded = Recorded::new(&file, index);
            let timeline = Timeline::new(&recorded);
            assert!(timeline.samples.len() > 100, "{}", path.display());
            for sample in &timeline.samples {
                let all: u64 = sample.causes.all().iter().map(|cause| cause.bytes).sum();
                let sum = sample.causes.requested + all;
                let at = format!("{} after {} events", path.display(), sample.events);
                assert_eq!(sum, sample.causes.reserved, "{at}");
            }
            let most = timeline.stretches.iter().map(|s| s.requested.high).max();
            assert_eq!(most, Some(recorded.trace.peak_requested_bytes()));
            let most = timeline.stretches.iter().map(|s| s.reserved.high).max();
            assert_eq!(most, Some(recorded.trace.recorded_peak_reserved_bytes()));
        }
    }
}

/// Every figure is well-formed, has something in it, and becomes pixels.
#[test]
fn figures_are_drawn() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/frag_grow.pickle.gz");
    let file = inspect_file(&path, &mut |_| ()).expect("reads");
    let picture = Picture::new(&file, 0, Vec::new(), Some(8 << 30));
    let figures = figures(&picture);
    let names: Vec<_> = figures.iter().map(|figure| figure.name).collect();
    assert_eq!(names, ["memory", "causes", "map", "peak"], "no policies were replayed");
    for figure in figures {
        let document = figure.document();
        assert!(document.len() > 10_000, "{}", figure.name);
        match png(&document) {
            Ok(pixels) => {
                assert!(pixels.starts_with(b"\x89PNG"));
                assert!(pixels.len() > 5_000, "{} is nearly blank", figure.name);
            }
            Err(PngError::NoFonts) => println!("skipped: figures_are_drawn, PNG: no fonts"),
            Err(error) => panic!("{}: {error}", figure.name),
        }
    }
}

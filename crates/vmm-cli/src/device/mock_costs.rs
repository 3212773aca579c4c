//! The costs of the mock's calls from what `vmm probe --json` measured on a card.
//!
//! Only the keys that are used here are read, so files of other versions are as good while they have
//! them. What a file does not have costs what it does on an H200.

use super::mock::MEMORY;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use vmm_core::DeviceOp;
use vmm_mock::{CostModel, Curve};

/// A probe is a few kilobytes. Of a trace that was named by mistake no more is read, in bytes.
const LONGEST_FILE: u64 = 1 << 20;

/// No call takes longer, in nanoseconds: an hour. So sums over a replay do not overflow.
const LONGEST_CALL_NS: u64 = 3_600_000_000_000;

const HOW_TO_MAKE_ONE: &str = "make one on the card with: vmm probe --json > FILE";

/// What is read of a probe's output.
#[derive(Deserialize)]
struct Probe {
    /// Always there in a probe, so that other JSON is told from one that measured nothing.
    #[serde(rename = "device")]
    _device: String,
    virtual_memory: Option<VirtualMemory>,
    calls: Option<Vec<Call>>,
    frames: Option<Vec<Frame>>,
}

#[derive(Deserialize)]
struct VirtualMemory {
    remapping: bool,
    /// Older probes do not say: they knew no device that does.
    #[serde(default)]
    queued_binds: bool,
}

#[derive(Deserialize)]
struct Call {
    call: String,
    time_us: f64,
}

#[derive(Deserialize)]
struct Frame {
    frame_bytes: u64,
    make_frame_us: Option<f64>,
    map_us: Option<f64>,
    set_access_us: Option<f64>,
    unmap_us: Option<f64>,
    release_frame_us: Option<f64>,
}

/// The costs that a file holds.
///
/// # Errors
/// One line that names the file, and says what is wrong and what to do.
pub(super) fn read(file: &Path) -> Result<CostModel, String> {
    let shown = file.display();
    let text = text(file).map_err(|e| {
        format!("{shown}: cannot be read ({e}); check the path, or {HOW_TO_MAKE_ONE}")
    })?;
    costs(&text).map_err(|reason| format!("{shown}: {reason}; {HOW_TO_MAKE_ONE}"))
}

fn text(file: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(file)?.take(LONGEST_FILE).read_to_end(&mut text)?;
    Ok(text)
}

/// The costs that a probe's output holds, or what is wrong with it.
fn costs(json: &[u8]) -> Result<CostModel, String> {
    let probe: Probe = serde_json::from_slice(json)
        .map_err(|e| format!("this is no output of 'vmm probe --json' ({e})"))?;
    if probe.virtual_memory.as_ref().is_some_and(|memory| !memory.remapping) {
        // The mock can, and would mix the costs of two cards.
        return Err("the probed card cannot remap memory, which the mock does".to_owned());
    }
    if probe.virtual_memory.is_some_and(|memory| memory.queued_binds) {
        return Err("the probed device binds behind its calls (Vulkan), and the mock during \
                    them; probe a CUDA card"
            .to_owned());
    }
    let (calls, frames) = (probe.calls.unwrap_or_default(), probe.frames.unwrap_or_default());
    if calls.is_empty() && frames.is_empty() {
        let made = "it was made without a card, or with --no-measure";
        return Err(format!("this probe measured no calls: {made}"));
    }
    let h200 = CostModel::h200();
    Ok(CostModel {
        make_frame: curve(&frames, "make_frame_us", |f| f.make_frame_us, h200.make_frame)?,
        map: curve(&frames, "map_us", |f| f.map_us, h200.map)?,
        set_access: curve(&frames, "set_access_us", |f| f.set_access_us, h200.set_access)?,
        unmap: curve(&frames, "unmap_us", |f| f.unmap_us, h200.unmap)?,
        release_frame: curve(
            &frames,
            "release_frame_us",
            |f| f.release_frame_us,
            h200.release_frame,
        )?,
        reserve: mean(&calls, &[DeviceOp::Reserve, DeviceOp::FreeRegion], h200.reserve)?,
        record: mean(&calls, &[DeviceOp::Record], h200.record)?,
        query: mean(
            &calls,
            &[DeviceOp::Reached, DeviceOp::IsCapturing, DeviceOp::Wait],
            h200.query,
        )?,
        stream_wait: mean(&calls, &[DeviceOp::StreamWait], h200.stream_wait)?,
        memory_info: mean(&calls, &[DeviceOp::MemoryInfo], h200.memory_info)?,
        peer_access: h200.peer_access,
        launch: h200.launch,
        copy: h200.copy,
        busy_factor: h200.busy_factor,
    })
}

/// A curve through the times of one call, or the given one if there are none.
fn curve(
    frames: &[Frame],
    key: &str,
    time_us: impl Fn(&Frame) -> Option<f64>,
    otherwise: Curve,
) -> Result<Curve, String> {
    let mut points = Vec::new();
    for frame in frames {
        if let Some(time_us) = time_us(frame) {
            // A curve is logarithmic, and a median of zero is one below the clock's resolution.
            points.push((frame.frame_bytes, nanoseconds(key, time_us)?.max(1)));
        }
    }
    if points.is_empty() {
        return Ok(otherwise);
    }
    let curve = Curve::try_new(&points).map_err(|rule| format!("{key} of 'frames': {rule}"))?;
    if curve.at(MEMORY) > LONGEST_CALL_NS {
        return Err(format!("{key} of 'frames' rises to more than an hour a call"));
    }
    Ok(curve)
}

/// The mean time of the calls that have one cost in the model, or the given one if there are none.
fn mean(calls: &[Call], ops: &[DeviceOp], otherwise: u64) -> Result<u64, String> {
    let mut times_ns = Vec::new();
    for call in calls.iter().filter(|call| ops.iter().any(|op| op.name() == call.call)) {
        times_ns.push(nanoseconds(&call.call, call.time_us)?);
    }
    let sum_ns: u64 = times_ns.iter().sum();
    Ok(sum_ns.checked_div(times_ns.len() as u64).unwrap_or(otherwise))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to lie between zero and an hour"
)]
fn nanoseconds(what: &str, us: f64) -> Result<u64, String> {
    let ns = (us * 1e3).round();
    if !(0.0..=LONGEST_CALL_NS as f64).contains(&ns) {
        return Err(format!("{what} of {us:?} us is no time of a call"));
    }
    Ok(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A part of what a probe of an H200 with driver 580.159 printed.
    const CARD: &str = r#"{
        "device": "cuda:0",
        "virtual_memory": {"remapping": true, "granule_bytes": 2097152},
        "calls": [
            {"call": "memory_info", "repetitions": 101, "time_us": 5.512},
            {"call": "record", "repetitions": 101, "time_us": 0.772},
            {"call": "reached", "repetitions": 101, "time_us": 0.189},
            {"call": "wait", "repetitions": 101, "time_us": 0.227},
            {"call": "is_capturing", "repetitions": 101, "time_us": 0.124},
            {"call": "reserve", "repetitions": 101, "time_us": 0.885},
            {"call": "free_region", "repetitions": 101, "time_us": 0.976}
        ],
        "frames": [
            {"frame_bytes": 2097152, "repetitions": 31, "make_frame_us": 10.875, "map_us": 1.101,
             "set_access_us": 25.54, "unmap_us": 17.278, "release_frame_us": 12.983},
            {"frame_bytes": 1073741824, "repetitions": 7, "make_frame_us": 89.381, "map_us": null,
             "set_access_us": 71.898, "unmap_us": 34.209, "release_frame_us": 495.253}
        ]
    }"#;

    fn cost_of(text: &str) -> CostModel {
        costs(text.as_bytes()).expect("a probe")
    }

    #[test]
    fn the_model_has_the_medians_of_the_file() {
        let model = cost_of(CARD);
        assert_eq!(model.set_access.at(2 * MIB), 25_540);
        assert_eq!(model.set_access.at(1024 * MIB), 71_898);
        let between = model.set_access.at(64 * MIB);
        assert!((25_540..71_898).contains(&between), "{between}");
        assert_eq!(model.make_frame.at(1024 * MIB), 89_381);
        assert_eq!(model.unmap.at(2 * MIB), 17_278);
        assert_eq!(model.release_frame.at(1024 * MIB), 495_253);
        assert_eq!(model.map.at(1024 * MIB), 1_101, "measured at one length only");
        assert_eq!((model.memory_info, model.record), (5_512, 772));
        assert_eq!(model.reserve, 930, "the mean of both");
        assert_eq!(model.query, 180, "the mean of three");
    }

    #[test]
    fn what_the_file_lacks_is_an_h200s() {
        let (model, h200) = (cost_of(CARD), CostModel::h200());
        assert_eq!((model.stream_wait, model.launch), (h200.stream_wait, h200.launch));
        assert_eq!(model.peer_access.at(64 * MIB), h200.peer_access.at(64 * MIB));
        let calls = r#"{"device": "x", "calls": [{"call": "record", "time_us": 0}, {"call": "new", "time_us": 1}]}"#;
        let model = cost_of(calls);
        assert_eq!(model.record, 0);
        assert_eq!(model.map.at(300 * MIB), h200.map.at(300 * MIB));
    }

    #[test]
    fn a_median_below_the_clock_is_a_nanosecond() {
        let model = cost_of(&CARD.replace("1.101", "0.0"));
        assert_eq!(model.map.at(2 * MIB), 1);
    }

    /// What is wrong with a probe in which `from` is `to`.
    fn wrong(from: &str, to: &str) -> String {
        assert!(CARD.contains(from), "{from}");
        costs(CARD.replace(from, to).as_bytes()).expect_err(to)
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(wrong("true", "false").contains("cannot remap"));
        assert!(wrong("true,", "true, \"queued_binds\": true,").contains("probe a CUDA card"));
        assert_eq!(wrong("25.54", "-1"), "set_access_us of -1.0 us is no time of a call");
        assert_eq!(wrong("0.772", "1e300"), "record of 1e300 us is no time of a call");
        assert_eq!(
            wrong("2097152, \"rep", "0, \"rep"),
            "make_frame_us of 'frames': lengths and times must be above zero"
        );
        assert_eq!(wrong("1073741824", "2097152"), "make_frame_us of 'frames': lengths must rise");
        assert_eq!(
            wrong("495.253", "1e9"),
            "release_frame_us of 'frames' rises to more than an hour a call"
        );
        assert!(
            wrong("25.54", "\"fast\"").starts_with("this is no output of 'vmm probe --json' (")
        );
    }
}

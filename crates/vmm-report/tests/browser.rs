//! The page in a browser: it loads without an error or a request, is not blank, and its controls
//! work. Without Chromium each test says that it was skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vmm_report::{Picture, PolicyRow, html};
use vmm_trace::write::{Entry, Snapshot, write_file};
use vmm_trace::{Action, inspect_file};

/// Notes everything that goes wrong from the first line of the page on. A browser without a window
/// presents no frames while it dumps a page, so they come from a clock.
const WATCH: &str = "<script>window.seenErrors=[];\
    requestAnimationFrame=f=>setTimeout(()=>f(performance.now()),16);\
    addEventListener('error',e=>seenErrors.push(String(e.message)));\
    addEventListener('unhandledrejection',e=>seenErrors.push(String(e.reason)));\
    addEventListener('securitypolicyviolation',e=>seenErrors.push('loads '+e.blockedURI));</script>";

/// Chromium by one of its names, or what `VMM_CHROMIUM` says.
fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("VMM_CHROMIUM") {
        return Some(path.into());
    }
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    names.iter().flat_map(|name| folders.iter().map(move |f| f.join(name))).find(|p| p.is_file())
}

fn picture(name: &str) -> Picture {
    with_policies(name, Vec::new())
}

fn with_policies(name: &str, rows: Vec<PolicyRow>) -> Picture {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let file = inspect_file(&traces.join(name), &mut |_| ()).expect("reads");
    Picture::new(&file, 0, rows, Some(9 << 30))
}

/// Rows with all that there is to draw of policies.
fn rows() -> Vec<PolicyRow> {
    let call = |name: &str, count, us| (name.to_owned(), count, us);
    vec![
        PolicyRow {
            policy: "one that was drawn".into(),
            peak_reserved_bytes: Some(8 << 30),
            smallest_budget_bytes: Some(6 << 30),
            reserved: vec![(0, 4 << 30), (20_000, 8 << 30)],
            calls: vec![call("map", 1234, 56.84), call("set_access", 98_765, 1_234_567.0)],
            worker_calls: vec![call("make_frame", 17, 9_000.0)],
            ..PolicyRow::default()
        },
        PolicyRow {
            policy: "PyTorch roundup_power2_divisions:4, unchecked model".into(),
            failures: 3,
            peak_reserved_bytes: Some(2 << 30),
            ..PolicyRow::default()
        },
        PolicyRow {
            policy: "one without figures".into(),
            remark: Some("it has more pools at a time than this pool keeps apart, 254".into()),
            ..PolicyRow::default()
        },
    ]
}

/// A program of 1 GiB that frees most of it and then asks for more in vain.
fn failing(folder: &Path) -> Picture {
    const BASE: u64 = 0x7f00_0000_0000;
    const MIB: u64 = 1 << 20;
    let steps = [
        (Action::SegmentAlloc, BASE, 1024),
        (Action::Alloc, BASE, 300),
        (Action::Alloc, BASE + 300 * MIB, 700),
        (Action::FreeRequested, BASE + 300 * MIB, 700),
        (Action::FreeCompleted, BASE + 300 * MIB, 700),
        (Action::Oom, 0, 900),
    ];
    let entry = |(at, (action, addr, mib)): (usize, (Action, u64, u64))| Entry {
        time_us: 1_000 * at as u64,
        ..Entry::new(action, addr, mib * MIB)
    };
    let entries = steps.into_iter().enumerate().map(entry).collect();
    let path = folder.join("failing.pickle");
    let snapshot = Snapshot { device_traces: vec![entries], ..Snapshot::default() };
    write_file(&path, &snapshot).expect("writable");
    Picture::new(&inspect_file(&path, &mut |_| ()).expect("reads"), 0, Vec::new(), None)
}

/// Opens the page in a window of this width and gives what the script of the test saw.
fn browse(test: &str, pictures: &[Picture], width: u32) -> Option<Value> {
    let Some(chromium) = chromium() else {
        println!("skipped: {test}: no Chromium is installed (or set VMM_CHROMIUM)");
        return None;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let check = include_str!("browser/check.js");
    let page = html("a <b>title</b>", pictures)
        .replacen("<head>", &format!("<head>{WATCH}"), 1)
        .replacen("</body>", &format!("<script>{check}</script></body>"), 1);
    let path = folder.path().join("report.html");
    std::fs::write(&path, page).expect("writable");
    let output = Command::new(chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--force-device-scale-factor=1", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--window-size={width},900"))
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("Chromium starts");
    let document = String::from_utf8_lossy(&output.stdout);
    let seen = document.rsplit_once("<pre id=\"seen\">");
    let seen = seen.and_then(|(_, rest)| rest.split_once("</pre>"));
    let (seen, _) = seen
        .unwrap_or_else(|| panic!("nothing was seen: {}", String::from_utf8_lossy(&output.stderr)));
    let seen = seen.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let seen: Value = serde_json::from_str(&seen).expect("the script writes JSON");
    assert_eq!(seen["errors"], Value::Array(Vec::new()), "errors or requests");
    assert_eq!(seen["requests"], Value::Array(Vec::new()));
    assert_eq!(seen["done"], true);
    Some(seen)
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|n| n.as_f64().expect("a number")).collect()
}

/// The mean difference of two pictures, in steps of 255.
#[expect(clippy::cast_precision_loss, reason = "two hundred pixels")]
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum::<f64>() / a.len() as f64
}

/// Compares the four canvases of a page with those that were looked at.
fn looks_as_expected(window: &str, shown: &Value) {
    let expected: Value =
        serde_json::from_str(include_str!("browser/expected.json")).expect("JSON");
    // To draw them anew after a change: look at the page, then take what this prints.
    println!("\"{window}\":{shown}");
    let shown = shown.as_object().expect("an object");
    assert_eq!(shown.len(), 4, "{window}");
    for (kind, small) in shown {
        let difference = difference(&numbers(small), &numbers(&expected[window][kind]));
        assert!(difference < 6.0, "{kind}, {window}, differs by {difference:.1} of 255");
    }
}

#[test]
fn the_page_works_and_its_figures_are_as_they_were() {
    let name = "the_page_works_and_its_figures_are_as_they_were";
    let Some(seen) = browse(name, &[picture("frag_grow.pickle.gz")], 1280) else { return };
    let canvases = seen["canvases"].as_array().expect("an array");
    for canvas in canvases {
        let kind = canvas["kind"].as_str().expect("a word");
        assert!(canvas["colors"].as_u64() > Some(20), "{kind} is nearly blank");
    }
    looks_as_expected("light 1280", &seen["light"]);
    looks_as_expected("dark 1280", &seen["dark"]);
    for (kind, part) in [
        ("memory", "asked for: "),
        ("causes", "in use: "),
        ("causes", "largest block that could be served: "),
        ("map", "0x"),
        ("peak", "at 0x"),
    ] {
        let tip = seen[format!("tip_{kind}")].as_str().expect("a text");
        assert!(tip.contains(part), "{kind}: {tip:?}");
    }
    let range = |key: &str| numbers(&seen[key]);
    let (whole, zoomed, moved) = (range("whole"), range("zoomed"), range("moved"));
    let span = |range: &[f64]| range[1] - range[0];
    assert!((span(&zoomed) * 2.0 - span(&whole)).abs() < 1.0);
    assert!((span(&moved) - span(&zoomed)).abs() < 1.0 && moved[0] > zoomed[0]);
    assert_eq!(range("again"), whole);
    assert!(span(&range("wheel")) < span(&whole), "the wheel zooms");
    assert_eq!(range("key"), whole);
    let first = numbers(&canvases[1]["small"]);
    assert!(difference(&first, &range("zoomedSmall")) > 5.0, "zooming shows something else");
    assert!(difference(&first, &range("againSmall")) < 1.0);
    let line = |key: &str| (seen[key][0].as_str() == Some("true"), numbers(&seen[key][1]));
    let ((is_off, without), (is_on, with)) = (line("lineOff"), line("lineOn"));
    assert!(!is_off && is_on);
    let memory = numbers(&canvases[0]["small"]);
    assert!(difference(&memory, &without) > 1.0, "a line can be hidden");
    assert!(difference(&memory, &with) < 1.0, "and shown again");
    let (all, taller, up) = (range("addresses"), range("taller"), range("up"));
    assert!((span(&taller) * 4.0 - span(&all)).abs() < 1.0);
    assert!((span(&up) - span(&taller)).abs() < 1.0 && up[0] > taller[0]);
    let (wheel, key) = (range("addressWheel"), range("addressKey"));
    assert!(span(&wheel) > span(&up) && span(&key) * 2.0 - span(&wheel) < 1.0);
    assert_eq!(range("timeMeanwhile"), whole, "the axis of time stays");
    assert_eq!(range("addressesAgain"), all);
    let map = numbers(&canvases[2]["small"]);
    assert!(difference(&map, &numbers(&seen["mapTaller"])) > 5.0, "a part of the addresses");
    assert!(difference(&map, &numbers(&seen["mapAgain"])) < 1.0);
    let tip = seen["tipTaller"].as_str().expect("a text");
    assert!(tip.contains("0x") && (tip.contains("in use") || tip.contains("free")), "{tip}");
    assert!(difference(&first, &range("otherTheme")) > 30.0, "dark is not light");
    assert_eq!(range("width")[0], range("width")[1], "nothing sticks out");
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

/// What is drawn of policies lies in its figure, is large enough to be read, and bars are as long as what
/// they stand for.
fn policies_fit(seen: &Value, expected_layout: &str) {
    let figures = seen["figures"].as_array().expect("an array");
    let shown: Vec<&Value> = figures.iter().filter(|figure| figure["shown"] == true).collect();
    let layouts: Vec<_> = shown.iter().map(|figure| figure["name"].as_str()).collect();
    assert_eq!(layouts, [Some(expected_layout); 2], "memory and calls");
    let mut texts = Vec::new();
    for figure in &shown {
        let of = |part: &Value, edge: &str| number(&part[edge]);
        let (left, right) = (of(&figure["box"], "left"), of(&figure["box"], "right"));
        for part in ["texts", "bars"].iter().flat_map(|kind| figure[kind].as_array().expect("one"))
        {
            let (from, to) = (of(part, "left"), of(part, "right"));
            assert!(
                from >= left - 0.5 && to <= right + 0.5,
                "{part} sticks out of {left} to {right}"
            );
        }
        for text in figure["texts"].as_array().expect("an array") {
            assert!(of(text, "height") > 10.0, "too small to be read: {text}");
            texts.push(text["text"].as_str().expect("a text").to_owned());
        }
    }
    for expected in [
        "PyTorch roundup_power2_divisions:4, unchecked model",
        "2.00 GiB, 0.274x, and failed",
        "8.00 GiB, 1.095x",
        "it has more pools",
        "1234 calls, 57 µs",
        "98765 calls, 1.23 s",
    ] {
        assert!(texts.iter().any(|text| text.contains(expected)), "{expected}: {texts:?}");
    }
    let widths = |figure: &Value, name: &str| -> Vec<f64> {
        let bars = figure["bars"].as_array().expect("an array").iter();
        bars.filter(|bar| bar["name"] == name).map(|bar| number(&bar["width"])).collect()
    };
    let (drawn, rounded) = (
        widths(shown[0], "one that was drawn"),
        widths(shown[0], "PyTorch roundup_power2_divisions:4, unchecked model"),
    );
    assert_eq!((drawn.len(), rounded.len()), (2, 1), "reserved and budget");
    assert!((drawn[1] / drawn[0] - 0.75).abs() < 0.02, "6 of 8 GiB: {drawn:?}");
    assert!((rounded[0] / drawn[0] - 0.25).abs() < 0.02, "2 of 8 GiB: {rounded:?}");
    let (map, access) = (widths(shown[1], "map"), widths(shown[1], "set_access"));
    let logarithmic = 57.84_f64.ln() / 1_234_568_f64.ln();
    assert!((map[0] / access[0] - logarithmic).abs() < 0.02, "{map:?} of {access:?}");
    let fills = |figures: &[&Value]| -> Vec<Value> {
        let bars = figures.iter().flat_map(|figure| figure["bars"].as_array().expect("one"));
        bars.map(|bar| bar["fill"].clone()).collect()
    };
    let light = fills(&shown);
    let dark = seen["darkBars"].as_array().expect("an array");
    assert!(light.iter().all(|fill| !dark.contains(fill)), "each theme has colours of its own");
    assert_eq!(seen["cut"], Value::Array(Vec::new()), "tables that are cut");
}

#[test]
fn figures_of_policies_fit_wide_and_narrow_windows() {
    let name = "figures_of_policies_fit_wide_and_narrow_windows";
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pictures = [with_policies("frag_grow.pickle.gz", rows()), failing(folder.path())];
    for (width, layout) in [(1280, "wide"), (520, "narrow")] {
        let Some(seen) = browse(name, &pictures, width) else { return };
        policies_fit(&seen, layout);
        if width == 520 {
            looks_as_expected("light 520", &seen["light"]);
            looks_as_expected("dark 520", &seen["dark"]);
        }
        assert_eq!(numbers(&seen["width"])[0], numbers(&seen["width"])[1], "nothing sticks out");
        let state = |key: &str| {
            let tip = seen[key]["tip"].as_str().expect("a text");
            (seen[key]["pressed"].clone(), tip.split('\n').next().expect("a line").to_owned())
        };
        let (peak, failure) = (state("peakState"), state("failureState"));
        assert_eq!(peak, (serde_json::json!(["true", "false"]), "512 to 1024 MiB".to_owned()));
        assert_eq!(failure, (serde_json::json!(["false", "true"]), "free".to_owned()));
        assert_eq!(state("peakAgain"), peak);
        let small = |key: &str| numbers(&seen[key]["small"]);
        assert!(difference(&small("peakState"), &small("failureState")) > 20.0);
        // To the right behind the last comes the first.
        let keys = serde_json::json!([[true, false], [false, true], [true, false], [false, true]]);
        assert_eq!(seen["tabKeys"], keys);
    }
}

#[test]
fn ranks_have_tabs_and_long_traces_draw_few_points() {
    let name = "ranks_have_tabs_and_long_traces_draw_few_points";
    let pictures = [picture("small_tensors.pickle.gz"), picture("gnn_sampled_train.pickle.gz")];
    let Some(seen) = browse(name, &pictures, 520) else { return };
    assert_eq!(seen["tabs"], serde_json::json!([true, false]), "the second tab was pressed");
    assert!(seen["secondColors"].as_u64() > Some(20), "its figures are drawn when it is shown");
    assert!(seen["stretches"].as_f64() > Some(50_000.0));
    // Three curves, and for each pixel two times the levels at most.
    let most = seen["inner"].as_f64().expect("a number") * 3.0 * 2.0 * 17.0;
    let reads = numbers(&seen["reads"]);
    assert!(reads.iter().all(|&reads| reads <= most && reads > 100.0), "{reads:?}");
    for pair in seen["ranges"].as_array().expect("an array") {
        assert_eq!(pair[0], pair[1], "least and most of a range");
    }
    assert_eq!(numbers(&seen["width"])[0], numbers(&seen["width"])[1], "nothing sticks out");
}

//! The page in a browser: it loads without an error or a request, is not blank, and its controls
//! work. Without Chromium each test says that it was skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use vmm_report::{Picture, html};
use vmm_trace::inspect_file;

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
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let file = inspect_file(&traces.join(name), &mut |_| ()).expect("reads");
    Picture::new(&file, 0, Vec::new(), Some(9 << 30))
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

#[test]
fn the_page_works_and_its_figures_are_as_they_were() {
    let name = "the_page_works_and_its_figures_are_as_they_were";
    let Some(seen) = browse(name, &[picture("frag_grow.pickle.gz")], 1280) else { return };
    let expected: Value =
        serde_json::from_str(include_str!("browser/expected.json")).expect("JSON");
    let canvases = seen["canvases"].as_array().expect("an array");
    let mut shown = serde_json::Map::new();
    for canvas in canvases {
        let kind = canvas["kind"].as_str().expect("a word");
        assert!(canvas["colors"].as_u64() > Some(20), "{kind} is nearly blank");
        shown.insert(kind.to_owned(), canvas["small"].clone());
    }
    assert_eq!(shown.len(), 4);
    // To draw them anew after a change: look at the page, then take what this prints.
    println!("{}", Value::Object(shown.clone()));
    for (kind, small) in &shown {
        let difference = difference(&numbers(small), &numbers(&expected[kind]));
        assert!(difference < 6.0, "{kind} differs by {difference:.1} of 255");
    }
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

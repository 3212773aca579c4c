//! The report: one page that holds all it needs.

mod data;
mod tables;

use std::fmt::Write as _;

use crate::figures::{Figure, Layout, Picture, calls, lines, policies};
use crate::svg::escaped;
use crate::text::time;

const CSS: &str = include_str!("../page/report.css");
const JS: &str = include_str!("../page/report.js");

/// Makes the page. Several devices, or ranks of one job, stand side by side at its top, and each has
/// a tab of its own.
///
/// # Panics
/// Never: the data is numbers and strings.
#[must_use]
pub fn html(title: &str, pictures: &[Picture]) -> String {
    let mut body = String::new();
    if pictures.len() > 1 {
        overview(&mut body, pictures);
    }
    for (index, picture) in pictures.iter().enumerate() {
        let role = match pictures.len() {
            1 => String::new(),
            _ => format!(" role=\"tabpanel\" aria-labelledby=\"tab{index}\""),
        };
        device(&mut body, index, picture, &role);
    }
    let data: Vec<_> = pictures.iter().map(data::of).collect();
    // Inside of a script only this could end it.
    let data = serde_json::to_string(&data).expect("numbers and strings").replace('<', "\\u003c");
    let title = escaped(title);
    // The icon is empty, or the browser would ask the server for one. The policy makes sure that
    // nothing is ever loaded, whatever the names in a file try.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\
         <link rel=\"icon\" href=\"data:,\"><title>{title}</title><style>{CSS}</style></head>\n\
         <body><header><h1>{title}</h1><button id=\"theme\" type=\"button\">light / dark</button>\
         </header><main>{body}</main><div class=\"tip\" id=\"tip\" hidden></div>\n\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>{JS}</script>\
         </body></html>\n"
    )
}

const HINT: &str = "<p class=\"soft hint\">Drag to move, Ctrl and the wheel to zoom, double-click to \
    show all; with the keyboard + − 0 and the arrows. On the map of addresses Shift and the wheel, or \
    PageUp and PageDown, zoom in on addresses. The names of lines show and hide them.</p>";

// Writing to a string cannot fail.

/// All devices at a glance, at one scale, and the tabs.
fn overview(body: &mut String, pictures: &[Picture]) {
    body.push_str(&tables::ranks(pictures));
    body.push_str("<div class=\"ranks\">");
    for (index, picture) in pictures.iter().enumerate() {
        if !picture.inspection.has_history {
            continue;
        }
        let name = escaped(&picture.inspection.name);
        let _ = write!(
            body,
            "<figure><figcaption>{name}</figcaption><canvas data-kind=\"memory\" data-small \
             data-device=\"{index}\" style=\"height:150px\" role=\"img\" \
             aria-label=\"Memory over time, {name}\"></canvas></figure>"
        );
    }
    body.push_str("</div><nav role=\"tablist\">");
    for (index, picture) in pictures.iter().enumerate() {
        let _ = write!(
            body,
            "<button type=\"button\" role=\"tab\" id=\"tab{index}\" \
             aria-controls=\"device{index}\">{}</button>",
            escaped(&picture.inspection.name)
        );
    }
    body.push_str("</nav>");
}

fn device(body: &mut String, index: usize, picture: &Picture, role: &str) {
    let inspection = &picture.inspection;
    let knows_reserved = inspection.peak_reserved_bytes.is_some();
    let _ = write!(body, "<section class=\"device\" id=\"device{index}\"{role}>");
    let _ = write!(body, "<h2>{}</h2>{}", escaped(&inspection.name), tables::summary(inspection));
    if inspection.has_history {
        canvas(body, index, "memory", "Memory over time", &line_names(index, picture), 320);
        body.push_str(HINT);
    }
    if inspection.has_history && knows_reserved {
        let names = key(&crate::figures::LAYERS.map(|(class, name)| (&class[2..], name)));
        canvas(body, index, "causes", "Fragmentation by cause", &names, 300);
        let names = key(&[("free", "free"), ("full", "in use")]);
        canvas(body, index, "map", "Addresses over time, gaps left out", &names, 380);
    }
    if knows_reserved {
        state(body, index, picture);
    }
    body.push_str(&tables::findings(picture));
    // Wide and narrow: the style sheet shows what fits the window.
    let drawn = [("What each policy needs", policies as Draw), ("Device calls", calls)];
    for (title, draw) in drawn {
        let figures = [Layout::WIDE, Layout::NARROW].map(|layout| draw(picture, layout));
        let figures: String = figures.iter().flatten().map(Figure::inline).collect();
        if !figures.is_empty() {
            let _ = write!(body, "<figure><figcaption>{title}</figcaption>{figures}</figure>");
        }
    }
    for row in &inspection.policies {
        if let Some(remark) = &row.remark {
            let (policy, remark) = (escaped(&row.policy), escaped(remark));
            let _ = write!(body, "<p class=\"soft\">{policy}: {remark}.</p>");
        }
    }
    body.push_str("</section>");
}

/// Makes a figure of the policies.
type Draw = fn(&Picture, Layout) -> Option<Figure>;

/// What lay where at the peak, or when an allocation failed, as the reader chooses.
fn state(body: &mut String, index: usize, picture: &Picture) {
    let mut names = String::new();
    let title = match (&picture.failure, picture.inspection.has_history) {
        (None, true) => format!("What lay where at the peak, {}", time(picture.state.time_us)),
        (None, false) => "What lay where when the snapshot was taken".to_owned(),
        (Some(failure), _) => {
            let moments = [("at the peak", &picture.state), ("at the failure", failure)];
            for (place, (when, state)) in moments.into_iter().enumerate() {
                let _ = write!(
                    names,
                    "<button type=\"button\" data-state=\"{place}\" data-device=\"{index}\" \
                     aria-pressed=\"{}\">{when}, {}</button>",
                    place == 0,
                    time(state.time_us)
                );
            }
            "What lay where".to_owned()
        }
    };
    names.push_str(&key(&[
        ("o0", "in use, in the colour of its owner in the list below"),
        ("o8", "of smaller owners"),
        ("fenced", "released, still in use by a stream"),
        ("free", "free"),
    ]));
    canvas(body, index, "peak", &title, &names, 380);
    if picture.state.left_out > 0 {
        let _ = write!(
            body,
            "<p class=\"soft\">The {} shortest pieces are left out.</p>",
            picture.state.left_out
        );
    }
}

/// The names of a figure's colours.
fn key(names: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (colour, name) in names {
        let _ = write!(text, "<span style=\"--swatch:var(--{colour})\">{name}</span>");
    }
    text
}

/// The names of the lines of memory over time: buttons that show and hide them.
fn line_names(device: usize, picture: &Picture) -> String {
    let inspection = &picture.inspection;
    let mut names = Vec::new();
    if inspection.peak_reserved_bytes.is_some() {
        names.push(("reserved".to_owned(), "reserved".to_owned(), true));
    }
    // A model of what recorded the program would only hide the recorded line.
    let of_policies = lines(inspection).map(|(index, row)| {
        (format!("p{index}"), format!("reserved by {}", row.policy), !row.is_recorded)
    });
    names.extend(of_policies);
    names.extend(
        [("live", "in blocks"), ("requested", "asked for")]
            .map(|(line, name)| (line.to_owned(), name.to_owned(), true)),
    );
    if picture.limit.is_some() {
        names.push(("limit".to_owned(), "limit".to_owned(), true));
    }
    let mut text = String::new();
    for (line, name, is_shown) in names {
        let _ = write!(
            text,
            "<button type=\"button\" class=\"line\" data-line=\"{line}\" data-device=\"{device}\" \
             aria-pressed=\"{is_shown}\" style=\"--swatch:var(--{})\" title=\"show or hide\">{}</button>",
            swatch(&line),
            escaped(&name)
        );
    }
    text
}

/// The colour of a line: there are six for policies, and more policies share them.
fn swatch(line: &str) -> String {
    let number = line.strip_prefix('p').and_then(|number| number.parse::<usize>().ok());
    number.map_or_else(|| line.to_owned(), |number| format!("p{}", number % 6))
}

/// A control of a figure: what it does, its sign, and what a reader hears.
type Tool = (&'static str, &'static str, &'static str);

const TIME_TOOLS: [Tool; 5] = [
    ("left", "◀", "earlier"),
    ("right", "▶", "later"),
    ("in", "+", "zoom in"),
    ("out", "−", "zoom out"),
    ("all", "all", "show all"),
];

const ADDRESS_TOOLS: [Tool; 4] = [
    ("up", "▲", "higher addresses"),
    ("down", "▼", "lower addresses"),
    ("taller", "↕+", "zoom in on addresses"),
    ("flatter", "↕−", "zoom out of addresses"),
];

fn canvas(body: &mut String, device: usize, kind: &str, title: &str, names: &str, height: u32) {
    let title = escaped(title);
    let _ = write!(body, "<figure><figcaption>{title}<span class=\"legend\">{names}</span>");
    let (address_tools, time_tools): (&[Tool], &[Tool]) = match kind {
        "peak" => (&[], &[]),
        "map" => (&ADDRESS_TOOLS, &TIME_TOOLS),
        _ => (&[], &TIME_TOOLS),
    };
    if !time_tools.is_empty() {
        body.push_str("<span class=\"tools\">");
        for (act, sign, says) in address_tools.iter().chain(time_tools) {
            let _ = write!(
                body,
                "<button type=\"button\" data-act=\"{act}\" data-device=\"{device}\" \
                 title=\"{says}\" aria-label=\"{says}\">{sign}</button>"
            );
        }
        body.push_str("</span>");
    }
    let _ = write!(
        body,
        "</figcaption><canvas data-kind=\"{kind}\" data-device=\"{device}\" \
         style=\"height:{height}px\" aria-label=\"{title}\"></canvas></figure>"
    );
}

//! The report: one page that holds all it needs.

mod data;
mod tables;

use std::fmt::Write as _;

use crate::figures::{Picture, calls, policies};
use crate::svg::escaped;

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
        device(&mut body, index, picture);
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

// Writing to a string cannot fail.

/// All devices at a glance, at one scale, and the tabs.
fn overview(body: &mut String, pictures: &[Picture]) {
    body.push_str(&tables::ranks(pictures));
    body.push_str("<div class=\"ranks\">");
    for (index, picture) in pictures.iter().enumerate() {
        let _ = write!(
            body,
            "<figure><figcaption>{}</figcaption><canvas data-kind=\"memory\" data-small \
             data-device=\"{index}\" style=\"height:150px\"></canvas></figure>",
            escaped(&picture.inspection.name)
        );
    }
    body.push_str("</div><nav role=\"tablist\">");
    for (index, picture) in pictures.iter().enumerate() {
        let _ = write!(
            body,
            "<button type=\"button\" role=\"tab\" aria-controls=\"device{index}\">{}</button>",
            escaped(&picture.inspection.name)
        );
    }
    body.push_str("</nav>");
}

fn device(body: &mut String, index: usize, picture: &Picture) {
    let inspection = &picture.inspection;
    let knows_reserved = inspection.peak_reserved_bytes.is_some();
    let _ = write!(body, "<section class=\"device\" id=\"device{index}\">");
    let _ = write!(body, "<h2>{}</h2>{}", escaped(&inspection.name), tables::summary(inspection));
    let mut names = Vec::new();
    if knows_reserved {
        names.push(("reserved", "reserved"));
    }
    if inspection.policies.iter().any(|row| !row.reserved.is_empty()) {
        names.push(("pool", "reserved by this pool"));
    }
    names.extend([("live", "in blocks"), ("requested", "asked for")]);
    if picture.limit.is_some() {
        names.push(("limit", "limit"));
    }
    canvas(body, index, "memory", "Memory over time", &names, 300);
    if knows_reserved {
        let names = crate::figures::LAYERS.map(|(class, name)| (&class[2..], name));
        canvas(body, index, "causes", "Fragmentation by cause", &names, 300);
        let names = [("free", "free"), ("full", "in use")];
        canvas(body, index, "map", "Addresses over time, gaps left out", &names, 360);
        let title =
            format!("What lay where at the peak, {}", crate::text::time(picture.state.time_us));
        let names = [
            ("in-use", "in use, a colour for each owner"),
            ("fenced", "released, still in use by a stream"),
            ("free", "free"),
        ];
        canvas(body, index, "peak", &title, &names, 380);
        if picture.state.left_out > 0 {
            let _ = write!(
                body,
                "<p class=\"soft\">The {} shortest pieces are left out.</p>",
                picture.state.left_out
            );
        }
    }
    body.push_str(&tables::findings(inspection));
    let titles = ["What each policy needs", "Device calls"];
    for (figure, title) in [policies(picture), calls(picture)].into_iter().zip(titles) {
        if let Some(figure) = figure {
            let _ = write!(
                body,
                "<figure><figcaption>{title}</figcaption><div class=\"scroll\">{}</div></figure>",
                figure.inline()
            );
        }
    }
    body.push_str("</section>");
}

fn canvas(
    body: &mut String,
    device: usize,
    kind: &str,
    title: &str,
    names: &[(&str, &str)],
    height: u32,
) {
    let _ = write!(body, "<figure><figcaption>{}<span class=\"legend\">", escaped(title));
    for (colour, name) in names {
        let _ = write!(body, "<span style=\"--swatch:var(--{colour})\">{name}</span>");
    }
    body.push_str("</span>");
    if kind != "peak" {
        body.push_str("<span class=\"tools\">");
        let tools = [("left", "◀"), ("right", "▶"), ("in", "+"), ("out", "−"), ("all", "all")];
        let says = ["earlier", "later", "zoom in", "zoom out", "show all"];
        for ((act, sign), says) in tools.into_iter().zip(says) {
            let _ = write!(
                body,
                "<button type=\"button\" data-act=\"{act}\" data-device=\"{device}\" \
                 title=\"{says}\" aria-label=\"{says}\">{sign}</button>"
            );
        }
        body.push_str("</span>");
    }
    let hint = match kind {
        "peak" => "",
        _ => {
            " title=\"Drag to move, Ctrl and wheel to zoom, double-click to show all; keys: + - 0 \
              and arrows\""
        }
    };
    let _ = write!(
        body,
        "</figcaption><canvas data-kind=\"{kind}\" data-device=\"{device}\" \
         style=\"height:{height}px\" aria-label=\"{}\"{hint}></canvas></figure>",
        escaped(title)
    );
}

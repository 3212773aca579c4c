//! What was found, as tables and sentences.

use std::fmt::Write as _;

use crate::figures::{OWNER_COLOURS, Picture};
use crate::inspection::{Inspection, OutOfMemory};
use crate::moment::{Moment, Wanted};
use crate::recorded::Allocator;
use crate::svg::escaped;
use crate::text::{bytes, count, percent, time};

/// Rows of a list.
const MOST_ROWS: usize = 20;

/// A table from its header and rows. Cells are HTML already.
fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"scroll\"><table>".to_owned();
    let mut row = |cells: &mut dyn Iterator<Item = &str>, tag: &str| {
        text.push_str("<tr>");
        // Writing to a string cannot fail.
        for cell in cells {
            let _ = write!(text, "<{tag}>{cell}</{tag}>");
        }
        text.push_str("</tr>");
    };
    if !header.is_empty() {
        row(&mut header.iter().copied(), "th");
    }
    for cells in rows {
        row(&mut cells.iter().map(String::as_str), "td");
    }
    text + "</table></div>"
}

fn share(part: u64, whole: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let share = part as f64 / whole as f64;
    if whole == 0 { String::new() } else { percent(share) }
}

/// One row for each device or rank.
pub(super) fn ranks(pictures: &[Picture]) -> String {
    let header =
        ["", "needed", "reserved", "runs in", "fragmentation", "failed", "duration", "events"];
    let rows = pictures.iter().map(|picture| {
        let inspection = &picture.inspection;
        let reserved = inspection.peak_reserved_bytes;
        vec![
            escaped(&inspection.name),
            bytes(inspection.peak_requested_bytes),
            reserved.map_or_else(|| "-".to_owned(), bytes),
            least_budget(inspection),
            reserved.map_or_else(|| "-".to_owned(), |_| level(inspection.worst())),
            inspection.oom_count.to_string(),
            time(inspection.duration_us),
            inspection.events.to_string(),
        ]
    });
    table(&header, rows)
}

/// The smallest budget of all policies, and whose it is.
fn least_budget(inspection: &Inspection) -> String {
    inspection.least_budget().map_or_else(
        || "-".to_owned(),
        |(row, budget)| escaped(&format!("{} under {}", bytes(budget), row.policy)),
    )
}

fn level(moment: &Moment) -> String {
    let level = moment.level.name();
    let share = percent(moment.fragmentation);
    format!("<span class=\"level {level}\">{level}</span> {share}")
}

/// The first lines of a device, its failures and the advice.
pub(super) fn summary(inspection: &Inspection) -> String {
    let mut text = format!(
        "<p class=\"soft\">device {}, {} in {}, {}</p><p>Needed <b>{}</b> at {}",
        inspection.device,
        count(inspection.events as u64, "event"),
        time(inspection.duration_us),
        count(inspection.streams as u64, "stream"),
        bytes(inspection.peak_requested_bytes),
        time(inspection.peak.time_us),
    );
    if inspection.peak_with_graphs_bytes > inspection.peak_requested_bytes {
        let with = bytes(inspection.peak_with_graphs_bytes);
        let _ = write!(text, " (<b>{with}</b> with what pools of captured graphs keep)");
    }
    if let Some(reserved) = inspection.peak_reserved_bytes {
        let _ = write!(
            text,
            ", reserved <b>{}</b>; fragmentation when it mattered most: {}",
            bytes(reserved),
            level(inspection.worst())
        );
    }
    text.push_str(".</p>");
    for oom in &inspection.ooms {
        let _ = write!(text, "<div class=\"oom\">{}</div>", failure(inspection, oom));
    }
    if inspection.oom_count > inspection.ooms.len() {
        let more = inspection.oom_count - inspection.ooms.len();
        let _ = write!(text, "<p class=\"soft\">{more} more failed.</p>");
    }
    text.push_str("<ul class=\"advice\">");
    for advice in &inspection.advice {
        let _ = write!(text, "<li>{}</li>", escaped(advice));
    }
    text + "</ul>"
}

fn failure(inspection: &Inspection, oom: &OutOfMemory) -> String {
    let asker = oom.wanted.owner.as_ref();
    let asker = asker.map_or_else(String::new, |owner| format!(" by {}", escaped(owner)));
    let mut text = format!(
        "<b>Out of memory</b> at {}: {} were asked for{asker}",
        time(oom.moment.time_us),
        bytes(oom.wanted.bytes)
    );
    if inspection.allocator == Allocator::Unknown {
        let _ = write!(text, ", while {} were held.", bytes(oom.moment.held_bytes));
        return text;
    }
    let _ = write!(
        text,
        ", {} free at the driver, {} cached in holes of at most {}; {} of {} reserved were in use.",
        bytes(oom.device_free_bytes),
        bytes(oom.moment.causes.free()),
        bytes(oom.moment.largest_free_bytes),
        bytes(oom.moment.held_bytes),
        bytes(oom.moment.causes.reserved)
    );
    text
}

/// Owners, causes, growth and settings.
pub(super) fn findings(picture: &Picture) -> String {
    let inspection = &picture.inspection;
    let mut text = "<div class=\"columns\"><div><h3>Held at the peak by</h3>".to_owned();
    let peak = &inspection.peak;
    text.push_str(&table(
        &["", "bytes", "share", "tensors"],
        peak.owners.iter().take(MOST_ROWS).map(|owner| {
            vec![
                format!("{}{}", swatch(&picture.state.owners, &owner.name), escaped(&owner.name)),
                bytes(owner.bytes),
                share(owner.bytes, peak.held_bytes),
                owner.tensors.to_string(),
            ]
        }),
    ));
    if peak.owners.len() > MOST_ROWS {
        let _ = write!(text, "<p class=\"soft\">{} more.</p>", peak.owners.len() - MOST_ROWS);
    }
    text.push_str("</div>");
    if inspection.peak_reserved_bytes.is_some() {
        text.push_str(&causes(inspection));
    }
    if !inspection.growths.is_empty() {
        text.push_str("<div class=\"wide\"><h3>Grows step by step</h3>");
        text.push_str(&table(
            &["", "held at least", "from", "to", "steps", "tensors"],
            inspection.growths.iter().take(MOST_ROWS).map(|growth| {
                vec![
                    escaped(&growth.name),
                    growth.bars(),
                    bytes(growth.from_bytes),
                    bytes(growth.to_bytes),
                    format!("{} of {}", growth.rises, growth.steps),
                    growth.tensors.to_string(),
                ]
            }),
        ));
        text.push_str("</div>");
    }
    if !inspection.settings.is_empty() {
        text.push_str("<div><h3>Settings in force</h3>");
        let rows = inspection.settings.iter();
        text.push_str(&table(&[], rows.map(|(k, v)| vec![escaped(k), escaped(v)])));
        text.push_str("</div>");
    }
    text + "</div>"
}

/// The colour that an owner has in the picture of the peak.
fn swatch(owners: &[String], name: &str) -> String {
    let place = owners.iter().position(|owner| owner == name);
    place.map_or_else(String::new, |place| {
        format!("<i class=\"swatch\" style=\"background:var(--o{})\"></i>", place % OWNER_COLOURS)
    })
}

/// A request, and in a smaller line who asks.
fn asked(wanted: &Wanted) -> String {
    let owner = wanted.owner.as_ref().map_or_else(String::new, |owner| format!(", {owner}"));
    format!(
        "{}<span class=\"asker\">stream {}{}</span>",
        bytes(wanted.bytes),
        wanted.stream,
        escaped(&owner)
    )
}

/// The causes at the peak of what was needed, and at the moment when they hurt most.
fn causes(inspection: &Inspection) -> String {
    let (peak, worst) = (&inspection.peak, inspection.worst());
    let moments = if peak.events == worst.events { vec![peak] } else { vec![peak, worst] };
    let mut text = "<div><h3>Fragmentation</h3>".to_owned();
    let times: Vec<String> = moments.iter().map(|m| format!("at {}", time(m.time_us))).collect();
    let header: Vec<&str> = std::iter::once("").chain(times.iter().map(String::as_str)).collect();
    let line = |title: &str, of: &dyn Fn(&Moment) -> String| {
        std::iter::once(title.to_owned()).chain(moments.iter().map(|m| of(m))).collect::<Vec<_>>()
    };
    let mut rows = vec![
        line("level", &|m| level(m)),
        line("in use, as asked for", &|m| bytes(m.causes.requested)),
    ];
    for (index, cause) in peak.causes.all().into_iter().enumerate() {
        rows.push(line(cause.title, &|m| {
            let size = m.causes.all()[index].bytes;
            if size == 0 { "-".to_owned() } else { bytes(size) }
        }));
    }
    rows.push(line("reserved", &|m| bytes(m.causes.reserved)));
    rows.push(line("judged by a request of", &|m| asked(&m.judged_by)));
    rows.push(line("largest like it that can be served", &|m| bytes(m.largest_servable_bytes)));
    rows.push(line("next to find no room", &|m| match &m.next {
        None => "nothing".to_owned(),
        Some(next) => asked(next),
    }));
    text.push_str(&table(&header, rows));
    text + "</div>"
}

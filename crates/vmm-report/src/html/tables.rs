//! What was found, as tables and sentences.

use std::fmt::Write as _;

use crate::figures::{OWNER_COLOURS, Picture};
use crate::inspection::Inspection;
use crate::moment::{Moment, Wanted};
use crate::svg::escaped;
use crate::text::{bytes, count, percent, time};

/// Rows of a list.
const MOST_ROWS: usize = 20;

/// A table from its header and rows. Cells are HTML already.
fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"scroll\"><table>".to_owned();
    // Writing to a string cannot fail.
    if !header.is_empty() {
        let _ = write!(text, "<tr><th>{}</th></tr>", header.join("</th><th>"));
    }
    for cells in rows {
        let _ = write!(text, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    text + "</table></div>"
}

/// A table with many columns. In a narrow window each row is a list of its own, with the names of the
/// columns before the cells.
fn wide_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = "<div class=\"scroll\"><table class=\"many\">".to_owned();
    let _ = write!(text, "<tr><th>{}</th></tr>", header.join("</th><th>"));
    for cells in rows {
        text.push_str("<tr>");
        for (name, cell) in header.iter().zip(&cells) {
            let _ = write!(text, "<td data-name=\"{name}\"><div>{cell}</div></td>");
        }
        text.push_str("</tr>");
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
    let has_policies = pictures.iter().any(|picture| !picture.inspection.policies.is_empty());
    let mut header = vec!["", "needed", "reserved", "failed", "fragmentation"];
    header.extend(has_policies.then_some("smallest budget"));
    header.extend(["duration", "events"]);
    let rows = pictures.iter().map(|picture| {
        let inspection = &picture.inspection;
        let reserved = inspection.peak_reserved_bytes;
        let mut row = vec![
            escaped(&inspection.name),
            bytes(inspection.peak_requested_bytes),
            reserved.map_or_else(|| "-".to_owned(), bytes),
            failed(inspection.oom_count),
            reserved.map_or_else(|| "-".to_owned(), |_| level(inspection.worst())),
        ];
        row.extend(has_policies.then(|| least_budget(inspection)));
        row.extend(match inspection.has_history {
            true => [time(inspection.duration_us), inspection.events.to_string()],
            false => ["-".to_owned(), "-".to_owned()],
        });
        row
    });
    let mut text = wide_table(&header, rows);
    if has_policies {
        text.push_str(
            "<p class=\"soft hint\">Smallest budget: unchecked models count only where there is \
             nothing else.</p>",
        );
    }
    text
}

/// The smallest budget of all policies, unchecked models last, and whose it is.
fn least_budget(inspection: &Inspection) -> String {
    inspection
        .least_budget()
        .map_or_else(|| "-".to_owned(), |(row, budget)| smaller(&bytes(budget), &row.policy))
}

/// A figure, and in a smaller line what it belongs to.
fn smaller(figure: &str, what: &str) -> String {
    format!("{figure}<span class=\"asker\">{}</span>", escaped(what))
}

fn failed(count: usize) -> String {
    match count {
        0 => "0".to_owned(),
        _ => format!("<span class=\"level severe\">{count}</span>"),
    }
}

fn level(moment: &Moment) -> String {
    let level = moment.level.name();
    let share = percent(moment.fragmentation);
    format!("<span class=\"level {level}\">{level}</span> {share}")
}

/// The first lines of a device, its failures and the advice.
pub(super) fn summary(inspection: &Inspection) -> String {
    if !inspection.has_history {
        let end = &inspection.end;
        let text = format!(
            "<p class=\"soft\">device {}, the state of one moment, without history</p><p><b>{}</b> in \
             use, <b>{}</b> reserved; fragmentation: {}.</p>",
            inspection.device,
            bytes(end.held_bytes),
            bytes(end.causes.reserved),
            level(end)
        );
        return text + &advice(inspection);
    }
    let mut text = format!(
        "<p class=\"soft\">device {}, {} in {}, {}</p><p>Needed <b>{}</b> at {}",
        inspection.device,
        count(inspection.events as u64, "event"),
        time(inspection.duration_us),
        count(inspection.streams as u64, "stream"),
        bytes(inspection.peak_requested_bytes),
        time(inspection.peak.time_us),
    );
    let more = inspection.needed_too();
    if !more.is_empty() {
        let _ = write!(text, " ({})", more.join(", "));
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
        let _ = write!(
            text,
            "<div class=\"oom\"><b>Out of memory</b>: {}.</div>",
            escaped(&oom.sentence(inspection))
        );
    }
    if inspection.oom_count > inspection.ooms.len() {
        let more = inspection.oom_count - inspection.ooms.len();
        let _ = write!(text, "<p class=\"soft\">{more} more failed.</p>");
    }
    text + &advice(inspection)
}

fn advice(inspection: &Inspection) -> String {
    let mut text = "<ul class=\"advice\">".to_owned();
    for advice in &inspection.advice {
        // A setting is one word, however long, that may break before its value.
        let _ = write!(text, "<li>{}</li>", escaped(advice).replace('=', "=<wbr>"));
    }
    text + "</ul>"
}

/// Owners, causes, growth and settings.
pub(super) fn findings(picture: &Picture) -> String {
    let inspection = &picture.inspection;
    let peak = &inspection.peak;
    let failed = inspection.ooms.first().map(|oom| &oom.moment);
    let title = match failed {
        _ if !inspection.has_history => "Held by",
        Some(failed) if failed.events == peak.events => "Held at the peak, where it failed, by",
        _ => "Held at the peak by",
    };
    let mut text = "<div class=\"columns\">".to_owned();
    text.push_str(&owners(title, peak, &picture.state.owners));
    if let (Some(failed), Some(state)) = (failed, &picture.failure) {
        text.push_str(&owners("Held when it failed by", failed, &state.owners));
    }
    if inspection.peak_reserved_bytes.is_some() {
        text.push_str(&causes(inspection));
    }
    if !inspection.growths.is_empty() {
        text.push_str("<div class=\"wide\"><h3>Grows step by step</h3>");
        text.push_str(&wide_table(
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
        text.push_str("<div class=\"settings\"><h3>Settings in force</h3>");
        let rows = inspection.settings.iter();
        text.push_str(&table(&[], rows.map(|(k, v)| vec![escaped(k), escaped(v)])));
        text.push_str("</div>");
    }
    text + "</div>"
}

/// Who held memory at a moment, in the colours of the picture of it.
fn owners(title: &str, moment: &Moment, coloured: &[String]) -> String {
    let rows = moment.owners.iter().take(MOST_ROWS).map(|owner| {
        vec![
            format!("{}{}", swatch(coloured, &owner.name), escaped(&owner.name)),
            bytes(owner.bytes),
            share(owner.bytes, moment.held_bytes),
            owner.tensors.to_string(),
        ]
    });
    let list = table(&["", "bytes", "share", "tensors"], rows);
    let mut text = format!("<div><h3>{title}</h3>{list}");
    if moment.owners.len() > MOST_ROWS {
        let more = moment.owners.len() - MOST_ROWS;
        let _ = write!(text, "<p class=\"soft\">{more} more.</p>");
    }
    text + "</div>"
}

/// The colour that an owner has in the picture of a moment.
fn swatch(owners: &[String], name: &str) -> String {
    let place = owners.iter().position(|owner| owner == name);
    place.map_or_else(String::new, |place| {
        format!(
            "<i class=\"swatch\" style=\"background:var(--o{})\"></i>",
            place.min(OWNER_COLOURS)
        )
    })
}

/// A request, and in a smaller line who asks.
fn asked(wanted: &Wanted) -> String {
    let owner = wanted.owner.as_ref().map_or_else(String::new, |owner| format!(", {owner}"));
    smaller(&bytes(wanted.bytes), &format!("stream {}{owner}", wanted.stream))
}

/// The causes at the peak of what was needed, and at the moment when they hurt most.
fn causes(inspection: &Inspection) -> String {
    let (peak, worst) = (&inspection.peak, inspection.worst());
    let first_is = if inspection.has_history { "most needed" } else { "the snapshot" };
    let worst_is = match (&inspection.ooms[..], &inspection.reserved_peak) {
        ([], Some(_)) => "most reserved",
        ([], None) => "most needed",
        _ => "out of memory",
    };
    let moments = if peak.events == worst.events { vec![peak] } else { vec![peak, worst] };
    let mut text = "<div><h3>Fragmentation</h3>".to_owned();
    let names = [first_is, worst_is].into_iter().zip(&moments);
    let times: Vec<String> = names
        .map(|(name, m)| match inspection.has_history {
            true => smaller(name, &format!("at {}", time(m.time_us))),
            false => name.to_owned(),
        })
        .collect();
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
    rows.push(line("largest block that could be served", &|m| bytes(m.largest_servable_bytes)));
    if inspection.has_history {
        rows.push(line("next to fail", &|m| match &m.next {
            None => "nothing".to_owned(),
            Some(next) => asked(next),
        }));
    }
    text.push_str(&table(&header, rows));
    text + "</div>"
}

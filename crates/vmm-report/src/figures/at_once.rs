//! Figures of one moment, and of sums.

use super::scale::{PAGE, Room, WIDTH, fitted, legend, legend_height};
use super::{Figure, Picture};
use crate::state::{Content, State};
use crate::svg::{Anchor, Svg};
use crate::text::{bytes, count as counted, rounded_time, time};

/// Rows of the state at the peak.
const STATE_ROWS: u64 = 24;
/// Owners with a colour of their own, the largest ones; all others share one.
pub(crate) const OWNER_COLOURS: usize = 8;
const LEFT: f64 = 12.0;

/// What lay where when most was needed.
pub(super) fn peak(picture: &Picture) -> Option<Figure> {
    let inspection = &picture.inspection;
    let title = match inspection.has_history {
        true => format!("{}: at the peak, {}", inspection.name, time(picture.state.time_us)),
        false => format!("{}: when the snapshot was taken", inspection.name),
    };
    state(&picture.state, "peak", title)
}

/// What lay where when an allocation first failed.
pub(super) fn failure(picture: &Picture) -> Option<Figure> {
    let failed = picture.failure.as_ref()?;
    let name = &picture.inspection.name;
    state(failed, "failure", format!("{name}: at the failure, {}", time(failed.time_us)))
}

/// What lay where at one moment: addresses go to the right and then down.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
fn state(state: &State, name: &'static str, title: String) -> Option<Figure> {
    if state.len == 0 {
        return None;
    }
    let row_len = state.len.div_ceil(STATE_ROWS).max(1);
    let classes: Vec<String> = (0..=OWNER_COLOURS).map(|colour| format!("o{colour}")).collect();
    let owners = state.owners.iter().take(OWNER_COLOURS).map(|owner| fitted(owner, 280.0));
    let mut owners: Vec<String> = owners.collect();
    if state.owners.len() > OWNER_COLOURS {
        owners.push(format!("{} smaller owners", state.owners.len() - OWNER_COLOURS));
    }
    let mut names: Vec<(&str, &str)> =
        classes.iter().zip(&owners).map(|(class, owner)| (&**class, &**owner)).collect();
    names.push(("hole", "free"));
    let is_fenced = |content: &Content| matches!(content, Content::Tensor { is_fenced: true, .. });
    if state.pieces.iter().any(|piece| is_fenced(&piece.content)) {
        names.push(("c-fenced", "released, still in use by a stream"));
    }
    let (row_height, top) = (14.0, 52.0 + legend_height(PAGE, &names));
    let mut svg = Svg::new(WIDTH, top + STATE_ROWS as f64 * row_height + 12.0);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    let width = WIDTH - 2.0 * LEFT;
    // Narrower pieces than a fifth of a pixel are not seen and would only make the file long.
    let least = (width / row_len as f64).recip() / 5.0;
    for piece in &state.pieces {
        if (piece.size as f64) < least {
            continue;
        }
        let (class, name) = match piece.content {
            Content::Hole { .. } => ("hole".to_owned(), format!("free: {}", bytes(piece.size))),
            Content::Tensor { is_fenced: true, len, owner } => (
                "c-fenced".to_owned(),
                format!("released, still in use: {}, {}", bytes(len), state.owners[owner]),
            ),
            Content::Tensor { len, owner, .. } => (
                classes[owner.min(OWNER_COLOURS)].clone(),
                format!("{}: {}", state.owners[owner], bytes(len)),
            ),
        };
        let (mut at, end) = (piece.offset, piece.offset + piece.size);
        while at < end {
            let row = at / row_len;
            let next = ((row + 1) * row_len).min(end);
            let x = LEFT + width * ((at - row * row_len) as f64 / row_len as f64);
            let w = width * ((next - at) as f64 / row_len as f64);
            let y = top + row as f64 * row_height;
            svg.named_rect(&class, [x, y, (w - 0.4).max(0.2), row_height - 2.0], &name);
            at = next;
        }
    }
    legend(&mut svg, PAGE, &names);
    Some(Figure { name, title, class: "wide", drawing: svg })
}

/// Where bars of policies stand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    room: Room,
    /// Whether names stand above the bars, not before them.
    is_narrow: bool,
    /// Where bars begin: the longest name of a policy fits before.
    bars: f64,
    /// How long the longest bar of memory is; its figures stand behind it.
    longest: f64,
    /// The same of device calls.
    longest_call: f64,
    /// For the style sheet.
    class: &'static str,
}

impl Layout {
    /// For a page and for files.
    pub(crate) const WIDE: Self = Self {
        room: PAGE,
        is_narrow: false,
        bars: 350.0,
        longest: 410.0,
        longest_call: 410.0,
        class: "wide",
    };

    /// For a window of a few hundred pixels.
    pub(crate) const NARROW: Self = Self {
        room: Room { left: LEFT, width: 368.0 },
        is_narrow: true,
        bars: LEFT,
        longest: 150.0,
        longest_call: 344.0,
        class: "narrow",
    };
}

/// What each policy needs, as bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn policies(picture: &Picture, layout: Layout) -> Option<Figure> {
    let inspection = &picture.inspection;
    let needed = inspection.needed_bytes();
    let mut rows = vec![("needed", vec![("k-requested", needed, "")])];
    let mut remarks = vec![None];
    for row in &inspection.policies {
        let failed = if row.failures > 0 { ", and failed" } else { "" };
        let reserved = row.peak_reserved_bytes.map(|size| ("k-reserved", size, failed));
        let budget = row.smallest_budget_bytes.map(|size| ("k-budget", size, ""));
        rows.push((&row.policy, reserved.into_iter().chain(budget).collect()));
        remarks.push(row.remark.as_deref());
    }
    if rows.len() < 2 {
        return None;
    }
    let title = format!("{}: what it takes", inspection.name);
    let bars = || rows.iter().flat_map(|(_, bars)| bars);
    let most = bars().map(|&(_, size, _)| size).max()?.max(1);
    let names = [
        ("k-requested", "needed"),
        ("k-reserved", "most reserved"),
        ("k-budget", "smallest budget"),
    ];
    let Layout { room, is_narrow, bars: left, longest, class, .. } = layout;
    let (bar, gap) = (17.0, 9.0);
    let of_names = if is_narrow { bar } else { 0.0 };
    let lines: usize = rows.iter().map(|(_, bars)| bars.len().max(1)).sum();
    let mut y = 54.0 + legend_height(room, &names);
    let height = y + 2.0 + lines as f64 * bar + rows.len() as f64 * (gap + of_names);
    let mut svg = Svg::new(room.width, height);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    legend(&mut svg, room, &names);
    for ((name, bars), remark) in rows.iter().zip(remarks) {
        if is_narrow {
            let name = fitted(name, room.width - 2.0 * LEFT);
            svg.text("", Anchor::Start, LEFT, y + 12.0, &name);
            y += of_names;
        }
        let middle = y + bars.len().max(1) as f64 * bar / 2.0 + 3.0;
        if !is_narrow {
            svg.text("", Anchor::End, left - 8.0, middle, &fitted(name, left - 12.0));
        }
        if bars.is_empty() {
            let why = fitted(remark.unwrap_or_default(), room.width - left - 16.0);
            svg.text("faint", Anchor::Start, left + 8.0, middle, &why);
            y += bar;
        }
        for &(class, size, remark) in bars {
            let w = longest * size as f64 / most as f64;
            svg.named_rect(class, [left, y, w, bar - 2.0], name);
            let over = size as f64 / needed.max(1) as f64;
            let label = format!("{}, {over:.3}x{remark}", bytes(size));
            svg.text("faint", Anchor::Start, left + 8.0 + w, y + 12.0, &label);
            y += bar;
        }
        y += gap;
    }
    Some(Figure { name: "policies", title, class, drawing: svg })
}

/// Device calls of policies by operation: their time, in logarithmic bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn calls(picture: &Picture, layout: Layout) -> Option<Figure> {
    let rows: Vec<_> = picture
        .inspection
        .policies
        .iter()
        .filter(|row| !row.calls.is_empty() || !row.worker_calls.is_empty())
        .collect();
    let calls = || rows.iter().flat_map(|row| row.calls.iter().chain(&row.worker_calls));
    let most = calls().map(|&(.., us)| us).fold(1.0, f64::max);
    if rows.is_empty() {
        return None;
    }
    let title = format!("{}: device calls and their time", picture.inspection.name);
    let Layout { room, is_narrow, bars: left, longest_call, class, .. } = layout;
    let names = [("k-budget", "on the allocating thread"), ("k-live", "on the worker")];
    let (line, bar, gap) = (19.0, if is_narrow { 25.0 } else { 19.0 }, 9.0);
    let legend_end = 54.0 + legend_height(room, &names);
    let mut y = if is_narrow { legend_end + line } else { legend_end };
    let height = y + 2.0 + calls().count() as f64 * bar + rows.len() as f64 * (line + gap);
    let mut svg = Svg::new(room.width, height);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    legend(&mut svg, room, &names);
    let (anchor, x, at) = match is_narrow {
        true => (Anchor::Start, LEFT, legend_end + 8.0),
        false => (Anchor::End, room.width - LEFT, 41.0),
    };
    svg.text("faint", anchor, x, at, "bars are logarithmic");
    for row in &rows {
        let name = fitted(&row.policy, room.width - 2.0 * LEFT);
        svg.text("", Anchor::Start, LEFT, y + 13.0, &name);
        y += line;
        for (class, calls) in [("k-budget", &row.calls), ("k-live", &row.worker_calls)] {
            for (op, count, us) in calls {
                let w = longest_call * (us + 1.0).ln() / (most + 1.0).ln();
                let label = format!("{}, {}", counted(*count, "call"), rounded_time(*us));
                if is_narrow {
                    let label = fitted(&format!("{op}: {label}"), room.width - 2.0 * LEFT);
                    svg.text("faint", Anchor::Start, left, y + 12.0, &label);
                    svg.named_rect(class, [left, y + 16.0, w, 6.0], op);
                } else {
                    svg.text("faint", Anchor::End, left - 8.0, y + 13.0, op);
                    svg.named_rect(class, [left, y, w, bar - 3.0], op);
                    svg.text("faint", Anchor::Start, left + 8.0 + w, y + 13.0, &label);
                }
                y += bar;
            }
        }
        y += gap;
    }
    Some(Figure { name: "calls", title, class, drawing: svg })
}

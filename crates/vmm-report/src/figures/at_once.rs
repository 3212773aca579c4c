//! Figures of one moment, and of sums.

use super::scale::{WIDTH, fitted, legend, legend_height};
use super::{Figure, Picture};
use crate::state::Content;
use crate::svg::{Anchor, Svg};
use crate::text::{bytes, count as counted, time};

/// Rows of the state at the peak.
const STATE_ROWS: u64 = 24;
/// Owners with a colour of their own, the largest ones; all others share one.
pub(crate) const OWNER_COLOURS: usize = 8;
const LEFT: f64 = 12.0;

/// What lay where when most was needed: addresses go to the right and then down.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(super) fn state(picture: &Picture) -> Option<Figure> {
    let state = &picture.state;
    if state.len == 0 {
        return None;
    }
    let title = format!("{}: at the peak, {}", picture.inspection.name, time(state.time_us));
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
    let (row_height, top) = (14.0, 52.0 + legend_height(&names));
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
    legend(&mut svg, &names);
    Some(Figure { name: "peak", title, drawing: svg })
}

/// Where bars begin in figures of policies: the longest name of one fits before.
const BARS: f64 = 350.0;
/// How long the longest bar is; its figures stand behind it.
const LONGEST_BAR: f64 = 410.0;

/// What each policy needs, as bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn policies(picture: &Picture) -> Option<Figure> {
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
    let (bar, gap) = (17.0, 9.0);
    let lines: usize = rows.iter().map(|(_, bars)| bars.len().max(1)).sum();
    let height = 56.0 + lines as f64 * bar + rows.len() as f64 * gap;
    let mut svg = Svg::new(WIDTH, height);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    let names = [
        ("k-requested", "needed"),
        ("k-reserved", "most reserved"),
        ("k-budget", "smallest budget"),
    ];
    legend(&mut svg, &names);
    let mut y = 54.0;
    for ((name, bars), remark) in rows.iter().zip(remarks) {
        let middle = y + bars.len().max(1) as f64 * bar / 2.0 + 3.0;
        svg.text("", Anchor::End, BARS - 8.0, middle, &fitted(name, BARS - 12.0));
        if let Some(why) = remark.filter(|_| bars.is_empty()) {
            let why = fitted(why, WIDTH - BARS - 16.0);
            svg.text("faint", Anchor::Start, BARS + 8.0, middle, &why);
            y += bar;
        }
        for &(class, size, remark) in bars {
            let w = LONGEST_BAR * size as f64 / most as f64;
            svg.named_rect(class, [BARS, y, w, bar - 2.0], name);
            let over = size as f64 / needed.max(1) as f64;
            let label = format!("{}, {over:.3}x{remark}", bytes(size));
            svg.text("faint", Anchor::Start, BARS + 8.0 + w, y + 12.0, &label);
            y += bar;
        }
        y += gap;
    }
    Some(Figure { name: "policies", title, drawing: svg })
}

/// Device calls of policies by operation: their time, in logarithmic bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn calls(picture: &Picture) -> Option<Figure> {
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
    let (bar, gap) = (19.0, 9.0);
    let height = 56.0 + (calls().count() + rows.len()) as f64 * bar + rows.len() as f64 * gap;
    let mut svg = Svg::new(WIDTH, height);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    legend(&mut svg, &[("k-budget", "on the allocating thread"), ("k-live", "on the worker")]);
    svg.text("faint", Anchor::End, WIDTH - LEFT, 41.0, "bars are logarithmic");
    let mut y = 54.0;
    for row in &rows {
        svg.text("", Anchor::Start, LEFT, y + 13.0, &row.policy);
        y += bar;
        for (class, calls) in [("k-budget", &row.calls), ("k-live", &row.worker_calls)] {
            for (op, count, us) in calls {
                let w = LONGEST_BAR * (us + 1.0).ln() / (most + 1.0).ln();
                svg.text("faint", Anchor::End, BARS - 8.0, y + 13.0, op);
                svg.named_rect(class, [BARS, y, w, bar - 3.0], op);
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "saturates"
                )]
                let label = format!("{}, {}", counted(*count, "call"), time(*us as u64));
                svg.text("faint", Anchor::Start, BARS + 8.0 + w, y + 13.0, &label);
                y += bar;
            }
        }
        y += gap;
    }
    Some(Figure { name: "calls", title, drawing: svg })
}

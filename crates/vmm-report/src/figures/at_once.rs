//! Figures of one moment, and of sums.

use super::scale::{WIDTH, legend};
use super::{Figure, Picture};
use crate::state::Content;
use crate::svg::{Anchor, Svg};
use crate::text::{bytes, time};

/// Rows of the state at the peak.
const STATE_ROWS: u64 = 24;
/// Colours for owners; more owners than these share them.
const OWNER_COLOURS: usize = 8;
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
    let (row_height, top) = (14.0, 52.0);
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
                format!("o{}", owner % OWNER_COLOURS),
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
    legend(&mut svg, &[("o0", "in use, one colour for each owner"), ("hole", "free")]);
    Some(Figure { name: "peak", title, drawing: svg })
}

/// What each policy needs, as bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn policies(picture: &Picture) -> Option<Figure> {
    let inspection = &picture.inspection;
    let mut bars = vec![("k-requested", "needed".to_owned(), inspection.needed_bytes())];
    for row in &inspection.policies {
        if let Some(peak) = row.peak_reserved_bytes {
            let failed = if row.failures > 0 { ", and failed" } else { "" };
            bars.push(("k-reserved", format!("{}: reserved{failed}", row.policy), peak));
        }
        if let Some(budget) = row.smallest_budget_bytes {
            bars.push(("k-pool", format!("{}: smallest budget", row.policy), budget));
        }
    }
    if bars.len() < 2 {
        return None;
    }
    let title = format!("{}: what it takes", inspection.name);
    let most = bars.iter().map(|&(.., size)| size).max()?.max(1);
    let mut svg = Svg::new(WIDTH, 40.0 + 28.0 * bars.len() as f64);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    let needed = inspection.needed_bytes().max(1) as f64;
    for (index, (class, name, size)) in bars.iter().enumerate() {
        let y = 36.0 + 28.0 * index as f64;
        let w = 480.0 * *size as f64 / most as f64;
        svg.text("faint", Anchor::End, 268.0, y + 14.0, name);
        svg.named_rect(class, [276.0, y, w, 20.0], name);
        let label = format!("{}, {:.3}x", bytes(*size), *size as f64 / needed);
        svg.text("faint", Anchor::Start, 284.0 + w, y + 14.0, &label);
    }
    Some(Figure { name: "policies", title, drawing: svg })
}

/// Device calls of the policies that were replayed, by operation: their time, in logarithmic bars.
#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
pub(crate) fn calls(picture: &Picture) -> Option<Figure> {
    let mut bars = Vec::new();
    for row in &picture.inspection.policies {
        let both = [("k-pool", "", &row.calls), ("k-live", ", worker", &row.worker_calls)];
        for (class, who, calls) in both {
            bars.extend(
                calls.iter().map(|(op, count, us)| {
                    (class, format!("{}{who}: {op}", row.policy), *count, *us)
                }),
            );
        }
    }
    let most = bars.iter().map(|&(.., us)| us).fold(1.0, f64::max);
    if bars.is_empty() {
        return None;
    }
    let title = format!("{}: device calls and their time", picture.inspection.name);
    let mut svg = Svg::new(WIDTH, 40.0 + 24.0 * bars.len() as f64);
    svg.text("title", Anchor::Start, LEFT, 20.0, &title);
    svg.text("faint", Anchor::End, WIDTH - LEFT, 20.0, "bars are logarithmic");
    for (index, (class, name, count, us)) in bars.iter().enumerate() {
        let y = 34.0 + 24.0 * index as f64;
        let w = 430.0 * (us + 1.0).ln() / (most + 1.0).ln();
        svg.text("faint", Anchor::End, 268.0, y + 13.0, name);
        svg.named_rect(class, [276.0, y, w, 17.0], name);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let label = format!("{count} calls, {}", time(*us as u64));
        svg.text("faint", Anchor::Start, 284.0 + w, y + 13.0, &label);
    }
    Some(Figure { name: "calls", title, drawing: svg })
}

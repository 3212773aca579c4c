//! Figures with time to the right.

use super::scale::{PAGE, Plot, legend};
use super::{Figure, Picture};
use crate::address_map::{FULL, ROWS};
use crate::svg::Anchor;
use crate::text;
use crate::timeline::{Span, Stretch};

/// Classes of colour for lines of policies, and for the same in a legend.
const LINES: [(&str, &str); 6] = [
    ("s-p0", "k-p0"),
    ("s-p1", "k-p1"),
    ("s-p2", "k-p2"),
    ("s-p3", "k-p3"),
    ("s-p4", "k-p4"),
    ("s-p5", "k-p5"),
];

/// What the program had asked for, what blocks took, and what was reserved.
pub(super) fn memory(picture: &Picture) -> Option<Figure> {
    let stretches = &picture.timeline.stretches;
    if stretches.is_empty() {
        return None;
    }
    let inspection = &picture.inspection;
    let of_policies = super::lines(inspection).filter(|(_, row)| !row.is_recorded);
    let of_policies = of_policies.flat_map(|(_, row)| &row.reserved);
    let most = stretches
        .iter()
        .map(|s| s.reserved.high.max(s.live.high))
        .chain(of_policies.map(|&(_, bytes)| bytes))
        .max()
        .unwrap_or(0);
    // A limit far above everything would press the curves down to nothing.
    let limit = picture.limit.filter(|&limit| limit <= most.saturating_mul(3));
    let knows_reserved = inspection.peak_reserved_bytes.is_some();
    let mut names = Vec::new();
    names.extend(knows_reserved.then_some(("k-reserved", "reserved")));
    let of_policies = super::lines(inspection).filter(|(_, row)| !row.is_recorded);
    names.extend(of_policies.map(|(index, row)| (LINES[index % LINES.len()].1, &*row.policy)));
    names.extend([("k-live", "in blocks"), ("k-requested", "asked for")]);
    names.extend(limit.map(|_| ("k-limit", "limit")));
    let plot = Plot::new(340.0, inspection.duration_us, most.max(limit.unwrap_or(0)), &names);
    let title = format!("{}: memory over time", inspection.name);
    let mut svg = plot.begin(&title);
    if knows_reserved {
        line(&mut svg, &plot, "s-reserved", stretches, |s| s.reserved);
    }
    for (index, row) in super::lines(inspection).filter(|(_, row)| !row.is_recorded) {
        let points = row.reserved.iter().enumerate().flat_map(|(at, &(time, bytes))| {
            let end = row.reserved.get(at + 1).map_or(plot.end(), |&(time, _)| plot.x(time));
            [(plot.x(time), plot.y(bytes)), (end, plot.y(bytes))]
        });
        svg.path(LINES[index % LINES.len()].0, points);
    }
    line(&mut svg, &plot, "s-live", stretches, |s| s.live);
    line(&mut svg, &plot, "s-requested", stretches, |s| s.requested);
    if let Some(limit) = limit {
        let [left, _, width, _] = plot.inside();
        let y = plot.y(limit);
        svg.line("limit", [left, y, left + width, y]);
    }
    legend(&mut svg, PAGE, &names);
    Some(Figure { name: "memory", title, class: "wide", drawing: svg })
}

/// A line that shows the least and the most of each pixel.
fn line(
    svg: &mut crate::svg::Svg,
    plot: &Plot,
    class: &str,
    stretches: &[Stretch],
    of: impl Fn(&Stretch) -> Span,
) {
    let mut before = None;
    let pixels = stretches.chunk_by(|a, b| is_same_pixel(plot, a.time_us, b.time_us));
    let points = pixels.flat_map(|part| {
        let x = plot.x(part[0].time_us);
        let low = part.iter().map(|s| of(s).low).min().unwrap_or(0);
        let high = part.iter().map(|s| of(s).high).max().unwrap_or(0);
        let last = part.last().map_or(0, |s| of(s).last);
        // As steps: between two events nothing changes.
        let y = before.replace(plot.y(last)).unwrap_or(plot.y(low));
        [(x, y), (x, plot.y(low)), (x, plot.y(high)), (x, plot.y(last))]
    });
    svg.path(class, points);
}

#[expect(clippy::float_cmp, reason = "whole numbers")]
fn is_same_pixel(plot: &Plot, one: u64, other: u64) -> bool {
    plot.x(one).floor() == plot.x(other).floor()
}

/// Classes of colour, from the bottom up, each cause in the order of `Causes::all`.
pub(crate) const LAYERS: [(&str, &str); 7] = [
    ("c-in-use", "in use"),
    ("c-rounding", "rounding"),
    ("c-fenced", "still in use by a stream"),
    ("c-other-pool", "other pool or class"),
    ("c-other-stream", "other stream"),
    ("c-too-small", "holes too small"),
    ("c-cached", "cached beyond need"),
];

/// Where the reserved bytes are, as stacked areas.
pub(super) fn causes(picture: &Picture) -> Option<Figure> {
    picture.inspection.peak_reserved_bytes?;
    let samples = &picture.timeline.samples;
    let most = samples.iter().map(|sample| sample.causes.reserved).max()?;
    let plot = Plot::new(340.0, picture.inspection.duration_us, most, &LAYERS);
    let title = format!("{}: fragmentation by cause", picture.inspection.name);
    let mut svg = plot.begin(&title);
    let pixels = samples.chunk_by(|a, b| is_same_pixel(&plot, a.time_us, b.time_us));
    let sums: Vec<(u64, [u64; 8])> = pixels
        .filter_map(<[_]>::last)
        .map(|sample| {
            let c = &sample.causes;
            let all = c.all().map(|cause| cause.bytes);
            let mut sums = [0; 8];
            for (index, bytes) in std::iter::once(c.requested).chain(all).enumerate() {
                sums[index + 1] = sums[index] + bytes;
            }
            (sample.time_us, sums)
        })
        .collect();
    let sums = &sums;
    for (index, (class, _)) in LAYERS.iter().enumerate() {
        // As steps: between two moments nothing is known to change.
        let along = |level: usize| {
            sums.iter().enumerate().flat_map(move |(at, (time, levels))| {
                let end = sums.get(at + 1).map_or(plot.end(), |(time, _)| plot.x(*time));
                let y = plot.y(levels[level]);
                [(plot.x(*time), y), (end, y)]
            })
        };
        svg.path(class, along(index).chain(along(index + 1).collect::<Vec<_>>().into_iter().rev()));
    }
    legend(&mut svg, PAGE, &LAYERS);
    Some(Figure { name: "causes", title, class: "wide", drawing: svg })
}

/// Rows of the map that are one on paper, which has fewer dots than there are rows.
const TOGETHER: usize = 3;

/// The level of several cells. What is in use at all is not shown as free, nor the other way round.
fn mean_level(cells: &[u8]) -> u8 {
    let (mut sum, mut count) = (0, 0);
    for &cell in cells.iter().filter(|&&cell| cell > 0) {
        sum += u32::from(cell);
        count += 1;
    }
    if count == 0 {
        return 0;
    }
    let all_full = sum == count * u32::from(FULL);
    let mean = u8::try_from(sum.div_ceil(count)).unwrap_or(FULL);
    if all_full { FULL } else { mean.min(FULL - 1) }
}

/// Addresses over time.
pub(super) fn map(picture: &Picture) -> Option<Figure> {
    let map = &picture.map;
    if map.times_us.is_empty() {
        return None;
    }
    let names = [("m1", "free"), ("m5", "partly in use"), ("m10", "in use")];
    let plot = Plot::new(420.0, picture.inspection.duration_us, map.len, &names);
    let title = format!("{}: addresses over time", picture.inspection.name);
    let mut svg = plot.begin(&title);
    #[expect(clippy::cast_precision_loss, reason = "a few hundred rows")]
    let row_height = (plot.y(0) - plot.y(map.len)) / (ROWS / TOGETHER) as f64;
    let bottom = plot.y(0);
    let [left, _, width, _] = plot.inside();
    for (index, column) in map.cells.chunks(ROWS).enumerate() {
        let column: Vec<u8> = column.chunks(TOGETHER).map(mean_level).collect();
        let from = plot.x(map.times_us[index]);
        let to = map.times_us.get(index + 1).map_or(left + width, |&time| plot.x(time));
        let mut row = 0;
        while row < column.len() {
            let level = column[row];
            let end = column[row..].iter().position(|&other| other != level);
            let end = end.map_or(column.len(), |len| row + len);
            if level > 0 && to > from {
                #[expect(clippy::cast_precision_loss, reason = "a few hundred rows")]
                let (low, high) = (row as f64 * row_height, end as f64 * row_height);
                let class = format!("m{level}");
                svg.rect(&class, from, bottom - high, to - from + 0.3, high - low + 0.3);
            }
            row = end;
        }
    }
    legend(&mut svg, PAGE, &names);
    svg.text(
        "faint",
        Anchor::End,
        left + width,
        41.0,
        &format!("{} of addresses, gaps left out", text::bytes(map.len)),
    );
    debug_assert_eq!(FULL, 10, "as many classes of colour");
    Some(Figure { name: "map", title, class: "wide", drawing: svg })
}

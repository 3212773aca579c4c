//! Axes: from quantities to pixels, and where marks go.

use super::Svg;
use crate::svg::Anchor;
use crate::text;

/// Width of all figures, in pixels.
pub(super) const WIDTH: f64 = 960.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 34.0;

/// Where a legend may stand, in pixels: from the left, and to the width of the figure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    pub(super) left: f64,
    pub(super) width: f64,
}

/// The room above a plot.
pub(super) const PAGE: Room = Room { left: LEFT, width: WIDTH };

/// A plot of bytes over time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plot {
    height: f64,
    top: f64,
    /// Microseconds at the right end.
    duration: f64,
    /// Bytes at the top.
    most: f64,
}

#[expect(clippy::cast_precision_loss, reason = "pixels need no 53 bits")]
impl Plot {
    /// A plot below a legend with these entries.
    pub(super) fn new(height: f64, duration_us: u64, most: u64, names: &[(&str, &str)]) -> Self {
        let legend = legend_height(PAGE, names);
        Self {
            height: height + legend,
            top: TOP + legend,
            duration: duration_us.max(1) as f64,
            most: most.max(1) as f64 * 1.04,
        }
    }

    pub(super) fn x(&self, time_us: u64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (time_us as f64 / self.duration).min(1.0)
    }

    /// The right end.
    pub(super) fn end(&self) -> f64 {
        WIDTH - RIGHT
    }

    pub(super) fn y(&self, bytes: u64) -> f64 {
        self.top + (self.height - self.top - BOTTOM) * (1.0 - (bytes as f64 / self.most).min(1.0))
    }

    /// Left, top, width and height of what is drawn in.
    pub(super) fn inside(&self) -> [f64; 4] {
        [LEFT, self.top, WIDTH - LEFT - RIGHT, self.height - self.top - BOTTOM]
    }

    /// A drawing with a title, axes and marks.
    pub(super) fn begin(&self, title: &str) -> Svg {
        let mut svg = Svg::new(WIDTH, self.height);
        svg.text("title", Anchor::Start, 12.0, 20.0, title);
        let step = byte_step(self.most);
        let mut mark = 0;
        while (mark as f64) <= self.most {
            let y = self.y(mark);
            svg.line("grid", [LEFT, y, WIDTH - RIGHT, y]);
            svg.text("faint", Anchor::End, LEFT - 6.0, y + 4.0, &text::bytes_short(mark));
            mark += step;
        }
        let step = time_step(self.duration);
        let mut mark = 0;
        while (mark as f64) <= self.duration {
            let (x, bottom) = (self.x(mark), self.height - BOTTOM);
            svg.line("axis", [x, bottom, x, bottom + 4.0]);
            svg.text("faint", Anchor::Middle, x, bottom + 18.0, &text::time_short(mark));
            mark += step;
        }
        svg.line("axis", [LEFT, self.height - BOTTOM, WIDTH - RIGHT, self.height - BOTTOM]);
        svg
    }
}

/// Height of one line of a legend.
const LEGEND_LINE: f64 = 18.0;

/// Where the entries of a legend stand: from the left, and how many lines down.
fn places(room: Room, entries: &[(&str, &str)]) -> Vec<(f64, f64)> {
    let (mut x, mut line) = (room.left, 0.0);
    let place = |(_, name): &(&str, &str)| {
        #[expect(clippy::cast_precision_loss, reason = "a few letters")]
        let width = 30.0 + name.chars().count() as f64 * 6.6;
        if x > room.left && x + width > room.width {
            (x, line) = (room.left, line + 1.0);
        }
        let place = (x, line);
        x += width;
        place
    };
    entries.iter().map(place).collect()
}

/// How much higher a figure is because its legend has more than one line.
pub(super) fn legend_height(room: Room, entries: &[(&str, &str)]) -> f64 {
    places(room, entries).last().map_or(0.0, |(_, line)| line * LEGEND_LINE)
}

/// Names with their colours, below the title.
pub(super) fn legend(svg: &mut Svg, room: Room, entries: &[(&str, &str)]) {
    for ((class, name), (x, line)) in entries.iter().zip(places(room, entries)) {
        let y = 31.0 + line * LEGEND_LINE;
        svg.rect(class, x, y, 11.0, 11.0);
        svg.text("faint", Anchor::Start, x + 15.0, y + 10.0, name);
    }
}

/// A name, cut to the letters that there is room for.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a width of a few hundred pixels"
)]
pub(super) fn fitted(name: &str, width: f64) -> String {
    let most = (width / 6.6) as usize;
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let kept: String = name.chars().take(most.saturating_sub(1)).collect();
    kept + "…"
}

/// A power of two of bytes that makes at most six marks.
fn byte_step(most: f64) -> u64 {
    let mut step = 1u64;
    #[expect(clippy::cast_precision_loss, reason = "powers of two are exact")]
    while most / step as f64 > 6.0 {
        step *= 2;
    }
    step
}

/// 1, 2 or 5 times a power of ten of microseconds that makes at most ten marks.
fn time_step(duration: f64) -> u64 {
    let mut step = 1u64;
    loop {
        for factor in [1, 2, 5] {
            #[expect(clippy::cast_precision_loss, reason = "steps are far below 2^53")]
            if duration / (step * factor) as f64 <= 10.0 {
                return step * factor;
            }
        }
        step *= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_legends_have_more_lines_and_long_names_are_cut() {
        let entry = ("a", "twenty letters or so");
        assert!(
            legend_height(PAGE, &[entry; 4]) == 0.0
                && legend_height(PAGE, &[entry; 8]) > LEGEND_LINE / 2.0
        );
        assert!(places(PAGE, &[entry; 30]).iter().all(|(x, _)| x + 30.0 + 20.0 * 6.6 <= WIDTH));
        assert_eq!(fitted("a name", 66.0), "a name");
        assert_eq!(fitted("a longer name", 66.0), "a longer …");
    }

    #[test]
    fn marks_are_round() {
        assert_eq!([5.0, 7.0, 20e9].map(byte_step), [1, 2, 1 << 32]);
        assert_eq!([1.0, 49_200.0, 12_170_000.0].map(time_step), [1, 5_000, 2_000_000]);
    }
}

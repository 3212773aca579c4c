//! Makes SVG text.

use std::fmt::Write as _;

/// Colours of a figure that stands alone, as style rules. In the page the same classes have the
/// colours of its theme.
const STYLE: &str = include_str!("page/figure.css");

/// Height of the line with the title, in pixels.
const TITLE: f64 = 26.0;

/// A drawing under construction. Lengths are pixels, the origin is the upper left corner.
#[derive(Debug)]
pub(crate) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Where a text stands relative to its point.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    // Writing to a string cannot fail.

    pub(crate) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.2}" y="{y:.2}" width="{:.2}" height="{:.2}"/>"#,
            width.max(0.0),
            height.max(0.0)
        );
    }

    /// A rectangle that tells what it is when the pointer rests on it.
    pub(crate) fn named_rect(&mut self, class: &str, [x, y, w, h]: [f64; 4], name: &str) {
        let _ = write!(
            self.body,
            r#"<rect class="{class}" x="{x:.2}" y="{y:.2}" width="{:.2}" height="{:.2}"><title>{}</title></rect>"#,
            w.max(0.0),
            h.max(0.0),
            escaped(name)
        );
    }

    pub(crate) fn line(&mut self, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
        let _ = write!(
            self.body,
            r#"<line class="{class}" x1="{x1:.2}" y1="{y1:.2}" x2="{x2:.2}" y2="{y2:.2}"/>"#
        );
    }

    /// A line through points, or with a class that fills, an area.
    pub(crate) fn path(&mut self, class: &str, points: impl Iterator<Item = (f64, f64)>) {
        let _ = write!(self.body, r#"<path class="{class}" d=""#);
        for (index, (x, y)) in points.enumerate() {
            let _ = write!(self.body, "{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" });
        }
        self.body.push_str(r#""/>"#);
    }

    pub(crate) fn text(&mut self, class: &str, anchor: Anchor, x: f64, y: f64, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = write!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    /// The drawing as a file of its own, with its colours.
    pub(crate) fn document(&self, title: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"DejaVu Sans, Arial, sans-serif\" \
             font-size=\"12\"><title>{}</title><style>{STYLE}</style>\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>{body}</svg>\n",
            escaped(title)
        )
    }

    /// The drawing as a part of the page, as wide as there is room, without the line of its title.
    pub(crate) fn inline(&self, class: &str, title: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg class=\"{class}\" viewBox=\"0 {TITLE} {width} {}\" role=\"img\" aria-label=\"{}\">{body}</svg>",
            height - TITLE,
            escaped(title)
        )
    }
}

/// Text that is safe in SVG and HTML, also inside of quotes.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // XML forbids other control characters, even escaped.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_are_no_markup() {
        assert_eq!(escaped("a<b>&\"'\u{1}"), "a&lt;b&gt;&amp;&quot;&#39;\u{fffd}");
    }
}

//! Aligned columns for people.

use anstyle::{AnsiColor, Style};
use std::fmt::Write as _;

/// One piece of a row: its text and how it looks on a terminal with colours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    /// Text that draws the eye: something went wrong.
    pub(crate) fn alarming(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: AnsiColor::Red.on_default().bold() }
    }

    /// Text that is the best of its kind.
    pub(crate) fn good(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: AnsiColor::Green.on_default() }
    }

    /// Text that names something.
    pub(crate) fn heading(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new().bold() }
    }

    /// Text that is less important than the rest.
    pub(crate) fn faint(text: impl Into<String>) -> Self {
        Self { text: text.into(), style: Style::new().dimmed() }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), style: Style::new() }
    }
}

/// Rows of cells; the first column is aligned to the left, all others to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
}

/// Blanks between two columns.
const GAP: usize = 2;

impl Table {
    pub(crate) fn push(&mut self, row: Vec<Cell>) {
        self.rows.push(row);
    }

    /// The table as text, a line for each row.
    pub(crate) fn render(&self, coloured: bool) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width_of = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width_of).collect();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let blanks = widths[column] - cell.text.chars().count();
                let (before, after) = if column == 0 { (0, blanks) } else { (GAP + blanks, 0) };
                let styled = coloured && !cell.text.is_empty();
                let style = if styled { cell.style } else { Style::new() };
                // Writing to a string cannot fail.
                let _ = write!(line, "{:before$}{style}{}{style:#}{:after$}", "", cell.text, "");
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::default();
        table.push(vec![Cell::heading("name"), Cell::heading("n")]);
        table.push(vec!["a".into(), "123".into()]);
        table.push(vec!["a longer name".into(), Cell::alarming("7")]);
        table
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(
            table().render(false),
            "name             n\na              123\na longer name    7\n"
        );
    }

    #[test]
    fn colours_change_no_text() {
        let coloured = table().render(true);
        assert!(coloured.contains("\u{1b}["));
        let plain: String = coloured
            .split('\u{1b}')
            .enumerate()
            .map(|(i, s)| if i == 0 { s } else { s.split_once('m').map_or("", |(_, rest)| rest) })
            .collect();
        assert_eq!(plain, table().render(false));
    }
}

//! What was found, for people.

use crate::table::{Cell, Table};
use anstyle::{AnsiColor, Style};
use std::fmt::Write as _;
use vmm_report::text::{bytes, count, percent, rounded_time, time};
use vmm_report::{Allocator, Causes, Inspection, Level, Moment, OutOfMemory, PolicyRow};

/// Rows of a list; what comes after these is summed up.
const MOST_ROWS: usize = 12;
/// The same of those who held memory when an allocation failed.
const MOST_ROWS_OF_A_FAILURE: usize = 6;
/// Columns of a line.
const WIDTH: usize = 96;

/// The findings about one device.
pub(crate) fn text(inspection: &Inspection, coloured: bool) -> String {
    let mut page = Page { text: String::new(), coloured };
    page.summary(inspection);
    for oom in &inspection.ooms {
        page.out_of_memory(inspection, oom);
    }
    let told = inspection.ooms.len();
    if inspection.oom_count > told {
        page.line(&format!("({} more failed)", inspection.oom_count - told));
    }
    page.peak(inspection);
    page.fragmentation(inspection);
    page.growths(inspection);
    page.policies(&inspection.policies, inspection.needed_bytes());
    page.settings(inspection);
    page.heading("advice");
    for advice in &inspection.advice {
        page.item(advice);
    }
    page.text
}

/// One line for each device, such as the ranks of a job.
pub(crate) fn overview(inspections: &[Inspection], coloured: bool) -> String {
    let mut page = Page { text: String::new(), coloured };
    let title = page.styled(&format!("all {} devices", inspections.len()), Style::new().bold());
    page.text = format!("{title}\n");
    let mut table = Table::default();
    let has_policies = inspections.iter().any(|inspection| !inspection.policies.is_empty());
    let names = ["", "needed", "reserved", "fragmentation", "failed", "smallest budget", "policy"];
    let shown = if has_policies { &names[..] } else { &names[..5] };
    table.push(shown.iter().copied().map(Cell::heading).collect());
    for inspection in inspections {
        let worst = inspection.worst();
        let reserved = inspection.peak_reserved_bytes;
        let failed = inspection.oom_count.to_string();
        let least = inspection.least_budget();
        let mut row = vec![
            Cell::from(inspection.name.as_str()),
            bytes(inspection.peak_requested_bytes).into(),
            reserved.map_or_else(|| Cell::faint("-"), |reserved| bytes(reserved).into()),
            match reserved {
                None => Cell::faint("-"),
                Some(_) => {
                    format!("{} {}", worst.level.name(), percent(worst.fragmentation)).into()
                }
            },
            if inspection.oom_count > 0 { Cell::alarming(failed) } else { failed.into() },
        ];
        if has_policies {
            row.push(least.map_or_else(|| Cell::faint("-"), |(_, budget)| bytes(budget).into()));
            row.push(least.map_or_else(|| Cell::faint("-"), |(row, _)| row.policy.as_str().into()));
        }
        table.push(row);
    }
    page.table(&table);
    if has_policies {
        page.line("smallest budget: unchecked models count only where there is nothing else");
    }
    page.text
}

struct Page {
    text: String,
    coloured: bool,
}

impl Page {
    fn styled(&self, text: &str, style: Style) -> String {
        let style = if self.coloured { style } else { Style::new() };
        format!("{style}{text}{style:#}")
    }

    fn heading(&mut self, title: &str) {
        let title = self.styled(title, Style::new().bold());
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "\n{title}");
    }

    fn line(&mut self, text: &str) {
        self.wrapped(text, "  ", "  ");
    }

    fn item(&mut self, text: &str) {
        self.wrapped(text, "  - ", "    ");
    }

    /// Breaks lines between words.
    fn wrapped(&mut self, text: &str, first: &str, others: &str) {
        let mut line = first.to_owned();
        let mut is_empty = true;
        for word in text.split(' ') {
            if !is_empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                let _ = writeln!(self.text, "{line}");
                line = others.to_owned();
                is_empty = true;
            }
            if !is_empty {
                line.push(' ');
            }
            line.push_str(word);
            is_empty = false;
        }
        let _ = writeln!(self.text, "{line}");
    }

    fn table(&mut self, table: &Table) {
        for line in table.render(self.coloured).lines() {
            let _ = writeln!(self.text, "  {line}");
        }
    }

    fn summary(&mut self, inspection: &Inspection) {
        let title = self.styled(&inspection.name, Style::new().bold());
        if !inspection.has_history {
            let _ = writeln!(
                self.text,
                "{title}: device {}, the state of one moment, without history",
                inspection.device
            );
            let held = bytes(inspection.end.held_bytes);
            let reserved = bytes(inspection.end.causes.reserved);
            self.line(&format!("{held} in use, {reserved} reserved"));
            return;
        }
        let _ = writeln!(
            self.text,
            "{title}: device {}, {} in {}, {}",
            inspection.device,
            count(inspection.events as u64, "event"),
            time(inspection.duration_us),
            count(inspection.streams as u64, "stream"),
        );
        let (needed, when) =
            (bytes(inspection.peak_requested_bytes), time(inspection.peak.time_us));
        let mut needed = format!("needed {needed} at {when}");
        let more = inspection.needed_too();
        if !more.is_empty() {
            let _ = write!(needed, " ({})", more.join(", "));
        }
        match inspection.peak_reserved_bytes {
            None => self.line(&needed),
            Some(reserved) => {
                #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
                let ratio = reserved as f64 / inspection.peak_requested_bytes.max(1) as f64;
                let ratio = if inspection.peak_requested_bytes == 0 {
                    String::new()
                } else {
                    format!(", {ratio:.2} times what was needed")
                };
                self.line(&format!("{needed}, reserved {}{ratio}", bytes(reserved)));
            }
        }
    }

    fn out_of_memory(&mut self, inspection: &Inspection, oom: &OutOfMemory) {
        let title = self.styled("out of memory", AnsiColor::Red.on_default().bold());
        let _ = writeln!(self.text, "\n{title}");
        self.line(&oom.sentence(inspection));
        if inspection.allocator != Allocator::Unknown {
            self.causes(&oom.moment.causes);
        }
        if oom.moment.events != inspection.peak.events {
            self.line(&format!("{} were held by", bytes(oom.moment.held_bytes)));
            self.owners(&oom.moment, MOST_ROWS_OF_A_FAILURE);
        }
    }

    fn peak(&mut self, inspection: &Inspection) {
        let peak = &inspection.peak;
        let held = bytes(peak.held_bytes);
        let failed_there = inspection.ooms.iter().any(|oom| oom.moment.events == peak.events);
        self.heading(&match (inspection.has_history, failed_there) {
            (false, _) => format!("{held} in use, held by"),
            (true, false) => format!("at the peak of {held}, held by"),
            (true, true) => format!("at the peak of {held}, which is where it failed, held by"),
        });
        self.owners(peak, MOST_ROWS);
    }

    /// Who held memory at a moment, in so many rows at most.
    fn owners(&mut self, peak: &Moment, most: usize) {
        let mut table = Table::default();
        for owner in peak.owners.iter().take(most) {
            table.push(vec![
                Cell::from(owner.name.as_str()),
                bytes(owner.bytes).into(),
                share_cell(owner.bytes, peak.held_bytes),
                count(owner.tensors, "tensor").into(),
            ]);
        }
        if peak.owners.len() > most {
            let rest = &peak.owners[most..];
            let sum: u64 = rest.iter().map(|owner| owner.bytes).sum();
            table.push(vec![
                Cell::faint(format!("{} others", rest.len())),
                bytes(sum).into(),
                share_cell(sum, peak.held_bytes),
                count(rest.iter().map(|owner| owner.tensors).sum(), "tensor").into(),
            ]);
        }
        self.table(&table);
    }

    fn fragmentation(&mut self, inspection: &Inspection) {
        if inspection.peak_reserved_bytes.is_none() {
            return;
        }
        if !inspection.has_history {
            let moment = &inspection.end;
            self.moment("fragmentation:", moment);
            return;
        }
        let mut moments = vec![("at the peak of what was needed", &inspection.peak)];
        moments.extend(
            inspection.reserved_peak.as_ref().map(|m| ("at the peak of what was reserved", m)),
        );
        let end = &inspection.end;
        // After a program has let go of everything, all memory is free and its state says little.
        let end_counts = end.held_bytes >= end.causes.reserved / 4;
        // Many a program ends where it has failed.
        let is_told = inspection.ooms.iter().any(|oom| oom.moment.causes == end.causes);
        if end_counts && !is_told {
            moments.push(("at the end", end));
        }
        for (when, moment) in moments {
            self.moment(&format!("fragmentation {when} ({}):", time(moment.time_us)), moment);
        }
        if !end_counts {
            self.line(&format!(
                "at the end {} of {} reserved were in use",
                bytes(end.held_bytes),
                bytes(end.causes.reserved)
            ));
        }
    }

    fn moment(&mut self, title: &str, moment: &Moment) {
        let (word, share) = (self.level(moment.level), percent(moment.fragmentation));
        let title = self.styled(title, Style::new().bold());
        let _ = writeln!(self.text, "\n{title} {word}, {share}");
        self.causes(&moment.causes);
        moment.outlook().iter().for_each(|line| self.line(line));
    }

    fn level(&self, level: Level) -> String {
        let colour = match level {
            Level::Low => AnsiColor::Green,
            Level::Medium => AnsiColor::Yellow,
            Level::High | Level::Severe => AnsiColor::Red,
        };
        self.styled(level.name(), colour.on_default().bold())
    }

    fn causes(&mut self, causes: &Causes) {
        let mut table = Table::default();
        let rows = [("in use, as asked for", causes.requested)]
            .into_iter()
            .chain(causes.all().map(|cause| (cause.title, cause.bytes)))
            .filter(|&(_, bytes)| bytes > 0);
        for (title, size) in rows {
            table.push(vec![
                Cell::from(title),
                bytes(size).into(),
                share_cell(size, causes.reserved),
            ]);
        }
        table.push(vec![Cell::heading("reserved"), bytes(causes.reserved).into()]);
        self.table(&table);
    }

    fn growths(&mut self, inspection: &Inspection) {
        if inspection.growths.is_empty() {
            return;
        }
        self.heading("grows step by step");
        let mut table = Table::default();
        for growth in inspection.growths.iter().take(MOST_ROWS) {
            table.push(vec![
                Cell::from(growth.name.as_str()),
                growth.bars().into(),
                format!("{} to {}", bytes(growth.from_bytes), bytes(growth.to_bytes)).into(),
                format!("in {} of {} steps", growth.rises, growth.steps).into(),
                count(growth.tensors, "tensor").into(),
            ]);
        }
        self.table(&table);
    }

    fn policies(&mut self, rows: &[PolicyRow], needed: u64) {
        if rows.is_empty() {
            return;
        }
        self.heading("policies");
        let mut table = Table::default();
        let names = ["", "peak reserved", "smallest budget", "over needed", "calls", "driver time"];
        table.push(names.map(Cell::heading).into());
        for row in rows {
            let or_dash = |text: Option<String>| text.map_or_else(|| Cell::faint("-"), Cell::from);
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let over = |budget: u64| budget as f64 / needed.max(1) as f64;
            let driver = row.driver_time_us.map(rounded_time);
            table.push(vec![
                Cell::from(row.policy.as_str()),
                or_dash(row.peak_reserved_bytes.map(bytes)),
                or_dash(row.smallest_budget_bytes.map(bytes)),
                match row.budget_bytes() {
                    None if row.failures > 0 => Cell::alarming("failed"),
                    budget => or_dash(budget.map(|budget| format!("{:.3}x", over(budget)))),
                },
                or_dash(row.driver_calls.map(|calls| calls.to_string())),
                or_dash(driver),
            ]);
        }
        self.table(&table);
        for row in rows {
            if let Some(remark) = &row.remark {
                self.line(&format!("{}: {remark}", row.policy));
            }
        }
    }

    fn settings(&mut self, inspection: &Inspection) {
        if inspection.settings.is_empty() {
            return;
        }
        self.heading("settings in force");
        let settings: Vec<String> =
            inspection.settings.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        self.line(&settings.join(", "));
    }
}

#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
fn share_cell(part: u64, whole: u64) -> Cell {
    if whole == 0 { Cell::default() } else { percent(part as f64 / whole as f64).into() }
}

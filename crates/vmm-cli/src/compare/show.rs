//! Outcomes as a table, as Markdown, as comma-separated values and as JSON.

use crate::figures::{geometric_mean, mib, milliseconds, percent, ratio};
use crate::options::SortOption;
use crate::outcome::Outcome;
use crate::report::failed_in_the_recording;
use crate::table::{Cell, Table};
use std::cmp::Ordering;
use std::fmt::Write as _;

/// What a mean takes for a share that is smaller: a millionth.
const SMALLEST_SHARE: f64 = 1e-6;

/// A column of the table: its name and its unit.
type Column = (&'static str, &'static str);

/// The columns behind the policy.
const COLUMNS: [Column; 11] = [
    ("reserved", "MiB"),
    ("ratio", ""),
    ("calls", ""),
    ("driver", "ms"),
    ("driver", "%"),
    ("tail", "ms"),
    ("worst", "ms"),
    ("waits", ""),
    ("host", "ns"),
    ("failed", ""),
    ("checked", ""),
];

/// Stands behind the ratio.
const BUDGET: Column = ("budget", "");

/// One row of figures: of a trace, or the means of all.
struct Row<'a> {
    policy: &'a str,
    reserved: Option<u64>,
    ratio: Option<f64>,
    budget: Option<f64>,
    calls: Option<u64>,
    driver_us: Option<f64>,
    driver_share: Option<f64>,
    tail_us: Option<f64>,
    worst_us: Option<f64>,
    waits: Option<u64>,
    host_ns: Option<f64>,
    failures: u64,
    checked: &'static str,
    /// Its place on the command line.
    place: usize,
}

impl<'a> Row<'a> {
    fn of(outcome: &'a Outcome, place: usize) -> Self {
        Self {
            policy: outcome.policy(),
            reserved: Some(outcome.reserved_bytes()),
            ratio: outcome.ratio(),
            budget: outcome.budget(),
            calls: Some(outcome.driver_calls()),
            driver_us: Some(outcome.driver_us()),
            driver_share: outcome.driver_share(),
            tail_us: Some(outcome.tail_us()),
            worst_us: Some(outcome.worst_us()),
            waits: Some(outcome.waits()),
            host_ns: outcome.host_ns(),
            failures: outcome.failures(),
            checked: outcome.checked(),
            place,
        }
    }

    /// The geometric means of a policy, the sums of what is counted, and the worst of the worst.
    fn mean(outcomes: &[&'a Outcome], place: usize) -> Option<Self> {
        let first = outcomes.first()?;
        let mean = |of: fn(&Outcome) -> Option<f64>, floor: f64| {
            // A mean over some traces cannot be compared with one over all.
            let values: Option<Vec<f64>> = outcomes.iter().map(|outcome| of(outcome)).collect();
            geometric_mean(values?, floor)
        };
        Some(Self {
            policy: first.policy(),
            reserved: None,
            ratio: mean(Outcome::ratio, 0.0),
            budget: mean(Outcome::budget, 0.0),
            calls: Some(outcomes.iter().map(|outcome| outcome.driver_calls()).sum()),
            driver_us: Some(outcomes.iter().map(|outcome| outcome.driver_us()).sum()),
            driver_share: mean(Outcome::driver_share, SMALLEST_SHARE),
            tail_us: outcomes.iter().map(|outcome| outcome.tail_us()).reduce(f64::max),
            worst_us: outcomes.iter().map(|outcome| outcome.worst_us()).reduce(f64::max),
            waits: Some(outcomes.iter().map(|outcome| outcome.waits()).sum()),
            host_ns: mean(Outcome::host_ns, 1.0),
            failures: outcomes.iter().map(|outcome| outcome.failures()).sum(),
            checked: first.checked(),
            place,
        })
    }

    /// What a row is sorted by, the smallest first; `None` last.
    fn key(&self, sort: SortOption) -> Option<f64> {
        match sort {
            SortOption::Ratio => self.ratio,
            SortOption::Budget => self.budget,
            SortOption::Driver => self.driver_us,
            SortOption::Tail => self.tail_us,
            SortOption::Worst => self.worst_us,
            SortOption::Given => None,
        }
    }
}

/// The rows of a trace, or the means of all, under a heading.
struct Group<'a> {
    heading: String,
    rows: Vec<Row<'a>>,
}

/// A group for each trace, and one for all where there are several.
fn groups(outcomes: &[Vec<Outcome>], sort: SortOption) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = outcomes
        .iter()
        .map(|of_trace| Group {
            heading: of_trace.first().map(heading).unwrap_or_default(),
            rows: of_trace.iter().enumerate().map(|(place, o)| Row::of(o, place)).collect(),
        })
        .collect();
    if outcomes.len() > 1 {
        let mut rows = Vec::new();
        for (place, first) in outcomes.iter().flatten().enumerate() {
            let same: Vec<&Outcome> =
                outcomes.iter().flatten().filter(|o| o.policy() == first.policy()).collect();
            // One row for a policy, and none where a trace is missing.
            if rows.iter().all(|row: &Row<'_>| row.policy != first.policy())
                && same.len() == outcomes.len()
            {
                rows.extend(Row::mean(&same, place));
            }
        }
        groups.push(Group { heading: format!("all {} traces", outcomes.len()), rows });
    }
    for group in &mut groups {
        group.rows.sort_by(|a, b| {
            let by_key = match (a.key(sort), b.key(sort)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            };
            // What failed an allocation did not do the same work.
            (a.failures > 0).cmp(&(b.failures > 0)).then(by_key).then(a.place.cmp(&b.place))
        });
    }
    groups
}

/// A trace, what it needs and what its own allocator took.
fn heading(outcome: &Outcome) -> String {
    let needed = mib(outcome.needed_bytes());
    match outcome.recorded_bytes() {
        None => format!("{}: needs {needed} MiB", outcome.trace()),
        Some(recorded) => {
            format!("{}: needs {needed} MiB, recorded {}", outcome.trace(), mib(recorded))
        }
    }
}

fn columns(with_budget: bool) -> impl Iterator<Item = Column> {
    let (front, back) = COLUMNS.split_at(2);
    front.iter().copied().chain(with_budget.then_some(BUDGET)).chain(back.iter().copied())
}

/// The figures of a row as text, in the order of the columns; `None` where there is nothing to say.
fn figures(row: &Row<'_>, with_budget: bool) -> Vec<Option<String>> {
    let mut figures = vec![row.reserved.map(mib), row.ratio.map(ratio)];
    if with_budget {
        figures.push(row.budget.map(ratio));
    }
    figures.extend([
        row.calls.map(|calls| calls.to_string()),
        row.driver_us.map(milliseconds),
        row.driver_share.map(percent),
        row.tail_us.map(milliseconds),
        row.worst_us.map(milliseconds),
        row.waits.map(|waits| waits.to_string()),
        row.host_ns.map(|ns| format!("{ns:.0}")),
        Some(row.failures.to_string()),
        (!row.checked.is_empty()).then(|| row.checked.to_owned()),
    ]);
    figures
}

/// An aligned table, grouped by trace, with what was checked below.
pub(super) fn table(
    outcomes: &[Vec<Outcome>],
    sort: SortOption,
    with_budget: bool,
    coloured: bool,
) -> String {
    let mut table = Table::default();
    let names = columns(with_budget).map(|(name, _)| Cell::heading(name));
    table.push([Cell::heading("policy")].into_iter().chain(names).collect());
    let units = columns(with_budget).map(|(_, unit)| Cell::faint(unit));
    table.push([Cell::default()].into_iter().chain(units).collect());
    for group in groups(outcomes, sort) {
        table.push(vec![Cell::heading(group.heading.as_str())]);
        let best = Best::of(&group.rows);
        for row in &group.rows {
            table.push(cells(row, &best, with_budget));
        }
    }
    let mut text = table.render(coloured);
    let remarks = remarks(outcomes);
    if !remarks.is_empty() {
        let _ = write!(text, "\n{remarks}");
    }
    text
}

/// The smallest of each figure that is shown in colour.
struct Best {
    ratio: Option<f64>,
    budget: Option<f64>,
    driver_us: Option<f64>,
}

impl Best {
    fn of(rows: &[Row<'_>]) -> Self {
        let least = |of: fn(&Row<'_>) -> Option<f64>| {
            rows.iter().filter(|row| row.failures == 0).filter_map(of).reduce(f64::min)
        };
        Self {
            ratio: least(|row| row.ratio),
            budget: least(|row| row.budget),
            driver_us: least(|row| row.driver_us),
        }
    }
}

fn cells(row: &Row<'_>, best: &Best, with_budget: bool) -> Vec<Cell> {
    let is_best = |value: Option<f64>, best: Option<f64>| value.is_some() && value == best;
    let name = format!("  {}", row.policy);
    let mut cells = vec![Cell::from(name)];
    let figures = figures(row, with_budget).into_iter().zip(columns(with_budget));
    cells.extend(figures.map(|(text, column)| {
        let Some(text) = text else { return Cell::faint("-") };
        match column {
            ("ratio", _) if is_best(row.ratio, best.ratio) => Cell::good(text),
            ("budget", _) if is_best(row.budget, best.budget) => Cell::good(text),
            ("driver", "ms") if is_best(row.driver_us, best.driver_us) => Cell::good(text),
            ("failed", _) if row.failures > 0 => Cell::alarming(text),
            ("checked", _) if text == "no" => Cell::faint(text),
            _ => Cell::from(text),
        }
    }));
    cells
}

/// Why models have no host time.
const NO_HOST_TIME: &str =
    "host: measured of this pool only; how fast a model runs says nothing of what it models\n";

/// What models were checked against, a line for those of which the same is known.
fn remarks(outcomes: &[Vec<Outcome>]) -> String {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for outcome in outcomes.iter().flatten() {
        let Some(remark) = outcome.remark else { continue };
        let at = lines.iter().position(|(known, _)| *known == remark).unwrap_or_else(|| {
            lines.push((remark, Vec::new()));
            lines.len() - 1
        });
        if !lines[at].1.contains(&outcome.policy()) {
            lines[at].1.push(outcome.policy());
        }
    }
    let line =
        |(remark, policies): &(&str, Vec<&str>)| format!("{}: {remark}\n", policies.join(", "));
    let mut text: String = lines.iter().map(line).collect();
    for of_trace in outcomes {
        let mut caveats: Vec<&str> = of_trace.iter().flat_map(|o| &o.caveats).copied().collect();
        caveats.sort_unstable();
        caveats.dedup();
        for caveat in caveats {
            let such = of_trace.iter().filter(|o| o.caveats.contains(&caveat));
            let policies: Vec<&str> = such.map(Outcome::policy).collect();
            let trace = of_trace[0].trace();
            let _ = writeln!(text, "{trace} under {}: {caveat}", policies.join(", "));
        }
    }
    if !text.is_empty() {
        text.push_str(NO_HOST_TIME);
    }
    for line in left_out(outcomes) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// What no policy was asked for: a line for each trace with requests that failed in the recording.
pub(super) fn left_out(outcomes: &[Vec<Outcome>]) -> Vec<String> {
    let firsts = outcomes.iter().filter_map(|of_trace| of_trace.first());
    let lines =
        firsts.map(|first| failed_in_the_recording(first.trace(), first.recorded_failures()));
    lines.flatten().collect()
}

/// A Markdown table with a row for each trace and policy.
pub(super) fn markdown(outcomes: &[Vec<Outcome>], sort: SortOption, with_budget: bool) -> String {
    let mut text = String::from("| trace | policy |");
    for (name, unit) in columns(with_budget) {
        let _ = match unit {
            "" => write!(text, " {name} |"),
            unit => write!(text, " {name}, {unit} |"),
        };
    }
    text.push_str("\n|---|---|");
    text.push_str(&"---:|".repeat(columns(with_budget).count()));
    text.push('\n');
    let groups = groups(outcomes, sort);
    let names = outcomes.iter().filter_map(|of_trace| Some(of_trace.first()?.trace()));
    // Behind the traces there may be the group of all, which has a heading for a name.
    let all = groups.get(outcomes.len()).map(|group| group.heading.as_str());
    for (name, group) in names.chain(all).zip(&groups) {
        for row in &group.rows {
            let _ = write!(text, "| {} | {} |", name.replace('|', "\\|"), row.policy);
            for figure in figures(row, with_budget) {
                let _ = write!(text, " {} |", figure.as_deref().unwrap_or_default());
            }
            text.push('\n');
        }
    }
    let remarks = remarks(outcomes);
    if !remarks.is_empty() {
        text.push('\n');
    }
    for line in remarks.lines() {
        let _ = writeln!(text, "- {line}");
    }
    text
}

/// The names of the columns of comma-separated values; those of JSON where it has the same figure.
const CSV_COLUMNS: [&str; 17] = [
    "trace",
    "policy",
    "peak_requested_bytes",
    "recorded_peak_reserved_bytes",
    "peak_reserved_bytes",
    "reserved_ratio",
    "budget_bytes",
    "budget_ratio",
    "driver_calls",
    "driver_time_us",
    "driver_share",
    "tail_allocation_us",
    "worst_allocation_us",
    "waits",
    "host_ns_per_op",
    "failures",
    "checked",
];

/// Comma-separated values, a line for each trace and policy in the order given; empty where nothing
/// is known.
///
/// # Panics
/// Never: it writes to memory.
pub(super) fn csv(outcomes: &[Vec<Outcome>]) -> String {
    fn text(value: Option<impl ToString>) -> String {
        value.map(|value| value.to_string()).unwrap_or_default()
    }
    let share = |value: Option<f64>| text(value.map(|value| format!("{value:.6}")));
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(CSV_COLUMNS).expect("to memory");
    for outcome in outcomes.iter().flatten() {
        let record = [
            outcome.trace().to_owned(),
            outcome.policy().to_owned(),
            outcome.needed_bytes().to_string(),
            text(outcome.recorded_bytes()),
            outcome.reserved_bytes().to_string(),
            share(outcome.ratio()),
            text(outcome.budget_bytes()),
            share(outcome.budget()),
            outcome.driver_calls().to_string(),
            outcome.driver_us().to_string(),
            share(outcome.driver_share()),
            outcome.tail_us().to_string(),
            outcome.worst_us().to_string(),
            outcome.waits().to_string(),
            text(outcome.host_ns()),
            outcome.failures().to_string(),
            outcome.checked().to_owned(),
        ];
        writer.write_record(record).expect("to memory");
    }
    let bytes = writer.into_inner().expect("memory is flushed");
    String::from_utf8(bytes).expect("made of strings")
}

/// One JSON array, an object for each trace and policy in the order given.
///
/// # Panics
/// Never: the outcomes hold nothing that JSON cannot say.
pub(super) fn json(outcomes: &[Vec<Outcome>]) -> String {
    let all: Vec<&Outcome> = outcomes.iter().flatten().collect();
    let mut text = serde_json::to_string_pretty(&all).expect("numbers and strings");
    text.push('\n');
    text
}

//! All that is said about one device of a file.

use serde::Serialize;
use vmm_trace::{DetailedTrace, DeviceTrace, EventKind};

use crate::advice::advise;
use crate::growth::{Growth, growths};
use crate::moment::{Moment, Wanted};
use crate::owners::Names;
use crate::policies::PolicyRow;
use crate::recorded::{Allocator, Recorded};
use crate::timeline::{References, Timeline};

/// Growth below this share of the peak is not worth a line: one in so many.
const SMALLEST_GROWTH: u64 = 200;
/// Failed allocations that are told; a program that goes on may have thousands.
const MOST_OOMS: usize = 8;

/// What a program did with the memory of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Name of the file, with the device where it has several.
    pub name: String,
    /// Index of the device.
    pub device: u32,
    /// Who recorded it.
    #[serde(skip)]
    pub allocator: Allocator,
    /// Events of the trace.
    pub events: usize,
    /// From the first event to the last.
    pub duration_us: u64,
    /// Whether the file says how memory came to be as it is at its end. Without that the end is the
    /// only moment, and `peak` is that too.
    pub has_history: bool,
    /// Streams.
    pub streams: usize,
    /// Pools of captured graphs, or that users made.
    pub graph_pools: usize,
    /// The most bytes that the program held at once: no allocator needs less.
    pub peak_requested_bytes: u64,
    /// The same with all that pools of captured graphs have had: a graph may run at any time, so no
    /// allocator gives it to others.
    pub peak_with_graphs_bytes: u64,
    /// The most that its allocator held from the device; `None` where the file does not say.
    pub peak_reserved_bytes: Option<u64>,
    /// When most was held.
    pub peak: Moment,
    /// When most was reserved; `None` where the file does not say, or at the same moment.
    pub reserved_peak: Option<Moment>,
    /// The end of the recording.
    pub end: Moment,
    /// What grows step by step.
    pub growths: Vec<Growth>,
    /// Allocations that failed, in order; the first few.
    pub ooms: Vec<OutOfMemory>,
    /// How many failed in all.
    pub oom_count: usize,
    /// Settings of the allocator, those left out that switch nothing on.
    pub settings: Vec<(String, String)>,
    /// What other ways to manage memory would need.
    pub policies: Vec<PolicyRow>,
    /// What to do, most useful first.
    pub advice: Vec<String>,
}

/// An allocation that failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutOfMemory {
    /// What was asked for.
    pub wanted: Wanted,
    /// Free bytes of the device then; 0 where the file does not say.
    pub device_free_bytes: u64,
    /// Bytes that pools of captured graphs kept beside what was live in them. No allocator gives them to
    /// others; the pool of the request is left out.
    pub kept_by_graphs_bytes: u64,
    /// The state that it met, at the time at which it failed.
    pub moment: Moment,
}

impl OutOfMemory {
    /// What the process could have had in all, in bytes: what it held and what the device had left.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.moment.causes.reserved + self.device_free_bytes
    }

    /// What the program needed at that moment, in bytes: no allocator serves the request with less.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.moment.held_bytes + self.kept_by_graphs_bytes + self.wanted.bytes
    }

    /// Whether the request would have fitted, had nothing been lost to fragmentation.
    #[must_use]
    pub fn is_fragmentation(&self) -> bool {
        self.needed() <= self.capacity()
    }
}

impl Inspection {
    /// Looks at device number `index` of a file's devices.
    ///
    /// `policies` says what others would need, for the advice.
    ///
    /// # Panics
    /// If the file has fewer devices.
    #[must_use]
    pub fn new(file: &DetailedTrace, index: usize, policies: Vec<PolicyRow>) -> Self {
        let recorded = Recorded::new(file, index);
        Self::of(file, &recorded, &Timeline::new(&recorded), policies)
    }

    /// The same, where the timeline is there already.
    #[must_use]
    pub fn of(
        file: &DetailedTrace,
        recorded: &Recorded<'_>,
        timeline: &Timeline,
        policies: Vec<PolicyRow>,
    ) -> Self {
        let trace = recorded.trace;
        let names = Names::new(&file.stacks);
        let references = References::new(recorded);
        let mut walk = recorded.walk();
        let mut stops = Stops::of(recorded, timeline);
        let moments = stops
            .counts
            .iter()
            .map(|&count| {
                walk.advance_to(count);
                (count, Moment::of(recorded, &references, &names, &walk, count))
            })
            .collect::<Vec<_>>();
        let take = |count: usize| {
            let at = moments.iter().position(|(at, _)| *at == count).expect("all were visited");
            moments[at].1.clone()
        };
        let knows_reserved = trace.recorded_peak_reserved_bytes() > 0;
        let has_history = recorded.has_history();
        let peak = take(if has_history { timeline.peak_requested_at } else { trace.events.len() });
        let has_other = has_history
            && knows_reserved
            && timeline.peak_reserved_at != timeline.peak_requested_at;
        let reserved_peak = has_other.then(|| take(timeline.peak_reserved_at));
        let end = take(trace.events.len());
        let failures: Vec<usize> = stops.ooms.iter().map(|oom| oom.count).collect();
        let graphs = GraphPools::of(trace, &failures);
        let ooms = stops
            .ooms
            .drain(..)
            .zip(&graphs.idle)
            .map(|(oom, idle)| {
                let moment = Moment { time_us: oom.time_us, ..take(oom.count) };
                // The walk stood before the event, so the failed request is the next.
                let wanted = moment.next.clone().expect("a failed request is a miss");
                let others = (0..).zip(idle).filter(|(pool, _)| *pool != wanted.pool);
                let kept_by_graphs_bytes = others.map(|(_, bytes)| bytes).sum();
                let device_free_bytes = oom.device_free;
                OutOfMemory { wanted, device_free_bytes, kept_by_graphs_bytes, moment }
            })
            .collect();
        let smallest = trace.peak_requested_bytes() / SMALLEST_GROWTH;
        let mut inspection = Self {
            name: match file.trace.devices.len() {
                1 => file.trace.name.clone(),
                _ => format!("{}#{}", file.trace.name, trace.device),
            },
            device: trace.device,
            allocator: recorded.allocator,
            events: trace.events.len(),
            duration_us: trace.duration_us(),
            has_history,
            streams: trace.streams.len(),
            graph_pools: trace.pools.len().saturating_sub(1),
            peak_requested_bytes: trace.peak_requested_bytes(),
            peak_with_graphs_bytes: graphs.peak,
            peak_reserved_bytes: knows_reserved.then(|| trace.recorded_peak_reserved_bytes()),
            peak,
            reserved_peak,
            end,
            growths: match has_history {
                true => growths(recorded, &names, smallest.max(1)),
                false => Vec::new(),
            },
            ooms,
            oom_count: stops.oom_count,
            settings: in_force(&file.trace.settings),
            policies,
            advice: Vec::new(),
        };
        inspection.advice = advise(&inspection);
        inspection
    }

    /// The moment at which fragmentation hurts most: the first failure, or else the peak of what
    /// was reserved.
    #[must_use]
    pub fn worst(&self) -> &Moment {
        match (self.ooms.first(), &self.reserved_peak) {
            (Some(oom), _) => &oom.moment,
            (None, Some(moment)) => moment,
            (None, None) => &self.peak,
        }
    }

    /// The most that the program would have held, had its failed requests been served.
    #[must_use]
    pub fn needed_bytes(&self) -> u64 {
        let failed = self.ooms.iter().map(OutOfMemory::needed);
        failed.fold(self.peak_requested_bytes, u64::max)
    }

    /// Policies by the smallest limit under which they serve every request, smallest first, and behind
    /// the others those that are unchecked models. What failed under an allocator is not served by a
    /// model of it, nor by one with other settings that change nothing.
    #[must_use]
    pub fn by_budget(&self) -> Vec<(&PolicyRow, u64)> {
        let figures = |row: &PolicyRow| (row.peak_reserved_bytes, row.smallest_budget_bytes);
        let has_failed = |row: &PolicyRow| {
            let mut models = self.policies.iter().filter(|other| other.is_recorded);
            row.is_recorded
                || (row.is_variant && models.any(|model| figures(model) == figures(row)))
        };
        let failed = !self.ooms.is_empty();
        let rows = self.policies.iter().filter(|row| !(failed && has_failed(row)));
        let mut known: Vec<_> =
            rows.filter_map(|row| Some((row, row.smallest_budget_bytes?))).collect();
        known.sort_by_key(|&(row, budget)| (row.is_unchecked, budget));
        known
    }

    /// The first of these.
    #[must_use]
    pub fn least_budget(&self) -> Option<(&PolicyRow, u64)> {
        self.by_budget().into_iter().next()
    }

    /// The value of a setting that is in force.
    #[must_use]
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.settings.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

/// The moments at which the walk stops.
struct Stops {
    /// Numbers of events, ascending, each once.
    counts: Vec<usize>,
    ooms: Vec<OomStop>,
    oom_count: usize,
}

struct OomStop {
    /// Events before the failure.
    count: usize,
    /// Of the failure itself.
    time_us: u64,
    device_free: u64,
}

impl Stops {
    fn of(recorded: &Recorded<'_>, timeline: &Timeline) -> Self {
        let events = &recorded.trace.events;
        let failures = events.iter().enumerate().filter_map(|(count, event)| match event.kind {
            EventKind::Oom { device_free, .. } => {
                Some(OomStop { count, time_us: event.time_us, device_free })
            }
            _ => None,
        });
        let mut ooms: Vec<OomStop> = failures.collect();
        let oom_count = ooms.len();
        ooms.truncate(MOST_OOMS);
        let mut counts = vec![timeline.peak_requested_at, timeline.peak_reserved_at, events.len()];
        counts.extend(ooms.iter().map(|oom| oom.count));
        counts.sort_unstable();
        counts.dedup();
        Self { counts, ooms, oom_count }
    }
}

/// What pools of graphs keep: the most that they have had since they were made. Memory that was given back
/// says that a pool was given up.
struct GraphPools {
    /// The most bytes that were live at once, where such pools count with what they keep.
    peak: u64,
    /// At each of the moments asked for, what each pool keeps beside what is live in it.
    idle: Vec<Vec<u64>>,
}

impl GraphPools {
    /// `moments` are numbers of events, ascending.
    fn of(trace: &DeviceTrace, moments: &[usize]) -> Self {
        /// What is live in a pool, and what it keeps.
        #[derive(Clone, Copy, Default)]
        struct Pool {
            live: u64,
            kept: u64,
        }
        let mut pools = vec![Pool::default(); trace.pools.len().max(1)];
        let mut place = vec![(0, 0); trace.tensor_count as usize];
        let (mut sum, mut peak) = (0, 0);
        let mut change = |pools: &mut [Pool], pool: u16, live: &dyn Fn(u64) -> u64, ends: bool| {
            let place = &mut pools[usize::from(pool)];
            sum -= place.kept;
            place.live = live(place.live);
            place.kept = if pool == 0 || ends { place.live } else { place.kept.max(place.live) };
            sum += place.kept;
            peak = peak.max(sum);
        };
        for tensor in &trace.start_live {
            place[tensor.id as usize] = (tensor.pool, tensor.len);
            change(&mut pools, tensor.pool, &|live| live + tensor.len, false);
        }
        let mut moments = moments.iter().peekable();
        let mut idle = Vec::new();
        for count in 0..=trace.events.len() {
            while moments.next_if(|moment| **moment == count).is_some() {
                idle.push(pools.iter().map(|pool| pool.kept - pool.live).collect());
            }
            let Some(event) = trace.events.get(count) else { break };
            match event.kind {
                EventKind::Alloc { id, len, pool, .. } => {
                    place[id as usize] = (pool, len);
                    change(&mut pools, pool, &|live| live + len, false);
                }
                EventKind::FreeCompleted { id } => {
                    let (pool, len) = place[id as usize];
                    change(&mut pools, pool, &|live| live - len, false);
                }
                EventKind::SegmentFree { pool, .. } if pool > 0 => {
                    change(&mut pools, pool, &|live| live, true);
                }
                _ => {}
            }
        }
        Self { peak, idle }
    }
}

/// Settings that say something: the long list of zeros that every file has is left out.
fn in_force(settings: &[(String, String)]) -> Vec<(String, String)> {
    let says_something = |(key, value): &&(String, String)| match (key.as_str(), value.as_str()) {
        // Whether it is on or off, it explains what is seen.
        ("expandable_segments", _) => true,
        // The default.
        ("pinned_num_register_threads", "1") => false,
        (_, value) => !matches!(value, "" | "0" | "0.0" | "-1" | "False" | "None"),
    };
    let mut shown: Vec<(String, String)> = Vec::new();
    for (key, value) in settings.iter().filter(says_something) {
        let Some((outer, inner)) = key.split_once('.') else {
            shown.push((key.clone(), value.clone()));
            continue;
        };
        // All parts of one setting are one line, and one value where they agree.
        let nested = || settings.iter().filter(|(key, _)| key.split('.').next() == Some(outer));
        let agree = nested().all(|(_, other)| other == value);
        match shown.last_mut() {
            Some((last, _)) if last == outer && agree => {}
            Some((last, parts)) if last == outer => {
                parts.push_str(&format!(", {inner}: {value}"));
            }
            _ if agree && nested().count() > 1 => shown.push((outer.to_owned(), value.clone())),
            _ => shown.push((outer.to_owned(), format!("{inner}: {value}"))),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_say_nothing_are_left_out_and_parts_are_one_line() {
        let shown = |settings: &[(&str, &str)]| {
            let owned = settings.iter().map(|&(k, v)| (k.to_owned(), v.to_owned()));
            let shown = in_force(&owned.collect::<Vec<_>>()).into_iter();
            shown.map(|(key, value)| format!("{key} = {value}")).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(
            shown(&[
                ("a", "0"),
                ("expandable_segments", "False"),
                ("r.1", "0"),
                ("r.2", "4"),
                ("z", "7")
            ]),
            "expandable_segments = False; r = 2: 4; z = 7"
        );
        assert_eq!(shown(&[("r.1", "4"), ("r.2", "4"), ("r.4", "8")]), "r = 1: 4, 2: 4, 4: 8");
        assert_eq!(shown(&[("r.1", "4"), ("r.2", "4")]), "r = 4");
        assert_eq!(shown(&[("r.1", "0"), ("r.2", "0")]), "");
    }
}

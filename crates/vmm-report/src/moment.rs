//! One moment of a recorded program: what is where, who holds it, and what would fail next.

use std::collections::HashMap;

use serde::Serialize;
use vmm_trace::EventKind;

use crate::fragmentation::{Causes, Level};
use crate::memory::Memory;
use crate::owners::{Names, Owner, owners};
use crate::recorded::{Recorded, Request, Walk};
use crate::timeline::{References, time_after};

/// A moment that is worth a look.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Moment {
    /// How many events had happened.
    pub events: usize,
    /// Microseconds since the first event.
    pub time_us: u64,
    /// Bytes that the program had asked for and not got rid of.
    pub held_bytes: u64,
    /// Where the reserved bytes are, seen by `judged_by`.
    pub causes: Causes,
    /// [`Causes::share`] of these.
    pub fragmentation: f64,
    /// How bad that is.
    pub level: Level,
    /// The next request, not small, that made the allocator take more memory; after the last of
    /// them that one, and at a failure what failed.
    pub judged_by: Wanted,
    /// The longest free range, whoever may use it.
    pub largest_free_bytes: u64,
    /// The longest request like `judged_by` that free memory could serve now: of its stream, pool and
    /// size class.
    pub largest_servable_bytes: u64,
    /// The request that would fail next if the device gave nothing more; `None` if all that the
    /// program is known to ask for would be served.
    pub next: Option<Wanted>,
    /// Who holds memory, largest first.
    pub owners: Vec<Owner>,
}

/// A request, named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Bytes.
    pub bytes: u64,
    /// Index of the stream.
    pub stream: u16,
    /// Index of the pool.
    pub pool: u16,
    /// Who asks, where the file has stacks.
    pub owner: Option<String>,
}

impl Wanted {
    fn new(request: &Request, names: &Names) -> Self {
        Self {
            bytes: request.len,
            stream: request.kind.stream,
            pool: request.kind.pool,
            owner: request.stack.map(|stack| names.of(stack).to_owned()),
        }
    }
}

impl Moment {
    /// The moment at which the walk stands, after `count` events.
    pub(crate) fn of(
        recorded: &Recorded<'_>,
        references: &References,
        names: &Names,
        walk: &Walk<'_>,
        count: usize,
    ) -> Self {
        let memory = &walk.memory;
        let next = next_to_fail(recorded, references, memory, count);
        let reference = references.after(count);
        let tensors =
            memory.blocks().map(|(id, block)| (block.len, recorded.details.stacks[id as usize]));
        let causes = Causes::of(memory, &reference);
        Self {
            events: count,
            time_us: time_after(recorded, count),
            held_bytes: memory.totals().held,
            causes,
            fragmentation: causes.share(),
            level: causes.level(),
            judged_by: Wanted::new(&reference, names),
            largest_free_bytes: memory.longest_hole(|_| true),
            largest_servable_bytes: memory.longest_hole(|kind| kind == reference.kind),
            next: next.map(|request| Wanted::new(&request, names)),
            owners: owners(names, tensors),
        }
    }
}

/// The request that would fail next if the device gave nothing more: what the recording shows to
/// need new memory. At its end, where nothing more is asked for, what was asked for lately tells.
pub(crate) fn next_to_fail(
    recorded: &Recorded<'_>,
    references: &References,
    memory: &Memory,
    count: usize,
) -> Option<Request> {
    let next = references.next_miss(count);
    if next.is_some() || references.asks_after(count) || !recorded.has_history() {
        return next;
    }
    last_that_fails(recorded, references, memory, count)
}

/// Of the last requests before a moment, the latest that free memory could not serve now: what the
/// program asked for lately it will ask for again.
fn last_that_fails(
    recorded: &Recorded<'_>,
    references: &References,
    memory: &Memory,
    count: usize,
) -> Option<Request> {
    /// Looking at the whole past would only find what the program did at its start.
    const PAST: usize = 10_000;
    let mut longest = HashMap::new();
    for (range, kind) in memory.holes() {
        let len = range.end - range.start;
        let most = longest.entry(kind).or_insert(len);
        *most = len.max(*most);
    }
    (count.saturating_sub(PAST)..count).rev().find_map(|index| {
        let request = match recorded.trace.events[index].kind {
            EventKind::Alloc { id, len, stream, pool } => recorded.request(id, len, stream, pool),
            EventKind::Oom { .. } => references.miss_at(index)?,
            _ => return None,
        };
        let fits = longest.get(&request.kind).is_some_and(|&most| most >= request.len);
        (!fits).then_some(request)
    })
}

//! Memory that grows step by step: what a leak looks like.

use std::collections::HashMap;

use serde::Serialize;
use vmm_trace::EventKind;

use crate::owners::Names;
use crate::recorded::Recorded;

/// The trace is cut into so many parts of equally many events.
const PARTS: usize = 16;
/// A group is only named if its floor rises in at least so many of the steps between parts.
const RISES: usize = 10;
/// Fewer tensors than this that stay are no series.
const FEWEST: u64 = 8;

/// Tensors of one origin of which more and more stay.
///
/// What a part of the trace holds at least is its floor: it rises only where tensors stay for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// A place in the program, or one size on one stream.
    pub name: String,
    /// Floor of the first part, in bytes.
    pub from_bytes: u64,
    /// Floor of the last part, in bytes.
    pub to_bytes: u64,
    /// In how many of the steps between parts the floor rose.
    pub rises: usize,
    /// How many steps there were.
    pub steps: usize,
    /// Tensors that are there at the end.
    pub tensors: u64,
    /// The floors of all parts, in bytes.
    pub floors: Vec<u64>,
}

impl Growth {
    /// Bytes that were added.
    #[must_use]
    pub fn grown(&self) -> u64 {
        self.to_bytes - self.from_bytes
    }

    /// The floors as a row of bars, the last one full.
    #[must_use]
    pub fn bars(&self) -> String {
        const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = u128::from(self.to_bytes.max(1));
        let bar = |&floor: &u64| {
            let eighths = (u128::from(floor) * 8).div_ceil(most);
            usize::try_from(eighths)
                .map_or(' ', |n| n.checked_sub(1).map_or(' ', |n| BARS[n.min(7)]))
        };
        self.floors.iter().map(bar).collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    /// Number of a name.
    Name(usize),
    /// Length and stream.
    Size(u64, u16),
}

#[derive(Debug)]
struct Group {
    live: u64,
    tensors: u64,
    floors: [u64; PARTS],
    /// Parts before this one have their floors.
    part: usize,
}

impl Group {
    fn new(part: usize) -> Self {
        let mut floors = [u64::MAX; PARTS];
        // Before it was first seen there was nothing of it.
        floors[..part].fill(0);
        floors[part] = 0;
        Self { live: 0, tensors: 0, floors, part }
    }

    fn reach(&mut self, part: usize) {
        while self.part < part {
            self.part += 1;
            self.floors[self.part] = self.live;
        }
    }

    fn change(&mut self, part: usize, live: u64) {
        self.reach(part);
        self.live = live;
        self.floors[part] = self.floors[part].min(live);
    }
}

/// What grows step by step, most grown first. `smallest` is the least growth in bytes that counts.
#[must_use]
pub fn growths(recorded: &Recorded<'_>, names: &Names, smallest: u64) -> Vec<Growth> {
    let trace = recorded.trace;
    if trace.events.len() < PARTS * 8 {
        return Vec::new();
    }
    let mut groups: HashMap<Origin, Group> = HashMap::new();
    let mut of = vec![(Origin::Size(0, 0), 0); trace.tensor_count as usize];
    let origin = |id: u32, len: u64, stream: u16| match recorded.details.stacks[id as usize] {
        Some(stack) => Origin::Name(names.number(stack)),
        None => Origin::Size(len, stream),
    };
    for tensor in &trace.start_live {
        let origin = origin(tensor.id, tensor.len, tensor.stream);
        of[tensor.id as usize] = (origin, tensor.len);
        let group = groups.entry(origin).or_insert_with(|| Group::new(0));
        group.live += tensor.len;
        group.tensors += 1;
        group.floors[0] = group.live;
    }
    for (index, event) in trace.events.iter().enumerate() {
        let part = index * PARTS / trace.events.len();
        match event.kind {
            EventKind::Alloc { id, len, stream, .. } => {
                let origin = origin(id, len, stream);
                of[id as usize] = (origin, len);
                let group = groups.entry(origin).or_insert_with(|| Group::new(part));
                group.tensors += 1;
                group.change(part, group.live + len);
            }
            EventKind::FreeRequested { id } => {
                let (origin, len) = of[id as usize];
                if let Some(group) = groups.get_mut(&origin) {
                    group.tensors -= 1;
                    group.change(part, group.live - len);
                }
            }
            _ => {}
        }
    }
    let mut found: Vec<Growth> = groups
        .into_iter()
        .filter_map(|(origin, mut group)| {
            group.reach(PARTS - 1);
            let growth = judge(&group)?;
            let name = match origin {
                Origin::Name(number) => names.by_number(number).to_owned(),
                Origin::Size(len, stream) => {
                    format!("tensors of {len} bytes on stream {stream}")
                }
            };
            (growth.grown() >= smallest).then_some(Growth { name, ..growth })
        })
        .collect();
    found.sort_by(|a, b| b.grown().cmp(&a.grown()).then_with(|| a.name.cmp(&b.name)));
    found
}

/// A group that never falls and rises in most steps, without its name.
fn judge(group: &Group) -> Option<Growth> {
    let steps = group.floors.windows(2);
    if steps.clone().any(|step| step[1] < step[0]) {
        return None;
    }
    let rises = steps.filter(|step| step[1] > step[0]).count();
    let (from_bytes, to_bytes) = (group.floors[0], group.floors[PARTS - 1]);
    let grows = rises >= RISES && group.tensors >= FEWEST;
    grows.then(|| Growth {
        name: String::new(),
        from_bytes,
        to_bytes,
        rises,
        steps: PARTS - 1,
        tensors: group.tensors,
        floors: group.floors.to_vec(),
    })
}

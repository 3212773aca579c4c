//! Programs made to be hard for a memory pool, each as a trace.
//!
//! No recorded program does this, and a pool need not do all of it well; but what each costs should
//! be known, and should not grow unseen. The same call always gives the same trace.
//!
//! Every program begins [`START_US`] after its trace does: a program loads before it allocates, and
//! a pool with a limit or a target can make its memory meanwhile. From then on [`EVENT_US`] pass
//! between two calls.

use vmm_trace::{Census, DeviceTrace, Event, EventKind};

/// Microseconds from the start of a trace to the first allocation.
pub const START_US: u64 = 500_000;

/// Microseconds between two calls of a program. With the usual lag of the device some hundred calls
/// lie between a release and the end of the work that used the memory.
pub const EVENT_US: u64 = 20;

/// What the programs hold at most, in bytes; [`repeating`] holds less.
pub const PEAK: u64 = 8 << 30;

/// The steps of [`repeating`] in [`cases`].
pub const STEPS: usize = 50;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A program and its name.
#[derive(Clone, Debug)]
pub struct WorstCase {
    /// The name in tables.
    pub name: &'static str,
    /// What it does.
    pub trace: DeviceTrace,
}

/// All programs.
#[must_use]
pub fn cases() -> Vec<WorstCase> {
    let case = |name, trace| WorstCase { name, trace };
    vec![
        case("small_pins", small_pins()),
        case("nothing_repeats", nothing_repeats()),
        case("one_new_size", one_new_size()),
        case("one_percent_larger", one_percent_larger()),
        case("large_pins", large_pins()),
        case("repeating", repeating(STEPS)),
    ]
}

/// Tensors of 0.5 MiB, of which three of four are freed; then tensors of 64 MiB up to the same peak.
///
/// A granule of 2 MiB that one small tensor is left in is lost to large ones, wherever pages can be
/// mapped: only moving the small tensors together would help.
#[must_use]
pub fn small_pins() -> DeviceTrace {
    const SMALL: u64 = 512 * KIB;
    const LARGE: u64 = 64 * MIB;
    let mut program = Program::new(1);
    let mut index = 0;
    while program.has_room(SMALL) {
        program.allocate(SMALL);
    }
    program.free_if(|_, _| {
        index += 1;
        index % 4 != 0
    });
    while program.has_room(LARGE) {
        program.allocate(LARGE);
    }
    program.trace()
}

/// 3 000 tensors of 1 to 256 MiB, each octave as likely as the next, at the peak all the time: before
/// each, live tensors are freed at random until it fits. No length comes twice but by chance.
#[must_use]
pub fn nothing_repeats() -> DeviceTrace {
    let mut program = Program::new(2);
    for _ in 0..3_000 {
        let len = program.numbers.log_uniform(MIB, 8);
        while !program.has_room(len) {
            program.free_one();
        }
        program.allocate(len);
    }
    program.trace()
}

/// Tensors of 1 to 64 MiB up to the peak. Then, six times, all are freed and tensors of one length
/// that was not there before fill the same peak.
#[must_use]
pub fn one_new_size() -> DeviceTrace {
    let mut program = Program::new(3);
    loop {
        let len = program.numbers.log_uniform(MIB, 6);
        if !program.has_room(len) {
            break;
        }
        program.allocate(len);
    }
    for len in [24 * MIB, 7 * MIB, 130 * MIB, 3 * MIB, 51 * MIB, 300 * MIB] {
        program.free_if(|_, _| true);
        // An odd number of units: no frame is a multiple of it.
        let len = len + 51 * KIB / 2;
        while program.has_room(len) {
            program.allocate(len);
        }
    }
    program.trace()
}

/// 256 buffers, each in turn replaced by one 1 % larger that must exist before the old one goes; ten
/// rounds, at the end of which they fill the peak. What one leaves is always just too short.
#[must_use]
pub fn one_percent_larger() -> DeviceTrace {
    const BUFFERS: usize = 256;
    const ROUNDS: u32 = 10;
    let mut program = Program::new(4);
    let mut len = (0..ROUNDS).fold(PEAK / 256, |len, _| len * 100 / 101);
    let mut buffers: Vec<u32> = (0..BUFFERS).map(|_| program.allocate(len)).collect();
    for _ in 0..ROUNDS {
        len += len / 100;
        for buffer in &mut buffers {
            let larger = program.allocate(len);
            program.free(*buffer);
            *buffer = larger;
        }
    }
    program.trace()
}

/// Tensors of 32 MiB up to the peak, of which half stay, at random; then tensors of 96 MiB up to the
/// same peak.
#[must_use]
pub fn large_pins() -> DeviceTrace {
    let mut program = Program::new(5);
    while program.has_room(32 * MIB) {
        program.allocate(32 * MIB);
    }
    program.free_if(|numbers, _| numbers.coin());
    while program.has_room(96 * MIB) {
        program.allocate(96 * MIB);
    }
    program.trace()
}

/// A training loop: 64 weights that stay, and `steps` times the same 400 calls with tensors of odd
/// lengths from 64 KiB to 256 MiB, which live for a while or to the end of the step. A pool should learn it:
/// after a few steps it should need no device call.
#[must_use]
pub fn repeating(steps: usize) -> DeviceTrace {
    let mut program = Program::new(6);
    for _ in 0..64 {
        let len = program.numbers.log_uniform(64 * KIB, 11);
        program.allocate(len);
    }
    let weights = program.live.len();
    let step = program.numbers.clone();
    for _ in 0..steps {
        program.numbers = step.clone();
        for _ in 0..200 {
            let len = program.numbers.log_uniform(64 * KIB, 12);
            program.allocate(len);
            if program.numbers.coin() {
                let of_this_step = program.live.len() - weights;
                let gone = weights + program.numbers.below(of_this_step);
                let (id, _) = program.live[gone];
                program.free(id);
            }
        }
        while let Some((id, _)) = program.live.get(weights) {
            program.free(*id);
        }
    }
    program.trace()
}

/// Writes a trace call by call.
struct Program {
    numbers: Numbers,
    events: Vec<Event>,
    time_us: u64,
    tensors: u32,
    /// Id and bytes of each live tensor, oldest first.
    live: Vec<(u32, u64)>,
    live_bytes: u64,
}

impl Program {
    fn new(seed: u64) -> Self {
        let note = Event { time_us: 0, kind: EventKind::Annotate };
        Self {
            numbers: Numbers(seed),
            events: vec![note],
            time_us: START_US,
            tensors: 0,
            live: Vec::new(),
            live_bytes: 0,
        }
    }

    /// Whether `len` bytes more stay within the peak.
    fn has_room(&self, len: u64) -> bool {
        self.live_bytes + len <= PEAK
    }

    fn allocate(&mut self, len: u64) -> u32 {
        let id = self.tensors;
        self.tensors += 1;
        self.live.push((id, len));
        self.live_bytes += len;
        self.push(EventKind::Alloc { id, len, stream: 0, pool: 0 });
        id
    }

    fn free(&mut self, id: u32) {
        let found = self.live.iter().position(|(live, _)| *live == id);
        let (_, len) = self.live.remove(found.expect("a live tensor"));
        self.live_bytes -= len;
        // One moment: no other stream uses what is freed.
        self.push(EventKind::FreeRequested { id });
        self.time_us -= EVENT_US;
        self.push(EventKind::FreeCompleted { id });
    }

    fn free_one(&mut self) {
        let (id, _) = self.live[self.numbers.below(self.live.len())];
        self.free(id);
    }

    /// Frees, oldest first, the live tensors that `goes` picks by bytes.
    fn free_if(&mut self, mut goes: impl FnMut(&mut Numbers, u64) -> bool) {
        for (id, len) in self.live.clone() {
            if goes(&mut self.numbers, len) {
                self.free(id);
            }
        }
    }

    fn push(&mut self, kind: EventKind) {
        self.events.push(Event { time_us: self.time_us, kind });
        self.time_us += EVENT_US;
    }

    fn trace(self) -> DeviceTrace {
        DeviceTrace {
            device: 0,
            streams: vec![0],
            pools: vec![(0, 0)],
            tensor_count: self.tensors,
            start_live: Vec::new(),
            start_reserved: 0,
            events: self.events,
            end_segments: Vec::new(),
            census: Census::default(),
        }
    }
}

/// Numbers without a pattern: Steele, Lea and Flood's `SplitMix64` (OOPSLA 2014).
#[derive(Clone)]
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn coin(&mut self) -> bool {
        self.next().is_multiple_of(2)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    /// A length of `least` bytes to `least << octaves`, each octave as likely as the next.
    fn log_uniform(&mut self, least: u64, octaves: u64) -> u64 {
        let octave = least << (self.next() % octaves);
        octave + self.next() % octave
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn traces_are_well_formed_and_the_same_every_time() {
        for (case, again) in cases().into_iter().zip(cases()) {
            assert_eq!(case.trace, again.trace, "{}", case.name);
            let mut live = HashSet::new();
            let mut freed = HashSet::new();
            for event in &case.trace.events {
                match event.kind {
                    EventKind::Alloc { id, len, .. } => assert!(len > 0 && live.insert(id)),
                    EventKind::FreeRequested { id } => assert!(live.contains(&id)),
                    EventKind::FreeCompleted { id } => {
                        assert!(live.remove(&id) && freed.insert(id));
                    }
                    _ => {}
                }
            }
            assert_eq!(live.len() + freed.len(), case.trace.tensor_count as usize);
            assert!(case.trace.events.is_sorted_by_key(|event| event.time_us));
        }
    }

    /// The peak of requested bytes of a program lies in this range.
    fn check_peak(trace: &DeviceTrace, bytes: std::ops::RangeInclusive<u64>) {
        let peak = trace.peak_requested_bytes();
        assert!(bytes.contains(&peak), "{peak} outside {bytes:?}");
    }

    #[test]
    fn programs_fill_the_peak() {
        check_peak(&small_pins(), PEAK..=PEAK);
        check_peak(&nothing_repeats(), PEAK - 64 * MIB..=PEAK);
        check_peak(&one_new_size(), PEAK - 64 * MIB..=PEAK);
        check_peak(&one_percent_larger(), PEAK - 64 * MIB..=PEAK + 64 * MIB);
        check_peak(&large_pins(), PEAK..=PEAK);
    }

    #[test]
    fn steps_repeat() {
        let lens = |steps| -> Vec<u64> {
            let events = repeating(steps).events;
            events
                .iter()
                .filter_map(|event| match event.kind {
                    EventKind::Alloc { len, .. } => Some(len),
                    _ => None,
                })
                .collect()
        };
        let two = lens(2);
        assert_eq!(two[64..264], two[264..]);
        assert_eq!(lens(1), two[..264]);
    }
}

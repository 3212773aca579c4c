//! The same properties for every placement, checked with random calls against a model that only knows
//! ranges: which chunks there are, and which blocks lie where.
//!
//! - blocks lie aligned in one chunk, and no two overlap;
//! - a fit takes the very range that its rule says, and fails only if there is none;
//! - the largest request that the figures name is served, and none above it;
//! - a chunk of the shape that a request asks for serves it;
//! - once all is released, all is as if nothing had ever been placed;
//! - the same calls lead to the same addresses.
#![allow(missing_docs)]

mod support;

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use vmm_core::placement::{
    Block, Bump, Figures, Fixed, Placement, PlacementKind, Segregated, Slab, Tier, Tiers, Tlsf,
};

const UNIT: u64 = 512;
const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Op {
    Add { len: u64, gap: u64, alignment: u32 },
    AddWrong { pick: usize },
    Remove { pick: usize },
    Allocate { len: u64, alignment: u32 },
    Release { pick: usize },
    ReleaseUnknown { pick: usize, offset: u64 },
    Probe,
}

fn op() -> impl Strategy<Value = Op> {
    let len = prop_oneof![
        3 => 1..20_000_u64,
        2 => (1..64_u64).prop_map(|k| k * UNIT),
        2 => (1..24_u64).prop_map(|k| k * 64 * 1024),
        1 => (0..23_u32).prop_map(|shift| 1 << shift),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(1 << 62), Just((1 << 62) + 1), Just(5 * MIB)],
    ];
    let alignment = prop_oneof![6 => Just(9_u32), 3 => 0..16_u32, 1 => 16..24_u32];
    let chunk = prop_oneof![
        2 => (1..64_u64).prop_map(|k| k * UNIT),
        2 => (1..12_u64).prop_map(|k| k * MIB),
        1 => (1..20_000_u64).prop_map(|k| k * UNIT),
    ];
    let gap = prop_oneof![Just(0), Just(0), (1..10_u64).prop_map(|k| k * UNIT)];
    let base_alignment = prop_oneof![Just(9_u32), Just(21_u32)];
    prop_oneof![
        2 => (chunk, gap, base_alignment).prop_map(|(len, gap, alignment)| Op::Add { len, gap, alignment }),
        1 => any::<usize>().prop_map(|pick| Op::AddWrong { pick }),
        1 => any::<usize>().prop_map(|pick| Op::Remove { pick }),
        12 => (len, alignment).prop_map(|(len, alignment)| Op::Allocate { len, alignment }),
        9 => any::<usize>().prop_map(|pick| Op::Release { pick }),
        1 => (any::<usize>(), 0..4_u64).prop_map(|(pick, k)| Op::ReleaseUnknown { pick, offset: k * UNIT }),
        2 => Just(Op::Probe),
    ]
}

/// Which range a placement must take, where theory says.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    First,
    Next,
    Best,
    Own,
}

type Make = fn() -> Box<dyn Placement>;

/// The most bytes of a block for a request of so many, itself a multiple of 512, at the least alignment.
type Most = fn(u64) -> u64;

/// A placement under test.
#[derive(Clone, Copy)]
struct Subject {
    name: &'static str,
    make: Make,
    rule: Rule,
    most: Most,
}

fn exact(len: u64) -> u64 {
    len
}

fn subject(kind: PlacementKind) -> Subject {
    use PlacementKind as Kind;
    let (make, rule, most): (Make, Rule, Most) = match kind {
        Kind::Bump => (|| Kind::Bump.make(), Rule::Own, exact),
        Kind::FirstFit => (|| Kind::FirstFit.make(), Rule::First, exact),
        Kind::NextFit => (|| Kind::NextFit.make(), Rule::Next, exact),
        Kind::BestFit => (|| Kind::BestFit.make(), Rule::Best, exact),
        Kind::Buddy => (|| Kind::Buddy.make(), Rule::Own, |len| 2 * len - 1),
        Kind::Slab => (|| Kind::Slab.make(), Rule::Own, |len| len * 5 / 4 - 1),
        Kind::Fixed => (|| Kind::Fixed.make(), Rule::Own, |_| 2 * MIB),
        Kind::Tiers => {
            (|| Kind::Tiers.make(), Rule::Own, |len| if len > MIB { len } else { len * 5 / 4 })
        }
        Kind::Tlsf => (|| Kind::Tlsf.make(), Rule::Own, exact),
        Kind::Segregated => (|| Kind::Segregated.make(), Rule::Own, exact),
    };
    Subject { name: kind.name(), make, rule, most }
}

/// Other settings than those of the names.
fn others() -> [Subject; 5] {
    let own = |name, make, most| Subject { name, make, rule: Rule::Own, most };
    [
        own("fixed, odd", || Box::new(Fixed::new(1_000)), |_| 1024),
        own("fixed, long", || Box::new(Fixed::new(3 * MIB)), |_| 3 * MIB),
        own("slab, few", || Box::new(Slab::new([700, 96 << 10, 4096], 96 << 10)), |_| 96 << 10),
        own("tiers, pool", pool_tiers, exact),
        own("tiers, nested", nested_tiers, |len| len.max(32 << 10)),
    ]
}

/// The two arenas of a pool.
fn pool_tiers() -> Box<dyn Placement> {
    Box::new(Tiers::new(vec![
        Tier { longest: MIB, placement: Box::new(Segregated::new()) },
        Tier { longest: u64::MAX, placement: Box::new(Segregated::new()) },
    ]))
}

fn nested_tiers() -> Box<dyn Placement> {
    let inner = Tiers::new(vec![
        Tier { longest: 4096, placement: Box::new(Bump::new()) },
        Tier { longest: 32 << 10, placement: Box::new(Fixed::new(32 << 10)) },
    ]);
    Box::new(Tiers::new(vec![
        Tier { longest: 32 << 10, placement: Box::new(inner) },
        Tier { longest: 4 * MIB, placement: Box::new(Tlsf::new()) },
    ]))
}

/// What a placement must have, from the calls alone.
#[derive(Default)]
struct Model {
    chunks: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, Block>,
    last_end: u64,
    /// Above all chunks so far.
    top: u64,
}

impl Model {
    /// Free ranges, joined, by address.
    fn free(&self) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        for (base, end) in &self.chunks {
            let mut at = *base;
            for block in self.blocks.range(base..end).map(|(_, block)| block) {
                free.push(at..block.addr);
                at = block.end();
            }
            free.push(at..*end);
        }
        free.retain(|range| !range.is_empty());
        free
    }

    /// Where a rule puts a request; `None` if it fails or there is no such rule.
    fn expected(&self, rule: Rule, len: u64, alignment: u64) -> Option<u64> {
        let len = len.next_multiple_of(UNIT);
        let place = |range: &Range<u64>| {
            let addr = range.start.next_multiple_of(alignment);
            (addr + len <= range.end).then_some((range.clone(), addr))
        };
        let fits: Vec<(Range<u64>, u64)> = self.free().iter().filter_map(place).collect();
        let behind = |(range, _): &&(Range<u64>, u64)| range.start >= self.last_end;
        let chosen = match rule {
            Rule::First => fits.first(),
            Rule::Next => fits.iter().find(behind).or(fits.first()),
            Rule::Best => fits.iter().min_by_key(|(range, _)| range.end - range.start),
            Rule::Own => None,
        };
        chosen.map(|(_, addr)| *addr)
    }

    /// Enters a block that was placed.
    fn place(&mut self, block: Block, len: u64, alignment: u64) {
        assert_eq!((block.requested, block.addr % alignment, block.len % UNIT), (len, 0, 0));
        assert!(block.len >= len, "{block:?} is too short for {len}");
        let (base, end) = self.chunks.range(..=block.addr).next_back().expect("a chunk below");
        assert!(*base <= block.addr && block.end() <= *end, "{block:?} leaves its chunk");
        let below = self.blocks.range(..block.end()).next_back();
        assert!(below.is_none_or(|(_, other)| other.end() <= block.addr), "{block:?} overlaps");
        self.blocks.insert(block.addr, block);
        self.last_end = block.end();
    }

    /// Room for one more chunk.
    fn next_chunk(&self, len: u64, gap: u64, alignment: u64) -> Range<u64> {
        let base = (self.top + gap).max(UNIT).next_multiple_of(alignment);
        base..base + len
    }

    fn enter_chunk(&mut self, chunk: &Range<u64>) {
        self.chunks.insert(chunk.start, chunk.end);
        self.top = chunk.end;
    }

    fn figures(&self, largest: u64) -> Figures {
        Figures {
            chunks: self.chunks.len(),
            chunk_bytes: self.chunks.iter().map(|(base, end)| end - base).sum(),
            blocks: self.blocks.len(),
            requested: self.blocks.values().map(|block| block.requested).sum(),
            placed: self.blocks.values().map(|block| block.len).sum(),
            largest,
        }
    }
}

struct Test {
    subject: Subject,
    placement: Box<dyn Placement>,
    model: Model,
    addrs: Vec<Option<u64>>,
}

impl Test {
    fn allocate(&mut self, len: u64, alignment: u64) {
        let served = len > 0 && len <= 1 << 62;
        let before = self.placement.figures();
        let block = self.placement.allocate(len, alignment);
        self.addrs.push(block.map(|block| block.addr));
        let least = alignment.max(UNIT);
        if served && self.subject.rule != Rule::Own {
            let expected = self.model.expected(self.subject.rule, len, least);
            assert_eq!(block.map(|block| block.addr), expected, "{len} at {alignment}");
        }
        if let Some(block) = block {
            assert!(self.placement.chunk_for(len, alignment).is_some(), "{len} can be served");
            self.model.place(block, len, least);
            let most = (self.subject.most)(len.next_multiple_of(UNIT)).max(UNIT);
            assert!(least > UNIT || block.len <= most, "{block:?} loses too much");
            return;
        }
        assert_eq!(self.placement.figures(), before, "a failure changes nothing");
        let shape = self.placement.chunk_for(len, alignment);
        assert!(served || shape.is_none(), "{len} can never be served");
        if let Some(shape) = shape.filter(|shape| shape.len <= 64 * MIB) {
            // A longer one serves as well.
            let longer = len % 3 * 7 * UNIT;
            let chunk = self.model.next_chunk(shape.len + longer, 0, shape.alignment);
            assert!(shape.fits(&chunk));
            self.placement.add(chunk.clone()).expect("a chunk of the shape asked for");
            self.model.enter_chunk(&chunk);
            let block = self.placement.allocate(len, alignment).expect("the chunk serves");
            self.model.place(block, len, least);
        }
    }

    /// What the figures promise.
    fn probe(&mut self) {
        let figures = self.placement.figures();
        assert_eq!(figures, self.model.figures(figures.largest));
        assert_eq!(self.placement.allocate(figures.largest + 1, 1), None, "above the largest");
        if figures.largest > 0 {
            let block = self.placement.allocate(figures.largest, 1).expect("the largest request");
            self.model.place(block, figures.largest, UNIT);
            self.release(block.addr);
        }
    }

    fn release(&mut self, addr: u64) {
        let block = self.model.blocks.remove(&addr);
        assert_eq!(self.placement.release(addr), block);
        assert_eq!(self.placement.release(addr), None, "a second release");
    }

    fn add_wrong(&mut self, pick: usize) {
        let before = self.placement.figures();
        let top = self.model.top;
        let overlapping =
            nth(&self.model.chunks, pick).map_or(0..1, |(base, end)| base..end + UNIT);
        let empty = top + UNIT..top + UNIT;
        let reversed = Range { start: top + 2 * UNIT, end: top };
        for wrong in
            [overlapping, empty, reversed, top + 1..top + 4096, top..(1 << 62) + UNIT, 0..u64::MAX]
        {
            let error = self.placement.add(wrong.clone()).expect_err("no chunk");
            assert_eq!(error.chunk, wrong);
        }
        assert_eq!(self.placement.figures(), before, "a failure changes nothing");
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Add { len, gap, alignment } => {
                let chunk = self.model.next_chunk(len, gap, 1 << alignment);
                self.placement.add(chunk.clone()).expect("a chunk");
                self.model.enter_chunk(&chunk);
            }
            Op::AddWrong { pick } => self.add_wrong(pick),
            Op::Remove { pick } => {
                let Some((base, end)) = nth(&self.model.chunks, pick) else { return };
                let used = self.model.blocks.range(base..end).next().is_some();
                assert_eq!(self.placement.remove(base), !used, "a chunk goes if it is empty");
                if !used {
                    self.model.chunks.remove(&base);
                }
                assert!(!self.placement.remove(base + 1), "no chunk begins there");
            }
            Op::Allocate { len, alignment } => self.allocate(len, 1 << alignment),
            Op::Release { pick } => {
                if let Some((addr, _)) = nth(&self.model.blocks, pick) {
                    self.release(addr);
                }
            }
            Op::ReleaseUnknown { pick, offset } => {
                let near = nth(&self.model.blocks, pick).map_or(4096, |(addr, _)| addr + offset);
                if !self.model.blocks.contains_key(&near) {
                    assert_eq!(self.placement.release(near), None, "no block begins there");
                }
            }
            Op::Probe => self.probe(),
        }
        let figures = self.placement.figures();
        assert_eq!(figures, self.model.figures(figures.largest));
    }

    /// Releases all, and compares with one that never placed anything.
    fn end(&mut self) {
        for addr in self.model.blocks.keys().copied().collect::<Vec<_>>() {
            self.release(addr);
        }
        let mut fresh = (self.subject.make)();
        for (base, end) in &self.model.chunks {
            fresh.add(*base..*end).expect("a chunk");
        }
        assert_eq!(self.placement.figures(), fresh.figures(), "all is joined again");
        self.probe();
        for base in self.model.chunks.keys() {
            assert!(self.placement.remove(*base), "an empty chunk goes");
        }
        assert_eq!(self.placement.figures(), Figures::default());
    }
}

fn nth<V: Copy>(map: &BTreeMap<u64, V>, pick: usize) -> Option<(u64, V)> {
    let (key, value) = map.iter().nth(pick.checked_rem(map.len())?)?;
    Some((*key, *value))
}

fn run(subject: Subject, ops: &[Op]) -> Vec<Option<u64>> {
    let placement = (subject.make)();
    let mut test = Test { subject, placement, model: Model::default(), addrs: Vec::new() };
    for op in ops {
        test.step(op);
    }
    test.end();
    test.addrs
}

fn subjects() -> impl Iterator<Item = Subject> {
    PlacementKind::ALL.into_iter().map(subject).chain(others())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: support::cases(96), failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_placement_keeps_its_promises(ops in prop::collection::vec(op(), 1..200)) {
        for subject in subjects() {
            let caught = std::panic::catch_unwind(|| run(subject, &ops));
            let addrs = caught.unwrap_or_else(|_| panic!("placement {}", subject.name));
            prop_assert_eq!(&addrs, &run(subject, &ops), "{} again", subject.name);
        }
    }
}

#[test]
fn names_are_read_back_and_others_are_refused() {
    for kind in PlacementKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "worst-fit".parse::<PlacementKind>().expect_err("no such placement").to_string();
    assert!(
        error.starts_with("unknown placement 'worst-fit': there are bump, first-fit"),
        "{error}"
    );
}

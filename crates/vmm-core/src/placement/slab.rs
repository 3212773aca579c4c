//! Slabs: each holds blocks of one length.

use super::fixed::Fixed;
use super::ledger::Ledger;
use super::slots::Slots;
use super::{Block, ChunkError, ChunkShape, Figures, Placement, in_units};
use crate::bins::UNIT;
use crate::units::round_up;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// The longest class and the slabs of [`Slab::default`].
const LONGEST_CLASS: u64 = 1 << 20;
const SLAB_LEN: u64 = 2 << 20;

/// Slabs of one length, each with blocks of one class of lengths. An empty slab serves whichever class
/// needs one next.
///
/// - Guarantees: a request gets the shortest class that holds it, and longer ones than all classes are
///   never served. Blocks of one class never keep those of another apart, but a slab with one block left
///   serves no other class. What is left over at the ends of slabs and chunks serves nobody.
/// - Cost: O(log s) for s slabs with free blocks: the lowest of the class serves, so that high ones empty.
/// - Source: Bonwick, *The slab allocator: an object-caching kernel memory allocator*, USENIX Summer
///   1994. Unlike there, nothing is kept constructed.
#[derive(Debug)]
pub struct Slab {
    /// Lengths in rising order.
    classes: Vec<u64>,
    /// Each block with the base of its slab.
    ledger: Ledger<u64>,
    /// Where slabs come from: they are blocks of one length.
    slabs: Fixed,
    /// Slabs in use by base, with their class.
    used: HashMap<u64, (usize, Slots)>,
    /// By class, bases of slabs that have free blocks and others.
    open: Vec<BTreeSet<u64>>,
}

impl Default for Slab {
    /// Classes up to 1 MiB in slabs of 2 MiB. There are four to a power of two, as in jemalloc, so that
    /// less than a fifth of a block is lost.
    fn default() -> Self {
        let quarters = (0..).map(|octave| UNIT << octave);
        let classes = quarters.flat_map(|quarter| (4..8).map(move |times| quarter * times));
        let classes = classes.take_while(|len| *len <= LONGEST_CLASS);
        Self::new((1..4).map(|units| units * UNIT).chain(classes), SLAB_LEN)
    }
}

impl Slab {
    /// Slabs of `slab_len` bytes for blocks of these lengths, all rounded up to multiples of 512; without
    /// chunks.
    ///
    /// # Panics
    /// If there is no class, one of no bytes, or one longer than a slab.
    #[must_use]
    pub fn new(classes: impl IntoIterator<Item = u64>, slab_len: u64) -> Self {
        let slabs = Fixed::new(slab_len);
        let units = classes.into_iter().map(|len| round_up(len, UNIT).expect("a class below 2^64"));
        let mut classes: Vec<u64> = units.collect();
        classes.sort_unstable();
        classes.dedup();
        assert!(classes.first().is_some_and(|len| *len > 0), "a class of some bytes");
        assert!(classes.last().is_some_and(|len| *len <= slabs.block_len()), "classes fit a slab");
        let open = vec![BTreeSet::new(); classes.len()];
        Self { classes, ledger: Ledger::default(), slabs, used: HashMap::new(), open }
    }

    /// The shortest class for blocks of this length at this alignment.
    fn class_of(&self, len: u64, alignment: u64) -> Option<usize> {
        let first = self.classes.partition_point(|class| *class < len);
        let aligned = self.classes[first..].iter().position(|len| len.is_multiple_of(alignment));
        aligned.map(|more| first + more)
    }

    /// A slab of the class with a free block.
    fn slab_for(&mut self, class: usize, alignment: u64) -> Option<u64> {
        let open = self.open[class].iter().find(|base| base.is_multiple_of(alignment));
        if let Some(base) = open {
            return Some(*base);
        }
        let slab = self.slabs.allocate(self.slabs.block_len(), alignment)?;
        self.used.insert(slab.addr, (class, Slots::new(slab.addr, slab.len, self.classes[class])));
        self.open[class].insert(slab.addr);
        Some(slab.addr)
    }
}

impl Placement for Slab {
    fn add(&mut self, chunk: Range<u64>) -> Result<(), ChunkError> {
        self.ledger.add(&chunk)?;
        self.slabs.add(chunk)
    }

    fn remove(&mut self, base: u64) -> bool {
        self.ledger.remove(base).is_some() && self.slabs.remove(base)
    }

    fn allocate(&mut self, len: u64, alignment: u64) -> Option<Block> {
        let requested = len;
        let (len, alignment) = in_units(len, alignment)?;
        let class = self.class_of(len, alignment)?;
        let base = self.slab_for(class, alignment)?;
        let (_, slots) = self.used.get_mut(&base)?;
        let addr = slots.take()?;
        if slots.is_full() {
            self.open[class].remove(&base);
        }
        Some(self.ledger.place(Block { addr, len: self.classes[class], requested }, base))
    }

    fn release(&mut self, addr: u64) -> Option<Block> {
        let (block, base) = self.ledger.take(addr)?;
        let (class, slots) = self.used.get_mut(&base).expect("the slab of a block");
        slots.give_back(addr);
        let (class, unused) = (*class, slots.is_unused());
        if unused {
            self.used.remove(&base);
            self.open[class].remove(&base);
            self.slabs.release(base);
        } else {
            self.open[class].insert(base);
        }
        Some(block)
    }

    fn chunk_for(&self, len: u64, alignment: u64) -> Option<ChunkShape> {
        let (len, alignment) = in_units(len, alignment)?;
        self.class_of(len, alignment)?;
        self.slabs.chunk_for(self.slabs.block_len(), alignment)
    }

    fn figures(&self) -> Figures {
        let open = self.open.iter().rposition(|slabs| !slabs.is_empty());
        let any = (self.slabs.figures().largest > 0).then(|| self.classes.len() - 1);
        self.ledger.figures(open.max(any).map_or(0, |class| self.classes[class]))
    }
}

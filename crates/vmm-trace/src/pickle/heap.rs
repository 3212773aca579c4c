//! Where the values of a pickle live: containers are indices, so sharing costs nothing.

use std::collections::HashMap;
use std::rc::Rc;

use super::entry::{self, RawEntry};
use crate::error::{Fault, Place};

/// Containers nest at most this deep. Snapshots nest 6 deep.
pub(super) const MAX_DEPTH: u8 = 64;
/// Most bytes that the values of one file may take.
const MAX_RETAINED: u64 = 4 << 30;
/// Bytes of values allowed for every byte read: stacks of many short frames need 6.
const RETAINED_PER_BYTE: u64 = 16;
/// Bytes of values allowed whatever the length of the file.
const RETAINED_FREE: u64 = 64 << 20;

/// A value. Containers and strings are indices into the [`Heap`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A number from 2^63 to 2^64 - 1.
    Unsigned(u64),
    /// A number that needs more than 64 bits. No field of a snapshot holds one.
    Huge,
    Float(f64),
    Str(u32),
    List(u32),
    Tuple(u32),
    Dict(u32),
}

/// What a dict turned out to be.
#[derive(Debug, Clone, Copy)]
enum Dict {
    Empty,
    /// Index into `pairs`.
    Pairs(u32),
    /// Index into `entries`.
    Entry(u32),
}

#[derive(Debug, Default)]
struct List {
    items: Vec<Value>,
    depth: u8,
    taken: bool,
}

#[derive(Debug)]
struct Tuple {
    items: Box<[Value]>,
    depth: u8,
}

#[derive(Debug, Default)]
struct Pairs {
    items: Vec<(Value, Value)>,
    depth: u8,
}

/// All values of one pickle.
#[derive(Debug)]
pub(crate) struct Heap {
    strings: Vec<Rc<str>>,
    ids: HashMap<Rc<str>, u32>,
    lists: Vec<List>,
    tuples: Vec<Tuple>,
    dicts: Vec<Dict>,
    pairs: Vec<Pairs>,
    entries: Vec<RawEntry>,
    /// Bytes of values so far, and how many are allowed at the last known offset.
    retained: u64,
    allowed: u64,
}

impl Heap {
    pub(super) fn new() -> Self {
        let mut heap = Heap {
            strings: Vec::new(),
            ids: HashMap::new(),
            lists: Vec::new(),
            tuples: Vec::new(),
            dicts: Vec::new(),
            pairs: Vec::new(),
            entries: Vec::new(),
            retained: 0,
            allowed: RETAINED_FREE,
        };
        // Known words get the first ids, so that a key is compared as a number.
        for word in entry::WORDS {
            heap.intern(word);
        }
        heap
    }

    /// Counts `len` more bytes of values at `offset`.
    ///
    /// # Errors
    /// `TooLarge` when the file makes more of them than a snapshot of this length can.
    #[inline]
    pub(super) fn charge(&mut self, len: usize, offset: u64) -> Result<(), Fault> {
        self.retained += len as u64;
        if self.retained <= self.allowed {
            return Ok(());
        }
        let by_length = RETAINED_FREE.saturating_add(offset.saturating_mul(RETAINED_PER_BYTE));
        self.allowed = by_length.min(MAX_RETAINED);
        if self.retained <= self.allowed {
            return Ok(());
        }
        Err(Fault::TooLarge { offset, what: "its values need too much memory for its length" })
    }

    pub(super) fn string(&mut self, text: &[u8], offset: u64) -> Result<Value, Fault> {
        let text = String::from_utf8_lossy(text);
        if let Some(&id) = self.ids.get(&*text) {
            return Ok(Value::Str(id));
        }
        self.charge(text.len() + 64, offset)?;
        Ok(Value::Str(self.intern(&text)))
    }

    fn intern(&mut self, text: &str) -> u32 {
        let id = index(self.strings.len());
        let text: Rc<str> = Rc::from(text);
        self.strings.push(Rc::clone(&text));
        self.ids.insert(text, id);
        id
    }

    pub(super) fn new_list(&mut self, offset: u64) -> Result<Value, Fault> {
        self.charge(size_of::<List>(), offset)?;
        self.lists.push(List::default());
        Ok(Value::List(index(self.lists.len() - 1)))
    }

    pub(super) fn new_dict(&mut self, offset: u64) -> Result<Value, Fault> {
        self.charge(size_of::<Dict>(), offset)?;
        self.dicts.push(Dict::Empty);
        Ok(Value::Dict(index(self.dicts.len() - 1)))
    }

    pub(super) fn new_tuple(&mut self, items: &[Value], offset: u64) -> Result<Value, Fault> {
        self.charge(size_of::<Tuple>() + size_of_val(items), offset)?;
        let depth = self.depth_above(items, offset)?;
        self.tuples.push(Tuple { items: items.into(), depth });
        Ok(Value::Tuple(index(self.tuples.len() - 1)))
    }

    pub(super) fn append(&mut self, to: Value, items: &[Value], offset: u64) -> Result<(), Fault> {
        let Value::List(id) = to else {
            return Err(Fault::malformed(Place::Byte(offset), "appends to what is not a list"));
        };
        self.charge(size_of_val(items), offset)?;
        let depth = self.depth_above(items, offset)?;
        let list = &mut self.lists[id as usize];
        list.depth = list.depth.max(depth);
        list.items.extend_from_slice(items);
        Ok(())
    }

    /// Puts `items`, keys and values in turn, into a dict.
    pub(super) fn set_items(
        &mut self,
        to: Value,
        items: &[Value],
        offset: u64,
    ) -> Result<(), Fault> {
        let malformed = |what| Err(Fault::malformed(Place::Byte(offset), what));
        let Value::Dict(id) = to else {
            return malformed("sets items of what is not a dict");
        };
        let (items, []) = items.as_chunks::<2>() else {
            return malformed("a dict has a key without a value");
        };
        let id = id as usize;
        if !matches!(self.dicts[id], Dict::Entry(_))
            && items.iter().any(|[key, _]| *key == Value::Str(entry::ACTION))
        {
            self.make_entry(id, offset)?;
        }
        match self.dicts[id] {
            Dict::Entry(at) => {
                let entry = &mut self.entries[at as usize];
                for &[key, value] in items {
                    entry.set(key, value);
                }
                Ok(())
            }
            Dict::Pairs(at) => self.extend_pairs(at, items, offset),
            Dict::Empty => {
                self.charge(size_of::<Pairs>(), offset)?;
                let at = index(self.pairs.len());
                self.pairs.push(Pairs::default());
                self.dicts[id] = Dict::Pairs(at);
                self.extend_pairs(at, items, offset)
            }
        }
    }

    fn extend_pairs(&mut self, at: u32, items: &[[Value; 2]], offset: u64) -> Result<(), Fault> {
        self.charge(size_of_val(items), offset)?;
        let depth = self.depth_above(items.as_flattened(), offset)?;
        let pairs = &mut self.pairs[at as usize];
        pairs.depth = pairs.depth.max(depth);
        pairs.items.extend(items.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    /// Turns a dict into a trace entry; what it held so far moves over.
    fn make_entry(&mut self, id: usize, offset: u64) -> Result<(), Fault> {
        self.charge(size_of::<RawEntry>(), offset)?;
        let mut entry = RawEntry::default();
        if let Dict::Pairs(at) = self.dicts[id] {
            for (key, value) in std::mem::take(&mut self.pairs[at as usize].items) {
                entry.set(key, value);
            }
        }
        self.dicts[id] = Dict::Entry(index(self.entries.len()));
        self.entries.push(entry);
        Ok(())
    }

    fn depth_above(&self, items: &[Value], offset: u64) -> Result<u8, Fault> {
        let below = items.iter().map(|&item| self.depth(item)).max().unwrap_or(0);
        if below < MAX_DEPTH {
            return Ok(below + 1);
        }
        Err(Fault::TooLarge { offset, what: "containers nest deeper than 64" })
    }

    fn depth(&self, value: Value) -> u8 {
        match value {
            Value::List(id) => self.lists[id as usize].depth.max(1),
            Value::Tuple(id) => self.tuples[id as usize].depth,
            Value::Dict(id) => match self.dicts[id as usize] {
                Dict::Pairs(at) => self.pairs[at as usize].depth.max(1),
                Dict::Empty | Dict::Entry(_) => 1,
            },
            _ => 0,
        }
    }
}

/// What a finished pickle is asked.
impl Heap {
    /// The text of a string.
    pub(crate) fn text(&self, value: Value) -> Option<&str> {
        match value {
            Value::Str(id) => Some(&self.strings[id as usize]),
            _ => None,
        }
    }

    /// The items of a list or tuple.
    pub(crate) fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::List(id) => Some(&self.lists[id as usize].items),
            Value::Tuple(id) => Some(&self.tuples[id as usize].items),
            _ => None,
        }
    }

    /// Takes the items out of a list; a second time gives `None`.
    ///
    /// A list that is referred to a thousand times is read once, so work stays in proportion to the
    /// file. An empty list can be shared.
    pub(crate) fn take_list(&mut self, value: Value) -> Option<Vec<Value>> {
        let Value::List(id) = value else { return None };
        let list = &mut self.lists[id as usize];
        if list.taken {
            return None;
        }
        list.taken = !list.items.is_empty();
        Some(std::mem::take(&mut list.items))
    }

    /// The items of a dict that is no trace entry.
    pub(crate) fn pairs(&self, value: Value) -> Option<&[(Value, Value)]> {
        match value {
            Value::Dict(id) => match self.dicts[id as usize] {
                Dict::Empty => Some(&[]),
                Dict::Pairs(at) => Some(&self.pairs[at as usize].items),
                Dict::Entry(_) => None,
            },
            _ => None,
        }
    }

    /// The value under a key. Of equal keys the last counts, as in Python.
    pub(crate) fn get(&self, dict: Value, key: &str) -> Option<Value> {
        let &id = self.ids.get(key)?;
        let mut pairs = self.pairs(dict)?.iter().rev();
        pairs.find(|(key, _)| *key == Value::Str(id)).map(|&(_, value)| value)
    }

    /// The trace entry that a dict turned out to be.
    pub(crate) fn entry(&self, value: Value) -> Option<&RawEntry> {
        match value {
            Value::Dict(id) => match self.dicts[id as usize] {
                Dict::Entry(at) => Some(&self.entries[at as usize]),
                Dict::Empty | Dict::Pairs(_) => None,
            },
            _ => None,
        }
    }
}

/// An index as 32 bits. `charge` admits less than 2^32 values of any kind.
fn index(at: usize) -> u32 {
    u32::try_from(at).expect("the bound on retained bytes keeps indices below 2^32")
}

const _: () = assert!(size_of::<Value>() == 16);
const _: () = assert!(size_of::<Dict>() == 8 && MAX_RETAINED / 8 < u32::MAX as u64);

//! Runs the opcodes of a pickle.

use std::collections::BTreeMap;

use super::heap::{Heap, MAX_DEPTH, Value};
use super::input::Input;
use super::opcode as op;
use crate::error::{Fault, Place};

/// Most values on the stack at once. Python's picklers keep it near a thousand.
const MAX_STACK: usize = 1 << 24;
/// Longest string, in bytes.
const MAX_STRING: u64 = 64 << 20;

/// Reads one pickle up to the end of `input`.
///
/// # Errors
/// `Hostile` for anything that imports or calls, `Truncated`, `TooLarge`, `Malformed` for anything
/// that is no plain value of protocol 2 to 5, each with its offset; `Io`.
pub(crate) fn read_pickle(input: &mut Input<'_>) -> Result<(Heap, Value), Fault> {
    let mut machine = Machine::new(input);
    let root = machine.run()?;
    let heap = machine.heap;
    let offset = input.offset();
    if !input.at_end()? {
        return Err(Fault::malformed(
            Place::Byte(offset),
            "more bytes follow the end of the pickle",
        ));
    }
    Ok((heap, root))
}

struct Machine<'m, 'r> {
    input: &'m mut Input<'r>,
    heap: Heap,
    stack: Vec<Value>,
    /// Stack lengths at the open marks.
    marks: Vec<usize>,
    memo: Vec<Value>,
    /// Memo places that do not follow on `memo`: legal, though no pickler makes them.
    sparse_memo: BTreeMap<u32, Value>,
    /// Offset of the opcode being run.
    at: u64,
}

impl<'m, 'r> Machine<'m, 'r> {
    fn new(input: &'m mut Input<'r>) -> Self {
        Machine {
            input,
            heap: Heap::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            sparse_memo: BTreeMap::new(),
            at: 0,
        }
    }

    fn run(&mut self) -> Result<Value, Fault> {
        loop {
            self.at = self.input.offset();
            let opcode = self.input.byte()?;
            match opcode {
                // The most frequent first, as a reader's guide; the compiler makes a table of it.
                op::BINGET => {
                    let place = self.input.byte()?;
                    self.recall(u32::from(place))?;
                }
                op::LONG_BINGET => {
                    let place = u32::from_le_bytes(self.input.array()?);
                    self.recall(place)?;
                }
                op::MEMOIZE => {
                    let place = self.memo.len() + self.sparse_memo.len();
                    self.memoize(place)?;
                }
                op::BINPUT => {
                    let place = self.input.byte()?;
                    self.memoize(usize::from(place))?;
                }
                op::LONG_BINPUT => {
                    let place = u32::from_le_bytes(self.input.array()?);
                    self.memoize(place as usize)?;
                }
                op::BININT1 => {
                    let number = self.input.byte()?;
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::BININT2 => {
                    let number = u16::from_le_bytes(self.input.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::BININT => {
                    let number = i32::from_le_bytes(self.input.array()?);
                    self.push(Value::Int(i64::from(number)))?;
                }
                op::LONG1 => {
                    let len = self.input.byte()?;
                    self.long(u64::from(len))?;
                }
                op::LONG4 => {
                    let len = u32::from_le_bytes(self.input.array()?);
                    self.long(u64::from(len))?;
                }
                op::BINFLOAT => {
                    let number = f64::from_be_bytes(self.input.array()?);
                    self.push(Value::Float(number))?;
                }
                op::NONE => self.push(Value::None)?,
                op::NEWTRUE => self.push(Value::Bool(true))?,
                op::NEWFALSE => self.push(Value::Bool(false))?,
                op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                    let len = self.input.byte()?;
                    self.string(u64::from(len))?;
                }
                op::BINUNICODE | op::BINSTRING => {
                    let len = u32::from_le_bytes(self.input.array()?);
                    self.string(u64::from(len))?;
                }
                op::BINUNICODE8 => {
                    let len = u64::from_le_bytes(self.input.array()?);
                    self.string(len)?;
                }
                op::MARK => self.mark()?,
                op::EMPTY_LIST => {
                    let list = self.heap.new_list(self.at)?;
                    self.push(list)?;
                }
                op::EMPTY_DICT => {
                    let dict = self.heap.new_dict(self.at)?;
                    self.push(dict)?;
                }
                op::EMPTY_TUPLE => self.tuple_from(self.stack.len())?,
                op::TUPLE1 => self.tuple_of(1)?,
                op::TUPLE2 => self.tuple_of(2)?,
                op::TUPLE3 => self.tuple_of(3)?,
                op::TUPLE => {
                    let from = self.pop_mark()?;
                    self.tuple_from(from)?;
                }
                op::LIST => {
                    let from = self.pop_mark()?;
                    let list = self.heap.new_list(self.at)?;
                    self.heap.append(list, &self.stack[from..], self.at)?;
                    self.stack.truncate(from);
                    self.push(list)?;
                }
                op::DICT => {
                    let from = self.pop_mark()?;
                    let dict = self.heap.new_dict(self.at)?;
                    self.heap.set_items(dict, &self.stack[from..], self.at)?;
                    self.stack.truncate(from);
                    self.push(dict)?;
                }
                op::APPEND => self.add(1, Heap::append)?,
                op::APPENDS => {
                    let from = self.pop_mark()?;
                    self.add(self.stack.len() - from, Heap::append)?;
                }
                op::SETITEM => self.add(2, Heap::set_items)?,
                op::SETITEMS => {
                    let from = self.pop_mark()?;
                    self.add(self.stack.len() - from, Heap::set_items)?;
                }
                op::POP => {
                    // As in Python, it takes a mark where nothing lies above one.
                    if self.marks.last() == Some(&self.stack.len()) {
                        self.marks.pop();
                    } else {
                        self.pop()?;
                    }
                }
                op::POP_MARK => {
                    let from = self.pop_mark()?;
                    self.stack.truncate(from);
                }
                op::DUP => {
                    let top = self.top()?;
                    self.push(top)?;
                }
                op::FRAME => {
                    let len = u64::from_le_bytes(self.input.array()?);
                    self.input.check_len(len)?;
                }
                op::PROTO => {
                    let version = self.input.byte()?;
                    if !(2..=5).contains(&version) {
                        return Err(self.malformed(format!(
                            "pickle protocol {version}; snapshots use 2 to 5"
                        )));
                    }
                }
                op::STOP => return self.pop(),
                other => return Err(self.refuse(other)),
            }
        }
    }

    /// What to say of an opcode that is not run.
    #[cold]
    fn refuse(&mut self, opcode: u8) -> Fault {
        let name = match opcode {
            op::GLOBAL | op::INST => match (self.input.line(), self.input.line()) {
                (Ok(module), Ok(name)) => format!("{module}.{name}"),
                (Err(fault), _) | (_, Err(fault)) => return fault,
            },
            op::STACK_GLOBAL => {
                let mut texts = self.stack.iter().rev().take(2).rev();
                let mut next = || texts.next().and_then(|&value| self.heap.text(value));
                let (module, name) = (next().unwrap_or("?"), next().unwrap_or("?"));
                format!("{}.{}", cut(module), cut(name))
            }
            _ => match (op::unnamed_import(opcode), op::foreign(opcode)) {
                (Some(name), _) => format!("opcode {name}"),
                (_, Some(what)) => {
                    return self.malformed(format!("{what}, which no snapshot holds"));
                }
                _ => return self.malformed(format!("unknown opcode {opcode:#04x}")),
            },
        };
        Fault::Hostile { offset: self.at, name }
    }

    #[cold]
    fn malformed(&self, what: impl Into<String>) -> Fault {
        Fault::malformed(Place::Byte(self.at), what)
    }

    #[inline]
    fn push(&mut self, value: Value) -> Result<(), Fault> {
        if self.stack.len() == MAX_STACK {
            return Err(Fault::TooLarge { offset: self.at, what: "too many loose values" });
        }
        self.stack.push(value);
        Ok(())
    }

    /// Values above the last mark belong to the container being made; none below may be popped.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Value, Fault> {
        match self.stack.last() {
            Some(&value) if self.stack.len() > self.floor() => Ok(value),
            _ => Err(self.malformed("takes a value where there is none")),
        }
    }

    fn pop(&mut self) -> Result<Value, Fault> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn mark(&mut self) -> Result<(), Fault> {
        if self.marks.len() >= usize::from(MAX_DEPTH) {
            return Err(Fault::TooLarge {
                offset: self.at,
                what: "containers nest deeper than 64",
            });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn pop_mark(&mut self) -> Result<usize, Fault> {
        self.marks.pop().ok_or_else(|| self.malformed("ends a container that was not begun"))
    }

    /// Moves the `count` uppermost values into the container below them.
    fn add(
        &mut self,
        count: usize,
        put: impl FnOnce(&mut Heap, Value, &[Value], u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        if self.stack.len() < self.floor() + count + 1 {
            return Err(self.malformed("fills a container where there is none"));
        }
        let from = self.stack.len() - count;
        put(&mut self.heap, self.stack[from - 1], &self.stack[from..], self.at)?;
        self.stack.truncate(from);
        Ok(())
    }

    fn tuple_of(&mut self, count: usize) -> Result<(), Fault> {
        if self.stack.len() < self.floor() + count {
            return Err(self.malformed("takes a value where there is none"));
        }
        self.tuple_from(self.stack.len() - count)
    }

    fn tuple_from(&mut self, from: usize) -> Result<(), Fault> {
        let tuple = self.heap.new_tuple(&self.stack[from..], self.at)?;
        self.stack.truncate(from);
        self.push(tuple)
    }

    fn string(&mut self, len: u64) -> Result<(), Fault> {
        if len > MAX_STRING {
            self.input.check_len(len)?;
            return Err(Fault::TooLarge { offset: self.at, what: "a string of more than 64 MiB" });
        }
        let (heap, at) = (&mut self.heap, self.at);
        let text = self.input.with_bytes(len, |bytes| heap.string(bytes, at))??;
        self.push(text)
    }

    /// A little-endian number in two's complement.
    fn long(&mut self, len: u64) -> Result<(), Fault> {
        if len > 9 {
            self.input.skip(len)?;
            return self.push(Value::Huge);
        }
        let number = self.input.with_bytes(len, |bytes| {
            let sign = bytes.last().map_or(0, |&last| if last < 0x80 { 0 } else { 0xff });
            let mut wide = [sign; 16];
            wide[..bytes.len()].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        })?;
        self.push(match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Value::Int(number),
            (_, Ok(number)) => Value::Unsigned(number),
            _ => Value::Huge,
        })
    }

    fn memoize(&mut self, place: usize) -> Result<(), Fault> {
        let value = self.top()?;
        if place < self.memo.len() {
            self.memo[place] = value;
            return Ok(());
        }
        self.heap.charge(size_of::<Value>(), self.at)?;
        if place == self.memo.len() {
            if let Ok(place) = u32::try_from(place) {
                self.sparse_memo.remove(&place);
            }
            self.memo.push(value);
            return Ok(());
        }
        let Ok(place) = u32::try_from(place) else {
            return Err(self.malformed("a memo place beyond 32 bits"));
        };
        // A tree node costs more than its value; two more values' worth covers it.
        self.heap.charge(2 * size_of::<Value>(), self.at)?;
        self.sparse_memo.insert(place, value);
        Ok(())
    }

    #[inline]
    fn recall(&mut self, place: u32) -> Result<(), Fault> {
        let found = match self.memo.get(place as usize) {
            Some(value) => Some(value),
            None => self.sparse_memo.get(&place),
        };
        match found {
            Some(&value) => self.push(value),
            None => Err(self.malformed(format!("refers to memo place {place}, which is empty"))),
        }
    }
}

/// The start of a name, safe to print on one line.
fn cut(name: &str) -> String {
    name.chars().take(100).flat_map(char::escape_debug).collect()
}

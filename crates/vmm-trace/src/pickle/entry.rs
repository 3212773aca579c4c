//! A trace entry in compact form: a dict of a dozen keys becomes about fifty bytes.

use super::heap::Value;
use crate::census::Action;

/// Keys and action names, at the ids that the heap gives them: it interns these first.
pub(super) const WORDS: [&str; 18] = [
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    "action",
    "addr",
    "size",
    "stream",
    "time_us",
    "frames",
    "pool_id",
    "device_free",
];

pub(super) const ACTION: u32 = 10;
const ADDR: u32 = 11;
const SIZE: u32 = 12;
const STREAM: u32 = 13;
const TIME_US: u32 = 14;
const FRAMES: u32 = 15;
const POOL_ID: u32 = 16;
const DEVICE_FREE: u32 = 17;

/// A field of an entry that is present or that has a value of the wrong kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Field {
    Action,
    Addr,
    Size,
    Stream,
    TimeUs,
    DeviceFree,
}

impl Field {
    /// The key in the file.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Field::Action => "action",
            Field::Addr => "addr",
            Field::Size => "size",
            Field::Stream => "stream",
            Field::TimeUs => "time_us",
            Field::DeviceFree => "device_free",
        }
    }
}

/// A trace entry. Keys that are not listed here are dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawEntry {
    pub(crate) addr: u64,
    /// Kept with its sign, so that a message can say it. Beyond `i64` it is cut to the nearest.
    pub(crate) size: i64,
    pub(crate) stream: u64,
    pub(crate) time_us: i64,
    pub(crate) device_free: i64,
    /// List of frames in the heap, for whoever wants the stack.
    pub(crate) frames: Option<u32>,
    /// Pair in the heap.
    pub(crate) pool_id: Option<u32>,
    pub(crate) action: Action,
    present: u8,
    pub(crate) wrong: Option<Field>,
}

impl Default for RawEntry {
    fn default() -> Self {
        RawEntry {
            addr: 0,
            size: 0,
            stream: 0,
            time_us: 0,
            device_free: 0,
            frames: None,
            pool_id: None,
            action: Action::Unknown,
            present: 0,
            wrong: None,
        }
    }
}

impl RawEntry {
    /// Whether the file gives this field.
    pub(crate) fn has(&self, field: Field) -> bool {
        self.present & (1 << field as u8) != 0
    }

    #[inline]
    pub(super) fn set(&mut self, key: Value, value: Value) {
        let Value::Str(key) = key else { return };
        match key {
            ACTION => match value {
                Value::Str(name) => {
                    self.present |= 1 << Field::Action as u8;
                    self.action = match Action::ALL.get(name as usize) {
                        Some(&action) if name < ACTION => action,
                        _ => Action::Unknown,
                    };
                }
                _ => self.wrong = Some(Field::Action),
            },
            ADDR => {
                if let Some(bits) = self.number(Field::Addr, value) {
                    self.addr = bits.cast_unsigned();
                }
            }
            STREAM => {
                if let Some(bits) = self.number(Field::Stream, value) {
                    self.stream = bits.cast_unsigned();
                }
            }
            SIZE => {
                if let Some(size) = self.quantity(Field::Size, value) {
                    self.size = size;
                }
            }
            TIME_US => {
                if let Some(time) = self.quantity(Field::TimeUs, value) {
                    self.time_us = time;
                }
            }
            DEVICE_FREE => {
                if let Some(free) = self.quantity(Field::DeviceFree, value) {
                    self.device_free = free;
                }
            }
            FRAMES => {
                if let Value::List(id) = value {
                    self.frames = Some(id);
                }
            }
            POOL_ID => {
                if let Value::Tuple(id) = value {
                    self.pool_id = Some(id);
                }
            }
            _ => {}
        }
    }

    /// An address or handle: the 64 bits count, whichever sign Python gave them.
    fn number(&mut self, field: Field, value: Value) -> Option<i64> {
        let bits = match value {
            Value::Int(number) => number,
            Value::Unsigned(number) => number.cast_signed(),
            // Some versions write None for what does not apply.
            Value::None => return None,
            _ => {
                self.wrong = Some(field);
                return None;
            }
        };
        self.present |= 1 << field as u8;
        Some(bits)
    }

    /// A size or time: the value counts.
    fn quantity(&mut self, field: Field, value: Value) -> Option<i64> {
        match value {
            Value::Unsigned(_) | Value::Huge => self.number(field, Value::Int(i64::MAX)),
            // The cast saturates, and a time that far off is caught like any other.
            #[allow(clippy::cast_possible_truncation)]
            Value::Float(number) => self.number(field, Value::Int(number as i64)),
            _ => self.number(field, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_at_their_ids() {
        for (id, word) in [
            (ACTION, "action"),
            (ADDR, "addr"),
            (SIZE, "size"),
            (STREAM, "stream"),
            (TIME_US, "time_us"),
            (FRAMES, "frames"),
            (POOL_ID, "pool_id"),
            (DEVICE_FREE, "device_free"),
        ] {
            assert_eq!(WORDS[id as usize], word);
        }
        for (id, action) in Action::ALL.iter().take(ACTION as usize).enumerate() {
            assert_eq!(WORDS[id], action.name());
        }
    }
}

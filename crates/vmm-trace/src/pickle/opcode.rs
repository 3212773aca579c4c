//! Opcodes, named as in Python's `pickletools`.

pub(super) const MARK: u8 = b'(';
pub(super) const STOP: u8 = b'.';
pub(super) const POP: u8 = b'0';
pub(super) const POP_MARK: u8 = b'1';
pub(super) const DUP: u8 = b'2';
pub(super) const BINFLOAT: u8 = b'G';
pub(super) const BININT: u8 = b'J';
pub(super) const BININT1: u8 = b'K';
pub(super) const BININT2: u8 = b'M';
pub(super) const NONE: u8 = b'N';
pub(super) const BINSTRING: u8 = b'T';
pub(super) const SHORT_BINSTRING: u8 = b'U';
pub(super) const BINUNICODE: u8 = b'X';
pub(super) const APPEND: u8 = b'a';
pub(super) const DICT: u8 = b'd';
pub(super) const APPENDS: u8 = b'e';
pub(super) const BINGET: u8 = b'h';
pub(super) const LONG_BINGET: u8 = b'j';
pub(super) const LIST: u8 = b'l';
pub(super) const BINPUT: u8 = b'q';
pub(super) const LONG_BINPUT: u8 = b'r';
pub(super) const SETITEM: u8 = b's';
pub(super) const TUPLE: u8 = b't';
pub(super) const SETITEMS: u8 = b'u';
pub(super) const EMPTY_TUPLE: u8 = b')';
pub(super) const EMPTY_LIST: u8 = b']';
pub(super) const EMPTY_DICT: u8 = b'}';
pub(super) const PROTO: u8 = 0x80;
pub(super) const TUPLE1: u8 = 0x85;
pub(super) const TUPLE2: u8 = 0x86;
pub(super) const TUPLE3: u8 = 0x87;
pub(super) const NEWTRUE: u8 = 0x88;
pub(super) const NEWFALSE: u8 = 0x89;
pub(super) const LONG1: u8 = 0x8a;
pub(super) const LONG4: u8 = 0x8b;
pub(super) const SHORT_BINUNICODE: u8 = 0x8c;
pub(super) const BINUNICODE8: u8 = 0x8d;
pub(super) const MEMOIZE: u8 = 0x94;
pub(super) const FRAME: u8 = 0x95;

pub(super) const GLOBAL: u8 = b'c';
pub(super) const INST: u8 = b'i';
pub(super) const STACK_GLOBAL: u8 = 0x93;

/// Opcodes that import, call or look something up without giving its name, with their names.
const UNNAMED_IMPORTS: [(u8, &str); 10] = [
    (b'R', "REDUCE"),
    (b'b', "BUILD"),
    (b'o', "OBJ"),
    (0x81, "NEWOBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
    (b'Q', "BINPERSID"),
];

/// Opcodes of values that are harmless but that no snapshot has, with what they make.
const FOREIGN: [(u8, &str); 16] = [
    (b'I', "a number of protocol 0"),
    (b'L', "a number of protocol 0"),
    (b'F', "a number of protocol 0"),
    (b'S', "a string of protocol 0"),
    (b'V', "a string of protocol 0"),
    (b'p', "a memo entry of protocol 0"),
    (b'g', "a memo entry of protocol 0"),
    (b'B', "bytes"),
    (b'C', "bytes"),
    (0x8e, "bytes"),
    (0x8f, "a set"),
    (0x90, "a set"),
    (0x91, "a set"),
    (0x96, "a byte array"),
    (0x97, "an out-of-band buffer"),
    (0x98, "an out-of-band buffer"),
];

/// The name of an opcode that would run code in Python, if `op` is one.
pub(super) fn unnamed_import(op: u8) -> Option<&'static str> {
    find(&UNNAMED_IMPORTS, op)
}

/// What a harmless opcode makes that no snapshot has, if `op` is one.
pub(super) fn foreign(op: u8) -> Option<&'static str> {
    find(&FOREIGN, op)
}

fn find(table: &[(u8, &'static str)], op: u8) -> Option<&'static str> {
    table.iter().find(|(byte, _)| *byte == op).map(|(_, name)| *name)
}

//! Bytes as hostile as they come: each ends in a value or in one fault, never in a panic.

use super::*;
use crate::error::{Fault, Place};

fn read(bytes: &[u8]) -> Result<(Heap, Value), Fault> {
    let mut input = Input::new(Box::new(bytes), bytes.len() as u64);
    read_pickle(&mut input)
}

fn check(body: &[u8], expected: Value) {
    let bytes = [b"\x80\x04", body, b"."].concat();
    assert_eq!(read(&bytes).expect("reads").1, expected, "{bytes:?}");
}

fn check_fault(body: &[u8], expected: &str) {
    let bytes = [b"\x80\x04", body].concat();
    let fault = read(&bytes).expect_err("does not read").in_file("f".as_ref()).to_string();
    assert!(fault.contains(expected), "{fault}");
    assert!(!fault.contains('\n'), "{fault}");
}

/// `{"a": [1, 300, -70000, 2**40], "b": (None, True, 1.5), "action": "x"}` and a few references.
const SAMPLE: &[u8] = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01M\x2c\x01\
J\x90\xee\xfe\xff\x8a\x06\x00\x00\x00\x00\x00\x01eX\x01\x00\x00\x00bq\x03N\x88G\x3f\xf8\x00\x00\x00\x00\x00\x00\x87h\x01h\x02u}(\
\x8c\x06action\x8c\x05alloc\x8c\x04sizeK\x05u\x86.";

#[test]
fn numbers() {
    check(b"K\xff", Value::Int(255));
    check(b"M\xff\xff", Value::Int(65535));
    check(b"J\xff\xff\xff\xff", Value::Int(-1));
    check(b"\x8a\x00", Value::Int(0));
    check(b"\x8a\x01\x80", Value::Int(-128));
    check(b"\x8a\x06\x00\x00\x00\x00\x00\x7f", Value::Int(0x7f00_0000_0000));
    check(b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", Value::Unsigned(u64::MAX));
    check(b"\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01", Value::Huge);
    check(b"\x8b\x02\x00\x00\x00\x00\x80", Value::Int(-32768));
    check(b"G\x3f\xf8\x00\x00\x00\x00\x00\x00", Value::Float(1.5));
}

#[test]
fn the_stack_works_as_in_python() {
    check(b"K\x01K\x020", Value::Int(1));
    check(b"K\x01(K\x02K\x031", Value::Int(1));
    check(b"K\x01(0", Value::Int(1));
    check(b"K\x072\x86\x940h\x000K\x05", Value::Int(5));
    check(b"K\x07r\xff\xff\xff\x7f0j\xff\xff\xff\x7f", Value::Int(7));
}

#[test]
fn the_sample_reads() {
    let (heap, root) = read(SAMPLE).expect("reads");
    let &[dict, entry] = heap.items(root).expect("a pair") else { panic!("a pair") };
    let list = heap.get(dict, "a").expect("has a");
    assert_eq!(heap.items(list).expect("a list").len(), 4);
    assert_eq!(heap.entry(entry).expect("an entry").size, 5);
    assert!(heap.pairs(entry).is_none());
}

#[test]
fn imports_are_refused_by_name() {
    check_fault(
        b"cos\nsystem\n(X\x02\x00\x00\x00lstR.",
        "imports a name (os.system): not a memory",
    );
    check_fault(
        b"\x8c\x05posix\x94\x8c\x06system\x94\x93.",
        "byte 19 imports a name (posix.system)",
    );
    check_fault(b"(ios\nsystem\n.", "(os.system)");
    check_fault(b"\x93.", "(?.?)");
    for opcode in b"RboPQ\x81\x92\x82\x83\x84" {
        check_fault(&[b')', b')', *opcode, 0, 0, 0, 0], "possibly hostile, not executed");
    }
}

#[test]
fn what_no_snapshot_holds_is_refused() {
    check_fault(b"I1\n.", "byte 2: a number of protocol 0");
    check_fault(b"C\x01a.", "byte 2: bytes");
    check_fault(b"\x8f.", "a set");
    check_fault(b"\xff.", "byte 2: unknown opcode 0xff");
    check_fault(b"N.N", "byte 4: more bytes follow");
    check_fault(b".", "takes a value where there is none");
    check_fault(b"Ne.", "ends a container that was not begun");
    check_fault(b"N(Ne.", "appends to what is not a list");
    check_fault(b"](N(e.", "appends to what is not a list");
    check_fault(b"}(Nu.", "a key without a value");
    check_fault(b"]Nu.", "not begun");
    check_fault(b"(Na.", "fills a container where there is none");
    check_fault(b"h\x05.", "memo place 5, which is empty");
    assert!(matches!(read(b"\x80\x06N."), Err(Fault::Malformed { place: Place::Byte(0), .. })));
    assert!(matches!(read(b"\x80\x01N."), Err(Fault::Malformed { .. })));
}

#[test]
fn lengths_beyond_the_file_are_refused() {
    check_fault(b"X\xff\xff\xff\xff", "4294967295 bytes, more than the file holds");
    check_fault(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "more than the file holds");
    check_fault(b"\x8d\x00\x00\x00\x00\x00\x01\x00\x00", "more than the file holds");
    check_fault(b"\x8b\xff\xff\xff\x7f", "more than the file holds");
    check_fault(b"\x95\xff\xff\xff\xff\xff\xff\xff\x7f", "more than the file holds");
    check_fault(b"\x8c\x05ab", "ends too early, after byte 6");
    // Where the length of the data is not known, as in gzip, nothing is allocated for it either.
    let mut input = Input::new(Box::new(&b"\x80\x04X\x00\x00\x00\x03ab"[..]), u64::MAX);
    assert!(matches!(read_pickle(&mut input), Err(Fault::Truncated { offset: 9 })));
    let mut input = Input::new(Box::new(&b"\x80\x04X\x00\x00\x00\x70ab"[..]), u64::MAX);
    assert!(matches!(read_pickle(&mut input), Err(Fault::TooLarge { .. })));
}

#[test]
fn a_memo_bomb_is_only_as_large_as_its_file() {
    // Level n is a list of level n - 1 ten times: 10^60 values if references were copied.
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for level in 0..60 {
        bytes.extend_from_slice(b"](");
        for _ in 0..10 {
            bytes.extend_from_slice(&[b'h', level]);
        }
        bytes.extend_from_slice(b"e\x94");
    }
    // The lower levels stay on the stack below the result, which Python does not mind either.
    bytes.push(b'.');
    let (heap, root) = read(&bytes).expect("reads");
    assert_eq!(heap.items(root).expect("a list").len(), 10);
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| [vec![b']'; depth], vec![b'a'; depth - 1]].concat();
    check(&nested(64), Value::List(0));
    check_fault(&[nested(65), vec![b'.']].concat(), "nest deeper than 64");
    check_fault(&[b'('; 65], "nest deeper than 64");
    check_fault(&[&b")"[..], &[0x85; 70]].concat(), "nest deeper than 64");
    // A list inside itself is legal and finite.
    check(b"]\x94h\x00a", Value::List(0));
}

#[test]
fn memory_stays_in_proportion() {
    // Each byte makes an empty list; a gzip of this is a thousandth as long.
    let mut bytes = b"\x80\x04(".to_vec();
    bytes.resize(12 << 20, b']');
    assert!(matches!(read(&bytes), Err(Fault::TooLarge { .. })));
    let mut bytes = b"\x80\x04(".to_vec();
    bytes.resize(17 << 20, b'N');
    assert!(matches!(read(&bytes), Err(Fault::TooLarge { .. })));
}

#[test]
fn a_cut_file_is_truncated_at_every_byte() {
    for len in 0..SAMPLE.len() {
        for most in [len as u64, u64::MAX] {
            let mut input = Input::new(Box::new(&SAMPLE[..len]), most);
            let fault = read_pickle(&mut input).expect_err("a part does not read");
            let Fault::Truncated { offset } = fault else { panic!("{len}: {fault:?}") };
            assert_eq!(offset, len as u64);
        }
    }
}

#[test]
fn changed_bytes_never_panic() {
    let mut seed = 1u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    for _ in 0..20_000 {
        let mut bytes = SAMPLE.to_vec();
        for _ in 0..=next() % 4 {
            let at = next() % bytes.len();
            bytes[at] = next().to_le_bytes()[0];
        }
        let _ = read(&bytes);
    }
}

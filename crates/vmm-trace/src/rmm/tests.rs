//! Logs of a few lines.

use super::*;
use crate::model::EventKind;
use EventKind::{Alloc, FreeCompleted, FreeRequested, Oom};

fn read(text: &str) -> Result<DeviceTrace, Fault> {
    let mut devices = read_rmm(text.as_bytes())?;
    Ok(devices.pop().expect("the log has rows").0)
}

fn check(rows: &str, expected: &[(u64, EventKind)]) -> DeviceTrace {
    let device = read(&format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}")).expect("reads");
    let events: Vec<_> = device.events.iter().map(|event| (event.time_us, event.kind)).collect();
    assert_eq!(events, expected);
    assert!(device.census.is_complete(), "{:?}", device.census);
    device
}

fn check_fault(text: &str, expected: &str) {
    let fault = read(text).expect_err("does not read").in_file("f.csv".as_ref()).to_string();
    assert!(fault.contains(expected), "{fault}");
    assert!(fault.starts_with("f.csv: ") && !fault.contains('\n'), "{fault}");
}

fn alloc(id: u32, len: u64, stream: u16) -> EventKind {
    Alloc { id, len, stream, pool: 0 }
}

#[test]
fn threads_interleave_and_addresses_come_back() {
    let device = check(
        "1,10:00:00.000001,allocate,0x7f00,256,0\n\
         2,10:00:00.000003,allocate,0x8000,512,0x5560\n\
         2,10:00:00.000005,free,0x7f00,256,0\n\
         1,10:00:00.000004,allocate,0x7f00,128,0\n\
         1,10:00:01.000000,allocate failure,(nil),4096,0\n\
         1,10:00:02,deallocate,0x8000,512,0x5560\n",
        &[
            (0, alloc(0, 256, 0)),
            (2, alloc(1, 512, 1)),
            (4, FreeRequested { id: 0 }),
            (4, FreeCompleted { id: 0 }),
            (4, alloc(2, 128, 0)),
            (999_999, Oom { len: 4096, device_free: 0 }),
            (1_999_999, FreeRequested { id: 1 }),
            (1_999_999, FreeCompleted { id: 1 }),
        ],
    );
    assert_eq!(device.streams, [0, 0x5560]);
    assert_eq!(device.census.time_moved, 1);
    assert_eq!(device.peak_requested_bytes(), 768);
}

#[test]
fn the_clock_passes_midnight() {
    check(
        "1,23:59:59.999998,allocate,0x1,1,0\n\
         1,00:00:00.000001,allocate,0x2,1,0\n\
         2,23:59:59.999999,allocate,0x3,1,0\n\
         1,00:00:00.000002,allocate,0x4,1,0\n",
        &[(0, alloc(0, 1, 0)), (3, alloc(1, 1, 0)), (3, alloc(2, 1, 0)), (4, alloc(3, 1, 0))],
    );
}

#[test]
fn seconds_since_the_epoch() {
    check(
        "1,1653312345.25,allocate,0x1,1,0\n1,1653312346,allocate,0x2,1,0\n",
        &[(0, alloc(0, 1, 0)), (750_000, alloc(1, 1, 0))],
    );
}

#[test]
fn nothing_is_allocated_and_freed() {
    let device = check(
        "1,00:00:00,allocate,(nil),0,0\n1,00:00:00,free,(nil),0,0\n1,00:00:01,sync,,,\n",
        &[],
    );
    assert_eq!((device.census.skipped_zero_length, device.census.skipped_unknown), (2, 1));
}

#[test]
fn columns_in_another_order() {
    let text = "Action,Thread,Time,Size,Stream,Pointer\r\nallocate,1,0,64,0,0x10\r\n";
    assert_eq!(read(text).expect("reads").events[0].kind, alloc(0, 64, 0));
}

#[test]
fn faults_name_the_line() {
    check_fault("Thread,Time,Action,Address,Size,Stream\n", "column `Pointer` is missing");
    let head = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00,allocate,0x1,8,0\n";
    for (row, expected) in [
        ("1,00:00:00,free,0x2,8,0", "line 3: frees 0x2, which was neither allocated"),
        ("1,00:00:00,allocate,0x2,-8,0", "line 3: the size \"-8\""),
        ("1,00:00:00,allocate,0x2,281474976710657,0", "line 3: the size"),
        ("1,00:00:00,allocate,(nil),8,0", "line 3: allocates 8 bytes at no address"),
        ("1,noon,allocate,0x2,8,0", "line 3: the time \"noon\""),
        ("1,00:00", "line 3: has 2 fields, not 6"),
        ("1,00:00:00,allocate,somewhere,8,0", "line 3: the pointer \"somewhere\""),
    ] {
        check_fault(&format!("{head}{row}\n"), expected);
    }
    let twice = "1,00:00:00,free,0x1,8,0\n";
    check_fault(&format!("{head}{twice}{twice}"), "line 4: frees 0x1, which is free already");
}

//! Small snapshots, made here, for what the recorded traces do not show.

mod events;
mod faults;

use std::io;

use super::*;
use crate::model::EventKind::{
    self, Alloc, FreeCompleted, FreeRequested, Oom, SegmentAlloc, SegmentFree,
};
use crate::model::{BlockState, StartTensor};
use crate::pickle::{Input, read_pickle};
use crate::write::{Pickler, Protocol};

/// A value to be pickled.
#[derive(Debug, Clone)]
enum Plain {
    Int(i128),
    Str(&'static str),
    Bool(bool),
    Pair(u64, u64),
    List(Vec<Plain>),
    Dict(Vec<(&'static str, Plain)>),
}
use Plain::{Dict, Int, List, Pair, Str};

impl Plain {
    fn write(&self, p: &mut Pickler<Vec<u8>>) -> io::Result<()> {
        match self {
            Int(number) => p.int(*number),
            Str(text) => p.str(text),
            Plain::Bool(value) => p.bool(*value),
            Pair(a, b) => p.pair((*a, *b)),
            List(items) => p.list(items, |p, item| item.write(p)),
            Dict(items) => p.dict(|p| {
                items.iter().try_for_each(|(key, value)| {
                    p.str(key)?;
                    value.write(p)
                })
            }),
        }
    }

    fn with(self, key: &'static str, value: Plain) -> Plain {
        let Dict(mut items) = self else { panic!("only a dict has keys") };
        items.push((key, value));
        Dict(items)
    }
}

const S: u64 = 0x7000_0000;
const MIB: u64 = 1 << 20;

fn entry(action: &'static str, addr: u64, size: i128) -> Plain {
    let addr = ("addr", Int(addr.into()));
    Dict(vec![("action", Str(action)), addr, ("size", Int(size)), ("stream", Int(0))])
}

fn at(time: i128, entry: Plain) -> Plain {
    entry.with("time_us", Int(time))
}

fn block(address: u64, size: u64, requested: u64, state: &'static str) -> Plain {
    Dict(vec![
        ("address", Int(address.into())),
        ("size", Int(size.into())),
        ("requested_size", Int(requested.into())),
        ("state", Str(state)),
    ])
}

fn segment(address: u64, total: u64, blocks: Vec<Plain>) -> Plain {
    Dict(vec![
        ("device", Int(0)),
        ("address", Int(address.into())),
        ("total_size", Int(total.into())),
        ("stream", Int(0)),
        ("segment_type", Str("small")),
        ("blocks", List(blocks)),
    ])
}

fn free_segment(address: u64, total: u64) -> Plain {
    segment(address, total, vec![block(address, total, 0, "inactive")])
}

fn pickle(root: &Plain) -> Vec<u8> {
    let mut pickler = Pickler::new(Vec::new(), Protocol::Two).expect("a vector takes all");
    root.write(&mut pickler).expect("a vector takes all");
    pickler.finish().expect("a vector takes all")
}

fn read_bytes(bytes: &[u8]) -> Result<Vec<DeviceTrace>, Fault> {
    let mut input = Input::new(Box::new(bytes), bytes.len() as u64);
    let (mut heap, root) = read_pickle(&mut input)?;
    read_snapshot(&mut heap, root)
        .map(|contents| contents.devices.into_iter().map(|(device, _)| device).collect())
}

fn read_plain(root: &Plain) -> Result<Vec<DeviceTrace>, Fault> {
    read_bytes(&pickle(root))
}

fn snapshot(segments: Vec<Plain>, traces: Vec<Vec<Plain>>) -> Plain {
    let traces = traces.into_iter().map(List).collect();
    // Traces first: the order of keys must not matter.
    Dict(vec![("device_traces", List(traces)), ("segments", List(segments))])
}

fn check(segments: Vec<Plain>, trace: Vec<Plain>, expected: &[(u64, EventKind)]) -> DeviceTrace {
    let mut devices = read_plain(&snapshot(segments, vec![trace])).expect("reads");
    assert_eq!(devices.len(), 1);
    let device = devices.remove(0);
    let events: Vec<_> = device.events.iter().map(|event| (event.time_us, event.kind)).collect();
    assert_eq!(events, expected);
    let census = &device.census;
    assert!(census.is_complete(), "{census:?}");
    let made = census.made_requests + census.made_completions;
    assert_eq!(events.len() as u64, census.used + made);
    device
}

fn check_fault(segments: Vec<Plain>, trace: Vec<Plain>, expected: &str) {
    let fault = read_plain(&snapshot(segments, vec![trace])).expect_err("does not read");
    let text = fault.in_file("f".as_ref()).to_string();
    assert!(text.contains(expected) && !text.contains('\n'), "{text}");
}

fn alloc(id: u32, len: u64) -> EventKind {
    Alloc { id, len, stream: 0, pool: 0 }
}

//! Work on the mock: order, time, bytes, and the traces that a missing order leaves.

use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, StreamId};
use vmm_mock::{Access, MockDevice, MockOptions, Waits};

const A: StreamId = StreamId(1);
const B: StreamId = StreamId(2);

/// A device with two usable pages that show one frame.
fn aliased() -> (MockDevice, AddrRange, AddrRange) {
    let device = MockDevice::new(MockOptions::default());
    let len = device.properties().granule;
    let base = device.reserve(2 * len, len).unwrap();
    let frame = device.make_frame(len, FrameKind::Device).unwrap();
    let one = AddrRange { addr: base, len };
    let two = AddrRange { addr: base.offset(len), len };
    device.map(&[Mapping { range: one, frame }, Mapping { range: two, frame }], &[]).unwrap();
    device.set_access(AddrRange { addr: base, len: 2 * len }, &[]).unwrap();
    (device, one, two)
}

#[test]
fn work_changes_bytes_at_its_end() {
    let (device, one, two) = aliased();
    device.launch(A, 100, &[Access::write(one, 1)]).unwrap();
    device.advance(99);
    let early = device.launch_read(B, 0, AddrRange { len: 4, ..two }).unwrap();
    assert_ne!(device.take_read(early).unwrap(), [1; 4], "not yet");
    device.advance(1);
    let late = device.launch_read(B, 0, AddrRange { len: 4, ..two }).unwrap();
    assert_eq!(device.take_read(late).unwrap(), [1; 4]);
    assert_eq!(device.take_read(late), None, "once");
}

#[test]
fn an_order_that_is_missing_shows_as_wrong_bytes_and_as_a_race() {
    for ordered in [false, true] {
        let (device, one, two) = aliased();
        // B wants to write after A, and is quicker.
        device.launch(A, 1_000, &[Access::write(one, 1)]).unwrap();
        if ordered {
            let fence = device.record(A).unwrap();
            device.stream_wait(B, fence).unwrap();
        }
        device.launch(B, 10, &[Access::write(two, 2)]).unwrap();
        device.finish_all();
        device.launch_check(B, 0, two, 2).unwrap();
        assert_eq!(device.mismatches().is_empty(), ordered);
        assert_eq!(device.races().is_empty(), ordered);
        assert_eq!(device.violations(), []);
    }
}

#[test]
fn readers_do_not_race_and_neither_do_neighbours() {
    let (device, one, _) = aliased();
    device.launch(A, 10, &[Access::read(one)]).unwrap();
    device.launch(B, 10, &[Access::read(one)]).unwrap();
    assert_eq!(device.races(), []);
    let left = AddrRange { len: 512, ..one };
    let right = AddrRange { addr: one.addr.offset(512), len: 512 };
    device.finish_all();
    device.launch(A, 10, &[Access::write(left, 1)]).unwrap();
    device.launch(B, 10, &[Access::write(right, 1)]).unwrap();
    assert_eq!(device.races(), []);
    device.launch(B, 10, &[Access::read(left)]).unwrap();
    assert_eq!(device.races().len(), 1);
}

#[test]
fn a_mismatch_says_where_and_how_much() {
    let (device, one, _) = aliased();
    device.fill(one.addr, 5, one.len, A).unwrap();
    device.fill(one.addr.offset(100), 6, 10, A).unwrap();
    device.launch_check(A, 1, one, 5).unwrap();
    device.finish_all();
    let mismatch = device.mismatches()[0];
    assert_eq!((mismatch.first, mismatch.found), (one.addr.offset(100), 6));
    assert_eq!((mismatch.count, mismatch.expected, mismatch.stream), (10, 5, A));
}

#[test]
fn copies_carry_bytes_across_frames() {
    let device = MockDevice::new(MockOptions::default());
    let g = device.properties().granule;
    let base = device.reserve(4 * g, g).unwrap();
    for i in 0..4 {
        let frame = device.make_frame(g, FrameKind::Device).unwrap();
        let range = AddrRange { addr: base.offset(i * g), len: g };
        device.map(&[Mapping { range, frame }], &[]).unwrap();
        device.set_access(range, &[]).unwrap();
    }
    let data: Vec<u8> = (0..=255).collect();
    let (from, to) = (base.offset(g - 100), base.offset(3 * g - 7));
    device.launch_write(A, 10, from, &data).unwrap();
    device.copy(to, from, 256, A).unwrap();
    let read = device.launch_read(A, 10, AddrRange { addr: to, len: 256 }).unwrap();
    assert_eq!(device.take_read(read), None, "nothing runs before time passes");
    device.finish(A);
    assert_eq!(device.take_read(read).unwrap(), data);
}

#[test]
fn a_wait_takes_logical_time_and_is_counted() {
    let (device, _, _) = aliased();
    device.launch(A, 1_000, &[]).unwrap();
    let fence = device.record(A).unwrap();
    assert!(!device.wait(fence, Duration::ZERO).unwrap());
    assert_eq!(device.waits(), Waits::default());
    assert!(!device.wait(fence, Duration::from_nanos(400)).unwrap());
    assert_eq!(device.now(), 400);
    assert!(device.wait(fence, Duration::MAX).unwrap());
    assert_eq!(device.now(), 1_000);
    assert_eq!(device.waits(), Waits { count: 2, nanos: 1_000 });
    assert!(device.wait(fence, Duration::MAX).unwrap());
    assert_eq!(device.waits().count, 2, "a reached fence takes no wait");
}

#[test]
fn other_users_of_the_card_take_memory() {
    let device = MockDevice::new(MockOptions::with_memory(8 << 20));
    device.other_use(6 << 20);
    assert_eq!(device.memory_info().unwrap().free, 2 << 20);
    device.make_frame(2 << 20, FrameKind::Device).unwrap();
    assert!(device.make_frame(2 << 20, FrameKind::Device).is_err());
    device.make_frame(2 << 20, FrameKind::Host).unwrap();
    device.other_use(0);
    device.make_frame(2 << 20, FrameKind::Device).unwrap();
}

#[test]
fn every_call_is_counted_and_costs_what_it_costs() {
    use vmm_core::device::DeviceOp;
    let device = MockDevice::new(MockOptions::default());
    let start = device.cost();
    let len = 64 << 20;
    let base = device.reserve(2 * len, len).unwrap();
    let frame = || device.make_frame(len, FrameKind::Device).unwrap();
    let place =
        |i: u64, frame| Mapping { range: AddrRange { addr: base.offset(i * len), len }, frame };
    device.map(&[place(0, frame()), place(1, frame())], &[]).unwrap();
    device.set_access(AddrRange { addr: base, len: 2 * len }, &[]).unwrap();
    let spent = device.cost().since(&start);
    assert_eq!(spent.of(DeviceOp::Map).calls, 1);
    assert_eq!(spent.of(DeviceOp::Map).nanos, 2 * 1_300);
    assert_eq!(spent.of(DeviceOp::MakeFrame).nanos, 2 * 14_000);
    assert_eq!(spent.of(DeviceOp::SetAccess).nanos, 2 * 47_000);
    assert_eq!(spent.total().calls, device.total_calls());
    assert_eq!(spent.total().nanos, device.total_cost_ns());
    assert!(device.unmap(&[AddrRange { addr: DeviceAddr(0), len }], &[]).is_err());
    assert_eq!(device.cost().of(DeviceOp::Unmap).calls, 1, "refused calls count");
}

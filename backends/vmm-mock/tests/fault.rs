//! Faults hit the calls that they were meant for, and leave the device as it was.

use vmm_core::device::{
    AddrRange, DeviceErrorKind, DeviceOp, FrameKind, Mapping, VirtualMemoryDevice,
};
use vmm_core::units::StreamId;
use vmm_mock::{Faulty, MockDevice, MockOptions};

const S: StreamId = StreamId(1);

fn device() -> Faulty<MockDevice> {
    Faulty::new(MockDevice::new(MockOptions::default()))
}

#[test]
fn the_kth_call_fails_once() {
    let device = device();
    device.record(S).unwrap();
    device.fail(DeviceOp::Record, 2, DeviceErrorKind::Failed);
    let outcomes: Vec<bool> = (0..4).map(|_| device.record(S).is_ok()).collect();
    assert_eq!(outcomes, [true, false, true, true]);
    assert_eq!((device.calls(DeviceOp::Record), device.faults()), (5, 1));
    assert_eq!(device.reached(S).unwrap(), 4, "the failed call did not reach the device");
}

#[test]
fn from_the_kth_call_all_fail_until_cleared() {
    let device = device();
    device.fail_from(DeviceOp::MakeFrame, 2, DeviceErrorKind::OutOfMemory);
    let g = device.properties().granule;
    let make = || device.make_frame(g, FrameKind::Device).map_err(|e| e.kind);
    assert!(make().is_ok());
    assert_eq!(make(), Err(DeviceErrorKind::OutOfMemory));
    assert_eq!(make(), Err(DeviceErrorKind::OutOfMemory));
    device.clear();
    assert!(make().is_ok());
}

#[test]
fn a_batch_counts_its_frames_and_fails_whole() {
    let device = device();
    let g = device.properties().granule;
    let base = device.reserve(8 * g, g).unwrap();
    let mapping = |i: u64| Mapping {
        range: AddrRange { addr: base.offset(i * g), len: g },
        frame: device.make_frame(g, FrameKind::Device).unwrap(),
    };
    let batch: Vec<Mapping> = (0..5).map(mapping).collect();
    for k in 1..=5 {
        device.fail(DeviceOp::Map, k, DeviceErrorKind::Failed);
        let error = device.map(&batch, &[]).unwrap_err();
        assert_eq!((error.kind, error.len), (DeviceErrorKind::Failed, 5 * g));
        assert_eq!(device.inner().leftovers().mappings, []);
    }
    device.fail(DeviceOp::Map, 6, DeviceErrorKind::Failed);
    device.map(&batch, &[]).unwrap();
    assert!(device.map(&[mapping(5)], &[]).is_err(), "the sixth frame");
    assert_eq!(device.units(DeviceOp::Map), 31);
    device.fail(DeviceOp::Unmap, 2, DeviceErrorKind::Failed);
    let ranges: Vec<AddrRange> = batch.iter().map(|m| m.range).collect();
    assert!(device.unmap(&ranges, &[]).is_err());
    assert_eq!(device.inner().leftovers().mappings, batch);
    device.unmap(&ranges, &[]).unwrap();
}

#[test]
fn a_predicate_sees_kind_and_length() {
    let device = device();
    let g = device.properties().granule;
    device.fail_when(|call| {
        let rdma = call.op == DeviceOp::SetAccess && call.kind == Some(FrameKind::Rdma);
        rdma.then_some(DeviceErrorKind::NotSupported)
    });
    device.fail_when(move |call| {
        (call.op == DeviceOp::Reserve && call.len > 4 * g)
            .then_some(DeviceErrorKind::OutOfAddresses)
    });
    assert!(device.reserve(5 * g, g).is_err());
    let base = device.reserve(4 * g, g).unwrap();
    for (i, kind) in [(0, FrameKind::Device), (1, FrameKind::Rdma)] {
        let range = AddrRange { addr: base.offset(i * g), len: g };
        let frame = device.make_frame(g, kind).unwrap();
        device.map(&[Mapping { range, frame }], &[]).unwrap();
        assert_eq!(device.set_access(range, &[]).is_ok(), kind == FrameKind::Device);
    }
}

#[test]
fn the_log_shows_the_order_of_calls() {
    let device = device();
    device.start_log();
    device.record(S).unwrap();
    device.reached(S).unwrap();
    let ops: Vec<DeviceOp> = device.take_log().iter().map(|call| call.op).collect();
    assert_eq!(ops, [DeviceOp::Record, DeviceOp::Reached]);
    device.record(S).unwrap();
    assert_eq!(device.take_log(), []);
}

#[test]
fn two_rules_count_on_their_own() {
    let device = device();
    device.fail(DeviceOp::Record, 1, DeviceErrorKind::Failed);
    device.fail(DeviceOp::Record, 2, DeviceErrorKind::NotReady);
    let kinds = [0; 3].map(|_| device.record(S).map_err(|e| e.kind).err());
    assert_eq!(kinds, [Some(DeviceErrorKind::Failed), Some(DeviceErrorKind::NotReady), None]);
}

//! The mock is strict: each rule of the interface that a caller can break is broken here, once, and
//! must be refused with the operation, the place and a reason, and change nothing.

use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};
use vmm_mock::{Access, BIND_STREAM, MockDevice, MockOptions};

const S: StreamId = StreamId(1);
const T: StreamId = StreamId(2);

/// A device with one region of eight granules, the first two mapped by one frame and usable, the
/// third by another frame without access.
struct Scene {
    device: MockDevice,
    granule: u64,
    region: AddrRange,
    big: Mapping,
    bare: Mapping,
}

impl Scene {
    fn new() -> Self {
        Self::with(MockOptions::default())
    }

    fn with(options: MockOptions) -> Self {
        let device = MockDevice::new(options);
        let granule = device.properties().granule;
        let len = 8 * granule;
        let region = AddrRange { addr: device.reserve(len, granule).unwrap(), len };
        let place = |at: u64, count: u64| AddrRange {
            addr: region.addr.offset(at * granule),
            len: count * granule,
        };
        let frame = |count: u64| device.make_frame(count * granule, FrameKind::Device).unwrap();
        let big = Mapping { range: place(0, 2), frame: frame(2) };
        let bare = Mapping { range: place(2, 1), frame: frame(1) };
        let fence = device.map(&[big, bare], &[]).unwrap();
        device.set_access(big.range, &[]).unwrap();
        assert!(device.wait(fence, Duration::MAX).unwrap());
        Self { device, granule, region, big, bare }
    }

    fn granules(&self, at: u64, count: u64) -> AddrRange {
        let granule = self.granule;
        AddrRange { addr: self.region.addr.offset(at * granule), len: count * granule }
    }

    fn frame(&self, count: u64) -> FrameHandle {
        self.device.make_frame(count * self.granule, FrameKind::Device).unwrap()
    }

    /// The call is refused for the given reason, is remembered, and has changed nothing.
    #[track_caller]
    fn refused<T: std::fmt::Debug>(
        &self,
        op: DeviceOp,
        reason: &str,
        call: impl FnOnce(&MockDevice) -> DeviceResult<T>,
    ) {
        let before = (self.device.leftovers(), self.device.memory_info().unwrap());
        let known = self.device.violations().len();
        let error = call(&self.device).expect_err("refused");
        assert_eq!((error.op, error.kind), (op, DeviceErrorKind::Illegal), "{error}");
        assert!(error.detail.contains(reason), "{error}");
        assert_eq!(self.device.violations()[known..], [error]);
        assert_eq!(before, (self.device.leftovers(), self.device.memory_info().unwrap()));
    }
}

#[test]
fn reserve() {
    let s = Scene::new();
    let g = s.granule;
    s.refused(DeviceOp::Reserve, "length", |d| d.reserve(0, g));
    s.refused(DeviceOp::Reserve, "length", |d| d.reserve(g + 1, g));
    s.refused(DeviceOp::Reserve, "alignment", |d| d.reserve(g, 0));
    s.refused(DeviceOp::Reserve, "alignment", |d| d.reserve(g, g / 2));
    s.refused(DeviceOp::Reserve, "alignment", |d| d.reserve(g, 3 * g));
    let error = s.device.reserve(100 << 40, g).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::OutOfAddresses);
    let half = s.device.reserve(64 << 40, g).unwrap();
    let error = s.device.reserve(64 << 40, g).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::OutOfAddresses);
    s.device.free_region(half, 64 << 40).unwrap();
    s.device.reserve(64 << 40, g).unwrap();
}

#[test]
fn free_region() {
    let s = Scene::new();
    let (base, len, g) = (s.region.addr, s.region.len, s.granule);
    s.refused(DeviceOp::FreeRegion, "mapped", |d| d.free_region(base, len));
    s.device.unmap(&[s.big.range, s.bare.range], &[]).unwrap();
    s.refused(DeviceOp::FreeRegion, "whole", |d| d.free_region(base, g));
    s.refused(DeviceOp::FreeRegion, "no reservation", |d| d.free_region(base.offset(g), g));
    s.refused(DeviceOp::FreeRegion, "length", |d| d.free_region(base, 0));
    s.refused(DeviceOp::FreeRegion, "address", |d| d.free_region(base.offset(1), len));
    s.device.free_region(base, len).unwrap();
    s.refused(DeviceOp::FreeRegion, "no reservation", |d| d.free_region(base, len));
}

#[test]
fn make_frame() {
    let s = Scene::new();
    let g = s.granule;
    s.refused(DeviceOp::MakeFrame, "length", |d| d.make_frame(0, FrameKind::Device));
    s.refused(DeviceOp::MakeFrame, "length", |d| d.make_frame(g + 512, FrameKind::Device));
    let error = s.device.make_frame(17 << 30, FrameKind::Device).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::OutOfMemory);
    let only_device =
        MockDevice::new(MockOptions { other_granules: vec![], ..MockOptions::default() });
    let error = only_device.make_frame(g, FrameKind::Host).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NotSupported);
}

#[test]
fn release_frame() {
    let s = Scene::new();
    s.refused(DeviceOp::ReleaseFrame, "still mapped", |d| d.release_frame(s.big.frame));
    s.device.unmap(&[s.big.range], &[]).unwrap();
    s.device.release_frame(s.big.frame).unwrap();
    s.refused(DeviceOp::ReleaseFrame, "no such frame", |d| d.release_frame(s.big.frame));
}

#[test]
fn map() {
    let s = Scene::new();
    let (one, two) = (s.frame(1), s.frame(2));
    let g = s.granule;
    let at = |range, frame| Mapping { range, frame };
    let outside = AddrRange { addr: s.region.end(), len: g };
    let across = AddrRange { addr: s.granules(7, 1).addr, len: 2 * g };
    let crooked = AddrRange { addr: s.granules(4, 1).addr.offset(4096), len: g };
    for (reason, mapping) in [
        ("whole", at(s.granules(4, 1), two)),
        ("whole", at(s.granules(4, 2), one)),
        ("mapped already", at(s.granules(2, 1), one)),
        ("mapped already", at(s.granules(1, 2), two)),
        ("not reserved", at(outside, one)),
        ("not reserved", at(across, two)),
        ("address", at(crooked, one)),
        ("length", at(AddrRange { len: 0, ..s.granules(4, 1) }, one)),
        ("no such frame", at(s.granules(4, 1), FrameHandle(999))),
    ] {
        s.refused(DeviceOp::Map, reason, |d| d.map(&[mapping], &[]));
        // In a batch nothing of the good part stays.
        let good = at(s.granules(5, 1), one);
        s.refused(DeviceOp::Map, reason, |d| d.map(&[good, mapping], &[]));
    }
    let overlapping = [at(s.granules(4, 2), two), at(s.granules(5, 1), one)];
    s.refused(DeviceOp::Map, "mapped already", |d| d.map(&overlapping, &[]));
}

#[test]
fn aliases_without_the_capability() {
    let s = Scene::with(MockOptions::without_aliases());
    let again = Mapping { range: s.granules(4, 2), frame: s.big.frame };
    s.refused(DeviceOp::Map, "no aliases", |d| d.map(&[again], &[]));
}

#[test]
fn unmap() {
    let s = Scene::new();
    let crooked = AddrRange { addr: s.region.addr.offset(4096), len: s.granule };
    for (reason, range) in [
        ("part of a mapping", s.granules(0, 1)),
        ("part of a mapping", s.granules(1, 1)),
        ("part of a mapping", s.granules(1, 2)),
        ("not mapped", s.granules(2, 2)),
        ("not mapped", s.granules(3, 1)),
        ("address", crooked),
        ("length", AddrRange { len: 0, ..s.region }),
    ] {
        s.refused(DeviceOp::Unmap, reason, |d| d.unmap(&[range], &[]));
    }
    let (big, bare) = (s.big.range, s.bare.range);
    s.refused(DeviceOp::Unmap, "overlap", |d| d.unmap(&[big, big], &[]));
    s.refused(DeviceOp::Unmap, "not mapped", |d| d.unmap(&[big, s.granules(3, 1)], &[]));
    s.device.unmap(&[AddrRange { addr: big.addr, len: big.len + bare.len }], &[]).unwrap();
    s.refused(DeviceOp::Unmap, "not mapped", |d| d.unmap(&[big], &[]));
}

#[test]
fn unmap_under_queued_work() {
    let s = Scene::new();
    let range = s.big.range;
    s.device.launch(S, 1_000, &[Access::read(range)]).unwrap();
    let fence = s.device.record(S).unwrap();
    s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[range], &[]));
    s.refused(DeviceOp::Unmap, "not reached", |d| d.unmap(&[range], &[fence]));
    s.device.advance(999);
    s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[range], &[]));
    s.device.advance(1);
    s.device.unmap(&[range], &[fence]).unwrap();
}

#[test]
fn a_stale_alias_can_go_while_the_other_is_used() {
    let s = Scene::new();
    let alias = Mapping { range: s.granules(4, 2), frame: s.big.frame };
    s.device.map(&[alias], &[]).unwrap();
    s.device.set_access(alias.range, &[]).unwrap();
    s.device.launch(S, 1_000, &[Access::write(alias.range, 1)]).unwrap();
    s.device.unmap(&[s.big.range], &[]).unwrap();
    s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[alias.range], &[]));
}

#[test]
fn set_access() {
    let s = Scene::new();
    for (reason, range) in [
        ("part of a mapping", s.granules(0, 1)),
        ("part of a mapping", s.granules(1, 1)),
        ("not mapped", s.granules(3, 1)),
        ("not mapped", s.granules(2, 2)),
        ("length", AddrRange { len: 0, ..s.region }),
    ] {
        s.refused(DeviceOp::SetAccess, reason, |d| d.set_access(range, &[]));
    }
    let queued = MockDevice::new(MockOptions::queued_binds());
    let range = AddrRange { addr: DeviceAddr(0), len: queued.properties().granule };
    let error = queued.set_access(range, &[DeviceOrdinal(1)]).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NotSupported);
}

#[test]
fn use_of_memory() {
    let s = Scene::new();
    let (usable, bare, nothing) = (s.big.range, s.bare.range, s.granules(3, 1));
    let both = AddrRange { addr: usable.addr, len: usable.len + bare.len };
    for (reason, range) in [("access", bare), ("access", both), ("not mapped", nothing)] {
        let AddrRange { addr, len } = range;
        s.refused(DeviceOp::Fill, reason, |d| d.fill(addr, 0, len, S));
        s.refused(DeviceOp::Fill, reason, |d| d.launch(S, 1, &[Access::write(range, 0)]));
        s.refused(DeviceOp::Copy, reason, |d| d.launch(S, 1, &[Access::read(range)]));
        s.refused(DeviceOp::Copy, reason, |d| d.launch_read(S, 1, range));
    }
    for (reason, AddrRange { addr, len }) in [("access", bare), ("not mapped", nothing)] {
        s.refused(DeviceOp::Copy, reason, |d| d.copy(usable.addr, addr, len, S));
        s.refused(DeviceOp::Copy, reason, |d| d.copy(addr, usable.addr, len, S));
    }
    let beyond = AddrRange { addr: DeviceAddr(u64::MAX), len: 2 };
    s.refused(DeviceOp::Fill, "2^64", |d| d.fill(beyond.addr, 0, beyond.len, S));
    s.device.unmap(&[usable], &[]).unwrap();
    s.refused(DeviceOp::Fill, "not mapped", |d| d.fill(usable.addr, 0, 1, S));
}

#[test]
fn overlapping_copies() {
    let s = Scene::new();
    let addr = s.big.range.addr;
    s.refused(DeviceOp::Copy, "overlap", |d| d.copy(addr.offset(100), addr, 101, S));
    s.device.copy(addr.offset(100), addr, 100, S).unwrap();
    let alias = Mapping { range: s.granules(4, 2), frame: s.big.frame };
    s.device.map(&[alias], &[]).unwrap();
    s.device.set_access(alias.range, &[]).unwrap();
    s.refused(DeviceOp::Copy, "overlap", |d| d.copy(alias.range.addr, addr, 1, S));
}

#[test]
fn fences() {
    let s = Scene::new();
    let fence = s.device.record(S).unwrap();
    let unknown = Fence { stream: S, value: fence.value + 1 };
    let nowhere = Fence { stream: StreamId(77), value: 1 };
    for fence in [unknown, nowhere] {
        s.refused(DeviceOp::Wait, "never recorded", |d| d.wait(fence, Duration::ZERO));
        s.refused(DeviceOp::StreamWait, "never recorded", |d| d.stream_wait(T, fence));
        s.refused(DeviceOp::Unmap, "never recorded", |d| d.unmap(&[s.big.range], &[fence]));
        let mapping = Mapping { range: s.granules(4, 2), frame: s.big.frame };
        s.refused(DeviceOp::Map, "never recorded", |d| d.map(&[mapping], &[fence]));
    }
    s.device.launch(S, 10, &[]).unwrap();
    let unreached = s.device.record(S).unwrap();
    let mapping = Mapping { range: s.granules(4, 2), frame: s.big.frame };
    s.refused(DeviceOp::Map, "not reached", |d| d.map(&[mapping], &[unreached]));
}

#[test]
fn destroyed_streams() {
    let s = Scene::new();
    let stream = s.device.make_stream();
    let fence = s.device.record(stream).unwrap();
    s.device.destroy_stream(stream);
    s.refused(DeviceOp::Record, "destroyed", |d| d.record(stream));
    s.refused(DeviceOp::StreamWait, "destroyed", |d| d.stream_wait(stream, Fence::REACHED));
    s.refused(DeviceOp::IsCapturing, "destroyed", |d| d.is_capturing(stream));
    s.refused(DeviceOp::Fill, "destroyed", |d| d.fill(s.big.range.addr, 0, 1, stream));
    assert!(s.device.wait(fence, Duration::ZERO).unwrap(), "its fences outlive it");
    assert_eq!(s.device.reached(stream).unwrap(), fence.value);
    let other = s.device.make_stream();
    s.device.stream_wait(other, fence).unwrap();
    s.refused(DeviceOp::Record, "no such stream", |d| d.record(StreamId(7_777)));
    s.refused(DeviceOp::Record, "belongs", |d| d.record(BIND_STREAM));
}

#[test]
fn calls_during_a_capture() {
    let s = Scene::new();
    let fence = s.device.record(S).unwrap();
    let other = s.device.record(T).unwrap();
    s.device.unmap(&[s.bare.range], &[]).unwrap();
    s.device.begin_capture(S);
    assert!(s.device.is_capturing(S).unwrap() && !s.device.is_capturing(T).unwrap());
    let zero = Duration::ZERO;
    s.refused(DeviceOp::Record, "capturing", |d| d.record(S));
    s.refused(DeviceOp::Reached, "capturing", |d| d.reached(S));
    s.refused(DeviceOp::Wait, "capturing", |d| d.wait(fence, zero));
    s.refused(DeviceOp::StreamWait, "capturing", |d| d.stream_wait(S, other));
    s.refused(DeviceOp::StreamWait, "capturing", |d| d.stream_wait(T, fence));
    // The rest stays legal.
    let addr = s.big.range.addr;
    s.device.fill(addr, 9, 512, S).unwrap();
    s.device.record(T).unwrap();
    assert_eq!(s.device.reached(T).unwrap(), 2);
    s.device.map(&[s.bare], &[]).unwrap();
    s.device.end_capture(S);
    s.device.finish_all();
    s.device.launch_check(S, 0, AddrRange { addr, len: 512 }, 9).unwrap();
    assert_eq!(s.device.mismatches().len(), 1, "captured work does not run");
    s.device.unmap(&[s.bare.range], &[]).unwrap();
}

#[test]
fn launches_of_a_graph_whose_memory_has_moved() {
    let s = Scene::new();
    let range = s.big.range;
    s.device.begin_capture(S);
    s.device.launch(S, 1_000, &[Access::write(range, 5)]).unwrap();
    s.device.launch_check(S, 1_000, range, 5).unwrap();
    let graph = s.device.end_capture(S);
    for stream in [T, S] {
        s.device.launch_graph(&graph, stream).unwrap();
        s.device.finish_all();
        s.device.launch_check(stream, 0, range, 5).unwrap();
        s.device.fill(range.addr, 6, range.len, stream).unwrap();
        s.device.finish_all();
    }
    assert_eq!((s.device.mismatches().len(), s.device.races().len()), (0, 0));
    s.device.unmap(&[range], &[]).unwrap();
    s.refused(DeviceOp::Fill, "not mapped", |d| d.launch_graph(&graph, T));
    let frame = s.device.make_frame(range.len, FrameKind::Device).unwrap();
    s.device.map(&[Mapping { range, frame }], &[]).unwrap();
    s.device.set_access(range, &[]).unwrap();
    s.refused(DeviceOp::Fill, "has moved", |d| d.launch_graph(&graph, T));
    s.device.unmap(&[range], &[]).unwrap();
    s.device.map(&[s.big], &[]).unwrap();
    s.device.set_access(range, &[]).unwrap();
    s.device.launch_graph(&graph, T).unwrap();
}

#[test]
fn a_device_that_cannot_map_says_so() {
    let device = MockDevice::new(MockOptions::without_remapping());
    let g = device.properties().granule;
    let range = AddrRange { addr: DeviceAddr(g), len: g };
    let kinds = [
        device.reserve(g, g).unwrap_err().kind,
        device.map(&[], &[]).unwrap_err().kind,
        device.unmap(&[], &[]).unwrap_err().kind,
        device.set_access(range, &[]).unwrap_err().kind,
        device.free_region(range.addr, g).unwrap_err().kind,
    ];
    assert_eq!(kinds, [DeviceErrorKind::NotSupported; 5]);
    assert_eq!(device.violations(), [], "not a broken rule");
}

#[test]
fn a_plain_frame_goes_when_the_whole_device_is_done() {
    let device = MockDevice::new(MockOptions::without_remapping());
    let len = device.properties().granule;
    let [used, idle] = [0; 2].map(|_| device.make_frame(len, FrameKind::Device).unwrap());
    let addr = device.fixed_addr(used).unwrap();
    device.launch(S, 1_000, &[Access::write(AddrRange { addr, len }, 1)]).unwrap();
    let error = device.release_frame(used).unwrap_err();
    assert_eq!((error.kind, error.op), (DeviceErrorKind::Illegal, DeviceOp::ReleaseFrame));
    assert_eq!(device.now(), 0, "a refusal does not wait");
    // The other one is idle, and its release waits all the same.
    device.release_frame(idle).unwrap();
    assert_eq!((device.now(), device.waits().count, device.waits().nanos), (1_000, 1, 1_000));
    device.release_frame(used).unwrap();
    assert_eq!(device.waits().count, 1);
    assert!(device.release_frame(used).is_err());
    assert_eq!(device.fixed_addr(used), None);
    assert!(device.fill(addr, 0, 1, S).is_err(), "its address is gone");
    assert!(device.leftovers().is_empty());
}

#[test]
fn use_by_peers() {
    let s = Scene::new();
    let (peer, other) = (DeviceOrdinal(1), DeviceOrdinal(2));
    let range = s.big.range;
    let part = AddrRange { len: range.len + 1, ..range };
    let by = |who, range| move |d: &MockDevice| d.launch_as_peer(who, S, 1, &[Access::read(range)]);
    s.refused(DeviceOp::Copy, "by a peer without access", by(peer, range));
    s.device.set_access(range, &[peer]).unwrap();
    by(peer, range)(&s.device).unwrap();
    s.refused(DeviceOp::Copy, "by a peer without access", by(other, range));
    s.refused(DeviceOp::Copy, "by a peer without access", by(peer, part));
    s.refused(DeviceOp::Copy, "by a peer without access", |d| {
        d.launch_read_as_peer(other, S, 1, range)
    });
    // Each peer costs once for each mapping.
    let cost = || s.device.cost().of(DeviceOp::SetAccess).nanos;
    let before = cost();
    s.device.set_access(range, &[peer, other]).unwrap();
    let with_one_more = cost() - before;
    s.device.set_access(range, &[peer, other]).unwrap();
    let with_none = cost() - before - with_one_more;
    assert!(with_one_more > 10 * with_none, "{with_one_more} and {with_none}");
    // A mapping that is gone has taken its access with it.
    s.device.finish_all();
    s.device.unmap(&[range], &[]).unwrap();
    s.device.map(&[s.big], &[]).unwrap();
    s.device.set_access(range, &[]).unwrap();
    assert!(!s.device.peer_has_access(peer, range));
}

mod queued_binds {
    use super::*;

    #[test]
    fn use_before_the_bind_is_refused() {
        let s = Scene::with(MockOptions::queued_binds());
        let mapping = Mapping { range: s.granules(4, 1), frame: s.frame(1) };
        let bound = s.device.map(&[mapping], &[]).unwrap();
        s.device.set_access(mapping.range, &[]).unwrap();
        let AddrRange { addr, len } = mapping.range;
        s.refused(DeviceOp::Fill, "not ordered after its bind", |d| d.fill(addr, 1, len, S));
        s.device.stream_wait(S, bound).unwrap();
        s.device.fill(addr, 1, len, S).unwrap();
        s.refused(DeviceOp::Fill, "not ordered after its bind", |d| d.fill(addr, 1, len, T));
        s.device.finish_all();
        s.device.fill(addr, 1, len, T).unwrap();
    }

    #[test]
    fn unbind_must_come_after_the_use() {
        let s = Scene::with(MockOptions::queued_binds());
        let range = s.big.range;
        s.device.launch(S, 1_000_000, &[Access::write(range, 1)]).unwrap();
        s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[range], &[]));
        let elsewhere = s.device.record(T).unwrap();
        s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[range], &[elsewhere]));
        let behind = s.device.record(S).unwrap();
        s.device.launch(S, 1, &[Access::read(range)]).unwrap();
        s.refused(DeviceOp::Unmap, "still uses", |d| d.unmap(&[range], &[behind]));
        let behind = s.device.record(S).unwrap();
        s.device.stream_wait(T, behind).unwrap();
        let through_another = s.device.record(T).unwrap();
        let unbound = s.device.unmap(&[range], &[through_another]).unwrap();
        assert_eq!(unbound.stream, BIND_STREAM);
    }

    #[test]
    fn nothing_is_freed_before_the_unbind_is_done() {
        let s = Scene::with(MockOptions::queued_binds());
        let (base, len) = (s.region.addr, s.region.len);
        let fence = s.device.unmap(&[s.big.range, s.bare.range], &[]).unwrap();
        s.refused(DeviceOp::ReleaseFrame, "not done", |d| d.release_frame(s.big.frame));
        s.refused(DeviceOp::FreeRegion, "not done", |d| d.free_region(base, len));
        assert!(s.device.wait(fence, Duration::MAX).unwrap());
        s.device.release_frame(s.big.frame).unwrap();
        s.device.free_region(base, len).unwrap();
    }
}

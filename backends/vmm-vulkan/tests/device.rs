//! What the suite does not look at: the driver's own waits, parts of users, limits of sparse buffers.

mod common;

use ash::vk;
use common::{device, expect_silence, options};
use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{
    AddrRange, DeviceErrorKind, DeviceResult, FrameKind, Mapping, VirtualMemoryDevice,
};
use vmm_core::units::{DeviceAddr, Fence, StreamId};
use vmm_vulkan::{
    BIND_STREAM, Contents, Fresh, Gate, Spinner, Submit, VulkanDevice, VulkanOptions, ash,
};

/// Long enough to notice that something does not happen.
const SHORT: Duration = Duration::from_millis(2);
/// Longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

/// The granule of these tests, in bytes, so that they bind few pieces on every driver.
const GRANULE: u64 = 64 << 10;

fn coarse() -> VulkanOptions {
    VulkanOptions { granule: GRANULE, ..options() }
}

/// Reserves and maps frames of one granule each, one behind the other, and waits for that.
fn mapped(device: &VulkanDevice, count: u64) -> DeviceResult<Vec<Mapping>> {
    let granule = device.properties().granule;
    let base = device.reserve(count * granule, granule)?;
    let mut batch = Vec::new();
    for i in 0..count {
        let range = AddrRange { addr: base.offset(i * granule), len: granule };
        batch.push(Mapping { range, frame: device.make_frame(granule, FrameKind::Device)? });
    }
    let bound = device.map(&batch, &[])?;
    assert!(device.wait(bound, LONG)?);
    Ok(batch)
}

fn range_of(mapped: &[Mapping]) -> AddrRange {
    let len = mapped.iter().map(|mapping| mapping.range.len).sum();
    AddrRange { addr: mapped[0].range.addr, len }
}

/// Unmaps, releases and frees what `mapped` has made, once everything is done.
fn put_away(device: &VulkanDevice, mapped: &[Mapping]) -> DeviceResult<()> {
    device.synchronize()?;
    let range = range_of(mapped);
    let gone = device.unmap(&[range], &[])?;
    assert!(device.wait(gone, LONG)?);
    for mapping in mapped {
        device.release_frame(mapping.frame)?;
    }
    device.free_region(range.addr, range.len)
}

fn bytes(device: &VulkanDevice, stream: StreamId, range: AddrRange) -> Vec<u8> {
    device.read_bytes(stream, range).expect("a mapped range")
}

fn all_are(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

/// A semaphore of the user's that the host moves.
struct Timeline<'a> {
    device: &'a VulkanDevice,
    semaphore: vk::Semaphore,
}

impl<'a> Timeline<'a> {
    fn new(device: &'a VulkanDevice) -> Self {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: `info` is valid and the device has timeline semaphores.
        let semaphore = unsafe { device.device().create_semaphore(&info, None) };
        Self { device, semaphore: semaphore.expect("a semaphore") }
    }

    fn signal(&self, value: u64) {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.semaphore).value(value);
        // SAFETY: the semaphore lives and nothing else signals it.
        unsafe { self.device.device().signal_semaphore(&info) }.expect("a signal");
    }

    fn value(&self) -> u64 {
        // SAFETY: the semaphore lives.
        unsafe { self.device.device().get_semaphore_counter_value(self.semaphore) }
            .expect("a value")
    }
}

impl Drop for Timeline<'_> {
    fn drop(&mut self) {
        // SAFETY: no other thread uses the device now; nothing uses the semaphore when it is idle.
        unsafe {
            self.device.device().device_wait_idle().expect("nothing is held");
            self.device.device().destroy_semaphore(self.semaphore, None);
        }
    }
}

/// The order of `sparse-order`, kept by the driver's semaphores alone: everything is submitted while
/// the first piece of work cannot begin.
#[test]
fn the_driver_orders_binds_and_work_in_both_directions() {
    let Some(device) = device(coarse()) else { return };
    let start = Timeline::new(&device);
    let (stream, other) = (device.make_stream().unwrap(), device.make_stream().unwrap());
    let old = mapped(&device, 1).unwrap();
    let range = old[0].range;
    let first = Submit { waits: &[(start.semaphore, 1)], ..Submit::default() };
    // SAFETY: there are no command buffers, and the semaphore is signalled by the host.
    unsafe { device.submit(stream, &first) }.unwrap();
    device.fill(range.addr, 1, range.len, stream).unwrap();
    let used = device.record(stream).unwrap();
    // Submit before bind: the frame leaves only when the work is done.
    let unbound = device.unmap(&[range], &[used]).unwrap();
    assert_eq!(unbound.stream, BIND_STREAM);
    let next = device.make_frame(range.len, FrameKind::Device).unwrap();
    let bound = device.map(&[Mapping { range, frame: next }], &[unbound]).unwrap();
    // Bind before submit, on another stream.
    device.stream_wait(other, bound).unwrap();
    device.fill(range.addr, 2, range.len, other).unwrap();
    let end = device.record(other).unwrap();
    assert!(!device.wait(used, SHORT).unwrap());
    for fence in [unbound, bound, end] {
        assert!(!device.wait(fence, Duration::ZERO).unwrap(), "{fence:?}");
    }
    start.signal(1);
    assert!(device.wait(end, LONG).unwrap());
    assert!(all_are(&bytes(&device, other, range), 2));
    // What the first work wrote is in the first frame.
    let granule = range.len;
    let elsewhere = AddrRange { addr: device.reserve(granule, granule).unwrap(), len: granule };
    let moved = device.map(&[Mapping { range: elsewhere, frame: old[0].frame }], &[]).unwrap();
    device.stream_wait(stream, moved).unwrap();
    assert!(all_are(&bytes(&device, stream, elsewhere), 1));
    let gone = device.unmap(&[elsewhere], &[]).unwrap();
    assert!(device.wait(gone, LONG).unwrap());
    device.release_frame(old[0].frame).unwrap();
    device.free_region(elsewhere.addr, granule).unwrap();
    put_away(&device, &[Mapping { range, frame: next }]).unwrap();
    drop(start);
    expect_silence(&device);
}

/// A frame and a region may be given back while their unbind waits. They stay until it is done.
#[test]
fn memory_stays_until_its_unbind_is_done() {
    let Some(device) = device(coarse()) else { return };
    let gate = Gate::new(&device).unwrap();
    let stream = device.make_stream().unwrap();
    let before = device.memory_info().unwrap().free;
    let old = mapped(&device, 4).unwrap();
    let range = range_of(&old);
    gate.hold(stream).unwrap();
    device.fill(range.addr, 1, range.len, stream).unwrap();
    let used = device.record(stream).unwrap();
    let unbound = device.unmap(&[range], &[used]).unwrap();
    for mapping in &old {
        device.release_frame(mapping.frame).unwrap();
    }
    device.free_region(range.addr, range.len).unwrap();
    assert_eq!(device.living(), vmm_vulkan::Living::default());
    assert!(!device.wait(unbound, SHORT).unwrap());
    if !device.is_gpu() {
        assert_eq!(device.memory_info().unwrap().free, before - range.len, "still there");
    }
    gate.open().unwrap();
    assert!(device.wait(unbound, LONG).unwrap());
    // The next call that deals with memory lets go of it.
    let frame = device.make_frame(GRANULE, FrameKind::Device).unwrap();
    device.release_frame(frame).unwrap();
    if !device.is_gpu() {
        assert_eq!(device.memory_info().unwrap().free, before);
    }
    expect_silence(&device);
}

/// What is bound is not disturbed by work that goes beyond it. What such work reads is open, but
/// where the driver promises zeros.
#[test]
fn addresses_without_memory_disturb_nobody() {
    let Some(device) = device(coarse()) else { return };
    let stream = device.make_stream().unwrap();
    let all = mapped(&device, 3).unwrap();
    device.fill(all[0].range.addr, 1, range_of(&all).len, stream).unwrap();
    device.synchronize().unwrap();
    let gone = device.unmap(&[all[1].range], &[]).unwrap();
    device.stream_wait(stream, gone).unwrap();
    device.fill(all[1].range.addr, 9, GRANULE, stream).unwrap();
    assert!(all_are(&bytes(&device, stream, all[0].range), 1));
    assert!(all_are(&bytes(&device, stream, all[2].range), 1));
    let between = bytes(&device, stream, all[1].range);
    assert!(!device.strict_residency() || all_are(&between, 0));
    // The frame did not see it.
    let back = device.map(&[all[1]], &[]).unwrap();
    device.stream_wait(stream, back).unwrap();
    assert!(all_are(&bytes(&device, stream, all[1].range), 1));
    put_away(&device, &all).unwrap();
    expect_silence(&device);
}

/// Binds in one part of a region while work in another is recorded, on another thread.
#[test]
fn binds_and_work_of_one_region_do_not_disturb_each_other() {
    let Some(device) = device(coarse()) else { return };
    let all = mapped(&device, 4).unwrap();
    let (still, moving) = (&all[..2], &all[2..]);
    // In another region: old validation layers take neighbours that were bound as one for the same.
    let copy = mapped(&device, 2).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                let gone = device.unmap(&[range_of(moving)], &[]).unwrap();
                device.map(moving, &[gone]).unwrap();
            }
        });
        let stream = device.make_stream().unwrap();
        for round in 0..100 {
            device.fill(still[0].range.addr, round, 2 * GRANULE, stream).unwrap();
            let (to, from) = (copy[0].range.addr, still[0].range.addr);
            device.copy(to, from, 2 * GRANULE, stream).unwrap();
        }
        assert!(all_are(&bytes(&device, stream, range_of(&copy)), 99));
    });
    put_away(&device, &all).unwrap();
    put_away(&device, &copy).unwrap();
    expect_silence(&device);
}

/// Four thousand pieces in no order, each at its place; and the same with neighbours that are joined.
#[test]
fn large_batches_are_bound_whole() {
    const COUNT: u64 = 4096;
    let Some(device) = device(options()) else { return };
    let granule = device.properties().granule;
    let contents = Contents::new(&device).unwrap();
    let stream = device.make_stream().unwrap();
    let (base, len) = (device.reserve(COUNT * granule, granule).unwrap(), COUNT * granule);
    let frames: Vec<_> =
        (0..COUNT).map(|_| device.make_frame(granule, FrameKind::Device).unwrap()).collect();
    let whole = AddrRange { addr: base, len };
    for step in [1, 5, 2731] {
        let mapping = |i: u64| {
            let addr = base.offset(i * granule);
            let frame = frames[usize::try_from(i * step % COUNT).unwrap()];
            Mapping { range: AddrRange { addr, len: granule }, frame }
        };
        let batch: Vec<_> = (0..COUNT).rev().map(mapping).collect();
        let bound = device.map(&batch, &[]).unwrap();
        device.stream_wait(stream, bound).unwrap();
        // Two frames at one place, or one at two, would show.
        contents.fill(whole, step, stream).unwrap();
        contents.check(whole, step, stream).unwrap();
        let used = device.record(stream).unwrap();
        let unbound = device.unmap(&[whole], &[used]).unwrap();
        assert!(device.wait(unbound, LONG).unwrap());
        assert_eq!(contents.mismatches().count, 0, "step {step}");
    }
    for frame in frames {
        device.release_frame(frame).unwrap();
    }
    device.free_region(base, len).unwrap();
    expect_silence(&device);
}

#[test]
fn checks_find_single_bytes() {
    let Some(device) = device(coarse()) else { return };
    let contents = Contents::new(&device).unwrap();
    let stream = device.make_stream().unwrap();
    let all = mapped(&device, 2).unwrap();
    let whole = range_of(&all);
    // A length that ends within a word, and what lies behind it.
    let range = AddrRange { len: whole.len - 512 - 1, ..whole };
    device.fill(whole.addr, 0x5A, whole.len, stream).unwrap();
    contents.fill(range, 7, stream).unwrap();
    contents.check(range, 7, stream).unwrap();
    let behind = AddrRange { addr: range.end(), len: 513 };
    assert!(all_are(&bytes(&device, stream, behind), 0x5A));
    assert_eq!(contents.mismatches(), vmm_vulkan::Mismatches::default());
    for at in [0, 5, GRANULE - 1, GRANULE, range.len - 1] {
        let addr = range.addr.offset(at);
        let right = bytes(&device, stream, AddrRange { addr, len: 1 })[0];
        device.fill(addr, !right, 1, stream).unwrap();
        contents.check(range, 7, stream).unwrap();
        device.synchronize_stream(stream).unwrap();
        let found = contents.mismatches();
        assert_eq!((found.count, found.first), (1, Some(addr)), "byte {at}");
        device.fill(addr, right, 1, stream).unwrap();
    }
    // Another seed is another pattern.
    contents.check(range, 8, stream).unwrap();
    contents.check_byte(AddrRange { addr: behind.addr.offset(1), len: 512 }, 0x5A, stream).unwrap();
    device.synchronize_stream(stream).unwrap();
    assert!(contents.mismatches().count > range.len / 2);
    let crooked = AddrRange { addr: DeviceAddr(range.addr.0 + 1), len: 4 };
    let refused = contents.fill(crooked, 1, stream).unwrap_err();
    assert_eq!(refused.kind, DeviceErrorKind::Illegal);
    put_away(&device, &all).unwrap();
    expect_silence(&device);
}

#[test]
fn fresh_memory_holds_what_was_asked_for() {
    for (fresh, byte) in [(Fresh::Zero, 0), (Fresh::Poison(0xC3), 0xC3)] {
        let Some(device) = device(VulkanOptions { fresh, ..coarse() }) else { return };
        let stream = device.make_stream().unwrap();
        for _ in 0..3 {
            let all = mapped(&device, 3).unwrap();
            let whole = range_of(&all);
            assert!(all_are(&bytes(&device, stream, whole), byte), "{fresh:?}");
            // Left for the next, if it gets the same memory.
            device.fill(whole.addr, 0x11, whole.len, stream).unwrap();
            put_away(&device, &all).unwrap();
        }
        // Released before it was ever mapped, and before it was filled.
        let frame = device.make_frame(64 * GRANULE, FrameKind::Device).unwrap();
        device.release_frame(frame).unwrap();
        expect_silence(&device);
    }
}

/// Also on a device with one queue: a stream that is held up holds nobody up.
#[test]
fn more_streams_than_queues_run_side_by_side() {
    let Some(device) = device(coarse()) else { return };
    let gate = Gate::new(&device).unwrap();
    let all = mapped(&device, 32).unwrap();
    let streams: Vec<_> = all.iter().map(|_| device.make_stream().unwrap()).collect();
    gate.hold(streams[0]).unwrap();
    let mut fences = Vec::new();
    for (i, (stream, mapping)) in (0_u8..).zip(streams.iter().zip(&all)) {
        device.fill(mapping.range.addr, i, mapping.range.len, *stream).unwrap();
        fences.push(device.record(*stream).unwrap());
    }
    let behind = device.record(streams[1]).unwrap();
    device.stream_wait(streams[2], fences[0]).unwrap();
    let chained = device.record(streams[2]).unwrap();
    for fence in fences[1..].iter().chain([&behind]) {
        assert!(device.wait(*fence, LONG).unwrap(), "{fence:?} is held up by another stream");
    }
    assert_eq!(device.reached(streams[0]).unwrap(), 0);
    assert!(!device.wait(chained, SHORT).unwrap());
    gate.open().unwrap();
    assert!(device.wait(chained, LONG).unwrap());
    for (i, (stream, mapping)) in (0_u8..).zip(streams.iter().zip(&all)) {
        assert!(all_are(&bytes(&device, *stream, mapping.range), i), "stream {i}");
        device.destroy_stream(*stream).unwrap();
    }
    // Fences outlive their stream.
    assert_eq!(device.reached(streams[5]).unwrap(), fences[5].value);
    assert!(device.wait(fences[5], Duration::ZERO).unwrap());
    assert_eq!(device.record(streams[5]).unwrap_err().kind, DeviceErrorKind::Illegal);
    put_away(&device, &all).unwrap();
    expect_silence(&device);
}

#[test]
fn a_gate_that_is_dropped_lets_go() {
    let Some(device) = device(coarse()) else { return };
    let stream = device.make_stream().unwrap();
    let gate = Gate::new(&device).unwrap();
    gate.hold(stream).unwrap();
    let held = device.record(stream).unwrap();
    gate.open().unwrap();
    assert!(device.wait(held, LONG).unwrap());
    gate.hold(stream).unwrap();
    let held = device.record(stream).unwrap();
    assert!(!device.wait(held, SHORT).unwrap());
    drop(gate);
    assert!(device.wait(held, LONG).unwrap());
    expect_silence(&device);
}

/// Whatever was made on a device may be dropped last.
#[test]
fn a_device_may_be_let_go_of_first() {
    for last in 0..3 {
        let Some(device) = device(coarse()) else { return };
        let stream = device.make_stream().unwrap();
        let (contents, spinner, gate) = (
            Contents::new(&device).unwrap(),
            Spinner::new(&device).unwrap(),
            Gate::new(&device).unwrap(),
        );
        // Never put away, and work that is not waited for.
        let all = mapped(&device, 2).unwrap();
        spinner.nap(SHORT, stream).unwrap();
        contents.fill(range_of(&all), 1, stream).unwrap();
        let log = device.message_log();
        drop(device);
        let mut made: [Option<Box<dyn std::any::Any>>; 3] =
            [Some(Box::new(contents)), Some(Box::new(spinner)), Some(Box::new(gate))];
        let kept = made[last].take();
        drop(made);
        drop(kept);
        assert_eq!(log.list(), Vec::<String>::new());
    }
}

#[test]
fn the_address_space_runs_out_and_comes_back() {
    let Some(device) = device(coarse()) else { return };
    let most = device.properties().max_reservation;
    for _ in 0..2 {
        let mut reserved = Vec::new();
        let error = loop {
            match device.reserve(most, GRANULE) {
                Ok(base) => reserved.push(base),
                Err(error) => break error,
            }
            assert!(reserved.len() < 1000, "addresses without end");
        };
        assert_eq!(error.kind, DeviceErrorKind::OutOfAddresses, "{error}");
        assert!(reserved.len() > 1, "one reservation takes everything");
        for base in reserved {
            device.free_region(base, most).unwrap();
        }
    }
    expect_silence(&device);
}

#[test]
fn more_than_there_is_is_out_of_memory() {
    let Some(device) = device(coarse()) else { return };
    let before = device.memory_info().unwrap();
    let len = (before.total / GRANULE + 1) * GRANULE;
    let error = device.make_frame(len, FrameKind::Device).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::OutOfMemory, "{error}");
    if !device.is_gpu() {
        assert_eq!(device.memory_info().unwrap(), before);
    }
    let all = mapped(&device, 1).unwrap();
    put_away(&device, &all).unwrap();
    expect_silence(&device);
}

#[test]
fn broken_calls_are_refused_and_change_nothing() {
    let Some(device) = device(coarse()) else { return };
    let all = mapped(&device, 2).unwrap();
    let illegal = |error: DeviceErrorKind| assert_eq!(error, DeviceErrorKind::Illegal);
    let living = device.living();
    illegal(device.release_frame(all[0].frame).unwrap_err().kind);
    illegal(device.free_region(all[0].range.addr, 2 * GRANULE).unwrap_err().kind);
    let half = AddrRange { len: GRANULE / 2, ..all[0].range };
    illegal(device.unmap(&[half], &[]).unwrap_err().kind);
    illegal(device.unmap(&[all[0].range, all[0].range], &[]).unwrap_err().kind);
    illegal(device.map(&[all[0]], &[]).unwrap_err().kind);
    illegal(device.record(BIND_STREAM).unwrap_err().kind);
    illegal(device.record(StreamId(4_000)).unwrap_err().kind);
    let never = Fence { stream: BIND_STREAM, value: 0 };
    assert!(device.wait(never, Duration::ZERO).unwrap());
    let stream = device.make_stream().unwrap();
    illegal(device.stream_wait(stream, Fence { stream, value: 9 }).unwrap_err().kind);
    let beyond = AddrRange { addr: all[1].range.addr, len: 2 * GRANULE };
    illegal(device.fill(beyond.addr, 0, beyond.len, stream).unwrap_err().kind);
    assert_eq!(device.living(), living);
    put_away(&device, &all).unwrap();
    expect_silence(&device);
}

/// A user's binary and timeline semaphores, and command buffers of its own.
#[test]
fn submits_of_users_take_their_place() {
    let Some(device) = device(coarse()) else { return };
    let (first, second) = (device.make_stream().unwrap(), device.make_stream().unwrap());
    let all = mapped(&device, 1).unwrap();
    let range = all[0].range;
    let timeline = Timeline::new(&device);
    let info = vk::SemaphoreCreateInfo::default();
    // SAFETY: `info` is valid.
    let binary = unsafe { device.device().create_semaphore(&info, None) }.unwrap();
    device.fill(range.addr, 1, range.len, first).unwrap();
    let signals = [(timeline.semaphore, 3), (binary, 0)];
    let signal = Submit { signals: &signals, ..Submit::default() };
    // SAFETY: no command buffers; the semaphores live until the end of the test, which waits.
    unsafe { device.submit(first, &signal) }.unwrap();
    let waits = [(timeline.semaphore, 3), (binary, 0)];
    let wait = Submit { waits: &waits, ..Submit::default() };
    // SAFETY: as above, and what signals both has been submitted.
    unsafe { device.submit(second, &wait) }.unwrap();
    assert!(all_are(&bytes(&device, second, range), 1));
    assert_eq!(timeline.value(), 3);
    let fence = device.record(second).unwrap();
    if let Some((semaphore, value)) = device.semaphore_of(fence).unwrap() {
        let (semaphores, values) = ([semaphore], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is that of a living stream.
        unsafe { device.device().wait_semaphores(&info, u64::MAX) }.unwrap();
    }
    assert!(device.wait(fence, Duration::ZERO).unwrap());
    put_away(&device, &all).unwrap();
    drop(timeline);
    // SAFETY: everything that used it is done: the drop above has waited.
    unsafe { device.device().destroy_semaphore(binary, None) };
    expect_silence(&device);
}

/// Leases are buffers with offsets and addresses that fit.
#[test]
fn leases_are_ranges_of_buffers() {
    let Some(device) = device(coarse()) else { return };
    let stream = device.make_stream().unwrap();
    let options = vmm_core::PoolOptions { limit: Some(8 << 20), ..Default::default() };
    let pool = vmm_core::Pool::new(Arc::clone(&device), options).unwrap();
    let leases: Vec<_> = [100, 5_000, 1 << 20]
        .map(|len| pool.allocate(len, stream, vmm_core::Owner::NONE).unwrap())
        .into_iter()
        .collect();
    for lease in &leases {
        let range = device.lease_range(lease);
        let info = vk::BufferDeviceAddressInfo::default().buffer(range.buffer);
        // SAFETY: the buffer is that of a region, which were made to have an address.
        let start = unsafe { device.device().get_buffer_device_address(&info) };
        assert_eq!(range.address, lease.addr().0);
        assert_eq!(start + range.offset, range.address);
        let descriptor = range.descriptor();
        assert_eq!((descriptor.offset, descriptor.range), (range.offset, lease.len()));
        // What every device asks of offsets at most.
        assert_eq!(range.offset % 256, 0);
    }
    drop((leases, pool));
    expect_silence(&device);
}

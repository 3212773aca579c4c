//! What a device does beyond the suite, as functions: they run on a card and on the fake driver.

use super::{CaptureMode, Cards, Room, begin_capture, end_capture, in_context, raw};
use cudarc::driver::{CudaContext, CudaStream, sys};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use vmm_core::device::{AddrRange, DeviceErrorKind, FrameKind, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, Fence, StreamId};
use vmm_core::{Maintenance, Owner, Pool, PoolOptions};
use vmm_cuda::kernels::{Contents, Gate, Mismatches, axpy, contents, nap};
use vmm_cuda::{CudaDevice, CudaOptions, LeaseSlice, SliceError};

/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

const LEGACY: sys::CUstream = ptr::without_provenance_mut(1);
const PER_THREAD: sys::CUstream = ptr::without_provenance_mut(2);

/// A check and its name.
type Named = (&'static str, fn(&Cards));

pub(crate) const ALL: [Named; 13] = [
    ("contents_are_those_of_the_host", contents_are_those_of_the_host),
    ("a_gate_holds_until_it_is_opened", a_gate_holds_until_it_is_opened),
    ("threads_keep_their_own_context", threads_keep_their_own_context),
    ("the_legacy_stream_has_two_handles", the_legacy_stream_has_two_handles),
    ("per_thread_streams_are_told_apart", per_thread_streams_are_told_apart),
    ("a_frame_is_exported_more_than_once", a_frame_is_exported_more_than_once),
    ("captures_survive_all_calls", captures_survive_all_calls),
    ("a_blocking_capture_stops_the_legacy_stream", a_blocking_capture_stops_the_legacy_stream),
    ("host_frames_are_for_both", host_frames_are_for_both),
    ("fences_outlive_their_stream", fences_outlive_their_stream),
    ("plain_frames_have_an_address", plain_frames_have_an_address),
    ("slices_are_typed_memory", slices_are_typed_memory),
    ("cycles_leave_nothing", cycles_leave_nothing),
];

fn bytes(device: &CudaDevice, range: AddrRange, stream: StreamId) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(range.len).expect("fits in memory")];
    device.read(&mut bytes, range.addr, stream).expect("a read");
    bytes
}

fn contents_are_those_of_the_host(cards: &Cards) {
    let device = cards.first();
    let granule = device.properties().granule;
    let room = Room::new(&device, granule).expect("memory");
    let checks = Contents::new(&device).expect("kernels");
    let stream = device.make_stream().expect("a stream");
    for len in [1, 7, 8, 9, 511, 4096, 100_003] {
        let range = AddrRange { addr: room.addr().offset(512), len };
        device.fill(room.addr(), 0xee, granule, stream).expect("a fill");
        checks.fill(range, 42, stream).expect("a fill");
        let around = AddrRange { addr: room.addr(), len: 512 + len + 16 };
        let found = bytes(&device, around, stream);
        let len = usize::try_from(len).expect("small");
        assert_eq!(found[512..512 + len], contents(42, len), "{len}");
        assert!(found[..512].iter().chain(&found[512 + len..]).all(|byte| *byte == 0xee), "{len}");
        checks.check(range, 42, stream).expect("a check");
    }
    device.synchronize_stream(stream).expect("no failure");
    assert_eq!(checks.mismatches().expect("counters"), Mismatches::default());
    // Three wrong bytes, two of them in one word, are seen where they are.
    let range = AddrRange { addr: room.addr(), len: 100_003 };
    checks.fill(range, 1, stream).expect("a fill");
    let right = contents(1, 100_003);
    for at in [777, 779, 100_002] {
        device
            .fill(room.addr().offset(at), !right[usize::try_from(at).expect("small")], 1, stream)
            .expect("a fill");
    }
    checks.check(range, 1, stream).expect("a check");
    device.synchronize_stream(stream).expect("no failure");
    let expected = Mismatches { count: 3, first: Some(room.addr().offset(777)) };
    assert_eq!(checks.mismatches().expect("counters"), expected);
    device.fill(room.addr(), 7, 1024, stream).expect("a fill");
    checks.check_byte(AddrRange { addr: room.addr(), len: 1024 }, 7, stream).expect("a check");
    device.synchronize_stream(stream).expect("no failure");
    assert_eq!(checks.mismatches().expect("counters"), expected, "the same as before");
    let odd = AddrRange { addr: room.addr().offset(4), len: 8 };
    assert_eq!(checks.fill(odd, 0, stream).unwrap_err().kind, DeviceErrorKind::Illegal);
    // y = 2 * x + y
    let numbers = |from: u16| (from..from + 1000).map(f32::from);
    let to_bytes = |numbers: &mut dyn Iterator<Item = f32>| {
        numbers.flat_map(f32::to_le_bytes).collect::<Vec<_>>()
    };
    let (x, y) = (room.addr(), room.addr().offset(8192));
    device.write(x, &to_bytes(&mut numbers(0)), stream).expect("a write");
    device.write(y, &to_bytes(&mut numbers(5)), stream).expect("a write");
    axpy(&device, y, x, 2.0, 1000, stream).expect("a kernel");
    let expected = to_bytes(&mut numbers(0).zip(numbers(5)).map(|(x, y)| 2.0 * x + y));
    assert_eq!(bytes(&device, AddrRange { addr: y, len: 4000 }, stream), expected);
    device.destroy_stream(stream).expect("a stream");
}

fn a_gate_holds_until_it_is_opened(cards: &Cards) {
    let device = cards.first();
    let gate = Gate::new(&device).expect("kernels");
    let streams = [0; 3].map(|_| device.make_stream().expect("a stream"));
    for _ in 0..3 {
        let fences = streams.map(|stream| {
            gate.hold(stream).expect("a kernel");
            device.record(stream).expect("a fence")
        });
        for fence in fences {
            assert!(!device.wait(fence, Duration::from_millis(1)).expect("a wait"), "{fence:?}");
        }
        gate.open();
        for fence in fences {
            assert!(device.wait(fence, LONG).expect("a wait"), "{fence:?}");
        }
    }
    nap(&device, Duration::from_millis(2), streams[0]).expect("a kernel");
    let fence = device.record(streams[0]).expect("a fence");
    assert!(!device.wait(fence, Duration::ZERO).expect("a look"), "a nap of two milliseconds");
    assert!(device.wait(fence, LONG).expect("a wait"));
    let _ = streams.map(|stream| device.destroy_stream(stream).expect("a stream"));
}

/// No context, or that of another device, is what a thread has before and after each call.
fn threads_keep_their_own_context(cards: &Cards) {
    let current = || {
        let mut context = ptr::null_mut();
        // SAFETY: the driver writes the context.
        let code = unsafe { sys::cuCtxGetCurrent(&raw mut context) };
        assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
        context
    };
    let device = cards.first();
    let other = CudaDevice::new(CudaOptions::of_device(1)).ok();
    let work = || {
        let stream = device.make_stream().expect("a stream");
        let room = Room::new(&device, device.properties().granule).expect("memory");
        for stream in [stream, CudaDevice::stream_id(LEGACY)] {
            device.fill(room.addr(), 3, 1024, stream).expect("a fill");
            let fence = device.record(stream).expect("a fence");
            device.stream_wait(stream, fence).expect("an order");
            assert!(device.wait(fence, LONG).expect("a wait"));
            assert_eq!(device.reached(stream).expect("a look"), fence.value);
        }
        assert!(device.memory_info().expect("a look").free > 0);
        device.destroy_stream(stream).expect("a stream");
    };
    thread::scope(|scope| {
        let bare = scope.spawn(|| {
            work();
            assert!(current().is_null(), "a thread that never used CUDA");
        });
        bare.join().expect("no panic");
        if let Some(other) = &other {
            in_context(other, || {
                work();
                assert_eq!(current(), other.context(), "a thread that uses another device");
            });
        }
    });
}

fn the_legacy_stream_has_two_handles(cards: &Cards) {
    let device = cards.first();
    let legacy = CudaDevice::stream_id(ptr::null_mut());
    assert_eq!(CudaDevice::stream_id(LEGACY), legacy);
    for stream in [legacy, StreamId(1)] {
        let fence = device.record(stream).expect("a fence");
        assert!(device.wait(fence, LONG).expect("a wait"));
        assert!(!device.is_capturing(stream).expect("a look"));
    }
    // This number is another stream on each thread, and so the name of none.
    let unnamed = StreamId(2);
    let refused = [
        device.record(unnamed).unwrap_err(),
        device.is_capturing(unnamed).unwrap_err(),
        device.stream_wait(unnamed, Fence::REACHED).unwrap_err(),
        device.fill(DeviceAddr(0), 0, 0, unnamed).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(error.kind, DeviceErrorKind::Illegal);
        assert!(error.to_string().contains("stream_id"), "{error}");
    }
}

/// A fence that another thread records for a per-thread stream is behind the work of that stream.
fn per_thread_streams_are_told_apart(cards: &Cards) {
    let device = cards.first();
    let gate = Gate::new(&device).expect("kernels");
    let mine = CudaDevice::stream_id(PER_THREAD);
    gate.hold(mine).expect("a kernel");
    let own = device.record(mine).expect("a fence");
    let elsewhere = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let theirs = CudaDevice::stream_id(PER_THREAD);
            assert_ne!(theirs, mine);
            let fence = device.record(theirs).expect("a fence");
            assert!(
                device.wait(fence, LONG).expect("a wait"),
                "held up by another thread's stream"
            );
            device.record(mine).expect("a fence")
        });
        other.join().expect("no panic")
    });
    assert!(elsewhere.value > own.value);
    for fence in [own, elsewhere] {
        assert!(!device.wait(fence, Duration::from_millis(1)).expect("a wait"), "{fence:?}");
    }
    gate.open();
    assert!(device.wait(elsewhere, LONG).expect("a wait"));
    assert_eq!(device.reached(mine).expect("a look"), elsewhere.value);
}

fn open_descriptors() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("the process's descriptors");
    // Tests that wait for the card open the file that they lock.
    let counts = |target: &std::path::PathBuf| !target.ends_with(super::LOCK_FILE);
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(counts).count()
}

fn a_frame_is_exported_more_than_once(cards: &Cards) {
    let device = cards.first();
    let granule = device.properties().granule_of(FrameKind::Exportable);
    let Some(len) = granule else {
        println!("ruled out: the device exports nothing");
        return;
    };
    let room = Room::of_kind(&device, len, FrameKind::Exportable).expect("memory");
    // The first export sets up what the driver keeps.
    drop(device.export(room.frame()).expect("a descriptor"));
    let before = open_descriptors();
    let (one, two) = (
        device.export(room.frame()).expect("a descriptor"),
        device.export(room.frame()).expect("a descriptor"),
    );
    assert_ne!(one.as_raw_fd(), two.as_raw_fd());
    assert_eq!(open_descriptors(), before + 2);
    drop((one, two));
    assert_eq!(open_descriptors(), before);
    let device_room = Room::new(&device, device.properties().granule).expect("memory");
    let before = open_descriptors();
    let error = device.export(device_room.frame()).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NotSupported, "{error}");
    let error = device.export(vmm_core::FrameHandle(u64::MAX)).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::Illegal, "{error}");
    assert_eq!(open_descriptors(), before);
}

/// In each mode, while this and another thread make every call there is.
fn captures_survive_all_calls(cards: &Cards) {
    let device = cards.first();
    let granule = device.properties().granule;
    let capturing = device.make_stream().expect("a stream");
    let used = device.record(capturing).expect("a fence");
    assert!(device.wait(used, LONG).expect("a wait"));
    for mode in [
        CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
        CaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        begin_capture(&device, raw(capturing), mode);
        let calls = || {
            assert!(device.is_capturing(capturing).expect("a look"), "{mode:?}");
            let other = device.make_stream().expect("a stream");
            // More than there are events at hand.
            let fences = [0; 8].map(|_| device.record(other).expect("a fence"));
            let room = Room::new(&device, granule).expect("memory");
            device.fill(room.addr(), 1, granule, other).expect("a fill");
            device.copy(room.addr(), room.addr().offset(granule / 2), 512, other).expect("a copy");
            device.stream_wait(other, fences[7]).expect("an order");
            let last = device.record(other).expect("a fence");
            assert!(device.wait(last, LONG).expect("a wait"));
            assert_eq!(device.reached(other).expect("a look"), last.value);
            device.memory_info().expect("a look");
            drop(room);
            device.destroy_stream(other).expect("a stream");
        };
        calls();
        thread::scope(|scope| scope.spawn(calls).join().expect("no panic"));
        assert_eq!(end_capture(&device, raw(capturing)), Ok(()), "{mode:?}");
    }
    assert!(!device.is_capturing(capturing).expect("a look"));
    device.destroy_stream(capturing).expect("a stream");
}

/// The pool must keep its hands off the legacy stream then, and it does so if that captures.
fn a_blocking_capture_stops_the_legacy_stream(cards: &Cards) {
    let device = cards.first();
    let legacy = CudaDevice::stream_id(LEGACY);
    let mut blocking = ptr::null_mut();
    let code = in_context(&device, || {
        // SAFETY: a context is current, and the driver writes the handle.
        unsafe { sys::cuStreamCreate(&raw mut blocking, 0) }
    });
    assert_eq!(code, sys::CUresult::CUDA_SUCCESS);
    begin_capture(&device, blocking, CaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert!(device.is_capturing(CudaDevice::stream_id(blocking)).expect("a look"));
    assert!(device.is_capturing(legacy).expect("a look"));
    let quiet = device.make_stream().expect("a stream");
    assert!(!device.is_capturing(quiet).expect("a look"));
    assert_eq!(end_capture(&device, blocking), Ok(()));
    assert!(!device.is_capturing(legacy).expect("a look"));
    device.destroy_stream(quiet).expect("a stream");
    device.destroy_stream(CudaDevice::stream_id(blocking)).expect("a stream");
}

/// The host reads what the device wrote, through the same address.
fn host_frames_are_for_both(cards: &Cards) {
    let device = cards.first();
    let Some(len) = device.properties().granule_of(FrameKind::Host) else {
        println!("ruled out: the device has no frames in host memory");
        return;
    };
    let room = Room::of_kind(&device, len, FrameKind::Host).expect("memory");
    let checks = Contents::new(&device).expect("kernels");
    let stream = device.make_stream().expect("a stream");
    checks.fill(room.range(), 9, stream).expect("a fill");
    device.synchronize_stream(stream).expect("no failure");
    let address = usize::try_from(room.addr().0).expect("an address of this process");
    let len = usize::try_from(len).expect("fits in memory");
    // SAFETY: mapped memory of the host that both may use, as long as the room; the device is done.
    let seen =
        unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(address), len) };
    assert_eq!(seen, contents(9, len));
    device.destroy_stream(stream).expect("a stream");
}

fn fences_outlive_their_stream(cards: &Cards) {
    let device = cards.first();
    let gate = Gate::new(&device).expect("kernels");
    let mut last = std::collections::HashMap::new();
    for _ in 0..20 {
        let stream = device.make_stream().expect("a stream");
        gate.hold(stream).expect("a kernel");
        let fence = device.record(stream).expect("a fence");
        // The handle of a destroyed stream may come back.
        let before = last.insert(stream, fence.value).unwrap_or(0);
        assert!(fence.value > before);
        device.destroy_stream(stream).expect("a stream");
        assert!(!device.wait(fence, Duration::ZERO).expect("a look"));
        gate.open();
        assert!(device.wait(fence, LONG).expect("a wait"));
        assert_eq!(device.reached(stream).expect("a look"), fence.value);
    }
    let never = Fence { stream: StreamId(u64::MAX), value: 3 };
    assert_eq!(device.wait(never, Duration::ZERO).unwrap_err().kind, DeviceErrorKind::Illegal);
}

fn plain_frames_have_an_address(cards: &Cards) {
    let device = cards.plain();
    let properties = device.properties();
    let can = properties.capabilities;
    assert!(!can.remapping && !can.aliases && !can.peers && device.peers().is_empty());
    let granule = properties.granule;
    assert_eq!(
        device.make_frame(granule, FrameKind::Host).unwrap_err().kind,
        DeviceErrorKind::NotSupported
    );
    let stream = device.make_stream().expect("a stream");
    let frames =
        [1, 2, 5].map(|n| device.make_frame(n * granule, FrameKind::Device).expect("memory"));
    for (frame, n) in frames.into_iter().zip([1, 2, 5]) {
        let addr = device.fixed_addr(frame).expect("an address");
        assert!(addr.0 > 0 && addr.0.is_multiple_of(granule));
        let last = AddrRange { addr: addr.offset(n * granule - 4), len: 4 };
        device.fill(addr, 5, n * granule, stream).expect("a fill");
        assert_eq!(bytes(&device, last, stream), [5; 4]);
    }
    let _ = frames.map(|frame| device.release_frame(frame).expect("a frame"));
    assert_eq!(device.leftovers(), [""; 0]);
    let again = device.release_frame(frames[0]).unwrap_err();
    assert_eq!(again.kind, DeviceErrorKind::Illegal);
    device.destroy_stream(stream).expect("a stream");
}

/// cudarc's copies on memory of a pool, on the slice's stream and on others.
fn slices_are_typed_memory(cards: &Cards) {
    let device = cards.first();
    let page = device.properties().granule;
    let options = PoolOptions { limit: Some(64 * page), ..PoolOptions::default() };
    let pool = Pool::new(Arc::clone(&device), options).expect("a pool");
    let context = CudaContext::new(0).expect("a context");
    let streams = [0; 3].map(|_| context.new_stream().expect("a stream"));
    let [first, second, third] = &streams;
    let host: Vec<u32> = (0..100_000).collect();
    let mut slice = LeaseSlice::from_values(&pool, &host, first, Owner::NONE).expect("memory");
    assert_eq!((slice.len(), slice.lease().len()), (host.len(), 400_000));
    let gate = Gate::new(&device).expect("kernels");
    for round in 1..5 {
        // What the slice's stream is held up with comes before what other streams do with it.
        let next: Vec<u32> = host.iter().map(|value| value + round).collect();
        gate.hold(CudaDevice::stream_id(first.cu_stream())).expect("a kernel");
        let fences = thread::scope(|scope| {
            let copy = scope.spawn(|| second.memcpy_htod(&next, &mut slice).expect("a copy"));
            gate.open();
            copy.join().expect("no panic");
            [first, second]
                .map(|s| device.record(CudaDevice::stream_id(s.cu_stream())).expect("a fence"))
        });
        let found = third.clone_dtoh(&slice).expect("a copy");
        third.synchronize().expect("no failure");
        assert_eq!(found, next);
        let found = first.clone_dtoh(&slice).expect("a copy");
        first.synchronize().expect("no failure");
        assert_eq!(found, next);
        assert!(device.wait(fences[1], LONG).expect("a wait"));
    }
    let zeros = LeaseSlice::<u64>::zeroed(&pool, 1000, second, Owner::NONE).expect("memory");
    let found = third.clone_dtoh(&zeros).expect("a copy");
    third.synchronize().expect("no failure");
    assert_eq!(found, vec![0; 1000]);
    let empty = LeaseSlice::<u64>::zeroed(&pool, 0, second, Owner::NONE).expect("nothing");
    assert!(empty.is_empty());
    let lease = zeros.into_lease();
    let make = |len, stream: &Arc<CudaStream>| {
        // SAFETY: the lease is the pool's; nothing is read.
        unsafe { LeaseSlice::<u64>::new(&pool, lease.share(Owner::NONE), len, stream) }.map(drop)
    };
    let wrong = make(1001, first).unwrap_err();
    assert_eq!(wrong, SliceError::TooLong { wanted: 8008, len: 8000 });
    let wrong = make(usize::MAX, first).unwrap_err();
    assert_eq!(wrong, SliceError::TooLong { wanted: u64::MAX, len: 8000 });
    assert_eq!(make(1, &context.per_thread_stream()).unwrap_err(), SliceError::PerThreadStream);
    if let Ok(other) = CudaContext::new(1) {
        let wrong = make(1, &other.default_stream()).unwrap_err();
        assert_eq!(wrong, SliceError::OtherContext { ordinal: 0 });
    }
    assert_eq!(make(1000, &context.default_stream()), Ok(()));
    drop((slice, empty, lease, pool));
    context.synchronize().expect("no failure");
    assert_eq!(device.leftovers(), [""; 0]);
}

/// A pool is made, used from two threads and dropped, again and again.
fn cycles_leave_nothing(cards: &Cards) {
    let cycles = std::env::var("VMM_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let device = cards.first();
    let page = device.properties().granule;
    let free = |device: &CudaDevice| device.memory_info().expect("a look").free;
    let cycle = |device: &Arc<CudaDevice>| {
        let maintenance = Maintenance::Worker;
        let options = PoolOptions { limit: Some(64 * page), maintenance, ..PoolOptions::default() };
        let pool = Pool::new(Arc::clone(device), options).expect("a pool");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let stream = CudaDevice::stream_id(PER_THREAD);
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(lease) = pool.allocate(page, stream, Owner::NONE) {
                        device.fill(lease.addr(), 1, page, stream).expect("a fill");
                    }
                }
                device.synchronize_stream(stream).expect("no failure");
            });
            let stream = device.make_stream().expect("a stream");
            for n in 1..20 {
                let lease = pool.allocate(n * page, stream, Owner::NONE).expect("memory");
                device.fill(lease.addr(), 2, lease.len(), stream).expect("a fill");
            }
            stop.store(true, Ordering::Relaxed);
            pool.forget_stream(stream).expect("a stream");
            device.synchronize_stream(stream).expect("no failure");
            device.destroy_stream(stream).expect("a stream");
        });
        drop(pool);
        assert_eq!(device.leftovers(), [""; 0]);
    };
    // The first one makes what the driver keeps.
    cycle(&device);
    let before = free(&device);
    for _ in 0..cycles {
        cycle(&device);
    }
    assert_eq!(free(&device), before, "free memory after {cycles} cycles");
    for _ in 0..cycles {
        drop(cards.first());
    }
    assert_eq!(free(&device), before, "free memory after {cycles} more openings");
}

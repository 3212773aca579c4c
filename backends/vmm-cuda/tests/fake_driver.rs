//! What the other tests check on a card, on a driver without one: it is built from C here, and takes
//! the place of the driver in a process of its own.

mod common;

use common::Cards;
use common::harness::{CudaHarness, has_access};
use cudarc::driver::sys::CUcontext;
use cudarc::driver::{CudaContext, CudaStream};
use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};
use vmm_conformance::Report;
use vmm_core::device::{AddrRange, DeviceErrorKind, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::{DeviceOrdinal, Fence, StreamId};
use vmm_core::{Maintenance, Owner, Pool, PoolOptions};
use vmm_cuda::kernels::{Contents, Gate, Mismatches};
use vmm_cuda::{CudaDevice, CudaOptions, LeaseSlice, Unavailable, VirtualMemory};

/// Set in processes with the fake driver; says what to do there.
const TASK: &str = "VMM_FAKE_DRIVER_TASK";

/// Builds the driver, once. `None`, and says so, without a compiler.
fn fake() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("fake-driver-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the library");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver/cuda.c");
        let mut command = Command::new("cc");
        command.args(["-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-o"]);
        command.arg(folder.join("libcuda.so.1")).arg(source).arg("-lpthread");
        let output = match command.output() {
            Ok(output) => output,
            Err(_) => return None,
        };
        assert!(output.status.success(), "{output:?}");
        std::os::unix::fs::symlink("libcuda.so.1", folder.join("libcuda.so")).expect("a link");
        Some(folder)
    });
    if built.is_none() {
        println!("skipped: no C compiler (cc)");
    }
    built.as_deref()
}

/// Runs a task in a process with the fake driver.
fn run(task: &str, settings: &[(&str, &str)]) -> Option<Output> {
    let folder = fake()?;
    let program = std::env::current_exe().expect("the path of this test");
    let mut command = Command::new(program);
    command.args(["--exact", "child", "--nocapture"]);
    command.env("LD_LIBRARY_PATH", folder).env(TASK, task);
    command.envs(settings.iter().copied());
    Some(command.output().expect("a process"))
}

fn succeeds(task: &str, settings: &[(&str, &str)]) {
    let Some(output) = run(task, settings) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("task done"), "{text}");
    println!("{text}");
}

/// Does nothing in the ordinary run.
#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    match task.as_str() {
        "suite" => suite(|cards| cards.first()),
        "plain suite" => suite(|cards| cards.plain()),
        "checks" => {
            for (name, check) in common::checks::ALL {
                println!("{name}");
                check(&Cards::take(1).expect("the fake driver has a device"));
            }
        }
        "unmap" => an_unmap_that_fails_half_way_changes_nothing(),
        "access" => a_grant_that_fails_is_an_error(),
        "gone" => a_driver_that_has_shut_down_is_done(),
        "reset" => a_context_that_was_reset_is_done(),
        "dead stream" => a_dead_stream_is_not_a_lost_device(),
        "memory of a dead stream" => memory_of_a_dead_stream_comes_back(),
        "wait in capture" => a_wait_for_the_device_says_when_a_stream_captures(),
        "open in capture" => opening_leaves_a_capture_alone(),
        "captured" => a_captured_event_is_no_fence(),
        "slice" => a_slice_forgets_the_stream_that_goes_with_it(),
        "unaligned" => plain_frames_are_aligned(),
        "old" => {
            let error = CudaDevice::new(CudaOptions::default()).unwrap_err();
            assert_eq!(error, Unavailable::TooOld { found: (11, 3), needed: (11, 4) });
            assert!(error.to_string().contains("11.4"), "{error}");
        }
        "none" => {
            assert_eq!(CudaDevice::count(), Err(Unavailable::NoDevice));
            assert_eq!(CudaDevice::new(CudaOptions::default()).unwrap_err(), Unavailable::NoDevice);
        }
        "ordinal" => {
            let error = CudaDevice::new(CudaOptions::of_device(7)).unwrap_err();
            assert_eq!(error, Unavailable::NoSuchDevice { ordinal: 7, count: 1 });
        }
        "node" => {
            let options = CudaOptions { numa_node: Some(9), ..CudaOptions::default() };
            assert_eq!(CudaDevice::new(options).unwrap_err(), Unavailable::NoSuchNode { node: 9 });
        }
        "no virtual memory" => {
            let device = CudaDevice::new(CudaOptions::default()).expect("a device");
            assert!(!device.properties().capabilities.remapping);
        }
        _ => panic!("an unknown task: {task}"),
    }
    println!("task done");
}

/// Cases that run the pool some thousand times, which takes minutes here. They run where
/// `VMM_FAKE_DRIVER_ALL` is set.
const LONG: [&str; 2] = ["every_device_call_may_fail_once", "every_device_call_may_fail_for_good"];

fn suite(open: impl Fn(&Cards) -> Arc<CudaDevice>) {
    let all = std::env::var_os("VMM_FAKE_DRIVER_ALL").is_some();
    let mut report = Report::default();
    for case in vmm_conformance::case::all::<CudaHarness>() {
        if LONG.contains(&case.name) && !all {
            println!("left out   {}: takes minutes", case.name);
            continue;
        }
        let outcome = vmm_conformance::run(&case, || {
            let cards = Cards::take(1).expect("the fake driver has a device");
            let device = open(&cards);
            CudaHarness::new(cards, device)
        });
        report.outcomes.push((case.name, outcome));
    }
    println!("{report}");
    assert_eq!(report.failed(), []);
}

/// Controls of the fake driver.
fn symbol<T: Copy>(name: &str) -> T {
    // SAFETY: the library is loaded already, and never unloaded.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("the fake driver");
    // SAFETY: callers give the type that the source has.
    let found = *unsafe { library.get::<T>(name) }.expect("a function of the fake driver");
    std::mem::forget(library);
    found
}

/// The `nth` call of a function from now on fails with this code.
fn fail(function: &std::ffi::CStr, nth: c_int, code: c_int) {
    let fail: unsafe extern "C" fn(*const c_char, c_int, c_int) = symbol("fake_fail");
    // SAFETY: a string and two numbers.
    unsafe { fail(function.as_ptr(), nth, code) };
}

/// Events, streams, frames, mappings, reservations, plain allocations, and shares in contexts.
fn live() -> [c_int; 7] {
    let mut counts = [0; 7];
    let live: unsafe extern "C" fn(*mut c_int) = symbol("fake_live");
    // SAFETY: it writes seven numbers.
    unsafe { live(counts.as_mut_ptr()) };
    counts
}

/// Two usable mappings of frames and one without access, side by side.
fn three_mappings(device: &CudaDevice) -> (u64, [Mapping; 3]) {
    let granule = device.properties().granule;
    let base = device.reserve(4 * granule, granule).expect("addresses");
    let mappings = [0, 1, 2].map(|n| {
        let range = AddrRange { addr: base.offset(n * granule), len: granule };
        Mapping { range, frame: device.make_frame(granule, FrameKind::Device).expect("memory") }
    });
    device.map(&mappings, &[]).expect("mappings");
    device.set_access(mappings[0].range, &[]).expect("access");
    device.set_access(mappings[1].range, &[DeviceOrdinal(1)]).expect("access");
    (granule, mappings)
}

fn an_unmap_that_fails_half_way_changes_nothing() {
    let device = Arc::new(CudaDevice::new(CudaOptions::default()).expect("a device"));
    let (granule, mappings) = three_mappings(&device);
    let ranges = mappings.map(|mapping| mapping.range);
    let stream = device.make_stream().expect("a stream");
    let checks = Contents::new(&device).expect("kernels");
    checks.fill(ranges[0], 1, stream).expect("a fill");
    checks.fill(ranges[1], 2, stream).expect("a fill");
    device.synchronize_stream(stream).expect("no failure");
    let before = live();
    for nth in 1..=3 {
        fail(c"cuMemUnmap", nth, 999);
        let error = device.unmap(&ranges, &[]).unwrap_err();
        assert_eq!((error.kind, error.code), (DeviceErrorKind::Failed, 999), "{error}");
        assert_eq!(live(), before);
        // The bytes, and who may use them.
        checks.check(ranges[0], 1, stream).expect("a check");
        checks.check(ranges[1], 2, stream).expect("a check");
        device.synchronize_stream(stream).expect("no failure");
        assert_eq!(checks.mismatches().expect("counters"), Mismatches::default());
        let access = ranges.map(|r| [0, 1].map(|n| has_access(DeviceOrdinal(n), r)));
        assert_eq!(access, [[true, false], [true, true], [false, false]], "{nth}");
    }
    // A map that fails leaves none of the batch.
    device.unmap(&ranges, &[]).expect("mappings");
    let before = live();
    for nth in 1..=3 {
        fail(c"cuMemMap", nth, 2);
        let error = device.map(&mappings, &[]).unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::OutOfMemory, "{error}");
        assert_eq!(live(), before);
    }
    device.map(&mappings, &[]).expect("mappings");
    device.unmap(&[AddrRange { len: 3 * granule, ..ranges[0] }], &[]).expect("mappings");
    drop(checks);
    device.destroy_stream(stream).expect("a stream");
    device.remove_leftovers().expect("all of it");
    drop(device);
    assert_eq!(live(), [0; 7]);
}

fn a_grant_that_fails_is_an_error() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    let (_, mappings) = three_mappings(&device);
    let range = mappings[2].range;
    for (code, kind) in [(999, DeviceErrorKind::Failed), (600, DeviceErrorKind::NotReady)] {
        fail(c"cuMemSetAccess", 1, code);
        let error = device.set_access(range, &[]).unwrap_err();
        assert_eq!((error.kind, error.code), (kind, i64::from(code)), "{error}");
        assert_eq!((error.addr, error.len), (range.addr, range.len));
    }
    let error = device.set_access(range, &[DeviceOrdinal(5)]).unwrap_err();
    assert_eq!(error.kind, DeviceErrorKind::NotSupported, "{error}");
    assert!(!has_access(DeviceOrdinal(0), range));
    device.set_access(range, &[DeviceOrdinal(0), DeviceOrdinal(1)]).expect("access");
    assert!(has_access(DeviceOrdinal(0), range) && has_access(DeviceOrdinal(1), range));
    device.remove_leftovers().expect("all of it");
}

/// Every call says so, none reaches the driver, and dropping is quiet.
fn is_done(device: &CudaDevice, made: &(u64, [Mapping; 3]), fence: Fence) {
    let (granule, mappings) = made;
    let errors = [
        device.memory_info().unwrap_err(),
        device.is_capturing(fence.stream).unwrap_err(),
        device.reserve(*granule, *granule).unwrap_err(),
        device.make_frame(*granule, FrameKind::Device).unwrap_err(),
        device.release_frame(mappings[0].frame).unwrap_err(),
        device.map(mappings, &[]).unwrap_err(),
        device.unmap(&[mappings[0].range], &[]).unwrap_err(),
        device.set_access(mappings[0].range, &[]).unwrap_err(),
        device.free_region(mappings[0].range.addr, 4 * granule).unwrap_err(),
        device.record(fence.stream).unwrap_err(),
        device.reached(fence.stream).unwrap_err(),
        device.wait(fence, std::time::Duration::MAX).unwrap_err(),
        device.stream_wait(fence.stream, fence).unwrap_err(),
        device.fill(mappings[0].range.addr, 0, 4, fence.stream).unwrap_err(),
        device.copy(mappings[0].range.addr, mappings[1].range.addr, 4, fence.stream).unwrap_err(),
        device.export(mappings[0].frame).unwrap_err(),
        device.synchronize().unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind, DeviceErrorKind::Deinitialized, "{error}");
    }
    assert!(!device.lives());
    assert_eq!(device.leftovers(), [""; 0]);
}

fn a_driver_that_has_shut_down_is_done() {
    let device = Arc::new(CudaDevice::new(CudaOptions::default()).expect("a device"));
    let made = three_mappings(&device);
    let fence = device.record(device.make_stream().expect("a stream")).expect("a fence");
    let (gate, checks) =
        (Gate::new(&device).expect("kernels"), Contents::new(&device).expect("kernels"));
    let shutdown: unsafe extern "C" fn() = symbol("fake_shutdown");
    // SAFETY: no arguments.
    unsafe { shutdown() };
    is_done(&device, &made, fence);
    drop((gate, checks, device));
}

fn a_context_that_was_reset_is_done() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    let made = three_mappings(&device);
    let fence = device.record(device.make_stream().expect("a stream")).expect("a fence");
    let reset: unsafe extern "C" fn(c_int) -> c_int = symbol("cuDevicePrimaryCtxReset_v2");
    // SAFETY: the number of a device.
    assert_eq!(unsafe { reset(0) }, 0);
    // The context that takes its place has the same handle.
    let next = CudaDevice::new(CudaOptions::default()).expect("a device");
    assert_eq!(next.context(), device.context());
    is_done(&device, &made, fence);
    drop(device);
    assert!(next.lives() && next.memory_info().is_ok());
    drop(next);
    assert_eq!(live()[6], 0, "shares in contexts");
}

fn a_dead_stream_is_not_a_lost_device() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    let stream = device.make_stream().expect("a stream");
    for code in [201, 709] {
        fail(c"cuStreamIsCapturing", 1, code);
        let error = device.is_capturing(stream).unwrap_err();
        assert_eq!((error.kind, error.code), (DeviceErrorKind::Failed, i64::from(code)), "{error}");
        assert!(device.lives());
        assert_eq!(device.is_capturing(stream), Ok(false));
    }
}

/// The driver may crash where this one refuses the handle of a destroyed stream: its undefined behaviour.
fn memory_of_a_dead_stream_comes_back() {
    const LIMIT: u64 = 64 << 20;
    let device = Arc::new(CudaDevice::new(CudaOptions::default()).expect("a device"));
    let options = PoolOptions {
        limit: Some(LIMIT),
        maintenance: Maintenance::UserLoop,
        ..PoolOptions::default()
    };
    let pool = Pool::new(Arc::clone(&device), options).expect("a pool");
    let [dead, stream] = [(); 2].map(|()| device.make_stream().expect("a stream"));
    let lease = pool.allocate(LIMIT / 4, dead, Owner::NONE).expect("memory");
    device.fill(lease.addr(), 1, lease.len(), dead).expect("work");
    lease.release(dead);
    device.destroy_stream(dead).expect("no failure");
    assert_eq!(device.record(dead).unwrap_err().code, 400, "a handle that names no stream");
    drop(pool.allocate(LIMIT / 2, stream, Owner::NONE).expect("memory"));
    assert_eq!(pool.stats().host_waits, 0);
    drop(pool.allocate(LIMIT, stream, Owner::NONE).expect("all memory"));
    assert_eq!(pool.stats().host_waits, 1);
    drop(pool);
    assert_eq!(device.leftovers(), Vec::<String>::new());
}

fn a_wait_for_the_device_says_when_a_stream_captures() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    device.wait_idle().expect("an idle device");
    let push: unsafe extern "C" fn(CUcontext) -> c_int = symbol("cuCtxPushCurrent_v2");
    // SAFETY: the context lives as long as the device.
    assert_eq!(unsafe { push(device.context()) }, 0);
    let create: unsafe extern "C" fn(*mut *mut c_void, u32) -> c_int = symbol("cuStreamCreate");
    let mut raw = std::ptr::null_mut();
    // SAFETY: the context is current, and the driver writes the handle.
    assert_eq!(unsafe { create(&raw mut raw, 0) }, 0);
    let [blocking, other] =
        [CudaDevice::stream_id(raw.cast()), device.make_stream().expect("a stream")];
    for (stream, graph) in [(blocking, 0), (other, 901)] {
        begin_capture(&device, stream, 2);
        assert_eq!(device.wait_idle().unwrap_err().kind, DeviceErrorKind::NotReady);
        assert_eq!(end_capture(stream), graph, "the capture");
        device.wait_idle().expect("an idle device");
    }
    for stream in [blocking, other] {
        device.destroy_stream(stream).expect("no failure");
    }
}

/// Begins a capture of this mode on a stream.
fn begin_capture(device: &CudaDevice, stream: StreamId, mode: c_int) {
    let push: unsafe extern "C" fn(CUcontext) -> c_int = symbol("cuCtxPushCurrent_v2");
    // SAFETY: the context lives as long as the device.
    assert_eq!(unsafe { push(device.context()) }, 0);
    let begin: unsafe extern "C" fn(u64, c_int) -> c_int = symbol("cuStreamBeginCapture_v2");
    // SAFETY: a name is the handle of a stream, as a number.
    assert_eq!(unsafe { begin(stream.0, mode) }, 0);
}

/// The result of `cuStreamEndCapture`.
fn end_capture(stream: StreamId) -> c_int {
    let end: unsafe extern "C" fn(u64, *mut *mut c_void) -> c_int = symbol("cuStreamEndCapture");
    let mut graph = std::ptr::null_mut();
    // SAFETY: as above; the driver writes the graph.
    unsafe { end(stream.0, &raw mut graph) }
}

fn opening_leaves_a_capture_alone() {
    let options = CudaOptions::default();
    let device = CudaDevice::new(options).expect("a device");
    let stream = device.make_stream().expect("a stream");
    begin_capture(&device, stream, 0);
    let here = CudaDevice::new(options).expect("a device");
    let there = std::thread::spawn(move || CudaDevice::new(options));
    let there = there.join().expect("no panic").expect("a device");
    for opened in [here, there] {
        assert_eq!(opened.properties(), device.properties());
    }
    CudaDevice::new(CudaOptions::of_device(7)).expect_err("no such device");
    let exchange: unsafe extern "C" fn(*mut c_int) -> c_int =
        symbol("cuThreadExchangeStreamCaptureMode");
    let mut mode = 0;
    // SAFETY: a legal mode; the driver writes the former one.
    unsafe { exchange(&raw mut mode) };
    assert_eq!(mode, 0, "the mode of the thread came back");
    assert_eq!(end_capture(stream), 0);
}

fn a_captured_event_is_no_fence() {
    let device = CudaDevice::new(CudaOptions::default()).expect("a device");
    let stream = device.make_stream().expect("a stream");
    let first = device.record(stream).expect("a fence");
    begin_capture(&device, stream, 2);
    let before = live()[0];
    assert_eq!(device.record(stream).unwrap_err().kind, DeviceErrorKind::NotReady);
    assert_eq!(live()[0], before, "events");
    assert_eq!(end_capture(stream), 0);
    let next = device.record(stream).expect("a fence");
    assert_eq!(next.value, first.value + 1);
    // A capture that began before the record and has ended since: the event of it is gone, and those
    // that come later are not stuck behind it.
    fail(c"cuEventQuery", 1, 907);
    assert_eq!(device.record(stream).unwrap_err().kind, DeviceErrorKind::NotReady);
    let last = device.record(stream).expect("a fence");
    assert_eq!(last.value, next.value + 1);
    device.synchronize_stream(stream).expect("no failure");
    assert_eq!(device.reached(stream), Ok(last.value));
}

fn a_slice_forgets_the_stream_that_goes_with_it() {
    let device = Arc::new(CudaDevice::new(CudaOptions::default()).expect("a device"));
    let options = PoolOptions { maintenance: Maintenance::UserLoop, ..PoolOptions::default() };
    let pool = Pool::new(device, options).expect("a pool");
    let context = CudaContext::new(0).expect("the context");
    let kept = context.new_stream().expect("a stream");
    let make = |len, stream: &Arc<CudaStream>| {
        LeaseSlice::<u8>::zeroed(&pool, len, stream, Owner::NONE).expect("memory")
    };
    let gone = context.new_stream().expect("a stream");
    let (first, second) = (make(4 << 20, &gone), make(4 << 20, &gone));
    drop(gone);
    drop(first);
    // The lease outlives the slice, and its stream.
    let lease = second.into_lease();
    assert_eq!(live()[1], 1, "streams");
    assert_eq!(make(16 << 20, &kept).len(), 16 << 20);
    drop(lease);
    assert_eq!(make(32 << 20, &kept).len(), 32 << 20);
    pool.trim(0).expect("no failure");
}

fn plain_frames_are_aligned() {
    let options = CudaOptions { virtual_memory: VirtualMemory::Plain, ..CudaOptions::default() };
    let device = CudaDevice::new(options).expect("a device");
    let granule = device.properties().granule;
    let frame = device.make_frame(3 * granule, FrameKind::Device).expect("memory");
    let addr = device.fixed_addr(frame).expect("an address");
    assert!(addr.0.is_multiple_of(granule));
    let stream = device.make_stream().expect("a stream");
    device.fill(addr, 1, 3 * granule, stream).expect("a fill");
    device.synchronize_stream(stream).expect("no failure");
    device.destroy_stream(stream).expect("a stream");
    device.release_frame(frame).expect("a frame");
    drop(device);
    assert_eq!(live(), [0; 7]);
}

#[test]
fn what_tests_on_a_card_check_holds() {
    succeeds("checks", &[("FAKE_CUDA_DEVICES", "2"), ("VMM_CYCLES", "3")]);
}

#[test]
fn failures_change_nothing() {
    succeeds("unmap", &[("FAKE_CUDA_DEVICES", "2")]);
    succeeds("access", &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
fn a_lost_driver_is_done() {
    succeeds("gone", &[("FAKE_CUDA_DEVICES", "2")]);
    succeeds("reset", &[("FAKE_CUDA_DEVICES", "2")]);
}

#[test]
fn a_dead_stream_does_not_end_the_device() {
    succeeds("dead stream", &[]);
    succeeds("memory of a dead stream", &[]);
}

#[test]
fn captures_and_the_device_do_not_meet() {
    succeeds("open in capture", &[]);
    succeeds("captured", &[]);
    succeeds("wait in capture", &[]);
}

#[test]
fn slices_forget_their_streams() {
    succeeds("slice", &[]);
}

#[test]
fn devices_that_cannot_be_opened_say_why() {
    succeeds("old", &[("FAKE_CUDA_VERSION", "11030")]);
    succeeds("none", &[("FAKE_CUDA_DEVICES", "0")]);
    succeeds("ordinal", &[]);
    succeeds("node", &[]);
}

#[test]
fn devices_with_less_serve_what_they_have() {
    succeeds("no virtual memory", &[("FAKE_CUDA_NO_VMM", "1")]);
    succeeds("unaligned", &[("FAKE_CUDA_UNALIGNED", "1")]);
}

#[test]
fn the_suite_passes_with_two_devices() {
    succeeds("suite", &[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_HURRY", "20")]);
}

#[test]
fn the_suite_passes_with_plain_allocations() {
    succeeds("plain suite", &[("FAKE_CUDA_HURRY", "20")]);
}

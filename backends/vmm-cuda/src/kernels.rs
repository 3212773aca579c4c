//! Small kernels that check and measure: contents that follow from a seed, work that takes a given time
//! or lasts until it is let go, and a read-and-write over two arrays.
//!
//! They are text in PTX for old devices, so that neither a toolkit nor nvrtc is needed. The first use on
//! a device compiles them and waits for the device; later uses only queue.

use crate::device::CudaDevice;
use crate::error::About;
use crate::ffi::{self, HOST_PORTABLE_MAPPED};
use crate::order::Event;
use parking_lot::Mutex;
use std::ffi::{CStr, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, DeviceErrorKind, DeviceOp, DeviceResult};
use vmm_core::units::{DeviceAddr, StreamId};

const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

/// Threads of a block.
const BLOCK: u32 = 256;
/// The most arguments that a kernel here has.
const MOST_ARGUMENTS: usize = 5;
/// One block of one thread.
const ONE_THREAD: (c_uint, c_uint) = (1, 1);
/// Blocks for each multiprocessor, enough to keep its memory pipes full.
const BLOCKS_EACH: u32 = 8;
/// The alignment of a range with contents, in bytes.
const WORD: u64 = 8;
/// How long a gate holds up at most: a program that dies, or waits for what it holds up itself, should
/// not block the device for ever.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// How long a gate's end waits for what it held up, before it leaves its flag in place for ever.
const PATIENCE: Duration = Duration::from_secs(40);

/// The kernels of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    module: ffi::Module,
    fill: ffi::Function,
    check: ffi::Function,
    nap: ffi::Function,
    hold: ffi::Function,
    axpy: ffi::Function,
}

// SAFETY: modules and functions are handles that the driver lets any thread use; nothing is read
// through the pointers here.
unsafe impl Send for Loaded {}

impl CudaDevice {
    /// The kernels, loaded on the first call.
    fn kernels(&self, about: About) -> DeviceResult<Loaded> {
        let _current = self.context.enter_relaxed(about)?;
        let mut kernels = self.kernels.lock();
        if let Some(loaded) = *kernels {
            return Ok(loaded);
        }
        let driver = self.context.driver();
        let mut module = ptr::null_mut();
        // SAFETY: the text ends in NUL, and the driver writes the handle.
        let result = unsafe { (driver.module_load_data)(&raw mut module, TEXT.as_ptr().cast()) };
        self.context.check(about, result)?;
        let function = |name: &CStr| {
            let mut found = ptr::null_mut();
            // SAFETY: the module was just loaded, and the driver writes the handle.
            let result =
                unsafe { (driver.module_get_function)(&raw mut found, module, name.as_ptr()) };
            self.context.check(about, result).map(|()| found)
        };
        let loaded = Loaded {
            module,
            fill: function(c"vmm_contents_fill")?,
            check: function(c"vmm_contents_check")?,
            nap: function(c"vmm_nap")?,
            hold: function(c"vmm_hold")?,
            axpy: function(c"vmm_axpy")?,
        };
        self.warm_up(about, loaded)?;
        *kernels = Some(loaded);
        Ok(loaded)
    }

    /// Runs each kernel once with nothing to do. A driver that loads lazily waits for the whole device
    /// before a kernel's first launch, and would wait for ever for one that is held up.
    fn warm_up(&self, about: About, loaded: Loaded) -> DeviceResult<()> {
        let driver = self.context.driver();
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, and the driver writes the handle.
        let result = unsafe { (driver.stream_create)(&raw mut raw, ffi::STREAM_NON_BLOCKING) };
        self.context.check(about, result)?;
        let null = Argument::Long(0);
        let run = |function, arguments: &mut [Argument]| {
            self.launch_raw(about, function, ONE_THREAD, raw, arguments)
        };
        let result = run(loaded.fill, &mut [null; 3])
            .and_then(|()| run(loaded.check, &mut [null, null, null, null, Argument::Int(0)]))
            .and_then(|()| run(loaded.nap, &mut [null]))
            .and_then(|()| run(loaded.axpy, &mut [null, null, Argument::Float(0.0), null]));
        let held = self.run_open_gate(about, loaded, raw);
        // SAFETY: the stream made above, which is nobody else's; the driver waits for its work.
        let ended = unsafe { (driver.stream_synchronize)(raw) };
        // SAFETY: as above.
        unsafe { (driver.stream_destroy)(raw) };
        result.and(held)?;
        self.context.check(about, ended)
    }

    /// The kernel that holds up needs a flag to look at; it finds what it waits for.
    fn run_open_gate(&self, about: About, loaded: Loaded, raw: ffi::Stream) -> DeviceResult<()> {
        let flag = Flag::new(self, about)?;
        let mut arguments = Self::hold_arguments(&flag, 0);
        self.launch_raw(about, loaded.hold, ONE_THREAD, raw, &mut arguments)?;
        // SAFETY: the stream of `warm_up`. Waits, so that the flag may be freed.
        let result = unsafe { (self.context.driver().stream_synchronize)(raw) };
        self.context.check(about, result)?;
        flag.free(self);
        Ok(())
    }

    fn hold_arguments(flag: &Flag, ticket: u32) -> [Argument; 3] {
        let longest = u64::try_from(LONGEST_HOLD.as_nanos()).unwrap_or(u64::MAX);
        [Argument::Long(flag.on_device), Argument::Int(ticket), Argument::Long(longest)]
    }

    fn launch(
        &self,
        about: About,
        function: ffi::Function,
        threads: u64,
        stream: StreamId,
        arguments: &mut [Argument],
    ) -> DeviceResult<()> {
        let raw = Self::handle(about, stream)?;
        let _current = self.context.enter(about)?;
        let most = self.facts.multiprocessors.saturating_mul(BLOCKS_EACH);
        let blocks = threads.div_ceil(u64::from(BLOCK)).min(u64::from(most));
        let blocks = c_uint::try_from(blocks).unwrap_or(most).max(1);
        let threads = c_uint::try_from(threads).unwrap_or(BLOCK).clamp(1, BLOCK);
        self.launch_raw(about, function, (blocks, threads), raw, arguments)
    }

    fn launch_raw(
        &self,
        about: About,
        function: ffi::Function,
        (blocks, threads): (c_uint, c_uint),
        raw: ffi::Stream,
        arguments: &mut [Argument],
    ) -> DeviceResult<()> {
        let mut pointers = [ptr::null_mut(); MOST_ARGUMENTS];
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = argument.as_mut_ptr();
        }
        // SAFETY: the function is one of `Loaded`, and callers pass the arguments that the text
        // declares for it. The driver copies them before it returns. Memory that the kernel uses is
        // as for a copy.
        let result = unsafe {
            (self.context.driver().launch_kernel)(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                raw,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.context.check(about, result)
    }

    /// At the end of the device, in its context.
    pub(crate) fn unload(&self, loaded: Loaded) {
        // SAFETY: loaded in this context, once; nobody launches from it any more, for what does holds
        // a share of the device.
        unsafe { (self.context.driver().module_unload)(loaded.module) };
    }
}

/// An argument of a kernel, of the length that its text declares.
#[derive(Clone, Copy, Debug)]
enum Argument {
    Long(u64),
    Int(u32),
    Float(f32),
}

impl Argument {
    fn as_mut_ptr(&mut self) -> *mut c_void {
        match self {
            Self::Long(value) => ptr::from_mut(value).cast(),
            Self::Int(value) => ptr::from_mut(value).cast(),
            Self::Float(value) => ptr::from_mut(value).cast(),
        }
    }
}

/// Word `index` of a range that was filled with `seed`; its bytes lie in memory lowest first.
///
/// The generator `SplitMix64` at one of its points, so that every word can be had by itself.
#[must_use]
pub fn word(seed: u64, index: u64) -> u64 {
    let mut word = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(seed);
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// What a range of `len` bytes holds that was filled with `seed`, for comparisons on the host.
#[must_use]
pub fn contents(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..).map(|index| word(seed, index).to_le_bytes());
    words.flatten().take(len).collect()
}

/// Writes contents that follow from a seed, and checks them, on the device and in stream order.
///
/// It may be used with memory of any device that this one can reach.
pub struct Contents {
    device: Arc<CudaDevice>,
    loaded: Loaded,
    /// Two numbers on the device: how many bytes were wrong, and the lowest address of one.
    found: u64,
    /// On which they are read.
    stream: StreamId,
}

// SAFETY: handles of the driver and numbers, which any thread may use; see `Loaded`.
unsafe impl Sync for Contents {}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contents").field("device", &self.device.ordinal).finish_non_exhaustive()
    }
}

/// What checks have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Bytes that were not as expected. A byte that was checked twice counts twice.
    pub count: u64,
    /// The lowest address of such a byte.
    pub first: Option<DeviceAddr>,
}

impl Contents {
    /// Takes a few bytes of the device's memory and a stream, until it is dropped.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Arc<CudaDevice>) -> DeviceResult<Self> {
        let about = About::op(DeviceOp::Fill);
        let loaded = device.kernels(about)?;
        let stream = device.new_stream()?;
        let found = device.counters(about).inspect_err(|_| {
            // The first error is the one to report.
            let _ = device.end_stream(stream);
        })?;
        let contents = Self { device: Arc::clone(device), loaded, found, stream };
        contents.device.copy_in(DeviceAddr(found), &fresh_counters(), stream)?;
        Ok(contents)
    }

    /// Queues the filling of a range with bytes that follow from `seed` and the offset in the range:
    /// those of [`contents`]. Its address is a multiple of 8; its length may be any. Allocates
    /// nothing.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Illegal`] for another address; else the driver's.
    pub fn fill(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Fill, range);
        let arguments = [range.addr.0, range.len, seed].map(Argument::Long);
        self.queue(about, self.loaded.fill, stream, arguments)
    }

    /// Queues a comparison of a range with what [`Contents::fill`] has written with this seed.
    /// Allocates nothing. [`Contents::mismatches`] says what was found.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Illegal`] for an address that is not a multiple of 8; else the driver's.
    pub fn check(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Copy, range);
        self.compare(about, range, seed, false, stream)
    }

    /// Queues a comparison of a range with what the device's `fill` has written with this byte.
    /// Allocates nothing.
    ///
    /// # Errors
    /// As [`Contents::check`].
    pub fn check_byte(&self, range: AddrRange, byte: u8, stream: StreamId) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Copy, range);
        self.compare(about, range, u64::from_le_bytes([byte; 8]), true, stream)
    }

    fn compare(
        &self,
        about: About,
        range: AddrRange,
        seed: u64,
        same: bool,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let [addr, len, seed, found] =
            [range.addr.0, range.len, seed, self.found].map(Argument::Long);
        let arguments = [addr, len, seed, found, Argument::Int(u32::from(same))];
        self.queue(about, self.loaded.check, stream, arguments)
    }

    fn queue<const N: usize>(
        &self,
        about: About,
        function: ffi::Function,
        stream: StreamId,
        mut arguments: [Argument; N],
    ) -> DeviceResult<()> {
        if !about.addr.0.is_multiple_of(WORD) {
            let detail = "the address is not a multiple of 8";
            return Err(about.error(DeviceErrorKind::Illegal, detail));
        }
        if about.len == 0 {
            return Ok(());
        }
        self.device.launch(about, function, about.len.div_ceil(WORD), stream, &mut arguments)
    }

    /// What all checks so far have found. Sees those whose streams the caller has waited for.
    ///
    /// # Errors
    /// The driver's.
    pub fn mismatches(&self) -> DeviceResult<Mismatches> {
        let mut bytes = [0; 16];
        self.device.copy_out(&mut bytes, DeviceAddr(self.found), self.stream)?;
        let [count, first] = [0, 8].map(|at| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        });
        Ok(Mismatches { count, first: (count > 0).then_some(DeviceAddr(first)) })
    }
}

/// No byte yet, and an address above all.
fn fresh_counters() -> [u8; 16] {
    let mut bytes = [0xff; 16];
    bytes[..8].fill(0);
    bytes
}

impl Drop for Contents {
    /// Waits for the device where checks may still run.
    fn drop(&mut self) {
        if self.device.end_stream(self.stream).is_ok()
            && let Ok(_current) = self.device.context.enter_relaxed(About::op(DeviceOp::Fill))
        {
            // SAFETY: what `counters` has returned, once. The driver waits for kernels that use it.
            unsafe { (self.device.context.driver().mem_free)(self.found) };
        }
    }
}

impl CudaDevice {
    fn counters(&self, about: About) -> DeviceResult<u64> {
        let _current = self.context.enter_relaxed(about)?;
        let mut found = 0;
        // SAFETY: the context is current, and the driver writes the address.
        let result = unsafe { (self.context.driver().mem_alloc)(&raw mut found, 16) };
        self.context.check(about, result)?;
        Ok(found)
    }
}

/// A number in memory of the host that the device sees.
#[derive(Debug)]
struct Flag {
    on_host: NonNull<AtomicU32>,
    on_device: u64,
}

// SAFETY: what the pointer shows is an atomic, and the memory stays until `free`, which takes the flag.
unsafe impl Send for Flag {}
// SAFETY: as above.
unsafe impl Sync for Flag {}

impl Flag {
    fn new(device: &CudaDevice, about: About) -> DeviceResult<Self> {
        let driver = device.context.driver();
        let mut memory = ptr::null_mut();
        let len = size_of::<AtomicU32>();
        // SAFETY: the context is current (the callers enter it), and the driver writes the address.
        let result = unsafe { (driver.mem_host_alloc)(&raw mut memory, len, HOST_PORTABLE_MAPPED) };
        device.context.check(about, result)?;
        let detail = "the driver returned no memory";
        let on_host = NonNull::new(memory.cast::<AtomicU32>());
        let on_host = on_host.ok_or_else(|| about.error(DeviceErrorKind::Failed, detail))?;
        // SAFETY: fresh memory of this length, aligned to a page, that nobody else knows.
        unsafe { on_host.write(AtomicU32::new(0)) };
        let mut flag = Self { on_host, on_device: 0 };
        // SAFETY: memory that was allocated to be mapped; the driver writes the address.
        let result =
            unsafe { (driver.mem_host_get_device_pointer)(&raw mut flag.on_device, memory, 0) };
        match device.context.check(about, result) {
            Ok(()) => Ok(flag),
            Err(error) => {
                flag.free(device);
                Err(error)
            }
        }
    }

    fn number(&self) -> &AtomicU32 {
        // SAFETY: the memory was written in `new` and lives until `free`.
        unsafe { self.on_host.as_ref() }
    }

    /// No kernel looks at it any more. In the device's context.
    fn free(self, device: &CudaDevice) {
        // SAFETY: allocated in `new`, and freed once, for this takes the flag.
        unsafe { (device.context.driver().mem_free_host)(self.on_host.as_ptr().cast()) };
    }
}

/// Holds streams up until it is opened.
pub struct Gate {
    device: Arc<CudaDevice>,
    loaded: Loaded,
    /// How often the gate was opened. Taken when the gate is dropped.
    flag: Option<Flag>,
    /// Behind each kernel that may still look at the flag.
    held: Mutex<Vec<Event>>,
}

// SAFETY: handles of the driver, which any thread may use; see `Loaded`.
unsafe impl Sync for Gate {}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("device", &self.device.ordinal).finish_non_exhaustive()
    }
}

impl Gate {
    /// A gate that holds nothing up yet.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Arc<CudaDevice>) -> DeviceResult<Self> {
        let about = About::op(DeviceOp::Fill);
        let loaded = device.kernels(about)?;
        let _current = device.context.enter_relaxed(about)?;
        let flag = Some(Flag::new(device, about)?);
        Ok(Self { device: Arc::clone(device), loaded, flag, held: Mutex::default() })
    }

    /// Queues a kernel that runs until the next [`Gate::open`], or for half a minute.
    ///
    /// # Errors
    /// The driver's.
    pub fn hold(&self, stream: StreamId) -> DeviceResult<()> {
        let Some(flag) = &self.flag else { return Ok(()) };
        let about = About::op(DeviceOp::Fill);
        let raw = CudaDevice::handle(about, stream)?;
        let current = self.device.context.enter_relaxed(about)?;
        let mut held = self.held.lock();
        let event = self.spare(about, &mut held, &current)?;
        let ticket = flag.number().load(Ordering::Acquire).wrapping_add(1);
        let mut arguments = CudaDevice::hold_arguments(flag, ticket);
        self.device.launch_raw(about, self.loaded.hold, ONE_THREAD, raw, &mut arguments)?;
        held.push(event);
        // SAFETY: an event that nobody else knows; that the stream lives is the caller's promise.
        let result = unsafe { (self.device.context.driver().event_record)(event.0, raw) };
        self.device.context.check(about, result)
    }

    /// An event whose kernel has ended, or a new one.
    fn spare(
        &self,
        about: About,
        held: &mut Vec<Event>,
        current: &crate::context::Current<'_>,
    ) -> DeviceResult<Event> {
        for index in 0..held.len() {
            if self.device.is_done(about, held[index])? {
                return Ok(held.swap_remove(index));
            }
        }
        self.device.new_event(about, current)
    }

    /// Lets everything end that is held up, and does not wait for that.
    pub fn open(&self) {
        if let Some(flag) = &self.flag
            && self.device.context.lives()
        {
            flag.number().fetch_add(1, Ordering::Release);
        }
    }
}

impl Drop for Gate {
    /// Opens the gate and waits until its kernels have ended.
    fn drop(&mut self) {
        self.open();
        let Some(flag) = self.flag.take() else { return };
        let about = About::op(DeviceOp::Fill);
        let Ok(_current) = self.device.context.enter_relaxed(about) else { return };
        let (start, mut freed) = (Instant::now(), true);
        for event in std::mem::take(self.held.get_mut()) {
            while freed && !matches!(self.device.is_done(about, event), Ok(true)) {
                freed = start.elapsed() < PATIENCE;
                thread::yield_now();
            }
            self.device.destroy_event(event);
        }
        // Where a stream never came to its kernel, the flag must stay for it.
        if freed {
            flag.free(&self.device);
        }
    }
}

/// Queues a kernel of one thread that runs for about this long.
///
/// # Errors
/// The driver's.
pub fn nap(device: &CudaDevice, duration: Duration, stream: StreamId) -> DeviceResult<()> {
    let about = About::op(DeviceOp::Fill);
    let loaded = device.kernels(about)?;
    let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    device.launch(about, loaded.nap, 1, stream, &mut [Argument::Long(nanoseconds)])
}

/// Queues `y[i] = a * x[i] + y[i]` over `count` numbers of type `f32`.
///
/// # Errors
/// [`DeviceErrorKind::Illegal`] for addresses that are not multiples of 4; else the driver's.
pub fn axpy(
    device: &CudaDevice,
    y: DeviceAddr,
    x: DeviceAddr,
    a: f32,
    count: u64,
    stream: StreamId,
) -> DeviceResult<()> {
    let range = AddrRange { addr: y, len: count.saturating_mul(4) };
    let about = About::range(DeviceOp::Fill, range);
    if !(y.0 | x.0).is_multiple_of(4) {
        let detail = "an address is not a multiple of 4";
        return Err(about.error(DeviceErrorKind::Illegal, detail));
    }
    if count == 0 {
        return Ok(());
    }
    let loaded = device.kernels(about)?;
    let (y, x, count_argument) = (Argument::Long(y.0), Argument::Long(x.0), Argument::Long(count));
    let arguments = &mut [y, x, Argument::Float(a), count_argument];
    device.launch(about, loaded.axpy, count, stream, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_words_lowest_byte_first() {
        let whole = contents(7, 20);
        assert_eq!(whole[..8], word(7, 0).to_le_bytes());
        assert_eq!(whole[8..16], word(7, 1).to_le_bytes());
        assert_eq!(whole[16..], word(7, 2).to_le_bytes()[..4]);
        assert_eq!(contents(7, 0), []);
        assert_ne!(contents(8, 20), whole);
    }

    /// The first numbers of `SplitMix64` from seed 0, as its authors' reference gives them.
    #[test]
    fn the_generator_is_the_published_one() {
        let expected = [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4, 0x06C4_5D18_8009_454F];
        assert_eq!([0, 1, 2].map(|index| word(0, index)), expected);
    }

    #[test]
    fn the_text_has_every_kernel_and_ends() {
        for name in ["vmm_contents_fill", "vmm_contents_check", "vmm_nap", "vmm_hold", "vmm_axpy"] {
            assert!(TEXT.contains(&format!(".visible .entry {name}(")), "{name}");
        }
        assert_eq!(TEXT.matches('\0').count(), 1);
        assert!(TEXT.ends_with('\0') && TEXT.is_ascii());
    }
}

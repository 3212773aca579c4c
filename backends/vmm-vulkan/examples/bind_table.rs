//! What binds cost on a device: by length and number of pieces, and while the device is at work.
//!
//! ```sh
//! cargo run --release -p vmm-vulkan --example bind_table -- [DEVICE]
//! ```
//!
//! Scattered pieces are bound in an order in which no two can be joined; a piece "in one" is as much
//! memory as one frame. Times are medians: `call` until the call returns, `done` until the device
//! says so.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::units::FrameHandle;
use vmm_vulkan::{DeviceChoice, Spinner, VulkanDevice, VulkanOptions, list_devices};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Lengths of pieces, in bytes.
const PIECES: [u64; 3] = [64 * KIB, 2 * MIB, 32 * MIB];
/// Pieces in a batch.
const BATCHES: [u64; 7] = [1, 4, 16, 64, 256, 1024, 4096];
/// Times that each batch is bound.
const ROUNDS: usize = 5;

/// At most this much memory on a GPU, and on a device that runs on the host, in bytes.
const MOST_ON_A_GPU: u64 = 16 << 30;
const MOST_ON_THE_HOST: u64 = 256 * MIB;

fn main() -> ExitCode {
    let choice = DeviceChoice::parse(&std::env::args().nth(1).unwrap_or_default());
    let device = match VulkanDevice::new(VulkanOptions::of_device(choice)) {
        Ok(device) => Arc::new(device),
        Err(why) => {
            println!("skipped: {why}");
            return ExitCode::SUCCESS;
        }
    };
    match run(&device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(device: &Arc<VulkanDevice>) -> Result<(), Box<dyn Error>> {
    for summary in list_devices()? {
        let can = summary.unsupported.map_or("can be used".to_owned(), |why| why.to_string());
        println!("device {}: {} {}: {can}", summary.index, summary.name, summary.driver);
    }
    let properties = device.properties();
    println!("\nmeasured: {} ({})", properties.name, device.driver());
    println!(
        "granule {} KiB, aliases {}, {} queues for streams, binds {}\n",
        properties.granule >> 10,
        properties.capabilities.aliases,
        device.queue_count(),
        if device.binds_have_own_queue() { "on their own" } else { "on one of them" },
    );
    batches(device)?;
    println!();
    under_load(device)?;
    println!();
    calls(device)?;
    Ok(())
}

/// What one batch took.
#[derive(Clone, Copy, Default)]
struct Taken {
    call: Duration,
    done: Duration,
}

fn batches(device: &VulkanDevice) -> Result<(), Box<dyn Error>> {
    let most = if device.is_gpu() {
        MOST_ON_A_GPU.min(device.memory_info()?.free / 2)
    } else {
        MOST_ON_THE_HOST
    };
    println!(
        "| piece KiB | pieces | bind call ms | done ms | pieces/s | unbind done ms | in one, done ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for piece in PIECES {
        for count in BATCHES {
            if piece * count > most || piece % device.properties().granule != 0 {
                continue;
            }
            let (bind, unbind) = scattered(device, piece, count)?;
            let one = in_one(device, piece * count)?;
            let rate = count as f64 / bind.done.as_secs_f64();
            println!(
                "| {} | {count} | {:.3} | {:.3} | {rate:.0} | {:.3} | {:.3} |",
                piece >> 10,
                millis(bind.call),
                millis(bind.done),
                millis(unbind.done),
                millis(one.done),
            );
        }
    }
    Ok(())
}

/// Binds and unbinds pieces that cannot be joined.
fn scattered(
    device: &VulkanDevice,
    len: u64,
    count: u64,
) -> Result<(Taken, Taken), Box<dyn Error>> {
    let made = (0..count).map(|_| device.make_frame(len, FrameKind::Device));
    let frames: Vec<FrameHandle> = made.collect::<Result<_, _>>()?;
    let base = device.reserve(count * len, device.properties().granule)?;
    // Prime to `count`, a power of two, so that every frame is used and no two neighbours were made
    // one after the other.
    const STEP: u64 = 3;
    let frame_of = |i: u64| frames[usize::try_from(i * STEP % count).unwrap_or(0)];
    let range_of = |i: u64| AddrRange { addr: base.offset(i * len), len };
    let batch: Vec<Mapping> =
        (0..count).map(|i| Mapping { range: range_of(i), frame: frame_of(i) }).collect();
    let whole = [AddrRange { addr: base, len: count * len }];
    let (mut binds, mut unbinds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        binds.push(timed(device, || device.map(&batch, &[]))?);
        unbinds.push(timed(device, || device.unmap(&whole, &[]))?);
    }
    for frame in frames {
        device.release_frame(frame)?;
    }
    device.free_region(base, count * len)?;
    Ok((median(binds), median(unbinds)))
}

/// Binds as much as one frame.
fn in_one(device: &VulkanDevice, len: u64) -> Result<Taken, Box<dyn Error>> {
    let frame = device.make_frame(len, FrameKind::Device)?;
    let base = device.reserve(len, device.properties().granule)?;
    let range = AddrRange { addr: base, len };
    let mut binds = Vec::new();
    for _ in 0..ROUNDS {
        binds.push(timed(device, || device.map(&[Mapping { range, frame }], &[]))?);
        timed(device, || device.unmap(&[range], &[]))?;
    }
    device.release_frame(frame)?;
    device.free_region(base, len)?;
    Ok(median(binds))
}

/// How long one bind takes while a stream has work for the whole time, and while none has.
fn under_load(device: &Arc<VulkanDevice>) -> Result<(), Box<dyn Error>> {
    const SAMPLES: usize = 50;
    let spinner = Spinner::new(device)?;
    let stream = device.make_stream()?;
    spinner.nap(Duration::from_micros(100), stream)?;
    println!("| piece KiB | bind done ms, device idle: median, worst | at work: median, worst |");
    println!("|---|---|---|");
    for len in PIECES {
        if len % device.properties().granule != 0 {
            continue;
        }
        let frame = device.make_frame(len, FrameKind::Device)?;
        let base = device.reserve(len, device.properties().granule)?;
        let range = AddrRange { addr: base, len };
        let mut shown = Vec::new();
        for busy in [false, true] {
            let mut binds = Vec::new();
            let mut asleep = device.record(stream)?;
            for _ in 0..SAMPLES {
                // Work that is short beside the device's limits and long beside a bind; more of it
                // before the last has ended.
                if busy && device.reached(stream)? >= asleep.value {
                    spinner.nap(Duration::from_millis(20), stream)?;
                    asleep = device.record(stream)?;
                    spinner.nap(Duration::from_millis(20), stream)?;
                }
                binds.push(timed(device, || device.map(&[Mapping { range, frame }], &[]))?);
                timed(device, || device.unmap(&[range], &[]))?;
            }
            let worst = binds.iter().map(|taken| taken.done).max().unwrap_or_default();
            shown.push(format!("{:.3}, {:.3}", millis(median(binds).done), millis(worst)));
            device.synchronize()?;
        }
        println!("| {} | {} | {} |", len >> 10, shown[0], shown[1]);
        device.release_frame(frame)?;
        device.free_region(base, len)?;
    }
    device.destroy_stream(stream)?;
    Ok(())
}

/// What the calls cost that a pool makes under its lock.
fn calls(device: &Arc<VulkanDevice>) -> Result<(), Box<dyn Error>> {
    let (stream, other) = (device.make_stream()?, device.make_stream()?);
    let queue = device.queue_stream(device.queue_of(stream)?.queue)?;
    let base = device.reserve(device.properties().granule, device.properties().granule)?;
    let frame = device.make_frame(device.properties().granule, FrameKind::Device)?;
    let range = AddrRange { addr: base, len: device.properties().granule };
    let bound = device.map(&[Mapping { range, frame }], &[])?;
    device.wait(bound, Duration::MAX)?;
    let fill = || device.fill(base, 1, 4, stream);
    println!("| call | ns |");
    println!("|---|---|");
    let show = |name: &str, nanos: f64| println!("| {name} | {nanos:.0} |");
    show("record, nothing new on the stream", each(|| device.record(stream).map(drop))?);
    let both = each(|| fill().and_then(|()| device.record(stream)).map(drop))?;
    show("fill and record", both);
    show("fill", each(fill)?);
    device.synchronize()?;
    show("record on a queue of the user's", each(|| device.record(queue).map(drop))?);
    device.synchronize()?;
    show("reached", each(|| device.reached(stream).map(drop))?);
    let fence = device.record(stream)?;
    show("stream_wait for a reached fence", each(|| device.stream_wait(other, fence))?);
    let waiting = each(|| {
        fill()?;
        let fence = device.record(stream)?;
        device.stream_wait(other, fence)
    })?;
    show("fill, record and stream_wait of another stream", waiting);
    device.synchronize()?;
    let unbound = device.unmap(&[range], &[])?;
    device.wait(unbound, Duration::MAX)?;
    device.release_frame(frame)?;
    device.free_region(base, range.len)?;
    Ok(())
}

/// Nanoseconds of one call.
fn each(
    mut call: impl FnMut() -> vmm_core::device::DeviceResult<()>,
) -> Result<f64, Box<dyn Error>> {
    const CALLS: u32 = 2_000;
    call()?;
    let start = Instant::now();
    for _ in 0..CALLS {
        call()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / f64::from(CALLS))
}

fn timed(
    device: &VulkanDevice,
    bind: impl FnOnce() -> vmm_core::device::DeviceResult<vmm_core::units::Fence>,
) -> Result<Taken, Box<dyn Error>> {
    let start = Instant::now();
    let fence = bind()?;
    let call = start.elapsed();
    device.wait(fence, Duration::MAX)?;
    Ok(Taken { call, done: start.elapsed() })
}

fn median(mut all: Vec<Taken>) -> Taken {
    let middle = all.len() / 2;
    all.sort_by_key(|taken| taken.call);
    let call = all[middle].call;
    all.sort_by_key(|taken| taken.done);
    Taken { call, done: all[middle].done }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

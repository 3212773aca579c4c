//! Does anything wait for a kernel? Calls of the pool beside a kernel of 200 ms, and without it.
//!
//! Each row is the median of rounds that alternate between the two. The kernel runs on another stream
//! than the leases; in the last rows on the same stream, whose memory it may use. After each call the kernel
//! must still be running. Exits with 1 if a bound is missed, and with 0 and a line that says so
//! where there is no device.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vmm_core::device::VirtualMemoryDevice;
use vmm_core::{Lease, Maintenance, Owner, Pool, PoolOptions, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions, kernels};

const KERNEL: Duration = Duration::from_millis(200);
const ROUNDS: usize = 9;
/// Memory at hand is given out and taken back within this time, whatever the device does.
const AT_HAND: Duration = Duration::from_micros(10);
/// Calls of the driver take at most this many times as long beside the kernel as without it.
const RATIO: f64 = 5.0;

const MIB: u64 = 1 << 20;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Bench {
    device: Arc<CudaDevice>,
    leases: StreamId,
    other: StreamId,
}

/// One figure of one pool that `prepare` brings into a state.
struct Row {
    name: &'static str,
    prepare: fn(&Bench) -> Outcome<Scene>,
    measured: fn(&Bench, &mut Scene) -> Outcome<()>,
    same_stream: bool,
}

struct Scene {
    pool: Pool<CudaDevice>,
    leases: Vec<Lease<CudaDevice>>,
}

impl Bench {
    fn pool(&self, limit: u64) -> Outcome<Pool<CudaDevice>> {
        // No worker: what is measured must not depend on what it has done already.
        let options = PoolOptions {
            limit: Some(limit),
            maintenance: Maintenance::UserLoop,
            ..PoolOptions::default()
        };
        Ok(Pool::new(Arc::clone(&self.device), options)?)
    }

    fn leases(
        &self,
        pool: &Pool<CudaDevice>,
        count: usize,
        len: u64,
    ) -> Outcome<Vec<Lease<CudaDevice>>> {
        (0..count).map(|_| Ok(pool.allocate(len, self.leases, Owner::NONE)?)).collect()
    }

    /// Time of `row`'s call, with or without the kernel.
    fn time(&self, row: &Row, with_kernel: bool) -> Outcome<Duration> {
        let mut scene = (row.prepare)(self)?;
        self.device.synchronize()?;
        let stream = if row.same_stream { self.leases } else { self.other };
        let kernel = if with_kernel {
            kernels::nap(&self.device, KERNEL, stream)?;
            Some(self.device.record(stream)?)
        } else {
            None
        };
        let start = Instant::now();
        (row.measured)(self, &mut scene)?;
        let took = start.elapsed();
        if let Some(kernel) = kernel
            && self.device.reached(kernel.stream)? >= kernel.value
        {
            return Err(format!("{}: the kernel was over when the call returned", row.name).into());
        }
        self.device.synchronize()?;
        Ok(took)
    }

    /// The medians without and with the kernel.
    fn medians(&self, row: &Row) -> Outcome<(Duration, Duration)> {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(self.time(row, false)?);
            with.push(self.time(row, true)?);
        }
        without.sort();
        with.sort();
        Ok((without[ROUNDS / 2], with[ROUNDS / 2]))
    }
}

/// A pool with memory at hand.
fn warm(bench: &Bench) -> Outcome<Scene> {
    let pool = bench.pool(1 << 30)?;
    drop(bench.leases(&pool, 1, 64 * MIB)?);
    Ok(Scene { pool, leases: Vec::new() })
}

/// A pool that is full, with every second lease free: a long request is served by moving.
fn holes(bench: &Bench) -> Outcome<Scene> {
    let pool = bench.pool(1 << 30)?;
    // Longer than the pool's frames at this limit, so that each lease leaves whole frames idle.
    let mut leases = bench.leases(&pool, 63, 16 * MIB)?;
    let mut index = 0;
    leases.retain(|_| {
        index += 1;
        index % 2 == 0
    });
    Ok(Scene { pool, leases })
}

/// A new pool without memory.
fn empty(bench: &Bench) -> Outcome<Scene> {
    Ok(Scene { pool: bench.pool(1 << 30)?, leases: Vec::new() })
}

fn pair(bench: &Bench, scene: &mut Scene) -> Outcome<()> {
    let lease = scene.pool.allocate(64 * MIB, bench.leases, Owner::NONE)?;
    lease.release(bench.leases);
    Ok(())
}

fn allocate(bench: &Bench, scene: &mut Scene) -> Outcome<()> {
    scene.leases.push(scene.pool.allocate(64 * MIB, bench.leases, Owner::NONE)?);
    Ok(())
}

fn trim(_: &Bench, scene: &mut Scene) -> Outcome<()> {
    scene.pool.trim(0)?;
    Ok(())
}

const ROWS: [Row; 7] = [
    Row { name: "allocate and release at hand", prepare: warm, measured: pair, same_stream: false },
    Row { name: "take idle memory", prepare: holes, measured: allocate, same_stream: false },
    Row { name: "grow", prepare: empty, measured: allocate, same_stream: false },
    Row { name: "trim without wait", prepare: warm, measured: trim, same_stream: false },
    Row { name: "at hand, same stream", prepare: warm, measured: pair, same_stream: true },
    Row {
        name: "take idle memory, same stream",
        prepare: holes,
        measured: allocate,
        same_stream: true,
    },
    Row { name: "grow, same stream", prepare: empty, measured: allocate, same_stream: true },
];

fn run() -> Outcome<bool> {
    let device = match CudaDevice::new(CudaOptions::default()) {
        Ok(device) => Arc::new(device),
        Err(unavailable) => {
            println!("skipped: {unavailable}");
            return Ok(true);
        }
    };
    let bench = Bench { leases: device.make_stream()?, other: device.make_stream()?, device };
    kernels::nap(&bench.device, Duration::from_millis(1), bench.other)?;
    bench.device.synchronize()?;
    let mut good = true;
    println!("{:32} {:>12} {:>12} {:>7}", "median, us", "no kernel", "beside it", "ratio");
    for (index, row) in ROWS.iter().enumerate() {
        let (without, with) = bench.medians(row)?;
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        let at_hand = index == 0 || row.name.starts_with("at hand");
        let within = if at_hand { with <= AT_HAND } else { ratio <= RATIO };
        good &= within;
        println!(
            "{:32} {:12.2} {:12.2} {ratio:7.2}{}",
            row.name,
            without.as_secs_f64() * 1e6,
            with.as_secs_f64() * 1e6,
            if within { "" } else { "  out of bounds" }
        );
    }
    Ok(good)
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

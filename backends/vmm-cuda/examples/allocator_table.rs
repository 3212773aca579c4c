//! Nanoseconds for a pair of allocate and release on a card, by length.
//!
//! Prints lines "vmm-rust,case,median,mean". The cases and their random numbers are those of
//! `allocators.cpp` in the bundle for GPU machines, which measures other allocators and the C interface.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use vmm_core::{Lease, Owner, Pool, PoolOptions, StreamId};
use vmm_cuda::{CudaDevice, CudaOptions};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAIRS: usize = 2000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Random(u64);

impl Random {
    /// splitmix64, Steele, Lea and Flood 2014.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits are what a double holds")]
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * f64::EPSILON / 2.0
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
    fn log_uniform(&mut self, from: f64, to: f64) -> u64 {
        (from * (self.unit() * (to / from).ln()).exp()) as u64
    }
}

/// Median and mean nanoseconds of a pair, of twenty batches after some pairs that warm up.
#[expect(clippy::cast_precision_loss, reason = "a batch takes less than 2^53 ns")]
fn measure(warm: usize, mut pair: impl FnMut() -> Outcome<()>) -> Outcome<(f64, f64)> {
    for _ in 0..warm {
        pair()?;
    }
    let mut batches = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        for _ in 0..PAIRS {
            pair()?;
        }
        batches.push(start.elapsed().as_nanos() as f64 / PAIRS as f64);
    }
    batches.sort_by(f64::total_cmp);
    Ok((f64::midpoint(batches[9], batches[10]), batches.iter().sum::<f64>() / 20.0))
}

fn print(case: &str, (median, mean): (f64, f64)) {
    println!("vmm-rust,{case},{median:.1},{mean:.1}");
}

fn random_leases(
    pool: &Pool<CudaDevice>,
    stream: StreamId,
    case: &str,
    length: impl Fn(&mut Random) -> u64,
) -> Outcome<()> {
    let mut random = Random(1);
    let allocate = |len| pool.allocate(len, stream, Owner::NONE);
    let mut live: Vec<Option<Lease<CudaDevice>>> = Vec::new();
    for _ in 0..1000 {
        live.push(Some(allocate(length(&mut random))?));
    }
    let figures = measure(50 * PAIRS, || {
        let index = usize::try_from(random.next() % 1000)?;
        live[index] = None;
        live[index] = Some(allocate(length(&mut random))?);
        Ok(())
    })?;
    print(case, figures);
    Ok(())
}

fn main() -> Outcome<()> {
    let device = match CudaDevice::new(CudaOptions::default()) {
        Ok(device) => Arc::new(device),
        Err(unavailable) => {
            eprintln!("skipped: {unavailable}");
            return Ok(());
        }
    };
    let stream = device.make_stream()?;
    let pool = Pool::new(Arc::clone(&device), PoolOptions::default())?;
    for (case, len) in [
        ("512 B", 512),
        ("4 KiB", 4 * KIB),
        ("64 KiB", 64 * KIB),
        ("1 MiB", MIB),
        ("2 MiB", 2 * MIB),
        ("16 MiB", 16 * MIB),
        ("64 MiB", 64 * MIB),
    ] {
        let figures = measure(PAIRS, || {
            drop(black_box(pool.allocate(len, stream, Owner::NONE)?));
            Ok(())
        })?;
        print(case, figures);
    }
    random_leases(&pool, stream, "1000 live 512 B to 1 MiB", |r| r.log_uniform(512.0, 1048576.0))?;
    random_leases(&pool, stream, "1000 live 1 to 32 MiB", |r| MIB + r.next() % (31 * MIB))?;
    random_leases(&pool, stream, "1000 live 512 B to 64 MiB", |r| {
        r.log_uniform(512.0, 67108864.0)
    })?;
    drop(pool);
    device.destroy_stream(stream)?;
    Ok(())
}

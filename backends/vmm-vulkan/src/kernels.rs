//! Small compute shaders for checks and measurements.

use crate::buffer::HostBuffer;
use crate::device::{VulkanDevice, refused};
use crate::error::Call;
use crate::pipeline::Pipeline;
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use vmm_core::device::{AddrRange, DeviceOp, DeviceResult};
use vmm_core::units::{DeviceAddr, StreamId};

const FILL: &[u8] = include_bytes!("../shaders/fill.spv");
const CHECK: &[u8] = include_bytes!("../shaders/check.spv");
const SPIN: &[u8] = include_bytes!("../shaders/spin.spv");

/// Bytes of push constants of the first two, and of the third.
const PATTERN_CONSTANTS: u32 = 4 * 11;
const SPIN_CONSTANTS: u32 = 4 * 3;

/// Threads of a group in the first two.
const GROUP: u64 = 256;
/// More groups than this do not make it faster.
const MOST_GROUPS: u64 = 4096;
/// Words that one launch covers; a shader's index has 32 bits, with a sign.
const WORDS: u64 = 1 << 28;

/// Writes and checks contents.
#[derive(Debug)]
pub struct Contents {
    device: Arc<VulkanDevice>,
    fill: Arc<Pipeline>,
    check: Arc<Pipeline>,
    /// What checks have found: see `check.comp`. Checks that run keep it.
    counters: Arc<Mutex<HostBuffer>>,
    counters_at: u64,
}

/// What checks have found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mismatches {
    /// Bytes that were not as expected.
    pub count: u64,
    /// The address of one of them, the first that the device has come upon.
    pub first: Option<DeviceAddr>,
}

/// What a range is to hold.
#[derive(Clone, Copy)]
enum Pattern {
    Seed(u64),
    Byte(u8),
}

impl Contents {
    /// Loads the shaders.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<VulkanDevice>) -> DeviceResult<Self> {
        let call = Call::of(DeviceOp::Fill);
        let load = |code| {
            let pipeline = Pipeline::new(&device.context, code, PATTERN_CONSTANTS);
            pipeline.map(Arc::new).map_err(|error| call.failed(error))
        };
        let mut counters = HostBuffer::new(&device.context, &device.memory, call, 32)?;
        counters.bytes().fill(0);
        Ok(Self {
            device: Arc::clone(device),
            fill: load(FILL)?,
            check: load(CHECK)?,
            counters_at: counters.address(),
            counters: Arc::new(Mutex::new(counters)),
        })
    }

    /// Queues the filling of a range with bytes that follow from the seed and the place in the range.
    /// The address is a multiple of four. Of a last, incomplete word of four bytes those behind the
    /// range are written again as they are.
    ///
    /// # Errors
    /// If the range is not reserved or not aligned, or what the driver says.
    pub fn fill(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.launch(DeviceOp::Fill, &self.fill, range, Pattern::Seed(seed), stream)
    }

    /// Queues a comparison of a range with what [`Contents::fill`] has written there.
    ///
    /// # Errors
    /// As `fill`.
    pub fn check(&self, range: AddrRange, seed: u64, stream: StreamId) -> DeviceResult<()> {
        self.launch(DeviceOp::Copy, &self.check, range, Pattern::Seed(seed), stream)
    }

    /// Queues a comparison of each byte of a range with one value.
    ///
    /// # Errors
    /// As `fill`.
    pub fn check_byte(&self, range: AddrRange, byte: u8, stream: StreamId) -> DeviceResult<()> {
        self.launch(DeviceOp::Copy, &self.check, range, Pattern::Byte(byte), stream)
    }

    /// What all checks since the last call have found. The caller has waited for their streams.
    pub fn mismatches(&self) -> Mismatches {
        let mut counters = self.counters.lock();
        let bytes = counters.bytes();
        let mut words = [0_u32; 5];
        for (word, four) in words.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
        }
        bytes.fill(0);
        let [count_low, count_high, taken, first_low, first_high] = words;
        let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Mismatches {
            count: whole(count_low, count_high),
            first: (taken != 0).then(|| DeviceAddr(whole(first_low, first_high))),
        }
    }

    fn launch(
        &self,
        op: DeviceOp,
        pipeline: &Arc<Pipeline>,
        range: AddrRange,
        pattern: Pattern,
        stream: StreamId,
    ) -> DeviceResult<()> {
        let call = Call::on(op, range);
        let usable = self.device.streams.usable(stream);
        let stream = usable.map_err(|refusal| refused(call, refusal))?;
        if range.len == 0 {
            return Ok(());
        }
        if !range.addr.0.is_multiple_of(4) {
            return Err(call.illegal("the address is not a multiple of four"));
        }
        if self.device.buffer_range(range).is_none() {
            return Err(call.illegal("the range is not in one region"));
        }
        let (seed, constant) = match pattern {
            Pattern::Seed(seed) => (seed, 0),
            Pattern::Byte(byte) => (u64::from(u32::from_ne_bytes([byte; 4])), 1),
        };
        let all = range.len / 4;
        let tail = u32::try_from(range.len % 4).expect("less than four");
        let mut launches = Vec::new();
        let mut first = 0;
        // Once even if there is no whole word, for the tail.
        while first < all || first == 0 {
            let words = WORDS.min(all - first);
            let last = first + words == all;
            let [data_low, data_high] = halves(range.addr.0 + 4 * first);
            let [results_low, results_high] = halves(self.counters_at);
            let [seed_low, seed_high] = halves(seed);
            let [first_low, first_high] = halves(first);
            let words_here = u32::try_from(words).expect("at most `WORDS`");
            let tail_here = if last { tail } else { 0 };
            let groups = words.div_ceil(GROUP).clamp(1, MOST_GROUPS);
            launches.push((
                [
                    data_low,
                    data_high,
                    results_low,
                    results_high,
                    seed_low,
                    seed_high,
                    first_low,
                    first_high,
                    words_here,
                    tail_here,
                    constant,
                ],
                u32::try_from(groups).expect("at most `MOST_GROUPS`"),
            ));
            first += WORDS;
        }
        let keep = (Arc::clone(pipeline), Arc::clone(&self.counters));
        let queued = self.device.run(&stream, Some(Box::new(keep)), |device, commands| {
            for (constants, groups) in launches {
                // SAFETY: `commands` is being recorded; the constants are those of `pattern.glsl`; the
                // range is reserved, and mapped as the caller promises; the work keeps the counters.
                unsafe { pipeline.launch(commands, &constants, groups) };
            }
            // SAFETY: `commands` is being recorded.
            unsafe { crate::commands::all_before_host(device, commands) };
        });
        queued.map(drop).map_err(|error| call.failed(error))
    }
}

/// Keeps streams busy for a time.
pub struct Spinner {
    device: Arc<VulkanDevice>,
    pipeline: Arc<Pipeline>,
    sink: Arc<HostBuffer>,
    rounds_per_micro: OnceLock<u64>,
}

impl fmt::Debug for Spinner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spinner").finish_non_exhaustive()
    }
}

impl Spinner {
    /// Loads the shader.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(device: &Arc<VulkanDevice>) -> DeviceResult<Self> {
        let call = Call::of(DeviceOp::Fill);
        let pipeline = Pipeline::new(&device.context, SPIN, SPIN_CONSTANTS);
        let mut sink = HostBuffer::new(&device.context, &device.memory, call, 32)?;
        sink.bytes().fill(0);
        Ok(Self {
            device: Arc::clone(device),
            pipeline: Arc::new(pipeline.map_err(|error| call.failed(error))?),
            sink: Arc::new(sink),
            rounds_per_micro: OnceLock::new(),
        })
    }

    /// Queues a shader on one thread that runs for about this long. How fast the device is, is
    /// measured by the first call, which waits for that.
    ///
    /// # Errors
    /// If there is no such stream, or what the driver says.
    pub fn nap(&self, duration: Duration, stream: StreamId) -> DeviceResult<()> {
        let speed = match self.rounds_per_micro.get() {
            Some(speed) => *speed,
            None => {
                let speed = self.measure()?;
                *self.rounds_per_micro.get_or_init(|| speed)
            }
        };
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.spin(micros.saturating_mul(speed), stream)
    }

    fn spin(&self, rounds: u64, stream: StreamId) -> DeviceResult<()> {
        let call = Call::of(DeviceOp::Fill);
        let usable = self.device.streams.usable(stream);
        let stream = usable.map_err(|refusal| refused(call, refusal))?;
        let [low, high] = halves(self.sink.address());
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let keep = (Arc::clone(&self.pipeline), Arc::clone(&self.sink));
        let queued = self.device.run(&stream, Some(Box::new(keep)), |_, commands| {
            // SAFETY: `commands` is being recorded; the constants are those of `spin.comp`, and the
            // work keeps the sink.
            unsafe { self.pipeline.launch(commands, &[low, high, rounds], 1) };
        });
        queued.map(drop).map_err(|error| call.failed(error))
    }

    /// Rounds in a microsecond. What a run takes besides its rounds counts as well, so that a nap is
    /// rather too short than too long.
    fn measure(&self) -> DeviceResult<u64> {
        const ROUNDS: u64 = 1 << 20;
        let time = || {
            let stream = self.device.make_stream()?;
            let start = Instant::now();
            self.spin(ROUNDS, stream)?;
            self.device.synchronize_stream(stream)?;
            let taken = start.elapsed();
            self.device.destroy_stream(stream)?;
            Ok(taken)
        };
        // The first run warms up.
        let shortest = time()?.min(time()?).as_micros().max(1);
        Ok((ROUNDS / u64::try_from(shortest).unwrap_or(u64::MAX)).max(1))
    }
}

/// The low and the high half.
fn halves(whole: u64) -> [u32; 2] {
    let low = u32::try_from(whole & u64::from(u32::MAX)).expect("32 bits");
    [low, u32::try_from(whole >> 32).expect("32 bits")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_cut_in_two() {
        assert_eq!(halves(0x0123_4567_89ab_cdef), [0x89ab_cdef, 0x0123_4567]);
    }
}

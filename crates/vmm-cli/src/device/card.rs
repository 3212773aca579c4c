//! A card as a place for replays: real driver calls under the logical clock of the trace.

use super::card_contents::{CardContents, Checks};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, VirtualMemoryDevice};
use vmm_core::{DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, Fence, StreamId};
use vmm_replay::{
    CallAccount, Ground, Metered, Paced, ReplayError, ReplayResult, ReplaySettings, replay,
    replay_checked,
};
use vmm_trace::DeviceTrace;

/// How long the stand-in for work before each fence runs. Long enough that the fence is not reached
/// while the next calls are made, short enough that tens of thousands of them are seconds.
const STAND_IN: Duration = Duration::from_micros(20);

/// A card that is this late has stopped.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a replay needs of a card beside the device interface.
pub(crate) trait Card: Send + Sync + 'static {
    /// The device interface.
    type Device: VirtualMemoryDevice + 'static;

    /// The card's device.
    fn device(&self) -> &Arc<Self::Device>;

    /// Makes a stream.
    fn make_stream(&self) -> DeviceResult<StreamId>;

    /// Destroys a stream.
    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;

    /// Waits for all work of a stream.
    fn synchronize_stream(&self, stream: StreamId) -> DeviceResult<()>;

    /// Queues work that runs for about so long and uses no memory of a pool.
    fn nap(&self, duration: Duration, stream: StreamId) -> DeviceResult<()>;

    /// Kernels that fill and check memory, with nothing found yet.
    fn checks(&self) -> DeviceResult<Box<dyn Checks>>;

    /// Keeps a kernel running on a stream of its own until what is returned is dropped. The host must
    /// not wait for the whole device meanwhile.
    fn load(&self) -> DeviceResult<Box<dyn Any>>;
}

/// One card, for all replays of the command.
pub(crate) struct CardReplays<C: Card> {
    card: Arc<C>,
    streams: Arc<Streams<C>>,
}

impl<C: Card> CardReplays<C> {
    /// Makes the card warm: the first calls of a process are dearer than all later ones.
    ///
    /// # Errors
    /// One line that says what fails.
    pub(crate) fn new(card: C) -> Result<Self, String> {
        let card = Arc::new(card);
        let streams = Arc::new(Streams { card: Arc::clone(&card), made: Mutex::default() });
        let this = Self { card, streams };
        this.warm_up().map_err(|error| format!("the device fails at its first calls: {error}"))?;
        Ok(this)
    }

    /// Replays a trace on a fresh pool, and checks the bytes of its leases if `checked` says so.
    ///
    /// # Errors
    /// As [`replay`].
    pub(crate) fn replay(
        &self,
        trace: &DeviceTrace,
        settings: &ReplaySettings,
        checked: bool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ReplayResult, ReplayError> {
        let meter = Arc::new(Metered::new(Arc::clone(self.card.device())));
        let ground = CardGround { meter: Arc::clone(&meter), streams: Arc::clone(&self.streams) };
        let device = Arc::new(Paced::new(meter, ground, settings.lag));
        let contents = checked.then(|| CardContents::new(&self.card)).transpose();
        let contents = contents.map_err(ReplayError::Checks)?;
        // Ends before the contents do, whose end may wait for the whole card.
        let load = settings.busy.then(|| self.card.load()).transpose();
        let _load = load.map_err(ReplayError::Stream)?;
        match &contents {
            Some(contents) => {
                replay_checked(trace, settings, Arc::clone(&device), &device, contents, progress)
            }
            None => replay(trace, settings, Arc::clone(&device), &device, progress),
        }
    }

    /// One of each call that a replay makes, kernels included.
    fn warm_up(&self) -> DeviceResult<()> {
        use vmm_replay::Contents;
        let (card, device) = (&self.card, self.card.device());
        let contents = CardContents::new(card)?;
        let stream = self.streams.get(0)?;
        if !device.properties().capabilities.remapping {
            return card.nap(STAND_IN, stream).and_then(|()| card.synchronize_stream(stream));
        }
        let len = device.properties().granule;
        let range = AddrRange { addr: device.reserve(len, len)?, len };
        let frame = device.make_frame(len, FrameKind::Device)?;
        let bound = device.map(&[Mapping { range, frame }], &[])?;
        device.set_access(range, &[])?;
        device.stream_wait(stream, bound)?;
        contents.fill(0, range, stream)?;
        contents.check(0, range, stream)?;
        card.nap(STAND_IN, stream)?;
        let fence = device.record(stream)?;
        device.stream_wait(self.streams.get(1)?, fence)?;
        device.reached(stream)?;
        card.synchronize_stream(stream)?;
        contents.finish()?;
        let unbound = device.unmap(&[range], &[])?;
        wait(&**device, unbound)?;
        device.release_frame(frame)?;
        device.free_region(range.addr, len)
    }
}

/// Waits for a fence that comes soon.
fn wait(device: &impl VirtualMemoryDevice, fence: Fence) -> DeviceResult<()> {
    if device.wait(fence, PATIENCE)? {
        return Ok(());
    }
    Err(DeviceError::new(
        DeviceOp::Wait,
        DeviceErrorKind::Failed,
        "the device has not finished its work within a minute",
    ))
}

/// Streams of the card, made when they are first asked for and kept for later replays.
struct Streams<C: Card> {
    card: Arc<C>,
    made: Mutex<Vec<StreamId>>,
}

impl<C: Card> Streams<C> {
    fn get(&self, index: usize) -> DeviceResult<StreamId> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        while made.len() <= index {
            made.push(self.card.make_stream()?);
        }
        Ok(made[index])
    }
}

impl<C: Card> Drop for Streams<C> {
    fn drop(&mut self) {
        let made = self.made.get_mut().unwrap_or_else(PoisonError::into_inner);
        for stream in made.drain(..) {
            // A stream that cannot be destroyed goes with the process.
            let _ = self.card.destroy_stream(stream);
        }
    }
}

/// What a replay needs of the card beside the calls that are measured.
struct CardGround<C: Card> {
    meter: Arc<Metered<C::Device>>,
    streams: Arc<Streams<C>>,
}

impl<C: Card> Ground for CardGround<C> {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        self.streams.get(index)
    }

    fn occupy(&self, stream: StreamId) -> DeviceResult<()> {
        self.streams.card.nap(STAND_IN, stream)
    }

    fn catch_up(&self, fence: Fence) -> DeviceResult<()> {
        // Past the meter: the wait is the price of the time that the replay skips.
        wait(&**self.meter.device(), fence)
    }

    fn calls(&self) -> CallAccount {
        self.meter.calls()
    }
}

//! A step: a bounded piece of work for the device, in three parts.
//!
//! It is *decided* under the lock, which takes everything it touches out of everybody's reach;
//! *run* without the lock, where device calls may take their time; and *finished* under the lock
//! again. A step that fails in the middle undoes what it did, so that finishing it puts everything
//! back. What even the undoing could not remove stays in the accounts, and is
//! removed later.

use crate::device::{
    AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping,
    VirtualMemoryDevice,
};
use crate::extent::ExtentId;
use crate::frame::{FrameId, Held, MappingId};
use crate::plain::{IdleRegion, NewRegion};
use crate::timeline::StreamSlot;
use crate::units::{DeviceAddr, DeviceOrdinal, Fence, FrameHandle, StreamId};
use std::time::Duration;

/// How often a call is repeated that the device was too busy for.
const BUSY_RETRIES: u32 = 8;

/// How long one wait on the host for a bind may take before the device counts as lost.
const BIND_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the memory of one piece of a growth comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// A frame yet to be made.
    New,
    /// A frame with free bytes that move here: those, by the mapping they had their address in.
    Moved {
        frame: FrameId,
        handle: FrameHandle,
        parts: Vec<(MappingId, ExtentId)>,
        /// Its place so far, for devices where a frame has one place only.
        old: Option<AddrRange>,
    },
}

#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) range: AddrRange,
    pub(crate) source: Source,
}

/// Frames to be mapped one behind the other.
#[derive(Debug)]
pub(crate) struct Growth {
    /// The addresses that will be free memory, `Pending`.
    pub(crate) extent: ExtentId,
    /// In front of these, the part of the first frame that stays with its holders elsewhere.
    pub(crate) front: Option<ExtentId>,
    /// Behind them, that of the last.
    pub(crate) back: Option<ExtentId>,
    /// All of it.
    pub(crate) range: AddrRange,
    pub(crate) pieces: Vec<Piece>,
    /// What the pool holds once the new frames are made, if none go meanwhile.
    pub(crate) planned: Held,
    /// A free extent that ends where the growth begins, `Pending` so that nobody takes it.
    pub(crate) prefix: Option<ExtentId>,
    /// Whose memory it will be.
    pub(crate) slot: StreamSlot,
    pub(crate) stream: StreamId,
    pub(crate) kind: FrameKind,
    /// The devices besides this one that get access.
    pub(crate) peers: Vec<DeviceOrdinal>,
    /// The device has no aliases: idle frames leave their old place first.
    pub(crate) unmap_first: bool,
    /// The mappings exist only for work that the device orders after a bind on its queue.
    pub(crate) queued: bool,
}

impl Growth {
    /// How many frames move, rather than being made.
    pub(crate) fn moved(&self) -> usize {
        let moved = |piece: &&Piece| matches!(piece.source, Source::Moved { .. });
        self.pieces.iter().filter(moved).count()
    }
}

#[derive(Debug)]
pub(crate) enum Work {
    Grow(Growth),
    Unmap(Vec<(MappingId, AddrRange)>),
    Release(FrameId, FrameHandle, u64),
    /// Where nothing can be mapped: a frame with a region of its own.
    MakeRegion(NewRegion),
    ReleaseRegion(IdleRegion),
}

/// A bounded piece of work that a pool has decided on: see [`crate::Pool::begin_step`].
#[derive(Debug)]
#[must_use = "a step that is dropped keeps the memory it touches out of reach"]
pub struct Step(pub(crate) Work);

/// What came of a step: to be handed back with [`crate::Pool::finish_step`].
#[derive(Debug)]
pub struct StepOutcome {
    pub(crate) work: Work,
    pub(crate) result: Result<Done, Failure>,
}

impl StepOutcome {
    /// Whether the step did what it was to do.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.result.is_ok()
    }

    /// Gives peers access to what a growth has mapped that was decided on without them. If that
    /// fails the growth is undone.
    pub(crate) fn with_peers<D: VirtualMemoryDevice + ?Sized>(
        mut self,
        device: &D,
        peers: Vec<DeviceOrdinal>,
    ) -> Self {
        if let (Work::Grow(growth), Ok(done)) = (&mut self.work, &self.result) {
            match give_access(device, growth.range, &peers) {
                Ok(()) => growth.peers.extend(peers),
                Err(error) => {
                    let left = growth.unmap_first;
                    self.result = Err(undo(device, growth, &done.made, error, true, left));
                }
            }
        }
        self
    }
}

/// What a step brought.
#[derive(Debug)]
pub(crate) struct Done {
    /// Frames made, one for each new piece of a growth.
    pub(crate) made: Vec<FrameHandle>,
    /// When mappings that were removed are gone.
    pub(crate) gone: Fence,
}

impl From<Vec<FrameHandle>> for Done {
    fn from(made: Vec<FrameHandle>) -> Self {
        Self { made, gone: Fence::REACHED }
    }
}

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: DeviceError,
    /// New frames that are not mapped but could not be released, with their lengths.
    pub(crate) unreleased: Vec<(FrameHandle, u64)>,
    /// The whole growth could not be unmapped again.
    pub(crate) still_mapped: Option<Box<StillMapped>>,
    /// Pieces, by index, whose idle frame is of no use at its old place any more.
    pub(crate) lost: Vec<(usize, Lost)>,
}

/// A growth that failed and is mapped all the same.
#[derive(Debug)]
pub(crate) struct StillMapped {
    /// Its new frames.
    pub(crate) made: Vec<FrameHandle>,
    /// When it will be gone, if the device has queued that.
    pub(crate) gone: Option<Fence>,
}

/// Why an idle frame is of no use where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// It is not mapped there.
    Unmapped,
    /// It is mapped there again, but without access.
    Barred,
}

impl From<DeviceError> for Failure {
    fn from(error: DeviceError) -> Self {
        Self { error, unreleased: Vec::new(), still_mapped: None, lost: Vec::new() }
    }
}

impl Step {
    /// Makes the device calls. Call it without any lock of yours.
    pub fn run<D: VirtualMemoryDevice + ?Sized>(self, device: &D) -> StepOutcome {
        let result = match &self.0 {
            Work::Grow(growth) => grow(device, growth).map(Done::from),
            Work::Unmap(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|(_, range)| *range).collect();
                gone_is_done(device.unmap(&ranges, &[]), Fence::REACHED)
                    .map(|gone| Done { made: Vec::new(), gone })
                    .map_err(Failure::from)
            }
            Work::Release(_, handle, _) => release(device, *handle),
            Work::MakeRegion(new) => device
                .make_frame(new.len, new.kind)
                .map(|frame| Done::from(vec![frame]))
                .map_err(Failure::from),
            Work::ReleaseRegion(idle) => release(device, idle.handle),
        };
        StepOutcome { work: self.0, result }
    }
}

fn release<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    frame: FrameHandle,
) -> Result<Done, Failure> {
    gone_is_done(device.release_frame(frame), ())
        .map(|()| Done::from(Vec::new()))
        .map_err(Failure::from)
}

/// A driver that has shut down has taken everything with it: whatever was to be removed is.
pub(crate) fn gone_is_done<T>(result: DeviceResult<T>, done: T) -> DeviceResult<T> {
    match result {
        Err(error) if error.kind == DeviceErrorKind::Deinitialized => Ok(done),
        other => other,
    }
}

/// Waits on the host for a bind that the device has queued, where no stream could.
fn settle<D: VirtualMemoryDevice + ?Sized>(device: &D, fence: Fence) -> DeviceResult<()> {
    if fence == Fence::REACHED {
        return Ok(());
    }
    let mut result = device.wait(fence, BIND_TIMEOUT);
    for _ in 0..BUSY_RETRIES {
        if result.is_ok() {
            break;
        }
        result = device.wait(fence, BIND_TIMEOUT);
    }
    if result? {
        return Ok(());
    }
    Err(DeviceError::new(DeviceOp::Wait, DeviceErrorKind::Failed, "a bind did not end in time"))
}

fn grow<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    growth: &Growth,
) -> Result<Vec<FrameHandle>, Failure> {
    let mut made = Vec::new();
    for piece in &growth.pieces {
        if matches!(piece.source, Source::New) {
            match device.make_frame(piece.range.len, growth.kind) {
                Ok(handle) => made.push(handle),
                Err(error) => return Err(undo(device, growth, &made, error, false, false)),
            }
        }
    }
    let old: Vec<AddrRange> = if growth.unmap_first {
        idle_places(growth).map(|(.., range)| range).collect()
    } else {
        Vec::new()
    };
    if !old.is_empty() {
        let left = match device.unmap(&old, &[]) {
            Ok(fence) => settle(device, fence),
            Err(error) => return Err(undo(device, growth, &made, error, false, false)),
        };
        if let Err(error) = left {
            return Err(undo(device, growth, &made, error, false, true));
        }
    }
    let fence = match device.map(&mappings(growth, &made), &[]) {
        Ok(fence) => fence,
        Err(error) => return Err(undo(device, growth, &made, error, false, growth.unmap_first)),
    };
    let ordered = give_access(device, growth.range, &growth.peers).and_then(|()| {
        if fence == Fence::REACHED {
            Ok(())
        } else if growth.slot == crate::timeline::READY {
            settle(device, fence)
        } else {
            device.stream_wait(growth.stream, fence)
        }
    });
    match ordered {
        Ok(()) => Ok(made),
        Err(error) => Err(undo(device, growth, &made, error, true, growth.unmap_first)),
    }
}

/// Gives this device and peers access to whole mappings. A busy device is asked again.
pub(crate) fn give_access<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    range: AddrRange,
    peers: &[DeviceOrdinal],
) -> DeviceResult<()> {
    let mut result = device.set_access(range, peers);
    for _ in 0..BUSY_RETRIES {
        match result {
            Err(error) if error.kind == DeviceErrorKind::NotReady => {
                std::thread::yield_now();
                result = device.set_access(range, peers);
            }
            _ => break,
        }
    }
    result
}

/// Idle frames by the index of their piece, with their place so far.
fn idle_places(growth: &Growth) -> impl Iterator<Item = (usize, FrameHandle, AddrRange)> + '_ {
    growth.pieces.iter().enumerate().filter_map(|(index, piece)| match &piece.source {
        Source::Moved { handle, old, .. } => old.map(|old| (index, *handle, old)),
        Source::New => None,
    })
}

fn mappings(growth: &Growth, made: &[FrameHandle]) -> Vec<Mapping> {
    let mut made = made.iter();
    let handle = |piece: &Piece, made: &mut std::slice::Iter<'_, FrameHandle>| match &piece.source {
        Source::New => *made.next().expect("a frame for each new piece"),
        Source::Moved { handle, .. } => *handle,
    };
    growth
        .pieces
        .iter()
        .map(|piece| Mapping { range: piece.range, frame: handle(piece, &mut made) })
        .collect()
}

/// Takes a growth back after `error`.
fn undo<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    growth: &Growth,
    made: &[FrameHandle],
    error: DeviceError,
    mapped: bool,
    left_old_places: bool,
) -> Failure {
    let mut failure = Failure::from(error);
    if mapped {
        let gone = gone_is_done(device.unmap(&[growth.range], &[]), Fence::REACHED).ok();
        if gone.is_none_or(|fence| settle(device, fence).is_err()) {
            let left = StillMapped { made: made.to_vec(), gone };
            failure.still_mapped = Some(Box::new(left));
            if left_old_places {
                failure.lost =
                    idle_places(growth).map(|(index, ..)| (index, Lost::Unmapped)).collect();
            }
            return failure;
        }
    }
    if left_old_places {
        for (index, frame, range) in idle_places(growth) {
            if restore(device, frame, range).is_err() {
                failure.lost.push((index, Lost::Unmapped));
            } else if device.set_access(range, &[]).is_err() {
                failure.lost.push((index, Lost::Barred));
            }
        }
    }
    let new = growth.pieces.iter().filter(|piece| matches!(piece.source, Source::New));
    for (handle, piece) in made.iter().zip(new) {
        if gone_is_done(device.release_frame(*handle), ()).is_err() {
            failure.unreleased.push((*handle, piece.range.len));
        }
    }
    failure
}

/// Maps an idle frame where it was, on a device without aliases.
fn restore<D: VirtualMemoryDevice + ?Sized>(
    device: &D,
    frame: FrameHandle,
    range: AddrRange,
) -> DeviceResult<()> {
    device.map(&[Mapping { range, frame }], &[]).and_then(|fence| settle(device, fence))
}

/// A range of the pool's addresses.
pub(crate) fn range(addr: u64, len: u64) -> AddrRange {
    AddrRange { addr: DeviceAddr(addr), len }
}

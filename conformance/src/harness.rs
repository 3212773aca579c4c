//! What a backend provides so that the suite can run on it.

use std::sync::Arc;
use std::time::Duration;
use vmm_core::device::{AddrRange, VirtualMemoryDevice};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, StreamId};

/// What a harness call returns: the message says what the backend could not do.
pub type HarnessResult<T> = Result<T, String>;

/// A use of memory by queued work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The work reads the range.
    Read(AddrRange),
    /// The work writes this byte all over the range, when it ends.
    Write(AddrRange, u8),
    /// The work expects this byte all over the range; else [`Harness::complaints`] says so.
    Expect(AddrRange, u8),
}

/// What a backend can do for its tests. What is missing rules cases out, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Broken preconditions are refused with `Illegal`, not undefined.
    pub strict: bool,
    /// Work can be kept running for as long as a case wants.
    pub occupy: bool,
    /// A request beyond the physical memory fails, as it does not on systems that over-commit.
    pub exhaustible: bool,
    /// [`Harness::leave_free`] works.
    pub memory_control: bool,
    /// [`Harness::begin_capture`] works.
    pub capture: bool,
    /// [`Harness::leftovers`] sees everything and [`Harness::forget_leftovers`] works.
    pub leftovers: bool,
}

/// A fresh device and the means to put it to work.
///
/// Work queued by the harness obeys the order of its stream, as the device's own copies do.
pub trait Harness {
    /// The device under test.
    type Device: VirtualMemoryDevice + 'static;

    /// The device. The same for the life of the harness, and used by nothing else.
    fn device(&self) -> &Arc<Self::Device>;

    /// What this backend can do for its tests.
    fn abilities(&self) -> Abilities;

    /// A new stream.
    fn make_stream(&self) -> HarnessResult<StreamId>;

    /// Destroys a stream that [`Harness::make_stream`] made.
    fn destroy_stream(&self, stream: StreamId) -> HarnessResult<()>;

    /// Queues work that takes about `duration` of device time.
    fn work(&self, stream: StreamId, duration: Duration, uses: &[Use]) -> HarnessResult<()>;

    /// Queues work that runs until [`Harness::let_go`].
    fn occupy(&self, stream: StreamId, uses: &[Use]) -> HarnessResult<()>;

    /// Lets all work that occupies a stream end, without waiting for it.
    fn let_go(&self) -> HarnessResult<()>;

    /// Writes bytes through a stream and waits for it.
    fn write(&self, stream: StreamId, to: DeviceAddr, bytes: &[u8]) -> HarnessResult<()>;

    /// Reads bytes through a stream and waits for it.
    fn read(&self, stream: StreamId, range: AddrRange) -> HarnessResult<Vec<u8>>;

    /// Waits for all work of one stream.
    fn synchronize_stream(&self, stream: StreamId) -> HarnessResult<()>;

    /// Waits for all work of all streams. Nothing may be occupied.
    fn synchronize(&self) -> HarnessResult<()>;

    /// Takes memory away, or gives it back, so that about `free` bytes are free on the card.
    fn leave_free(&self, free: u64) -> HarnessResult<()>;

    /// Lets a stream begin to capture a graph.
    fn begin_capture(&self, stream: StreamId) -> HarnessResult<()>;

    /// Ends the capture and drops the graph.
    fn end_capture(&self, stream: StreamId) -> HarnessResult<()>;

    /// Other devices that can be given access to this one's memory; empty if there are none.
    fn peers(&self) -> Vec<DeviceOrdinal>;

    /// Reads bytes by work of a peer, as a kernel on that device would, and waits for it. What they
    /// hold was written by work that is done. An error where the peer has no access: a backend on
    /// which such work faults asks its driver first.
    fn read_as_peer(&self, peer: DeviceOrdinal, range: AddrRange) -> HarnessResult<Vec<u8>>;

    /// What lives on the device, in words; empty if nothing does, or nobody can see.
    fn leftovers(&self) -> Vec<String>;

    /// Puts away what lives on the device, after a case that has pretended that the driver was lost
    /// with everything on it.
    fn forget_leftovers(&self) -> HarnessResult<()>;

    /// How many calls the device has refused because they broke the contract; 0 if it does not look.
    fn refusals(&self) -> usize;

    /// What else the device has noticed that is wrong, in words: races, say.
    fn complaints(&self) -> Vec<String>;
}

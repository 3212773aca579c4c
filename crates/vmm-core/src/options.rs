//! What a user can set when making a pool.

use crate::device::FrameKind;
use crate::units::DeviceOrdinal;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a pool behaves. `PoolOptions::default()` suits a program that has the device to itself and
/// whose needs are not known.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Bytes of physical memory that are never passed, not even for a moment. Default: none.
    pub limit: Option<u64>,
    /// Bytes of physical memory that the pool makes ahead of need and tries to stay under.
    /// Default: the limit; [`Self::NO_TARGET`] for a limit that is only not to be passed. The last run's
    /// peak, where it is known, serves best. All that the device has, or more, is
    /// as good as none.
    pub target: Option<u64>,
    /// How memory that one stream released becomes usable by another.
    pub cross_stream: CrossStream,
    /// Who does the work that need not be done at once.
    pub maintenance: Maintenance,
    /// How long memory above the target stays after it was last needed. Default: 10 s.
    pub time_to_live: Duration,
    /// The kind of frames. If the device refuses it, plain frames are used from then on.
    pub frame_kind: FrameKind,
    /// Where the time is read: how long memory was idle, and how long misses took. Default: the
    /// system's monotonic clock.
    pub clock: Clock,
    /// The largest address range to reserve at once, in bytes. A device that refuses it is asked for
    /// less. Default: 16 times the device's memory.
    pub reservation: Option<u64>,
    /// Other devices that have access to all memory of the pool, from the start; see
    /// [`crate::Pool::add_peer`] for the cost. Default: none.
    pub peers: Vec<DeviceOrdinal>,
}

impl PoolOptions {
    /// As a target: none, also where there is a limit. The pool follows what is needed.
    pub const NO_TARGET: u64 = u64::MAX;
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            limit: None,
            target: None,
            cross_stream: CrossStream::default(),
            maintenance: Maintenance::default(),
            time_to_live: Duration::from_secs(10),
            frame_kind: FrameKind::Device,
            clock: Clock::default(),
            reservation: None,
            peers: Vec::new(),
        }
    }
}

/// A clock that never goes back. Tests and replays bring their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that reads `now`: the time since any fixed moment.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Duration {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        let start = Instant::now();
        Self::new(move || start.elapsed())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// How memory that one stream released becomes usable by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CrossStream {
    /// The taker's stream waits on the device for the work that may still use it. The host never
    /// does.
    #[default]
    WaitOnDevice,
    /// Only once that work is over.
    WhenReached,
    /// Never, short of an allocation that would fail.
    Never,
}

/// Who makes frames ahead of need, removes stale mappings and releases what is above the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Maintenance {
    /// A thread of the pool.
    #[default]
    Worker,
    /// The user, by calling [`crate::Pool::maintain`].
    UserLoop,
    /// Allocations that must call the device anyway do a step more.
    Inline,
}

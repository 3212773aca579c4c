//! What a replay is to do.

use crate::amount::Amount;
use std::num::NonZeroUsize;
use std::time::Duration;
use vmm_core::CrossStream;

/// Which memory manager serves the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The pool of `vmm-core`.
    #[default]
    Vmm,
}

impl Policy {
    /// The policy's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vmm => "vmm",
        }
    }
}

/// Who makes the pool's maintenance calls during a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upkeep {
    /// A second thread. It is modelled, not started, so that a replay gives the same figures every
    /// time: see [`crate::worker`].
    #[default]
    Worker,
    /// The allocating thread, as part of its own calls.
    Inline,
    /// Nobody: the pool does only what a request forces it to do.
    None,
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct ReplaySettings {
    /// The memory manager.
    pub policy: Policy,
    /// What the pool must never exceed.
    pub limit: Option<Amount>,
    /// What the pool tries to stay under.
    pub target: Option<Amount>,
    /// How far the device runs behind the host: work that is queued now is finished so much later.
    /// A replay does not use it; it is for whoever makes the device.
    pub lag: Duration,
    /// Whether kernels run beside the replay and make device calls slower, as in a program at work.
    /// This too is for whoever makes the device.
    pub busy: bool,
    /// When memory released on one stream may serve another.
    pub cross_stream: CrossStream,
    /// Who makes the maintenance calls.
    pub upkeep: Upkeep,
    /// Ends the replay at the first failed allocation, for searches that only ask whether there is one.
    pub stop_at_failure: bool,
    /// Keeps about so many samples of the memory in use ([`crate::ReplayResult::curve`]).
    pub curve_samples: Option<NonZeroUsize>,
}

impl Default for ReplaySettings {
    /// No limit, no target, 5 ms of lag, an idle device, the pool's own way across streams, a worker.
    fn default() -> Self {
        Self {
            policy: Policy::Vmm,
            limit: None,
            target: None,
            lag: Duration::from_millis(5),
            busy: false,
            cross_stream: CrossStream::default(),
            upkeep: Upkeep::Worker,
            stop_at_failure: false,
            curve_samples: None,
        }
    }
}

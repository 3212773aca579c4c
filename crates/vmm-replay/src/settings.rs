//! What a replay is to do.

use crate::amount::{Amount, AmountError};
use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;
use std::time::Duration;
use vmm_core::CrossStream;
use vmm_core::placement::{PlacementKind, UnknownPlacement};

/// A placement, and the chunks that it gets.
///
/// Its text form is `buddy`, or `buddy:chunk=1GiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// Which placement.
    pub kind: PlacementKind,
    /// The length of each chunk. What needs more gets memory of its own.
    pub chunk: Amount,
}

impl Placed {
    /// The chunks of a heap that nobody has set anything for.
    pub const DEFAULT_CHUNK: Amount = Amount::Bytes(64 << 20);
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chunk {
            Self::DEFAULT_CHUNK => self.kind.fmt(f),
            chunk => write!(f, "{}:chunk={chunk}", self.kind),
        }
    }
}

/// Why a text is no [`Placed`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacedError {
    /// No placement has this name.
    #[error("{0}")]
    UnknownPlacement(#[from] UnknownPlacement),
    /// There is no such setting.
    #[error("{kind} has no setting '{key}': it has chunk")]
    UnknownKey {
        /// The placement.
        kind: PlacementKind,
        /// The setting.
        key: String,
    },
    /// The length of the chunks is no amount.
    #[error("chunk: {0}")]
    Chunk(#[from] AmountError),
}

impl FromStr for Placed {
    type Err = PlacedError;

    fn from_str(text: &str) -> Result<Self, PlacedError> {
        let mut parts = text.split(':').map(str::trim);
        let kind = parts.next().unwrap_or_default().parse()?;
        let mut chunk = Self::DEFAULT_CHUNK;
        for setting in parts {
            match setting.split_once('=').unwrap_or((setting, "")) {
                ("chunk", value) => chunk = value.parse()?,
                (key, _) => return Err(PlacedError::UnknownKey { kind, key: key.to_owned() }),
            }
        }
        Ok(Self { kind, chunk })
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
    /// Where tensors lie: in blocks of a [heap](vmm_core::Heap) over the pool, or each in a lease of the
    /// pool if there is none.
    pub placement: Option<Placed>,
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
    /// Leases of the pool, no limit, no target, 5 ms of lag, an idle device, the pool's own way across streams, a worker.
    fn default() -> Self {
        Self {
            placement: None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placement_and_its_chunks_are_read_and_written() {
        for text in ["buddy", "first-fit:chunk=1MiB", "tlsf:chunk=1.5x"] {
            let placed: Placed = text.parse().expect(text);
            assert_eq!(placed.to_string(), text);
        }
        let placed: Placed = " slab : chunk=1MiB".parse().expect("spaces do not matter");
        assert_eq!((placed.kind, placed.chunk), (PlacementKind::Slab, Amount::Bytes(1 << 20)));
    }

    #[test]
    fn what_is_no_placement_is_told() {
        let error = |text: &str| text.parse::<Placed>().expect_err(text).to_string();
        assert!(error("pair").starts_with("unknown placement 'pair': there are bump,"));
        assert_eq!(error("buddy:order=3"), "buddy has no setting 'order': it has chunk");
        assert!(error("buddy:chunk").starts_with("chunk: no number in ''"));
    }
}

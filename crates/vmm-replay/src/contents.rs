//! Whether leases keep their bytes: the check of a replay that does not trust the pool.
//!
//! Each lease is filled with a pattern of its own on its stream, and read back on the stream that
//! uses it last, just before its release. Whatever the pool does wrong with addresses, mappings,
//! aliases or the order of streams shows as other bytes, and so does what a driver does wrong.

use crate::replay::ReplayError;
use serde::Serialize;
use vmm_core::device::AddrRange;
use vmm_core::{DeviceResult, StreamId};

/// Writes and checks patterns on a device. All is queued; nothing waits but [`Self::finish`].
pub trait Contents {
    /// Queues the writing of the pattern of lease `lease` all over the range.
    ///
    /// # Errors
    /// What the device says.
    fn fill(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()>;

    /// Queues a comparison of the whole range with that pattern.
    ///
    /// # Errors
    /// What the device says.
    fn check(&self, lease: u64, range: AddrRange, stream: StreamId) -> DeviceResult<()>;

    /// Waits for all that is queued and says what all checks found.
    ///
    /// # Errors
    /// What the device says.
    fn finish(&self) -> DeviceResult<Faults>;
}

/// What the checks found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Bytes that were not what had been written.
    pub wrong_bytes: u64,
    /// The first leases with wrong bytes that are known by number, in the order in which they were
    /// found: at most [`SHOWN_LEASES`] of them.
    pub first: Vec<WrongLease>,
    /// What else the device noticed: calls that it refused as illegal, and work that uses the same
    /// bytes without an order. Always 0 on a device that does not look.
    pub complaints: u64,
}

/// How many wrong leases are named. The first one tells most.
pub const SHOWN_LEASES: usize = 8;

/// A lease with wrong bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WrongLease {
    /// Which: the replay's allocations are numbered from 1, those that were live at the start first.
    pub lease: u64,
    /// Where the first wrong byte that was found lies in it.
    pub offset: u64,
}

/// The result of a replay's checks. Serialized, it is the `check` of the command's `--json` output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckResult {
    /// Leases that were filled and checked.
    pub leases: u64,
    /// Their bytes.
    pub bytes: u64,
    /// See [`Faults::wrong_bytes`].
    pub wrong_bytes: u64,
    /// See [`Faults::complaints`].
    pub complaints: u64,
    /// See [`Faults::first`].
    pub first_wrong: Vec<WrongLease>,
}

impl CheckResult {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.wrong_bytes == 0 && self.complaints == 0
    }
}

/// The check of a replay under way.
pub(crate) struct Check<'a> {
    contents: &'a dyn Contents,
    /// The number of the lease in each slot.
    numbers: Vec<u64>,
    /// Leases so far.
    count: u64,
    checked: CheckResult,
}

impl<'a> Check<'a> {
    pub(crate) fn new(contents: &'a dyn Contents, slots: usize) -> Self {
        Self { contents, numbers: vec![0; slots], count: 0, checked: CheckResult::default() }
    }

    /// The lease of a slot has come to be; without a range its allocation failed, which counts all
    /// the same, so that a lease has one number on every device and under every limit.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        range: Option<AddrRange>,
        stream: StreamId,
    ) -> Result<(), ReplayError> {
        self.count += 1;
        let lease = self.count;
        self.numbers[slot] = lease;
        match range.filter(|range| range.len > 0) {
            Some(range) => self
                .contents
                .fill(lease, range, stream)
                .map_err(|error| ReplayError::Contents { lease, error }),
            None => Ok(()),
        }
    }

    /// The lease of a slot is about to go, last used on `stream`.
    pub(crate) fn end(
        &mut self,
        slot: usize,
        range: AddrRange,
        stream: StreamId,
    ) -> Result<(), ReplayError> {
        if range.len == 0 {
            return Ok(());
        }
        self.checked.leases += 1;
        self.checked.bytes += range.len;
        let lease = self.numbers[slot];
        let queued = self.contents.check(lease, range, stream);
        queued.map_err(|error| ReplayError::Contents { lease, error })
    }

    /// Waits for all checks.
    pub(crate) fn finish(self) -> Result<CheckResult, ReplayError> {
        let faults = self.contents.finish().map_err(ReplayError::Checks)?;
        Ok(CheckResult {
            wrong_bytes: faults.wrong_bytes,
            complaints: faults.complaints,
            first_wrong: faults.first,
            ..self.checked
        })
    }
}

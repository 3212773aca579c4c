//! How much physical memory to have, and in frames of what length.

use crate::arena::{ArenaId, SMALL};
use crate::units::round_down;
use std::time::Duration;

/// The part of the budget that one frame of the large arena has: 1/200. Shorter frames waste less
/// at their edges, longer ones cost fewer device calls.
const FRAMES_PER_BUDGET: u64 = 400;

/// The length of frames of the small arena, where the granule allows it.
const SMALL_FRAME: u64 = 2 << 20;

#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limit: Option<u64>,
    pub(crate) target: Option<u64>,
    pub(crate) granule: u64,
    pub(crate) time_to_live: Duration,
    /// The highest live bytes so far.
    pub(crate) peak: u64,
    /// The highest live bytes since `window_start`, and in the window before.
    window_peak: u64,
    last_window_peak: u64,
    window_start: Duration,
}

impl Budget {
    pub(crate) fn new(limit: Option<u64>, target: Option<u64>, granule: u64, time_to_live: Duration) -> Self {
        Self {
            limit,
            target,
            granule,
            time_to_live,
            peak: 0,
            window_peak: 0,
            last_window_peak: 0,
            window_start: Duration::ZERO,
        }
    }

    #[inline]
    pub(crate) fn note_live(&mut self, live: u64) {
        if live > self.window_peak {
            self.window_peak = live;
            self.peak = self.peak.max(live);
        }
    }

    /// What the pool makes ahead of need and tries to stay under, if that is known.
    fn known_level(&self) -> Option<u64> {
        match (self.limit, self.target) {
            (Some(limit), Some(target)) => Some(limit.min(target)),
            (limit, target) => limit.or(target),
        }
    }

    /// Up to here new frames are made rather than idle ones moved, when `live` bytes are wanted.
    pub(crate) fn level(&self, live: u64) -> u64 {
        self.known_level().unwrap_or_else(|| {
            let peak = self.peak.max(live);
            peak + peak / 100
        })
    }

    /// Up to here the worker makes frames ahead of need.
    pub(crate) fn ahead(&self) -> u64 {
        self.known_level().unwrap_or(0)
    }

    /// The length of a new frame.
    pub(crate) fn frame_len(&self, arena: ArenaId) -> u64 {
        let basis = self.known_level().unwrap_or(self.peak);
        let len = round_down(basis / FRAMES_PER_BUDGET, self.granule).max(self.granule);
        if arena == SMALL { len.min(SMALL_FRAME.max(self.granule)) } else { len }
    }

    /// Bytes that may still be made without passing the limit.
    pub(crate) fn room(&self, reserved: u64) -> u64 {
        self.limit.map_or(u64::MAX - reserved, |limit| limit.saturating_sub(reserved))
    }

    /// Bytes that were not needed during the time to live and lie above the target.
    pub(crate) fn excess(&mut self, now: Duration, live: u64, reserved: u64) -> u64 {
        if now.saturating_sub(self.window_start) >= self.time_to_live {
            self.window_start = now;
            self.last_window_peak = std::mem::replace(&mut self.window_peak, live);
        }
        let needed = self.last_window_peak.max(self.window_peak);
        reserved.saturating_sub(needed.max(self.ahead()))
    }
}

//! How much physical memory to have, and in frames of what length.
//!
//! A pool knows its *level* if it has a target, or a limit and was not told to go without: it makes that much ahead of need, in
//! frames of one length, and then only moves them. Without either it follows the peak so far: it
//! grows in long frames, which cost few calls, and has idle ones exchanged for short ones in the
//! background, because memory in long frames serves a mixed program badly. ARCHITECTURE.md has the
//! measurements behind each constant.

use crate::arena::{ArenaId, SMALL_MAX, is_short};
use crate::churn::Churn;
use crate::device::Capabilities;
use crate::options::PoolOptions;
use crate::units::round_down;
use std::time::Duration;

/// Frames of the large arena in a known level. Longer frames cost fewer device calls, and strand more where they
/// were made before many long leases came: under a limit, where a shortage is a failure, there are more.
const FRAMES_PER_LEVEL: u64 = 350;
const FRAMES_PER_LIMIT: u64 = 700;

/// With many long leases at once there are more: each that lies apart from the others strands a frame,
/// half of it at either end, so that up to fifty of them together strand at most a twentieth of the
/// level. Frames that were made before the leases came stay as they are.
const FRAMES_PER_LEASE: u64 = 20;
const MOST_FRAMES_PER_LEVEL: u64 = 1000;

/// Under a limit, where a shortage is a failure, the last part of the level is made in fine frames:
/// they fill a run's remainder, which a whole frame would exceed.
const FINE_PER_FRAME: u64 = 4;
const FINE_PERMILLE: u64 = 150;

/// Frames of the large arena in the peak so far, where no level is known.
const FRAMES_PER_PEAK: u64 = 230;

/// The longest frame that growth makes, as a part of the peak so far.
const LONGEST_PER_PEAK: u64 = 23;

/// Without a given level, what is made ahead of need, and what may be made rather than moved and stays
/// when it is not needed any more, above what was needed lately in thousandths of it.
const AHEAD_PERMILLE: u64 = 22;
const LEVEL_PERMILLE: u64 = 32;

/// The length of frames of the small arena, where the granule allows it.
const SMALL_FRAME: u64 = 2 << 20;

/// Memory is tight where so much of the limit would be live. Then long leases are packed, if so much of
/// the limit is free in frames that are in use. Below that packing would cost more than it brings.
const TIGHT_PERMILLE: u64 = 800;
const LOST_PERMILLE: u64 = 20;

#[derive(Debug)]
pub(crate) struct Budget {
    /// Nothing can be mapped, and leases share frames: see [`crate::plain`].
    pub(crate) plain: bool,
    /// A frame can be mapped at several addresses.
    aliases: bool,
    pub(crate) limit: Option<u64>,
    pub(crate) target: Option<u64>,
    pub(crate) granule: u64,
    /// Bytes of the device.
    memory: u64,
    time_to_live: Duration,
    /// The most bytes that were ever live at once.
    peak: u64,
    /// Long leases that are live, and the most that ever were.
    long_leases: u64,
    most_long_leases: u64,
    /// What would be live if the request under way could be served; it is no peak before it is.
    wish: u64,
    /// Nothing is made ahead above this: what a trim released is not made again before memory is short.
    trimmed_to: u64,
    /// The most live bytes since `window_start`, and in the window before.
    window_peak: u64,
    last_window_peak: u64,
    window_start: Duration,
    churn: Churn,
}

impl Budget {
    pub(crate) fn new(
        capabilities: Capabilities,
        limit: Option<u64>,
        target: Option<u64>,
        granule: u64,
        memory: u64,
        time_to_live: Duration,
    ) -> Self {
        Self {
            plain: !capabilities.remapping,
            aliases: capabilities.aliases,
            limit,
            target,
            granule,
            memory,
            time_to_live,
            peak: 0,
            long_leases: 0,
            most_long_leases: 0,
            wish: 0,
            trimmed_to: u64::MAX,
            window_peak: 0,
            last_window_peak: 0,
            window_start: Duration::ZERO,
            churn: Churn::default(),
        }
    }

    /// Notes what would be live with the request under way; 0 when it is over.
    pub(crate) fn wish(&mut self, bytes: u64) {
        self.wish = bytes;
    }

    /// Notes that the program wants no more than `keep` bytes reserved for now, with `live` in use: what it
    /// needed before above that is not expected again.
    pub(crate) fn trim_to(&mut self, keep: u64, live: u64) {
        self.trimmed_to = keep;
        let expected = keep.max(live);
        self.window_peak = self.window_peak.min(expected);
        self.last_window_peak = self.last_window_peak.min(expected);
    }

    /// Notes that memory had to be found for a request, or that there may be more of it.
    pub(crate) fn end_trim(&mut self) {
        self.trimmed_to = u64::MAX;
    }

    /// Whether frames that go are made anew as others.
    pub(crate) fn may_exchange(&self) -> bool {
        self.trimmed_to == u64::MAX
    }

    /// Notes that `frames` frames had to move so that a request could be served, from `begin` to `now`.
    pub(crate) fn moved_for_a_request(&mut self, begin: Duration, now: Duration, frames: usize) {
        self.churn.moved(begin, now, frames);
    }

    /// Notes that a lease of `len` bytes begins.
    #[inline]
    pub(crate) fn begin_lease(&mut self, len: u64) {
        if len > SMALL_MAX {
            self.long_leases += 1;
            self.most_long_leases = self.most_long_leases.max(self.long_leases);
        }
    }

    /// Notes that a lease of `len` bytes ends.
    #[inline]
    pub(crate) fn end_lease(&mut self, len: u64) {
        self.long_leases -= u64::from(len > SMALL_MAX);
    }

    /// Notes live bytes.
    #[inline]
    pub(crate) fn note(&mut self, bytes: u64) {
        if bytes > self.window_peak {
            self.window_peak = bytes;
            self.peak = self.peak.max(bytes);
        }
    }

    /// The most bytes that were ever live at once, or are wanted now.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.max(self.wish)
    }

    /// What the pool tries to stay under, if that is known: the level that the user gave, or the one that
    /// a hectic program gets.
    pub(crate) fn known_level(&self) -> Option<u64> {
        let slack = || self.churn.slack().map(|slack| above(self.recent_peak(), slack));
        self.given_level().or_else(slack)
    }

    /// The level that the user gave. All that the device has, or more, says nothing of what is needed, and
    /// would leave nothing for others.
    fn given_level(&self) -> Option<u64> {
        let level = match (self.limit, self.target) {
            (_, Some(PoolOptions::NO_TARGET)) => None,
            (Some(limit), Some(target)) => Some(limit.min(target)),
            (limit, target) => limit.or(target),
        };
        level.filter(|level| *level < self.memory)
    }

    /// The target for those who ask.
    pub(crate) fn shown_target(&self) -> Option<u64> {
        self.target.filter(|target| *target != PoolOptions::NO_TARGET)
    }

    /// Up to here new frames are made rather than idle ones moved, and idle ones stay.
    pub(crate) fn level(&self) -> u64 {
        self.given_level().unwrap_or(self.above_recent(LEVEL_PERMILLE))
    }

    /// Up to here frames are made ahead of need.
    pub(crate) fn ahead(&self) -> u64 {
        self.given_level().unwrap_or(self.above_recent(AHEAD_PERMILLE)).min(self.trimmed_to)
    }

    /// What was needed lately, and so much more at least.
    fn above_recent(&self, more: u64) -> u64 {
        above(self.recent_peak(), self.churn.slack().unwrap_or(0).max(more))
    }

    /// What was needed lately, or is now.
    fn recent_peak(&self) -> u64 {
        self.window_peak.max(self.last_window_peak).max(self.wish)
    }

    /// The uniform length of frames.
    pub(crate) fn frame_len(&self, arena: ArenaId) -> u64 {
        let len = match (self.given_level(), self.churn.slack()) {
            (Some(level), _) => level / self.frames_per_level(),
            (None, Some(slack)) => above(self.peak(), slack) / self.fewer(FRAMES_PER_LEVEL),
            (None, None) => self.peak() / self.fewer(FRAMES_PER_PEAK),
        };
        let len = self.whole_granules(len);
        if is_short(arena) { len.min(SMALL_FRAME.max(self.granule)) } else { len }
    }

    /// So many frames, or fewer where they have become longer.
    fn fewer(&self, frames: u64) -> u64 {
        frames >> self.churn.doublings()
    }

    fn frames_per_level(&self) -> u64 {
        let leases = if self.plain { 0 } else { self.most_long_leases };
        let wanted = leases.saturating_mul(FRAMES_PER_LEASE);
        let is_limit = self.limit.is_some() && self.given_level() == self.limit && !self.plain;
        let least = if is_limit { FRAMES_PER_LIMIT } else { FRAMES_PER_LEVEL };
        wanted.clamp(least, MOST_FRAMES_PER_LEVEL)
    }

    /// The length of a frame made ahead of need, with `reserved` bytes there already.
    pub(crate) fn ahead_len(&self, arena: ArenaId, reserved: u64) -> u64 {
        let len = self.frame_len(arena);
        let top = |limit| self.given_level().map_or(limit, |_| self.ahead());
        let is_last_part = |limit| reserved > permille(top(limit), 1000 - FINE_PERMILLE);
        let fine = self.limit.is_some_and(is_last_part);
        if fine && !is_short(arena) { self.whole_granules(len / FINE_PER_FRAME) } else { len }
    }

    /// The length of a frame made for a request that lacks `missing` bytes.
    pub(crate) fn growth_len(&self, arena: ArenaId, missing: u64) -> u64 {
        let len = self.frame_len(arena);
        if self.given_level().is_some() || is_short(arena) {
            return len;
        }
        missing.min(self.whole_granules(self.peak() / LONGEST_PER_PEAK)).max(len)
    }

    /// From which length on a frame is one that growth made for a long request.
    pub(crate) fn too_long(&self, arena: ArenaId) -> Option<u64> {
        self.known_level().is_none().then(|| 2 * self.frame_len(arena))
    }

    /// How many bytes may be exchanged for frames of other lengths in all: no more than the peak, and once
    /// more for each time that frames became longer, or a program in which misfits come back would be
    /// served by their exchange for ever.
    pub(crate) fn most_exchanged(&self) -> u64 {
        self.peak().saturating_mul(1 + u64::from(self.churn.doublings()))
    }

    /// Which lengths of idle frames are to be exchanged for others: those of growth, and short ones where
    /// frames have become longer.
    pub(crate) fn misfits(&self, arena: ArenaId) -> Option<impl Fn(u64) -> bool + use<>> {
        let too_long = self.too_long(arena)?;
        let too_short = if self.churn.doublings() > 0 { self.frame_len(arena) / 2 } else { 0 };
        Some(move |len| len >= too_long || len <= too_short)
    }

    fn whole_granules(&self, len: u64) -> u64 {
        round_down(len, self.granule).max(self.granule)
    }

    /// Bytes that may still be made without passing the limit.
    pub(crate) fn room(&self, reserved: u64) -> u64 {
        self.limit.map_or(u64::MAX - reserved, |limit| limit.saturating_sub(reserved))
    }

    /// Whether memory is tight with so many bytes live.
    pub(crate) fn is_tight(&self, live: u64) -> bool {
        self.aliases && self.limit.is_some_and(|limit| live > permille(limit, TIGHT_PERMILLE))
    }

    /// Whether it matters that so many bytes are free in frames that are in use.
    pub(crate) fn is_loss(&self, bytes: u64) -> bool {
        self.limit.is_some_and(|limit| bytes > permille(limit, LOST_PERMILLE))
    }

    /// Whether there could be an excess at all.
    pub(crate) fn may_exceed(&self, reserved: u64) -> bool {
        reserved > self.given_level().unwrap_or(0).max(self.recent_peak())
    }

    /// Bytes above the target that were not needed during the time to live.
    pub(crate) fn excess(&mut self, now: Duration, live: u64, reserved: u64) -> u64 {
        if now.saturating_sub(self.window_start) >= self.time_to_live {
            self.window_start = now;
            self.last_window_peak = std::mem::replace(&mut self.window_peak, live);
            self.churn.relax();
        }
        reserved.saturating_sub(self.level().max(self.recent_peak()))
    }
}

/// `bytes` and so many thousandths of them.
fn above(bytes: u64, more: u64) -> u64 {
    permille(bytes, 1000 + more)
}

fn permille(bytes: u64, permille: u64) -> u64 {
    bytes / 1000 * permille + bytes % 1000 * permille / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{LARGE, SMALL};

    const MIB: u64 = 1 << 20;

    /// Of a device that can map frames at several addresses.
    const MAPPING: Capabilities = Capabilities {
        remapping: true,
        aliases: true,
        queued_binds: false,
        peers: false,
        capture: false,
    };

    fn budget(limit: Option<u64>, target: Option<u64>) -> Budget {
        Budget::new(MAPPING, limit, target, 2 * MIB, 1 << 47, Duration::from_secs(10))
    }

    #[test]
    fn a_level_is_the_lower_of_limit_and_target() {
        assert_eq!(budget(Some(10), Some(7)).known_level(), Some(7));
        assert_eq!(budget(Some(10), None).known_level(), Some(10));
        assert_eq!(budget(None, Some(7)).known_level(), Some(7));
        assert_eq!(budget(None, None).known_level(), None);
        assert_eq!(budget(Some(10), Some(PoolOptions::NO_TARGET)).known_level(), None);
        assert_eq!(budget(Some(1 << 48), None).known_level(), None);
        assert_eq!(budget(None, Some(1 << 47)).known_level(), None);
        assert_eq!(budget(Some(1 << 48), Some(7)).known_level(), Some(7));
    }

    #[test]
    fn memory_is_tight_near_a_limit_only() {
        let limited = budget(Some(1000), Some(500));
        assert!(!limited.is_tight(800) && limited.is_tight(801));
        assert!(!limited.is_loss(20) && limited.is_loss(21));
        assert!(!budget(None, Some(1000)).is_tight(2000));
        let without_aliases = Capabilities { aliases: false, ..MAPPING };
        let memory = 1 << 47;
        let budget = Budget::new(without_aliases, Some(1000), None, MIB, memory, Duration::ZERO);
        assert!(!budget.is_tight(1000));
    }

    #[test]
    fn frames_are_whole_granules_whatever_the_level() {
        for limit in [1, 2 * MIB, 100 * MIB, 7001 * MIB, 1 << 47] {
            let budget = budget(Some(limit), None);
            for arena in [SMALL, LARGE] {
                let len = budget.frame_len(arena);
                assert!(len >= 2 * MIB && len.is_multiple_of(2 * MIB));
                assert!(budget.ahead_len(arena, u64::MAX / 2) <= len);
            }
        }
    }

    #[test]
    fn many_long_leases_make_frames_shorter() {
        let len = |budget: &Budget| budget.frame_len(LARGE) / MIB;
        assert_eq!(len(&budget(Some(7000 * MIB), None)), 10, "a shortage is a failure");
        assert_eq!(len(&budget(Some(8000 * MIB), Some(7000 * MIB))), 20);
        let mut budget = budget(None, Some(7000 * MIB));
        assert_eq!(len(&budget), 20);
        (0..50).for_each(|_| budget.begin_lease(SMALL_MAX));
        assert_eq!(len(&budget), 20, "short ones do not count");
        (0..35).for_each(|_| budget.begin_lease(SMALL_MAX + 512));
        assert_eq!(len(&budget), 10);
        (0..35).for_each(|_| budget.end_lease(SMALL_MAX + 512));
        (0..1000).for_each(|_| budget.begin_lease(SMALL_MAX + 512));
        assert_eq!(len(&budget), 6);
        assert_eq!(len(&Budget { plain: true, ..budget }), 20, "they share frames there");
    }

    #[test]
    fn what_was_needed_lately_is_no_excess() {
        let mut budget = budget(None, None);
        budget.note(100 * MIB);
        let (early, late) = (Duration::from_secs(1), Duration::from_secs(11));
        assert_eq!(budget.excess(early, 10 * MIB, 103 * MIB), 0);
        assert_eq!(budget.excess(late, 10 * MIB, 103 * MIB), 0, "the window before counts too");
        let later = Duration::from_secs(22);
        assert!(budget.excess(later, 10 * MIB, 103 * MIB) > 90 * MIB);
    }

    #[test]
    fn a_trim_ends_the_memory_of_what_was_needed_above_it() {
        let mut budget = budget(None, None);
        budget.note(100 * MIB);
        let now = Duration::from_secs(1);
        budget.trim_to(u64::MAX, 10 * MIB);
        assert_eq!(budget.excess(now, 10 * MIB, 100 * MIB), 0);
        budget.trim_to(40 * MIB, 10 * MIB);
        assert_eq!(budget.excess(now, 10 * MIB, 40 * MIB), 0, "so much may stay");
        budget.trim_to(0, 10 * MIB);
        budget.end_trim();
        assert!(budget.ahead() < 11 * MIB);
    }

    #[test]
    fn permille_does_not_overflow() {
        assert_eq!(
            permille(1 << 60, 1040),
            (1 << 60) / 1000 * 1040 + (1 << 60) % 1000 * 1040 / 1000
        );
        assert_eq!(permille(500, 1030), 515);
    }
}

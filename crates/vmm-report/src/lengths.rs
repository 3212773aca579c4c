//! How long blocks are: `PyTorch`'s rule, with the settings that change it.
//!
//! A trace says where tensors lay, but not how long their blocks were. `PyTorch` rounds lengths up
//! ([`vmm_trace::pytorch::rounded`]), and leaves the rest of a hole to a block where it
//! may not be split off (`should_split`): 1 MiB at most of a large block, less than 512 bytes of others,
//! and any rest of a block of at least `max_split_size`. What lay where is known, so the lengths
//! follow.

/// `PyTorch` rounds lengths up to this many bytes, and splits off no less.
pub(crate) const ROUNDING: u64 = 512;
/// Of large blocks `PyTorch` splits off only what is longer than this, in bytes; requests up to this
/// length come from small segments.
pub(crate) const SMALL: u64 = 1 << 20;
/// `roundup_power2_divisions` has a number for lengths below 2 MiB, for those below 4 MiB, and so on;
/// the last is for all others.
const INTERVALS: usize = 16;

/// The rule under the settings of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lengths {
    /// Blocks of at least so many bytes are not split.
    max_split: u64,
    /// Steps between two powers of two that lengths are rounded up to; below 2 there are none.
    divisions: [u64; INTERVALS],
}

impl Default for Lengths {
    /// The rule of a program that sets nothing.
    fn default() -> Self {
        Self { max_split: u64::MAX, divisions: [0; INTERVALS] }
    }
}

impl Lengths {
    /// The rule under settings as a snapshot has them. Values that make no sense change nothing.
    pub(crate) fn of(settings: &[(String, String)]) -> Self {
        let mut lengths = Self::default();
        for (key, value) in settings {
            let Ok(value) = value.parse::<u64>() else { continue };
            if key == "max_split_size" && value > 0 {
                lengths.max_split = value;
            }
            // The part behind the point is the beginning of the interval, in MiB.
            let begin = key.strip_prefix("roundup_power2_divisions.");
            let begin = begin.and_then(|begin| begin.parse::<u64>().ok());
            if let Some(begin) = begin.filter(|begin| begin.is_power_of_two())
                && let Some(of) = lengths.divisions.get_mut(begin.ilog2() as usize)
                && (value == 0 || value.is_power_of_two())
            {
                *of = value;
            }
        }
        lengths
    }

    /// The length from which on blocks are not split, if there is one.
    pub(crate) fn max_split(&self) -> Option<u64> {
        (self.max_split < u64::MAX).then_some(self.max_split)
    }

    /// The divisions, if they are the same for all lengths.
    pub(crate) fn uniform_divisions(&self) -> Option<u64> {
        let [first, rest @ ..] = &self.divisions;
        rest.iter().all(|of| of == first).then_some(*first)
    }

    /// The length of the block that is looked for.
    pub(crate) fn rounded(&self, len: u64) -> u64 {
        let interval = len.max(1).ilog2().saturating_sub(SMALL.ilog2()) as usize;
        vmm_trace::pytorch::rounded(len, self.divisions[interval.min(INTERVALS - 1)])
    }

    /// The length of the block in a hole with `room` bytes, which are at least `len`. `keeps_little`
    /// is for memory of which all but 511 bytes may be split off: small and growing segments.
    pub(crate) fn block(&self, len: u64, room: u64, keeps_little: bool) -> u64 {
        let rounded = self.rounded(len).min(room);
        let rest = room - rounded;
        let splits = match keeps_little {
            true => rest >= ROUNDING,
            false => rounded < self.max_split && rest > SMALL,
        };
        if splits { rounded } else { room }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(settings: &[(&str, &str)]) -> Lengths {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        Lengths::of(&settings.iter().map(owned).collect::<Vec<_>>())
    }

    #[test]
    fn without_settings() {
        let plain = of(&[("max_split_size", "-1"), ("roundup_power2_divisions.1", "0")]);
        assert_eq!(plain, Lengths::default());
        assert_eq!(
            [1, 512, 513, 3 * MIB - 5].map(|len| plain.rounded(len)),
            [512, 512, 1024, 3 * MIB]
        );
        assert_eq!(plain.block(3 * MIB, 4 * MIB, false), 4 * MIB, "1 MiB is not split off");
        assert_eq!(plain.block(3 * MIB, 4 * MIB + 1, false), 3 * MIB);
        assert_eq!(plain.block(3 * MIB, 4 * MIB, true), 3 * MIB);
        assert_eq!(plain.block(1000, 1100, true), 1100);
        assert_eq!(plain.rounded(u64::MAX), u64::MAX);
    }

    #[test]
    fn settings_are_told_as_they_are() {
        let told = |settings| (of(settings).max_split(), of(settings).uniform_divisions());
        assert_eq!(told(&[]), (None, Some(0)));
        assert_eq!(told(&[("max_split_size", "134217728")]), (Some(128 * MIB), Some(0)));
        assert_eq!(told(&[("roundup_power2_divisions.1", "4")]), (None, None));
        let keys: Vec<String> =
            (0..16).map(|n| format!("roundup_power2_divisions.{}", 1 << n)).collect();
        let all: Vec<_> = keys.iter().map(|key| (key.as_str(), "4")).collect();
        assert_eq!(told(&all), (None, Some(4)));
    }

    #[test]
    fn long_blocks_are_not_split() {
        let lengths = of(&[("max_split_size", "134217728")]);
        assert_eq!(lengths.block(127 * MIB, 200 * MIB, false), 127 * MIB);
        assert_eq!(lengths.block(128 * MIB - 1, 200 * MIB, false), 200 * MIB, "as rounded");
        assert_eq!(lengths.block(150 * MIB, 200 * MIB, true), 150 * MIB, "not in growing segments");
    }

    #[test]
    fn lengths_are_rounded_by_interval() {
        let lengths = of(&[
            ("roundup_power2_divisions.1", "4"),
            ("roundup_power2_divisions.4", "2"),
            ("roundup_power2_divisions.32768", "8"),
            ("roundup_power2_divisions.3", "16"),
            ("roundup_power2_divisions.2", "5"),
            ("roundup_power2_divisions.65536", "2"),
        ]);
        // 1200 is too short for quarters of a power of two: these would be below 512 bytes.
        assert_eq!([1200, 2048, 5000].map(|len| lengths.rounded(len)), [1536, 2048, 5120]);
        assert_eq!(lengths.rounded(MIB + 1), MIB + MIB / 4);
        assert_eq!(lengths.rounded(2 * MIB + 1), 2 * MIB + 512, "none from 2 MiB on");
        assert_eq!(lengths.rounded(5 * MIB), 6 * MIB);
        assert_eq!(lengths.rounded(65 << 30), 72 << 30, "the last holds for all above");
    }
}

//! The settings of `PyTorch`'s allocator that its model knows.

/// Bytes in the smallest block, and what lengths are rounded up to.
pub(super) const MIN_BLOCK: u64 = 512;
/// The longest request that counts as small.
pub(super) const SMALL: u64 = 1 << 20;
/// The length of segments for small requests.
pub(super) const SMALL_SEGMENT: u64 = 2 << 20;
/// The length of segments for requests below [`MIN_LARGE`].
pub(super) const LARGE_SEGMENT: u64 = 20 << 20;
/// Requests from here on have segments of their own length.
const MIN_LARGE: u64 = 10 << 20;
/// What those are rounded up to.
const ROUND_LARGE: u64 = 2 << 20;

/// The settings of `PYTORCH_CUDA_ALLOC_CONF` that change where memory lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TorchOptions {
    /// Blocks of at least so many bytes are never split; `None` for `PyTorch`'s default, no bound.
    pub max_split_size: Option<u64>,
    /// Steps between two powers of two that lengths are rounded up to: a power of two. Below 2
    /// nothing is rounded beyond 512 bytes. `PyTorch` also takes a value for each power of two; here
    /// one holds for all.
    pub roundup_power2_divisions: u64,
    /// Under a limit, the share of it from which long unused segments are given back; 0 for never.
    pub garbage_collection_threshold: f64,
}

impl Default for TorchOptions {
    fn default() -> Self {
        Self {
            max_split_size: None,
            roundup_power2_divisions: 0,
            garbage_collection_threshold: 0.0,
        }
    }
}

impl TorchOptions {
    /// The length of the block that serves a request.
    pub(super) fn rounded(&self, len: u64) -> u64 {
        vmm_trace::pytorch::rounded(len, self.roundup_power2_divisions)
    }

    /// The bound above which blocks are not split.
    pub(super) fn max_split(&self) -> u64 {
        self.max_split_size.unwrap_or(u64::MAX)
    }
}

/// The length of a new segment for a block of `len` bytes.
pub(super) fn segment_len(len: u64) -> u64 {
    match len {
        0..=SMALL => SMALL_SEGMENT,
        l if l < MIN_LARGE => LARGE_SEGMENT,
        l => l.next_multiple_of(ROUND_LARGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded() {
        let plain = TorchOptions::default();
        assert_eq!([1, 512, 513, 1_000_000].map(|l| plain.rounded(l)), [512, 512, 1024, 1_000_448]);
        let quarters = TorchOptions { roundup_power2_divisions: 4, ..plain };
        // 1200 is too short for quarters of a power of two: these would be below 512 bytes.
        assert_eq!([1200, 2048, 5000].map(|l| quarters.rounded(l)), [1536, 2048, 5120]);
        assert_eq!(quarters.rounded(9 << 20), 10 << 20);
        assert_eq!(
            [1, SMALL, SMALL + 1, 10 << 20, (10 << 20) + 1].map(segment_len),
            [2 << 20, 2 << 20, 20 << 20, 10 << 20, 12 << 20]
        );
    }
}

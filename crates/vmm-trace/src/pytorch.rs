//! What a snapshot leaves out because `PyTorch` does it always.

/// Every block's length is a multiple of so many bytes.
const UNIT: u64 = 512;

/// The length of the block that `PyTorch` looks for when `len` bytes are asked for, in bytes: a multiple of
/// 512 (`round_size` in its `CUDACachingAllocator.cpp`). `divisions` is the value of
/// `roundup_power2_divisions` for such lengths, a power of two: so many steps there are between two
/// powers of two; below 2 it has no effect. What cannot be rounded up without overflow stays as it is.
///
/// ```
/// use vmm_trace::pytorch::rounded;
/// assert_eq!([rounded(1, 0), rounded(5000, 0), rounded(5000, 2)], [512, 5120, 6144]);
/// ```
#[must_use]
pub fn rounded(len: u64, divisions: u64) -> u64 {
    if divisions > 1 && len > UNIT * divisions && !len.is_power_of_two() {
        let floor = 1_u64 << len.ilog2();
        return match floor / divisions {
            0 => floor.saturating_mul(2),
            step => len.checked_next_multiple_of(step).unwrap_or(len),
        };
    }
    len.max(1).checked_next_multiple_of(UNIT).unwrap_or(len)
}

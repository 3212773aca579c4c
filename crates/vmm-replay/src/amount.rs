//! A number of bytes, given outright or as a multiple of what the program needed.

use std::fmt;
use std::str::FromStr;

/// How much memory a limit or a target allows.
///
/// Its text form is `512MiB`, `20GiB`, `1500000000` (bytes), `1.03x` (times the trace's peak of
/// requested bytes) or `none`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many times the peak of requested bytes.
    OfPeak(f64),
    /// No bound. As a target: none, also where there is a limit.
    None,
}

impl Amount {
    /// The number of bytes, [`u64::MAX`] for none, for a program whose requested bytes peak at `peak_bytes`, on a device that
    /// makes memory in multiples of `granule` bytes.
    ///
    /// Fractions of a byte are cut off. A multiple of at least 1 stands for at least the whole
    /// granules that the peak needs: 1.03 times 5.8 MiB are 5.9, but in granules of 2 MiB only 4 of
    /// these could be had.
    #[must_use]
    pub fn resolve(self, peak_bytes: u64, granule: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::OfPeak(multiple) if multiple >= 1.0 => {
                scale(peak_bytes, multiple).max(peak_bytes.next_multiple_of(granule))
            }
            Self::OfPeak(multiple) => scale(peak_bytes, multiple),
            Self::None => u64::MAX,
        }
    }
}

/// `bytes * factor`, cut to whole bytes and to the range of `u64`.
// A cast from float to integer saturates, which is what is wanted here.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn scale(bytes: u64, factor: f64) -> u64 {
    (bytes as f64 * factor) as u64
}

/// Units by name, in lower case; decimal units are powers of 1000.
const UNITS: [(&str, u64); 14] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Why a text is no [`Amount`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// The number is missing or malformed.
    #[error("no number in '{0}': write 1.03x, 512MiB, 20GiB or a number of bytes")]
    NoNumber(String),
    /// The unit is unknown.
    #[error("unknown unit '{0}': use x (times the peak), B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")]
    UnknownUnit(String),
    /// Zero, or more than 2^64 bytes, or a multiple that is no use.
    #[error(
        "'{0}' is out of range: it must be above zero and below 16 EiB, a multiple at most 1000x"
    )]
    OutOfRange(String),
}

impl FromStr for Amount {
    type Err = AmountError;

    /// # Errors
    /// [`AmountError`] says which part of the text is wrong.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let text = text.trim();
        if text == "none" {
            return Ok(Self::None);
        }
        let digits_end =
            text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits_end);
        let number = number.replace('_', "");
        let unit = unit.trim().to_ascii_lowercase();
        let out_of_range = || AmountError::OutOfRange(text.to_owned());
        let value: f64 = number.parse().map_err(|_| AmountError::NoNumber(text.to_owned()))?;

        if unit == "x" {
            // Beyond 1000 times the peak nothing is limited, so the number is a slip.
            let useful = value > 0.0 && value <= 1000.0;
            return if useful { Ok(Self::OfPeak(value)) } else { Err(out_of_range()) };
        }
        let Some((_, unit_bytes)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(AmountError::UnknownUnit(unit));
        };
        let bytes = match number.parse::<u64>() {
            // Whole numbers stay exact where a float would round.
            Ok(whole) => whole.checked_mul(*unit_bytes).ok_or_else(out_of_range)?,
            Err(_) if value < 1.8e19 => scale(*unit_bytes, value),
            Err(_) => return Err(out_of_range()),
        };
        if bytes == 0 || bytes == u64::MAX { Err(out_of_range()) } else { Ok(Self::Bytes(bytes)) }
    }
}

impl fmt::Display for Amount {
    /// Bytes with the largest unit that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = match self {
            Self::OfPeak(multiple) => return write!(f, "{multiple}x"),
            Self::None => return f.write_str("none"),
            Self::Bytes(bytes) => *bytes,
        };
        for (unit, name) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if bytes > 0 && bytes.trailing_zeros() >= unit {
                return write!(f, "{}{name}", bytes >> unit);
            }
        }
        write!(f, "{bytes}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_written_as_they_are_read() {
        for text in ["1", "512", "3KiB", "1025MiB", "2GiB", "1.03x", "none"] {
            let amount: Amount = text.parse().expect(text);
            assert_eq!(amount.to_string(), text);
        }
    }

    fn check(text: &str, expected: Result<Amount, AmountError>) {
        assert_eq!(text.parse::<Amount>(), expected, "{text:?}");
    }

    #[test]
    fn bytes_and_units() {
        check("1", Ok(Amount::Bytes(1)));
        check(" 512MiB ", Ok(Amount::Bytes(512 << 20)));
        check("512 mib", Ok(Amount::Bytes(512 << 20)));
        check("20G", Ok(Amount::Bytes(20 << 30)));
        check("1.5GiB", Ok(Amount::Bytes(3 << 29)));
        check("2gb", Ok(Amount::Bytes(2_000_000_000)));
        check("1_000", Ok(Amount::Bytes(1_000)));
        check("9007199254740993", Ok(Amount::Bytes(9_007_199_254_740_993)));
    }

    #[test]
    fn multiples() {
        check("1.03x", Ok(Amount::OfPeak(1.03)));
        check("2X", Ok(Amount::OfPeak(2.0)));
        assert_eq!(Amount::OfPeak(1.03).resolve(1_000, 4), 1_030);
        assert_eq!(Amount::OfPeak(1.03).resolve(1_000, 512), 1_030);
        assert_eq!(Amount::OfPeak(1.01).resolve(1_000, 1 << 10), 1_024, "whole granules");
        assert_eq!(Amount::OfPeak(0.5).resolve(1_000, 1 << 10), 500);
        assert_eq!(Amount::Bytes(7).resolve(1_000, 512), 7);
    }

    #[test]
    fn wrong_texts() {
        for text in ["", "x", "MiB", "1.2.3x", "-1GiB", "."] {
            check(text, Err(AmountError::NoNumber(text.to_owned())));
        }
        for text in ["0", "0x", "0.0GiB", "1001x", "99999999999999999999", "17000000TiB"] {
            check(text, Err(AmountError::OutOfRange(text.to_owned())));
        }
        check("3 potatoes", Err(AmountError::UnknownUnit("potatoes".to_owned())));
        // The infinity of a float's own text form must not pass for a number.
        check("inf", Err(AmountError::NoNumber("inf".to_owned())));
    }
}

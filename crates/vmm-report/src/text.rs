//! Quantities as people read them.

use crate::fragmentation::Level;

/// Bytes with a unit, three digits or so: `95 MiB`, `5.3 GiB`.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
pub fn bytes(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        None if bytes == 1 => "1 byte".to_owned(),
        None => format!("{bytes} bytes"),
        Some(&(unit, name)) => match bytes as f64 / unit as f64 {
            value if value < 9.995 => format!("{value:.2} {name}"),
            value if value < 99.95 => format!("{value:.1} {name}"),
            value => format!("{value:.0} {name}"),
        },
    }
}

/// Bytes at the mark of an axis: a power of two times a small number.
pub(crate) fn bytes_short(amount: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.iter().find(|(shift, _)| amount >= 1 << shift);
    match unit {
        Some((shift, name)) if amount.trailing_zeros() >= *shift => {
            format!("{} {name}", amount >> shift)
        }
        Some(_) => bytes(amount),
        None => amount.to_string(),
    }
}

/// A time at the mark of an axis.
pub(crate) fn time_short(us: u64) -> String {
    match us {
        0 => "0".to_owned(),
        us if us.is_multiple_of(1_000_000) => format!("{} s", us / 1_000_000),
        us if us.is_multiple_of(100_000) && us > 1_000_000 => {
            format!("{}.{} s", us / 1_000_000, us / 100_000 % 10)
        }
        us if us.is_multiple_of(1_000) => format!("{} ms", us / 1_000),
        us => format!("{us} µs"),
    }
}

/// A time since the start of a recording.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "shown with four digits")]
pub fn time(us: u64) -> String {
    match us as f64 {
        us if us < 1e3 => format!("{us:.0} µs"),
        us if us < 1e6 => format!("{:.2} ms", us / 1e3),
        us => format!("{:.2} s", us / 1e6),
    }
}

/// A time that was summed up in parts of a microsecond.
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
pub fn rounded_time(us: f64) -> String {
    time(us.round() as u64)
}

/// A share as percent. Rounding never moves it to another [`Level`]: there it has one digit more, or is
/// rounded down.
#[must_use]
pub fn percent(share: f64) -> String {
    let stays = |percent: f64| Level::of(percent / 100.0) == Level::of(share);
    let tenths = share * 1e3;
    match share * 100.0 {
        p if p > 0.0 && p < 0.05 => "<0.1 %".to_owned(),
        p if (p == 0.0 || p >= 9.95) && stays(p.round()) => format!("{p:.0} %"),
        p if stays(tenths.round() / 10.0) => format!("{p:.1} %"),
        _ => format!("{:.1} %", tenths.floor() / 10.0),
    }
}

/// A number and its noun: `1 tensor`, `3 tensors`.
#[must_use]
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_fit_the_size() {
        let shown = [0, 1, 1023, 1536, 95 << 20, 5_690_831_667, 3 << 40].map(bytes);
        assert_eq!(
            shown,
            ["0 bytes", "1 byte", "1023 bytes", "1.50 KiB", "95.0 MiB", "5.30 GiB", "3.00 TiB"]
        );
        assert_eq!([7, 1_500, 12_340_000].map(time), ["7 µs", "1.50 ms", "12.34 s"]);
        assert_eq!([0.0, 1e-5, 0.0123, 0.5].map(percent), ["0 %", "<0.1 %", "1.2 %", "50 %"]);
        assert_eq!(["<0.1 %", "9.9 %", "9.9 %", "10 %"], [1e-5, 0.0994, 0.09996, 0.1].map(percent));
        assert_eq!(["30 %", "29.9 %"], [0.3, 0.2999].map(percent), "low, medium and high stay so");
        assert_eq!(["59.9 %", "59.9 %", "60 %"], [0.5989, 0.59999, 0.6].map(percent));
        assert_eq!(["57 µs", "0 µs", "1.00 ms"], [56.84, 0.2, 999.7].map(rounded_time));
        assert_eq!(count(1, "tensor") + &count(2, "tensor"), "1 tensor2 tensors");
    }
}

//! Numbers as people read them.

const MIB: f64 = (1 << 20) as f64;

/// Bytes in MiB: three digits where the number is small, none behind the point where it is large.
#[expect(clippy::cast_precision_loss, reason = "shown with four digits or so")]
pub(crate) fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / MIB;
    match mib {
        m if m < 9.995 => format!("{m:.2}"),
        m if m < 99.95 => format!("{m:.1}"),
        m => format!("{m:.0}"),
    }
}

/// A share as percent, without the sign.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0".to_owned(),
        p if p < 0.0005 => "<0.001".to_owned(),
        p if p < 9.995 => format!("{p:.3}"),
        p => format!("{p:.1}"),
    }
}

/// Microseconds in milliseconds.
pub(crate) fn milliseconds(us: f64) -> String {
    match us / 1e3 {
        0.0 => "0".to_owned(),
        ms if ms < 9.995 => format!("{ms:.2}"),
        ms if ms < 99.95 => format!("{ms:.1}"),
        ms => format!("{ms:.0}"),
    }
}

/// A ratio or multiple.
pub(crate) fn ratio(ratio: f64) -> String {
    format!("{ratio:.3}")
}

/// The geometric mean; values below `floor` count as `floor`, so that one zero does not make all
/// the others vanish. `None` without a value.
pub(crate) fn geometric_mean(values: impl IntoIterator<Item = f64>, floor: f64) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0.0);
    for value in values {
        sum += value.max(floor).ln();
        count += 1.0;
    }
    (count > 0.0).then(|| (sum / count).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_fit_the_size() {
        assert_eq!([mib(0), mib(3 << 19), mib(7480 << 20)], ["0.00", "1.50", "7480"]);
        assert_eq!(mib(52_953_088), "50.5");
        assert_eq!(
            [percent(0.0), percent(1e-7), percent(0.000_531), percent(0.25)],
            ["0", "<0.001", "0.053", "25.0"]
        );
        assert_eq!(
            [milliseconds(0.0), milliseconds(1_234.0), milliseconds(123_456.0)],
            ["0", "1.23", "123"]
        );
    }

    #[test]
    fn means() {
        assert_eq!(geometric_mean([], 0.0), None);
        let mean = geometric_mean([1.0, 4.0], 0.0).expect("has values");
        assert!((mean - 2.0).abs() < 1e-12);
        let floored = geometric_mean([0.0, 4.0], 1.0).expect("has values");
        assert!((floored - 2.0).abs() < 1e-12);
    }
}

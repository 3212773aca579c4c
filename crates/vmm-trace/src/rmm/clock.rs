//! The times of a log.

const DAY_US: i64 = 24 * 3600 * 1_000_000;

/// Turns both forms of time into microseconds that go on over midnight.
#[derive(Debug, Default)]
pub(super) struct Clock {
    last_us: Option<i64>,
    days_us: i64,
}

impl Clock {
    /// Microseconds since some moment that stays the same for the whole log.
    pub(super) fn read(&mut self, text: &str) -> Result<i64, String> {
        let bad = || format!("the time {text:?} is neither HH:MM:SS.ffffff nor seconds");
        let Some((hours, rest)) = text.split_once(':') else {
            return seconds_us(text).ok_or_else(bad);
        };
        let (minutes, seconds) = rest.split_once(':').ok_or_else(bad)?;
        // Some versions put a colon before the fraction.
        let seconds = seconds_us(&seconds.replace(':', ".")).ok_or_else(bad)?;
        let (hours, minutes): (i64, i64) = match (hours.parse(), minutes.parse()) {
            (Ok(hours @ 0..24), Ok(minutes @ 0..60)) => (hours, minutes),
            _ => return Err(bad()),
        };
        let time_us = (hours * 60 + minutes) * 60_000_000 + seconds;
        // Threads may write a little out of order; only a leap of half a day passes midnight.
        match self.last_us {
            Some(last) if last - time_us > DAY_US / 2 => self.days_us += DAY_US,
            // A late line from before midnight.
            Some(last) if time_us - last > DAY_US / 2 && self.days_us > 0 => {
                return Ok(self.days_us - DAY_US + time_us);
            }
            _ => {}
        }
        self.last_us = Some(time_us);
        Ok(self.days_us + time_us)
    }
}

/// Decimal seconds as microseconds, without the detour over a float. Finer digits are cut.
fn seconds_us(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let digits = fraction.bytes().chain(std::iter::repeat(b'0')).take(6);
    let micros = digits.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
    let whole = i64::from(whole.parse::<u32>().ok()?);
    Some(whole * 1_000_000 + micros)
}

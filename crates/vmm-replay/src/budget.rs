//! The smallest limit under which a trace replays without a failed allocation.

use crate::replay::ReplayError;
use crate::result::ReplayResult;

/// The search's resolution: limits are whole thousandths of the peak.
const THOUSANDTHS: f64 = 1000.0;

/// The first step of the search above the peak, in thousandths.
const FIRST_EXCESS: u32 = 16;

/// Where the search gives up, in thousandths of the peak.
const LARGEST: u32 = 1_000_000;

/// Searches the smallest multiple of the peak, in steps of 0.001, that works, and returns what `works` gave
/// for it: `None` says that a multiple does not work.
///
/// The limit is doubled above the peak until it works, then bisected. A policy may fail at a limit
/// and work at a smaller one; then the answer is a limit that works next to one that does not, and
/// not always the smallest of all. `None` if not even 1000 times the peak works.
///
/// # Errors
/// The first error of `works`.
pub fn smallest_multiple<T, E>(
    mut works: impl FnMut(f64) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    // Below the peak no limit can work: the tensors themselves do not fit.
    let mut fails = 1_000 - 1;
    let mut excess = 0;
    let (mut holds, mut found) = loop {
        let tried = 1_000 + excess;
        if tried > LARGEST {
            return Ok(None);
        }
        if let Some(found) = works(f64::from(tried) / THOUSANDTHS)? {
            break (tried, found);
        }
        fails = tried;
        excess = if excess == 0 { FIRST_EXCESS } else { excess * 2 };
    };
    while holds - fails > 1 {
        let middle = fails + (holds - fails) / 2;
        match works(f64::from(middle) / THOUSANDTHS)? {
            Some(better) => (holds, found) = (middle, better),
            None => fails = middle,
        }
    }
    Ok(Some(found))
}

/// A replay under a limit that is tried: `None` if an allocation failed, or could never fit.
///
/// # Errors
/// All others of the replay.
pub fn if_it_works(
    replayed: Result<ReplayResult, ReplayError>,
) -> Result<Option<ReplayResult>, ReplayError> {
    match replayed {
        Ok(result) => Ok((result.failures == 0).then_some(result)),
        Err(ReplayError::LimitBelowAllocation { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(needed: f64, expected: Option<f64>) {
        let mut tries = 0;
        let found = smallest_multiple::<f64, ()>(|multiple| {
            tries += 1;
            Ok((multiple >= needed).then_some(multiple))
        });
        assert_eq!(found, Ok(expected), "needed {needed}");
        assert!(tries < 40, "{tries} tries for {needed}");
    }

    #[test]
    fn finds_the_smallest() {
        check(0.5, Some(1.0));
        check(1.0, Some(1.0));
        check(1.0001, Some(1.001));
        check(1.016, Some(1.016));
        check(1.017, Some(1.017));
        check(3.4567, Some(3.457));
        check(f64::INFINITY, None);
    }

    #[test]
    fn passes_errors_on() {
        assert_eq!(smallest_multiple::<(), _>(|_| Err("broken")), Err("broken"));
    }
}

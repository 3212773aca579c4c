//! Which addresses were in use when, as a picture of a few hundred columns and rows.

use vmm_trace::EventKind;

use crate::recorded::{Recorded, Walk};
use crate::timeline::Timeline;

/// The trace is cut into so many parts of equally many events, and where so many equal parts of its
/// time begin; each part has a column.
const PARTS: u64 = 300;
/// Rows: equally long pieces of all addresses that ever had memory.
pub const ROWS: usize = 480;
/// The level of a cell that is in use as a whole.
pub const FULL: u8 = 10;

/// Addresses over time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressMap {
    /// Bytes of all addresses that ever had memory, gaps left out.
    pub len: u64,
    /// First address of each range that ever had memory, and where it begins when gaps are left out.
    pub ranges: Vec<(u64, u64)>,
    /// Time of each column, in microseconds since the first event.
    pub times_us: Vec<u64>,
    /// Cells, column by column, lowest address first. 0 is no memory; 1 is memory that is free, and
    /// from there to [`FULL`] memory of which more and more is in use.
    pub cells: Vec<u8>,
}

/// Ranges of addresses put one behind the other, so that gaps take no room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Squeezed {
    /// First address, end, and where the range begins when gaps are left out; ascending.
    ranges: Vec<(u64, u64, u64)>,
    pub(crate) len: u64,
}

impl Squeezed {
    pub(crate) fn new(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.sort_unstable();
        let mut squeezed = Self::default();
        for (start, end) in ranges {
            match squeezed.ranges.last_mut() {
                Some(last) if start <= last.1 => {
                    squeezed.len += end.saturating_sub(last.1);
                    last.1 = last.1.max(end);
                }
                _ => {
                    squeezed.ranges.push((start, end, squeezed.len));
                    squeezed.len += end - start;
                }
            }
        }
        squeezed
    }

    /// Where an address lies when gaps are left out; `None` in a gap.
    pub(crate) fn offset(&self, address: u64) -> Option<u64> {
        let after = self.ranges.partition_point(|&(start, ..)| start <= address);
        let (start, end, at) = *self.ranges.get(after.checked_sub(1)?)?;
        (address <= end).then(|| at + (address - start))
    }
}

impl AddressMap {
    /// Draws the map, with columns at some of the timeline's samples. Empty where the file does not
    /// say what was reserved.
    #[must_use]
    pub fn new(recorded: &Recorded<'_>, timeline: &Timeline) -> Self {
        let space = Squeezed::new(ever_reserved(recorded));
        if space.len == 0 {
            return Self::default();
        }
        let ranges = space.ranges.iter().map(|&(start, _, at)| (start, at)).collect();
        let mut map = Self { len: space.len, ranges, ..Self::default() };
        let mut walk = recorded.walk();
        let us_per_part = recorded.trace.duration_us() / PARTS + 1;
        let events_per_part = recorded.trace.events.len() as u64 / PARTS + 1;
        let mut drawn = None;
        for sample in &timeline.samples {
            let part = (sample.time_us / us_per_part, sample.events as u64 / events_per_part);
            if drawn.replace(part) == Some(part) {
                continue;
            }
            walk.advance_to(sample.events);
            map.times_us.push(sample.time_us);
            map.cells.extend(column(&walk, &space));
        }
        map
    }
}

/// All ranges that had memory at some time.
fn ever_reserved(recorded: &Recorded<'_>) -> Vec<(u64, u64)> {
    let walk = recorded.walk();
    let mut ranges: Vec<(u64, u64)> =
        walk.memory.areas().map(|(range, _)| (range.start, range.end)).collect();
    let events = recorded.trace.events.iter().filter_map(|event| match event.kind {
        EventKind::SegmentAlloc { len, .. } => Some(Some(len)),
        EventKind::SegmentFree { .. } => Some(None),
        _ => None,
    });
    ranges.extend(
        events
            .zip(&recorded.details.segments)
            .filter_map(|(len, place)| Some((place.address, place.address.saturating_add(len?)))),
    );
    ranges
}

/// One column: for each row how much of its memory is in use.
fn column(walk: &Walk<'_>, space: &Squeezed) -> [u8; ROWS] {
    let mut reserved = [0; ROWS];
    let mut free = [0; ROWS];
    for (range, _) in walk.memory.areas() {
        spread(space, range.start, range.end, &mut reserved);
    }
    for (range, _) in walk.memory.holes() {
        spread(space, range.start, range.end, &mut free);
    }
    std::array::from_fn(|row| match reserved[row] {
        0 => 0,
        all => {
            let used = all - free[row].min(all);
            let levels = u64::from(FULL - 1);
            // What is in use at all is not shown as free, nor the other way round.
            let level =
                (used * levels).div_ceil(all).min(if used < all { levels - 1 } else { levels });
            1 + u8::try_from(level).unwrap_or(FULL - 1)
        }
    })
}

/// Adds the bytes of a range to the rows that it lies in.
fn spread(space: &Squeezed, start: u64, end: u64, rows: &mut [u64; ROWS]) {
    let (Some(from), Some(to)) = (space.offset(start), space.offset(end)) else { return };
    let row_len = space.len.div_ceil(ROWS as u64).max(1);
    let mut at = from;
    while at < to {
        let row = usize::try_from(at / row_len).map_or(ROWS - 1, |row| row.min(ROWS - 1));
        let next = if row == ROWS - 1 { to } else { (at / row_len + 1) * row_len };
        rows[row] += next.min(to) - at;
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_take_no_room() {
        let space = Squeezed::new(vec![(100, 200), (1000, 1100), (150, 250), (1100, 1150)]);
        assert_eq!(space.len, 300);
        let offsets = [50, 100, 250, 500, 1000, 1150, 1151].map(|address| space.offset(address));
        assert_eq!(offsets, [None, Some(0), Some(150), None, Some(150), Some(300), None]);
    }

    #[test]
    fn bytes_are_spread_over_rows() {
        let space = Squeezed::new(vec![(0, 10 * ROWS as u64)]);
        let mut rows = [0; ROWS];
        spread(&space, 5, 25, &mut rows);
        spread(&space, space.len - 5, space.len, &mut rows);
        assert_eq!((rows[0], rows[1], rows[2], rows[3], rows[ROWS - 1]), (5, 10, 5, 0, 5));
    }
}

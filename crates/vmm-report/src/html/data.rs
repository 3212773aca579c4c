//! What the page's script draws: arrays of numbers, as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::address_map::ROWS;
use crate::figures::Picture;
use crate::state::{Content, State};

const MIB: f64 = (1 << 20) as f64;

/// The data of one device.
pub(super) fn of(picture: &Picture) -> Value {
    let inspection = &picture.inspection;
    let stretches = &picture.timeline.stretches;
    let samples = &picture.timeline.samples;
    let rows = inspection.policies.iter().filter(|row| !row.reserved.is_empty());
    let policies: Vec<Value> = rows
        .map(|row| {
            let points = thinned(&row.reserved, inspection.duration_us);
            json!({
                "name": row.policy,
                "on": !row.is_recorded,
                "t": wide(points.iter().map(|&(time, _)| time)),
                "v": mibs(points.iter().map(|&(_, bytes)| bytes)),
            })
        })
        .collect();
    let knows_reserved = inspection.peak_reserved_bytes.is_some();
    json!({
        "name": inspection.name,
        "duration": inspection.duration_us,
        "limit": picture.limit,
        "reserved": knows_reserved,
        "s": {
            "t": wide(stretches.iter().map(|s| s.time_us)),
            "v": mibs(stretches.iter().flat_map(|s| {
                [s.requested, s.live, s.reserved].into_iter().flat_map(|s| [s.low, s.high, s.last])
            })),
        },
        "c": {
            "t": wide(samples.iter().map(|s| s.time_us)),
            "v": mibs(samples.iter().flat_map(|s| {
                let causes = s.causes.all().map(|cause| cause.bytes);
                std::iter::once(s.causes.requested).chain(causes)
            })),
            "judged": wide(samples.iter().map(|s| s.judged_by)),
            "servable": wide(samples.iter().map(|s| s.servable)),
            // 0 says that all later requests were served.
            "next": wide(samples.iter().map(|s| s.next.unwrap_or(0))),
        },
        "m": knows_reserved.then(|| json!({
            "t": wide(picture.map.times_us.iter().copied()),
            "rows": ROWS,
            "len": picture.map.len,
            "starts": wide(picture.map.ranges.iter().map(|&(start, _)| start)),
            "offsets": wide(picture.map.ranges.iter().map(|&(_, offset)| offset)),
            "cells": STANDARD.encode(&picture.map.cells),
        })),
        "p": knows_reserved.then(|| state(&picture.state)),
        "f": picture.failure.as_ref().filter(|_| knows_reserved).map(state),
        "lines": policies,
    })
}

/// The least, the most and the last of each of many short times: all that can be seen of a line with
/// more points than that.
fn thinned(points: &[(u64, u64)], duration_us: u64) -> Vec<(u64, u64)> {
    const TIMES: u64 = 1 << 13;
    let us = duration_us / TIMES + 1;
    let same_time = points.chunk_by(|a, b| a.0 / us == b.0 / us);
    let kept = same_time.flat_map(|part| {
        let at = |index: Option<usize>| index.unwrap_or(0);
        let most = at((0..part.len()).max_by_key(|&index| part[index].1));
        let least = at((0..part.len()).min_by_key(|&index| part[index].1));
        let mut picked = [most, least, part.len() - 1];
        picked.sort_unstable();
        let mut picked: Vec<usize> = picked.to_vec();
        picked.dedup();
        picked.into_iter().map(|index| part[index])
    });
    kept.collect()
}

/// Tensors have the index of their owner, holes -1, and tensors that wait for a stream -2 less it.
fn state(state: &State) -> Value {
    let pieces = &state.pieces;
    let owner = |content: &Content| match *content {
        Content::Hole { .. } => -1.0,
        Content::Tensor { owner, is_fenced: true, .. } => -2.0 - float(owner as u64),
        Content::Tensor { owner, .. } => float(owner as u64),
    };
    let len = |content: &Content| match *content {
        Content::Hole { .. } => 0,
        Content::Tensor { len, .. } => len,
    };
    json!({
        "len_total": state.len,
        "owners": state.owners,
        "offset": wide(pieces.iter().map(|piece| piece.offset)),
        "address": wide(pieces.iter().map(|piece| piece.address)),
        "size": wide(pieces.iter().map(|piece| piece.size)),
        "len": wide(pieces.iter().map(|piece| len(&piece.content))),
        "owner": encoded(pieces.iter().map(|piece| owner(&piece.content).to_le_bytes())),
    })
}

/// Whole numbers as 64-bit floats, which hold them exactly up to 2^53.
fn wide(numbers: impl Iterator<Item = u64>) -> String {
    encoded(numbers.map(|number| float(number).to_le_bytes()))
}

#[expect(clippy::cast_precision_loss, reason = "addresses and times are far below 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Bytes in MiB, as 32-bit floats: exact to a part in ten million.
#[expect(clippy::cast_possible_truncation, reason = "sizes are far below the largest float")]
fn mibs(bytes: impl Iterator<Item = u64>) -> String {
    encoded(bytes.map(|bytes| ((float(bytes) / MIB) as f32).to_le_bytes()))
}

fn encoded<const N: usize>(numbers: impl Iterator<Item = [u8; N]>) -> String {
    STANDARD.encode(numbers.collect::<Vec<_>>().as_flattened())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thinned_line_keeps_what_can_be_seen() {
        let few = [(0, 5), (10, 7), (20, 6)];
        assert_eq!(thinned(&few, 20), few);
        let many: Vec<(u64, u64)> = (0..1 << 20).map(|i| (i, i * 7919 % 1000)).collect();
        let kept = thinned(&many, 1 << 20);
        assert!(kept.len() <= 3 * (1 << 13) && kept.is_sorted(), "{}", kept.len());
        assert!(kept.iter().any(|&(_, bytes)| bytes == 999) && kept.iter().any(|&(_, b)| b == 0));
        assert_eq!(kept.last(), many.last());
    }
}

//! What the page's script draws: arrays of numbers, as text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::address_map::ROWS;
use crate::figures::Picture;
use crate::state::Content;

const MIB: f64 = (1 << 20) as f64;

/// The data of one device.
pub(super) fn of(picture: &Picture) -> Value {
    let inspection = &picture.inspection;
    let stretches = &picture.timeline.stretches;
    let samples = &picture.timeline.samples;
    let pool = inspection.policies.iter().find(|row| !row.reserved.is_empty());
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
        },
        "m": knows_reserved.then(|| json!({
            "t": wide(picture.map.times_us.iter().copied()),
            "rows": ROWS,
            "len": picture.map.len,
            "cells": STANDARD.encode(&picture.map.cells),
        })),
        "p": knows_reserved.then(|| state(picture)),
        "pool": pool.map(|row| json!({
            "t": wide(row.reserved.iter().map(|&(time, _)| time)),
            "v": mibs(row.reserved.iter().map(|&(_, bytes)| bytes)),
        })),
    })
}

/// Tensors have the index of their owner, holes -1, and tensors that wait for a stream -2 less it.
fn state(picture: &Picture) -> Value {
    let state = &picture.state;
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

//! The segments of a snapshot, checked.

use std::collections::BTreeMap;

use crate::details::StackTable;
use crate::error::{Fault, Place};
use crate::lives::MAX_BYTES;
use crate::model::{Block, BlockState};
use crate::pickle::{Heap, Value};

/// A segment with stream and pool as in the file.
#[derive(Debug)]
pub(super) struct RawSegment {
    pub(super) address: u64,
    pub(super) total_size: u64,
    pub(super) stream: u64,
    pub(super) pool: (u64, u64),
    pub(super) is_small: bool,
    pub(super) is_expandable: bool,
    pub(super) blocks: Vec<Block>,
    /// Who asked for each block, where the file says.
    pub(super) stacks: Vec<Option<u32>>,
}

impl RawSegment {
    pub(super) fn end(&self) -> u64 {
        // Both are at most 2^63 by the checks below.
        self.address + self.total_size
    }
}

/// Reads segments and sorts them by device and address.
///
/// # Errors
/// `Malformed` for a field that is missing or of the wrong kind, for sizes that are negative, absurd,
/// or do not add up, and for segments that overlap.
pub(super) fn read_segments(
    heap: &mut Heap,
    values: Vec<Value>,
    stacks: &mut StackTable,
) -> Result<BTreeMap<u32, Vec<RawSegment>>, Fault> {
    let mut by_device: BTreeMap<u32, Vec<RawSegment>> = BTreeMap::new();
    for (index, value) in values.into_iter().enumerate() {
        let (device, segment) = read_segment(heap, value, stacks)
            .map_err(|what| Fault::malformed(Place::Segment(index as u64), what))?;
        by_device.entry(device).or_default().push(segment);
    }
    for segments in by_device.values_mut() {
        segments.sort_by_key(|segment| segment.address);
        if let Some(pair) = segments.windows(2).find(|pair| pair[0].end() > pair[1].address) {
            let what = format!("two segments overlap at {:#x}", pair[1].address);
            return Err(Fault::malformed(Place::File, what));
        }
        let total: u128 = segments.iter().map(|segment| u128::from(segment.total_size)).sum();
        if total > u128::from(MAX_BYTES) {
            return Err(Fault::malformed(Place::File, "the segments hold more than 2^48 bytes"));
        }
    }
    Ok(by_device)
}

fn read_segment(
    heap: &mut Heap,
    value: Value,
    stacks: &mut StackTable,
) -> Result<(u32, RawSegment), String> {
    let device = match heap.get(value, "device") {
        None => 0,
        Some(Value::Int(device)) => {
            u32::try_from(device).map_err(|_| format!("`device` is {device}"))?
        }
        Some(_) => return Err("`device` is no number".into()),
    };
    let address = handle(heap, value, "address")?.ok_or("has no `address`")?;
    if address >= 1 << 63 {
        return Err(format!("`address` is {address:#x}, which no device has"));
    }
    let total_size = length(heap, value, "total_size")?.ok_or("has no `total_size`")?;
    let blocks = heap.get(value, "blocks").ok_or("has no `blocks`")?;
    let values = heap.take_list(blocks).ok_or("`blocks` is no list of its own")?;
    let blocks = read_blocks(heap, &values, address, total_size)?;
    let stack_of = |&block: &Value| match heap.get(block, "frames") {
        Some(Value::List(list)) => stacks.number(heap, list),
        _ => None,
    };
    let stacks = values[..blocks.len()].iter().map(stack_of).collect();
    let segment = RawSegment {
        address,
        total_size,
        stream: handle(heap, value, "stream")?.unwrap_or(0),
        pool: heap.get(value, "segment_pool_id").and_then(|id| pool_id(heap, id)).unwrap_or((0, 0)),
        is_small: heap.get(value, "segment_type").and_then(|kind| heap.text(kind)) == Some("small"),
        is_expandable: heap.get(value, "is_expandable") == Some(Value::Bool(true)),
        blocks,
        stacks,
    };
    Ok((device, segment))
}

fn read_blocks(
    heap: &Heap,
    values: &[Value],
    start: u64,
    total_size: u64,
) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::with_capacity(values.len());
    let mut next = start;
    for &value in values {
        let size = length(heap, value, "size")?.ok_or("a block has no `size`")?;
        if size == 0 {
            return Err("a block has no bytes".into());
        }
        // The oldest files have no addresses: blocks lie one behind the other.
        let address = handle(heap, value, "address")?.unwrap_or(next);
        if address != next {
            return Err(format!("a block at {address:#x} does not follow on the one before"));
        }
        let requested_size = match length(heap, value, "requested_size")? {
            Some(requested) => requested,
            None => oldest_requested(heap, value)?.unwrap_or(size),
        };
        let state = heap.get(value, "state").and_then(|state| heap.text(state));
        let state = match state.ok_or("a block has no `state`")? {
            "active_allocated" => BlockState::Active,
            "active_pending_free" | "active_awaiting_free" => BlockState::PendingFree,
            "inactive" => BlockState::Inactive,
            other => {
                return Err(format!("the block state `{}` is unknown", other.escape_debug()));
            }
        };
        blocks.push(Block { address, size, requested_size, state });
        next += size;
        if next - start > total_size {
            break;
        }
    }
    if next - start != total_size {
        return Err(format!("its blocks do not add up to its total size of {total_size}"));
    }
    Ok(blocks)
}

/// The oldest form keeps the size asked for in a list `history`, newest first.
fn oldest_requested(heap: &Heap, block: Value) -> Result<Option<u64>, String> {
    let history = heap.get(block, "history").and_then(|list| heap.items(list));
    match history.and_then(|items| items.first()) {
        Some(&newest) => length(heap, newest, "real_size"),
        None => Ok(None),
    }
}

/// A pair that names a pool.
pub(super) fn pool_id(heap: &Heap, value: Value) -> Option<(u64, u64)> {
    match heap.items(value)? {
        &[a, b] => Some((bits(a)?, bits(b)?)),
        _ => None,
    }
}

fn bits(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => Some(number.cast_unsigned()),
        Value::Unsigned(number) => Some(number),
        _ => None,
    }
}

fn handle(heap: &Heap, dict: Value, key: &str) -> Result<Option<u64>, String> {
    match heap.get(dict, key) {
        None | Some(Value::None) => Ok(None),
        Some(value) => bits(value).map(Some).ok_or_else(|| format!("`{key}` is no number")),
    }
}

fn length(heap: &Heap, dict: Value, key: &str) -> Result<Option<u64>, String> {
    match heap.get(dict, key) {
        None | Some(Value::None) => Ok(None),
        Some(Value::Int(number)) => match u64::try_from(number) {
            Ok(len) if len <= MAX_BYTES => Ok(Some(len)),
            _ => Err(format!("`{key}` is {number}, which is no size in bytes")),
        },
        Some(Value::Unsigned(_) | Value::Huge) => Err(format!("`{key}` is above 2^48 bytes")),
        Some(_) => Err(format!("`{key}` is no number")),
    }
}

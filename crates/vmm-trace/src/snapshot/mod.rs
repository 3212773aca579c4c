//! A pickled `PyTorch` snapshot: from values to devices.

mod device;
mod ranges;
mod segments;

use std::collections::BTreeMap;

use crate::details::{Details, StackTable, Stacks};
use crate::error::{Fault, Place};
use crate::model::DeviceTrace;
use crate::pickle::{Heap, Value};

/// Settings of the recorded allocator, sorted by key.
pub(crate) type Settings = Vec<(String, String)>;

/// What the values of a snapshot stand for.
pub(crate) struct Contents {
    pub(crate) devices: Vec<(DeviceTrace, Details)>,
    pub(crate) settings: Settings,
    pub(crate) stacks: Stacks,
}

/// Turns the values of a snapshot into devices.
///
/// # Errors
/// `NotASnapshot` where the pickle holds something else, `Malformed` where it contradicts itself.
pub(crate) fn read_snapshot(heap: &mut Heap, root: Value) -> Result<Contents, Fault> {
    let (segments, traces) = parts(heap, root)?;
    let mut stacks = StackTable::default();
    let mut by_device = segments::read_segments(heap, segments, &mut stacks)?;
    let mut devices = BTreeMap::new();
    for (index, trace) in traces.into_iter().enumerate() {
        let device = u32::try_from(index)
            .map_err(|_| Fault::malformed(Place::File, "more than 2^32 devices"))?;
        let Some(entries) = heap.take_list(trace) else {
            let what = format!("the trace of device {device} is no list of its own");
            return Err(Fault::malformed(Place::File, what));
        };
        let segments = by_device.remove(&device).unwrap_or_default();
        if !entries.is_empty() || !segments.is_empty() {
            devices.insert(
                device,
                device::read_device(heap, device, &entries, segments, &mut stacks)?,
            );
        }
    }
    for (device, segments) in by_device {
        devices.insert(device, device::read_device(heap, device, &[], segments, &mut stacks)?);
    }
    Ok(Contents {
        devices: devices.into_values().collect(),
        settings: settings(heap, root),
        stacks: stacks.finish(),
    })
}

/// The list of segments and the list of traces of a snapshot. A bare list is the segments.
fn parts(heap: &mut Heap, root: Value) -> Result<(Vec<Value>, Vec<Value>), Fault> {
    if let Value::List(_) = root {
        let looks_right = heap
            .items(root)
            .is_some_and(|items| items.iter().all(|&item| heap.get(item, "total_size").is_some()));
        if !looks_right {
            return Err(Fault::NotASnapshot(
                "a pickled list of something else than segments".into(),
            ));
        }
        return Ok((heap.take_list(root).unwrap_or_default(), Vec::new()));
    }
    let segments = heap.get(root, "segments");
    let traces = heap.get(root, "device_traces");
    if segments.is_none() && traces.is_none() {
        let what = "a pickle with neither segments nor device_traces";
        return Err(Fault::NotASnapshot(what.into()));
    }
    let mut list = |value: Option<Value>, key: &str| match value {
        None | Some(Value::None) => Ok(Vec::new()),
        Some(value) => heap
            .take_list(value)
            .ok_or_else(|| Fault::malformed(Place::File, format!("`{key}` is no list of its own"))),
    };
    Ok((list(segments, "segments")?, list(traces, "device_traces")?))
}

fn settings(heap: &Heap, root: Value) -> Settings {
    let outer = heap.get(root, "allocator_settings").and_then(|dict| heap.pairs(dict));
    let mut settings = Settings::new();
    for &(key, value) in outer.unwrap_or_default() {
        let Some(key) = heap.text(key) else { continue };
        match heap.pairs(value) {
            None => settings.push((key.into(), plain(heap, value))),
            Some(inner) => {
                for &(name, value) in inner {
                    settings.push((format!("{key}.{}", plain(heap, name)), plain(heap, value)));
                }
            }
        }
    }
    settings.sort();
    settings
}

/// A simple value as Python prints it; containers have no place here.
fn plain(heap: &Heap, value: Value) -> String {
    match value {
        Value::None => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Int(number) => number.to_string(),
        Value::Unsigned(number) => number.to_string(),
        Value::Float(number) => format!("{number:?}"),
        Value::Str(_) => heap.text(value).unwrap_or_default().into(),
        Value::Huge | Value::List(_) | Value::Tuple(_) | Value::Dict(_) => "…".into(),
    }
}

#[cfg(test)]
mod tests;

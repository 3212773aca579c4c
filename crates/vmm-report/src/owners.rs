//! Who asked for memory: functions of the program where the file has stacks, sizes otherwise.

use std::collections::HashMap;

use serde::Serialize;
use vmm_trace::Stacks;
use vmm_trace::write::Frame;

/// Memory that belongs together at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Owner {
    /// A place in the program, or a range of sizes.
    pub name: String,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Tensors.
    pub tensors: u64,
}

/// The names of those who asked, one for each stack.
#[derive(Debug, Default)]
pub struct Names {
    names: Vec<String>,
    /// Stacks with the same name share the number of the first.
    of_stack: Vec<usize>,
}

impl Names {
    /// Names all stacks of a file.
    #[must_use]
    pub fn new(stacks: &Stacks) -> Self {
        let mut names = Self::default();
        let mut known = HashMap::new();
        for stack in 0..stacks.len() {
            let stack = u32::try_from(stack).expect("stacks have 32-bit numbers");
            let frames: Vec<&Frame> = stacks.frames(stack).collect();
            let name = name_of(&frames);
            let number = *known.entry(name.clone()).or_insert_with(|| {
                names.names.push(name);
                names.names.len() - 1
            });
            names.of_stack.push(number);
        }
        names
    }

    /// The name of a stack.
    #[must_use]
    pub fn of(&self, stack: u32) -> &str {
        &self.names[self.of_stack[stack as usize]]
    }

    /// Whether the file has no stacks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn by_number(&self, number: usize) -> &str {
        &self.names[number]
    }

    pub(crate) fn number(&self, stack: u32) -> usize {
        self.of_stack[stack as usize]
    }
}

/// The innermost frame that the program's author wrote: what lies inside of libraries tells less.
fn name_of(frames: &[&Frame]) -> String {
    let is_python = |frame: &&&Frame| frame.filename.ends_with(".py");
    let is_own = |frame: &&&Frame| {
        is_python(frame)
            && !["site-packages/", "dist-packages/", "/torch/", "/lib/python"]
                .iter()
                .any(|library| frame.filename.contains(library))
    };
    let found = frames
        .iter()
        .find(is_own)
        .or_else(|| frames.iter().find(is_python))
        .or_else(|| frames.first());
    match found {
        None => "unknown".to_owned(),
        Some(frame) if frame.line == 0 => frame.name.clone(),
        Some(frame) => format!("{} ({}:{})", frame.name, short(&frame.filename), frame.line),
    }
}

/// The last two parts of a path.
fn short(path: &str) -> &str {
    let cut = path.rmatch_indices(['/', '\\']).nth(1).map_or(0, |(at, _)| at + 1);
    &path[cut..]
}

/// The range of sizes that a length belongs to, by powers of two.
#[must_use]
pub fn size_class(len: u64) -> String {
    let len = len.max(1);
    let low = 1u64 << len.ilog2();
    if low < 1 << 10 {
        return "below 1 KiB".to_owned();
    }
    let (unit, name) = match low {
        l if l >= 1 << 30 => (1u64 << 30, "GiB"),
        l if l >= 1 << 20 => (1 << 20, "MiB"),
        _ => (1 << 10, "KiB"),
    };
    format!("{} to {} {name}", low / unit, 2 * (low / unit))
}

/// Sums tensors up, given as (bytes, stack), and puts the largest owner first.
pub(crate) fn owners(
    names: &Names,
    tensors: impl Iterator<Item = (u64, Option<u32>)>,
) -> Vec<Owner> {
    let mut sums: HashMap<String, (u64, u64)> = HashMap::new();
    for (bytes, stack) in tensors {
        let name = match stack {
            Some(stack) => names.of(stack).to_owned(),
            None if names.is_empty() => size_class(bytes),
            None => format!("without a stack, {}", size_class(bytes)),
        };
        let sum = sums.entry(name).or_default();
        sum.0 += bytes;
        sum.1 += 1;
    }
    let mut owners: Vec<Owner> =
        sums.into_iter().map(|(name, (bytes, tensors))| Owner { name, bytes, tensors }).collect();
    owners.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(filename: &str, line: u32, name: &str) -> Frame {
        Frame { filename: filename.into(), line, name: name.into() }
    }

    fn check(frames: &[Frame], expected: &str) {
        assert_eq!(name_of(&frames.iter().collect::<Vec<_>>()), expected);
    }

    #[test]
    fn the_programs_own_frame_names_the_owner() {
        let native = frame("??", 0, "c10::Allocator::allocate");
        let library = frame("/usr/lib/python3/site-packages/torch/nn/linear.py", 116, "forward");
        let own = frame("/home/me/model/train.py", 42, "forward");
        let outer = frame("/home/me/model/train.py", 99, "main");
        check(&[native.clone(), library.clone(), own, outer], "forward (model/train.py:42)");
        check(&[native.clone(), library], "forward (nn/linear.py:116)");
        check(&[native], "c10::Allocator::allocate");
        check(&[frame("owner", 0, "activations")], "activations");
        check(&[], "unknown");
    }

    #[test]
    fn sizes_have_classes() {
        let classes = [0, 1023, 1024, 1 << 20, (4 << 20) - 1, 3 << 29, 1 << 29].map(size_class);
        let expected = [
            "below 1 KiB",
            "below 1 KiB",
            "1 to 2 KiB",
            "1 to 2 MiB",
            "2 to 4 MiB",
            "1 to 2 GiB",
            "512 to 1024 MiB",
        ];
        assert_eq!(classes, expected);
    }

    #[test]
    fn the_largest_comes_first() {
        let tensors = [(5, None), (2 << 20, None), (3 << 20, None), (7, None)];
        let owners = owners(&Names::default(), tensors.into_iter());
        let found: Vec<_> = owners.iter().map(|o| (o.name.as_str(), o.bytes, o.tensors)).collect();
        assert_eq!(found, [("2 to 4 MiB", 5 << 20, 2), ("below 1 KiB", 12, 2)]);
    }
}

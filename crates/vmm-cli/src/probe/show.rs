//! Findings as a block of text for people.

use super::findings::{Findings, Heap, VirtualMemory, Vulkan};
use super::measure::{CallCost, FrameCosts};
use crate::figures::ratio;
use crate::table::{Cell, Table};
use anstyle::{AnsiColor, Style};
use std::fmt::Write as _;

/// Width of the names on the left.
const NAMES: usize = 16;

/// The findings, aligned, with colours if the terminal shows them.
pub(super) fn text(findings: &Findings, coloured: bool) -> String {
    let mut page = Page { text: String::new(), coloured };
    let name = findings.name.as_deref().filter(|name| *name != findings.device);
    page.title(
        &name.map_or(findings.device.clone(), |name| format!("{}  {name}", findings.device)),
    );
    page.line("driver", driver(findings));
    page.line("uuid", findings.uuid.clone());
    page.line("memory", memory(findings));
    page.line("largest block", largest_block(findings));
    page.line("utilisation", utilisation(findings));
    page.line("bandwidth", bandwidth(findings));
    if let Some(virtual_memory) = &findings.virtual_memory {
        page.virtual_memory(virtual_memory);
    }
    if let Some(vulkan) = &findings.vulkan {
        page.vulkan(vulkan);
    }
    page.frames(findings.frames.as_deref().unwrap_or_default());
    page.calls(findings.calls.as_deref().unwrap_or_default());
    if let Some(reasons) = &findings.unavailable {
        page.unavailable(reasons);
    }
    page.text
}

fn driver(findings: &Findings) -> Option<String> {
    let cuda = findings.cuda_version.as_ref().map(|version| format!("CUDA {version}"));
    let parts: Vec<String> = findings.driver_version.clone().into_iter().chain(cuda).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn memory(findings: &Findings) -> Option<String> {
    let memory = &findings.memory;
    let (total, free, used) = (memory.total_bytes?, memory.free_bytes?, memory.used_bytes?);
    Some(format!("{}, {} free, {} used", length(total), length(free), length(used)))
}

#[expect(clippy::cast_precision_loss, reason = "shown with few digits")]
fn largest_block(findings: &Findings) -> Option<String> {
    let block = findings.memory.largest_block_bytes?;
    let share = findings.memory.free_bytes.filter(|free| *free > 0);
    let share =
        share.map(|free| format!(", {} of what is free", ratio(block as f64 / free as f64)));
    Some(length(block) + &share.unwrap_or_default())
}

fn utilisation(findings: &Findings) -> Option<String> {
    let gpu = findings.utilisation_percent?;
    let memory = findings.memory_utilisation_percent;
    let memory = memory.map(|percent| format!(", its memory {percent} %")).unwrap_or_default();
    Some(format!("busy {gpu} % of the time{memory}"))
}

fn bandwidth(findings: &Findings) -> Option<String> {
    let bandwidth = &findings.bandwidth;
    let (mhz, bits) = (bandwidth.memory_clock_mhz?, bandwidth.bus_width_bits?);
    let gigabytes = bandwidth.bytes_per_second? / 1_000_000_000;
    Some(format!("at most {gigabytes} GB/s: 2 x {mhz} MHz x {bits} bits"))
}

/// Bytes in the largest binary unit that they fill, with a digit behind the point where that says more.
#[expect(clippy::cast_precision_loss, reason = "shown with four digits or so")]
fn length(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    if bytes.trailing_zeros() >= shift {
        return format!("{} {unit}", bytes >> shift);
    }
    format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64)
}

struct Page {
    text: String,
    coloured: bool,
}

impl Page {
    fn styled(&self, text: &str, style: Style) -> String {
        if self.coloured { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }

    fn push(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn title(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        let title = self.styled(title, Style::new().bold());
        self.push(&title);
    }

    /// A name and a value; nothing where there is no value.
    fn line(&mut self, name: &str, value: Option<String>) {
        let Some(value) = value else { return };
        let name = self.styled(&format!("{name:<NAMES$}"), Style::new().dimmed());
        self.push(&format!("  {name}{value}"));
    }

    fn virtual_memory(&mut self, memory: &VirtualMemory) {
        let yes = |has: bool| Some(if has { "yes" } else { "no" }.to_owned());
        self.title("virtual memory");
        self.line("remapping", yes(memory.remapping));
        self.line("aliases", yes(memory.aliases));
        self.line("peers", yes(memory.peers));
        self.line("graph capture", yes(memory.capture));
        let when = if memory.queued_binds { "queued on the device" } else { "during the call" };
        self.line("binds", Some(when.to_owned()));
        let mut granules = length(memory.granule_bytes);
        let kinds = [
            ("exportable", memory.exportable_granule_bytes),
            ("rdma", memory.rdma_granule_bytes),
            ("host", memory.host_granule_bytes),
        ];
        for (kind, granule) in kinds {
            let granule = granule.map_or_else(|| "none".to_owned(), length);
            // Writing to a string cannot fail.
            let _ = write!(granules, ", {kind} {granule}");
        }
        self.line("granule", Some(granules));
        if memory.remapping {
            let most = length(memory.max_reservation_bytes);
            self.line("reservation", Some(format!("up to {most}")));
        }
    }

    fn vulkan(&mut self, vulkan: &Vulkan) {
        self.title("vulkan");
        let kind = if vulkan.is_gpu { "a GPU" } else { "a program on the host" };
        self.line("version", Some(format!("{}, on {kind}", vulkan.api_version)));
        let heap = |heap: &Heap| {
            let of = if heap.device_local { "device" } else { "host" };
            let frames = if heap.frames { ", for frames" } else { "" };
            format!("{} of the {of}{frames}", length(heap.bytes))
        };
        self.line("heaps", Some(vulkan.heaps.iter().map(heap).collect::<Vec<_>>().join("; ")));
        let mut sparse = format!("{} of addresses", length(vulkan.sparse_address_space_bytes));
        if let Some(longest) = vulkan.longest_buffer_bytes {
            let _ = write!(sparse, ", {} in one buffer", length(longest));
        }
        self.line("sparse", Some(sparse));
        let unbound = if vulkan.residency_non_resident_strict { "zeros" } else { "anything" };
        self.line("unbound reads", Some(unbound.to_owned()));
        let (queues, family) = (vulkan.queues, vulkan.queue_family);
        self.line("queues", Some(format!("{queues} of family {family}")));
        let shared = if vulkan.binds_have_own_queue { "alone" } else { "shared with streams" };
        self.line("bind queue", Some(format!("family {}, {shared}", vulkan.bind_queue_family)));
    }

    fn frames(&mut self, costs: &[FrameCosts]) {
        if costs.is_empty() {
            return;
        }
        // Where the device does it later than in the call, how much later follows the call.
        let queued = costs.iter().any(|cost| cost.map_done_us.is_some());
        let mut names = vec!["frame", "times", "make", "map", "access", "unmap", "release"];
        if queued {
            names =
                vec!["frame", "times", "make", "map", "done", "access", "unmap", "done", "release"];
        }
        let unit = |index: usize| if index < 2 { "" } else { "us" };
        let mut table = Table::default();
        table.push(names.iter().copied().map(Cell::heading).collect());
        table.push((0..names.len()).map(|index| Cell::faint(unit(index))).collect());
        for cost in costs {
            let or_dash = |us: Option<f64>| us.map_or_else(|| Cell::faint("-"), time);
            let done = |us: Option<f64>| queued.then(|| or_dash(us));
            let mut cells: Vec<Cell> = vec![
                length(cost.frame_bytes).into(),
                cost.repetitions.to_string().into(),
                time(cost.make_frame_us),
                or_dash(cost.map_us),
            ];
            cells.extend(done(cost.map_done_us));
            cells.push(or_dash(cost.set_access_us));
            cells.push(or_dash(cost.unmap_us));
            cells.extend(done(cost.unmap_done_us));
            cells.push(time(cost.release_frame_us));
            table.push(cells);
        }
        self.title("calls by length, medians");
        self.table(&table);
    }

    fn calls(&mut self, costs: &[CallCost]) {
        if costs.is_empty() {
            return;
        }
        let mut table = Table::default();
        table.push(["call", "times", "us"].map(Cell::heading).to_vec());
        for cost in costs {
            let times = cost.repetitions.to_string();
            table.push(vec![cost.call.into(), times.into(), time(cost.time_us)]);
        }
        self.title("other calls, medians");
        self.table(&table);
    }

    fn table(&mut self, table: &Table) {
        for line in table.render(self.coloured).lines() {
            self.push(&format!("  {line}"));
        }
    }

    fn unavailable(&mut self, reasons: &str) {
        self.text.push('\n');
        let title = self.styled("not available", AnsiColor::Yellow.on_default().bold());
        self.push(&title);
        for reason in reasons.lines() {
            self.push(&format!("  {reason}"));
        }
    }
}

/// Microseconds: more digits where calls are short.
fn time(us: f64) -> Cell {
    match us {
        us if us < 9.995 => format!("{us:.2}"),
        us if us < 99.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::board::Board;
    use crate::probe::findings::Memory;

    #[test]
    fn lengths() {
        assert_eq!([length(0), length(512), length(64 << 10)], ["0 B", "512 B", "64 KiB"]);
        assert_eq!([length(2 << 20), length(64 << 40)], ["2 MiB", "64 TiB"]);
        assert_eq!(length((139 << 30) + (200 << 20)), "139.2 GiB");
    }

    /// What only NVML knows, and CUDA missing.
    #[test]
    fn a_board_without_a_device() {
        let mut findings = Findings::of_device("cuda:0".to_owned());
        findings.add_board(Ok(Board {
            name: Some("NVIDIA H200".to_owned()),
            uuid: Some("GPU-01112131-4151-6171-8191-a1b1c1d1e1f1".to_owned()),
            driver_version: Some("580.159.03".to_owned()),
            cuda_version: Some("13.0".to_owned()),
            memory: Some(Memory {
                total_bytes: Some(150_754_820_096),
                free_bytes: Some(100 << 30),
                used_bytes: Some(150_754_820_096 - (100 << 30)),
                largest_block_bytes: Some(75 << 30),
            }),
            utilisation_percent: Some(41),
            memory_utilisation_percent: Some(17),
            memory_clock_mhz: Some(3_201),
            bus_width_bits: Some(6_144),
        }));
        findings.note_missing("CUDA", "the library does not load; install a driver");
        insta::assert_snapshot!(text(&findings, false));
    }

    #[test]
    fn colours_change_no_text() {
        let mut findings = Findings::of_device("cuda:0".to_owned());
        findings.note_missing("CUDA", "none");
        findings.cuda_version = Some("13.0".to_owned());
        let coloured = text(&findings, true);
        assert!(coloured.contains("\u{1b}["));
        let mut pieces = coloured.split('\u{1b}');
        let first = pieces.next().expect("always one").to_owned();
        let plain = pieces
            .fold(first, |plain, piece| plain + piece.split_once('m').map_or("", |(_, rest)| rest));
        assert_eq!(plain, text(&findings, false));
    }
}

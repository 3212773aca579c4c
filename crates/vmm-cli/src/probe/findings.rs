//! What a probe found. Serialized, it is the command's `--json` output; what is not known is `null`.

use super::board::Board;
use super::measure::{CallCost, FrameCosts};
use serde::Serialize;
use vmm_core::device::{FrameKind, MemoryInfo, Properties};
use vmm_vulkan::About;

/// Everything about one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Findings {
    /// The device as the command line names it.
    pub(crate) device: String,
    /// The name that it gives itself.
    pub(crate) name: Option<String>,
    pub(crate) uuid: Option<String>,
    /// Of the kernel's driver, such as 580.95.05; of a Vulkan device with the driver's name.
    pub(crate) driver_version: Option<String>,
    /// The version of CUDA that the driver is made for.
    pub(crate) cuda_version: Option<String>,
    pub(crate) memory: Memory,
    /// Percent of the last moments in which any kernel ran.
    pub(crate) utilisation_percent: Option<u32>,
    /// Percent of the last moments in which memory was read or written.
    pub(crate) memory_utilisation_percent: Option<u32>,
    pub(crate) bandwidth: Bandwidth,
    pub(crate) virtual_memory: Option<VirtualMemory>,
    /// What only Vulkan has.
    pub(crate) vulkan: Option<Vulkan>,
    /// Calls that do not depend on a length.
    pub(crate) calls: Option<Vec<CallCost>>,
    /// Calls by the length of the frame that they are about.
    pub(crate) frames: Option<Vec<FrameCosts>>,
    /// What could not be found out, and why, in words.
    pub(crate) unavailable: Option<String>,
}

/// Physical memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    pub(crate) total_bytes: Option<u64>,
    pub(crate) free_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) largest_block_bytes: Option<u64>,
}

/// What the memory can deliver at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Bandwidth {
    /// The highest clock that memory runs at.
    pub(crate) memory_clock_mhz: Option<u32>,
    pub(crate) bus_width_bits: Option<u32>,
    pub(crate) bytes_per_second: Option<u64>,
}

impl Bandwidth {
    /// Two transfers a clock, each as wide as the bus, for NVML's clock is that of double data rate.
    /// So an H100 (2619 MHz, 5120 bits) has the 3.35 TB/s of its data sheet, and an H200 (3201 MHz,
    /// 6144 bits) has 4.92, where its data sheet says 4.8.
    pub(crate) fn of(memory_clock_mhz: Option<u32>, bus_width_bits: Option<u32>) -> Self {
        let bytes_per_second = memory_clock_mhz
            .zip(bus_width_bits)
            .map(|(mhz, bits)| 2 * u64::from(mhz) * 1_000_000 * u64::from(bits) / 8);
        Self { memory_clock_mhz, bus_width_bits, bytes_per_second }
    }
}

/// What the device's virtual memory is like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct VirtualMemory {
    pub(crate) remapping: bool,
    pub(crate) aliases: bool,
    pub(crate) queued_binds: bool,
    pub(crate) peers: bool,
    pub(crate) capture: bool,
    pub(crate) granule_bytes: u64,
    /// `null` for a kind of frame that the device does not have.
    pub(crate) exportable_granule_bytes: Option<u64>,
    pub(crate) rdma_granule_bytes: Option<u64>,
    pub(crate) host_granule_bytes: Option<u64>,
    pub(crate) max_reservation_bytes: u64,
}

/// What only a Vulkan device has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Vulkan {
    /// Of Vulkan, such as 1.4.305.
    pub(crate) api_version: String,
    /// Whether it is a GPU and not a program on the host.
    pub(crate) is_gpu: bool,
    pub(crate) heaps: Vec<Heap>,
    /// Whether memory may be bound at several places at once.
    pub(crate) sparse_residency_aliased: bool,
    /// Whether addresses without memory read as zeros.
    pub(crate) residency_non_resident_strict: bool,
    pub(crate) sparse_address_space_bytes: u64,
    /// `null` if the device does not say.
    pub(crate) longest_buffer_bytes: Option<u64>,
    /// Queues that streams are spread over.
    pub(crate) queues: usize,
    pub(crate) queue_family: u32,
    pub(crate) bind_queue_family: u32,
    /// Whether no stream uses the queue that binds go to.
    pub(crate) binds_have_own_queue: bool,
}

/// A part of a Vulkan device's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Heap {
    pub(crate) bytes: u64,
    pub(crate) device_local: bool,
    /// Whether a pool's frames come from it.
    pub(crate) frames: bool,
}

impl From<About> for Vulkan {
    fn from(about: About) -> Self {
        let heap = |heap: &vmm_vulkan::Heap| Heap {
            bytes: heap.len,
            device_local: heap.device_local,
            frames: heap.frames,
        };
        Self {
            api_version: about.api_version.map(|part| part.to_string()).join("."),
            is_gpu: about.is_gpu,
            heaps: about.heaps.iter().map(heap).collect(),
            sparse_residency_aliased: about.aliases,
            residency_non_resident_strict: about.strict_residency,
            sparse_address_space_bytes: about.sparse_address_space,
            longest_buffer_bytes: about.longest_buffer,
            queues: about.queues,
            queue_family: about.queue_family,
            bind_queue_family: about.bind_family,
            binds_have_own_queue: about.binds_alone,
        }
    }
}

impl Findings {
    /// Nothing but a name.
    pub(crate) fn of_device(device: String) -> Self {
        Self { device, ..Self::default() }
    }

    /// Enters that a source is missing, and why.
    pub(crate) fn note_missing(&mut self, what: &str, reason: &str) {
        let line = format!("{what}: {reason}");
        match &mut self.unavailable {
            Some(text) => {
                text.push('\n');
                text.push_str(&line);
            }
            None => self.unavailable = Some(line),
        }
    }

    pub(crate) fn add_board(&mut self, board: Result<Board, String>) {
        match board {
            Ok(board) => {
                self.name = board.name;
                self.uuid = board.uuid;
                self.driver_version = board.driver_version;
                self.cuda_version = board.cuda_version;
                if let Some(memory) = board.memory {
                    self.memory = memory;
                }
                self.utilisation_percent = board.utilisation_percent;
                self.memory_utilisation_percent = board.memory_utilisation_percent;
                self.bandwidth = Bandwidth::of(board.memory_clock_mhz, board.bus_width_bits);
            }
            Err(reason) => self.note_missing("NVML", &reason),
        }
    }

    pub(crate) fn add_vulkan(&mut self, about: About) {
        self.driver_version = Some(about.driver.clone());
        self.vulkan = Some(about.into());
    }

    pub(crate) fn add_properties(&mut self, properties: &Properties) {
        let capabilities = properties.capabilities;
        self.name = Some(properties.name.clone());
        self.virtual_memory = Some(VirtualMemory {
            remapping: capabilities.remapping,
            aliases: capabilities.aliases,
            queued_binds: capabilities.queued_binds,
            peers: capabilities.peers,
            capture: capabilities.capture,
            granule_bytes: properties.granule,
            exportable_granule_bytes: properties.granule_of(FrameKind::Exportable),
            rdma_granule_bytes: properties.granule_of(FrameKind::Rdma),
            host_granule_bytes: properties.granule_of(FrameKind::Host),
            max_reservation_bytes: properties.max_reservation,
        });
    }

    /// Enters what the device says of its memory. NVML's figures, where there are some, hold what the
    /// driver keeps for itself, so the device's own replace them: they are what can be had.
    pub(crate) fn add_memory(&mut self, info: MemoryInfo) {
        self.memory.total_bytes = Some(info.total);
        self.memory.free_bytes = Some(info.free);
        self.memory.used_bytes = Some(info.total - info.free.min(info.total));
    }

    /// The findings as one JSON object.
    ///
    /// # Panics
    /// Never: they hold nothing that JSON cannot say.
    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("numbers and strings");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidths_of_data_sheets() {
        let bandwidth = |mhz, bits| Bandwidth::of(Some(mhz), Some(bits)).bytes_per_second;
        assert_eq!(bandwidth(3_201, 6_144), Some(4_916_736_000_000), "H200");
        assert_eq!(bandwidth(1_215, 5_120), Some(1_555_200_000_000), "A100 of 40 GB: 1.555 TB/s");
        assert_eq!(bandwidth(9_751, 384), Some(936_096_000_000), "RTX 3090: 936 GB/s");
        assert_eq!(Bandwidth::of(None, Some(384)).bytes_per_second, None);
    }

    #[test]
    fn what_is_missing_is_listed() {
        let mut findings = Findings::of_device("cuda:0".to_owned());
        findings.add_board(Err("no library".to_owned()));
        findings.note_missing("CUDA", "no driver");
        assert_eq!(findings.unavailable.as_deref(), Some("NVML: no library\nCUDA: no driver"));
    }
}

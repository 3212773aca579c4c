//! The command line of `vmm probe`.

use super::DeviceOption;
use clap::Args;

pub(super) const HELP: &str = "\
What it shows:
  memory          what CUDA sees; used by everybody, this command's own context included
  largest block   the longest single plain allocation (cuMemAlloc) that succeeds now,
                  found by trying: less than the free memory if the card is fragmented.
                  For a moment that takes what is free; --no-measure tries nothing
  bandwidth       what the memory clock and the width of the bus allow at most:
                  2 transfers a clock, as NVML's clock is that of double data rate
  calls           median time of each call of the device interface, by length of the
                  frame: 2 MiB to 4 GiB, or a quarter of the free memory; where binds are
                  queued, done is from the call until the device has done it
Memory, virtual memory and calls come from CUDA; versions, utilisation, clock and bus from
NVML. What either cannot tell is left out, and the output says why. On a Vulkan device all
comes from Vulkan, with its heaps, queues and sparse limits in place of what NVML tells.

Examples:
  vmm probe                    the first card
  vmm probe --device cuda:1    the second one
  vmm probe --device vulkan    the best Vulkan device; vulkan:1 or vulkan:NAME names one
  vmm probe --device mock      what replays without a card assume
  vmm probe --json             for programs: null where something is not known; also what
                               vmm replay --costs reads

Exit codes:
  0  everything that can be known was shown, if only that there is no card
  1  the device failed during a measurement
  2  the command line is wrong, or the output could not be written";

/// Options of `vmm probe`.
#[derive(Debug, Args)]
pub struct ProbeOptions {
    /// The device to look at: cuda, cuda:N, vulkan, vulkan:N, vulkan:NAME or mock
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: DeviceOption,

    /// Only ask: make no frame, no allocation and no measurement
    #[arg(long)]
    pub no_measure: bool,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

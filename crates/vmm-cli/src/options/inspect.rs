//! Options of `vmm inspect`.

use super::RecordingOptions;
use clap::Args;

pub(super) const HELP: &str = "\
For each device of each file:
  needed         the most bytes that the program held at once; no allocator needs less
  reserved       the most that its allocator held from the device
  at the peak    who held memory: functions where the file has stacks, sizes otherwise
  fragmentation  where reserved bytes are that hold nothing, by cause, seen by the next
                 request that made the allocator take more; memory that this request could
                 have is cached beyond need and not counted. low below 0.1 of what is
                 reserved, medium below 0.3, high below 0.6, severe above
  next to fail   the request that would fail next if the device gave nothing more, as the recording
                 goes on; at its end, of what was asked for lately. And the largest block that
                 such a request could still have
  grows          tensors of one origin of which more stay with every part of the recording
  out of memory  what was asked for, what was in the way, and who held memory then
  policies       what the recorded allocator had, and for this pool (vmm), on a mock device with
                 the costs of an H200, and models of other allocators (settings of PyTorch, or
                 for a log of RMM its pool and its arena) the most that they reserve and the
                 smallest budget in which they serve every request, also those that failed;
                 'vmm compare' says how far models are to be believed, and its help which
                 there are

Examples:
  vmm inspect oom.pickle                       after a failure
  vmm inspect rank0.pickle rank1.pickle        one after the other
  vmm inspect run.pickle.gz --json             for programs
  vmm inspect run.pickle.gz --no-replay        faster, without the policies
  vmm inspect run.pickle.gz --policy vmm:limit=80GiB,expandable

A trace with stacks: torch.cuda.memory._record_memory_history() before the work starts, and
torch.cuda.memory._dump_snapshot(\"run.pickle\") when it has failed. RMM's logs work too. Of a
snapshot without history, such as this pool's own, only the state is told.";

/// Options of `vmm inspect`.
#[derive(Debug, Args)]
pub struct InspectOptions {
    /// What is looked at.
    #[command(flatten)]
    pub recordings: RecordingOptions,

    /// Print one JSON array with an object for each file and device
    #[arg(long)]
    pub json: bool,
}

//! Options of `vmm inspect`.

use clap::{Args, ValueHint};
use std::path::PathBuf;

pub(super) const HELP: &str = "\
For each device of each file:
  needed         the most bytes that the program held at once; no allocator needs less
  reserved       the most that its allocator held from the device
  at the peak    who held memory: functions where the file has stacks, sizes otherwise
  fragmentation  where reserved bytes are that hold nothing, by cause, seen by the next
                 request that made the allocator take more; memory that this request could
                 have is cached beyond need and not counted. low below 0.1 of what is
                 reserved, medium below 0.3, high below 0.6, severe above
  grows          tensors of one origin of which more stay with every part of the recording
  out of memory  what was asked for, and what was in the way
  policies       what the recorded allocator had, and for this pool, on a mock device with the
                 costs of an H200, and models of PyTorch's allocator the most that they
                 reserve and the smallest budget in which they serve every request, also
                 those that failed; 'vmm compare' says how far models are to be believed

Examples:
  vmm inspect oom.pickle                       after a failure
  vmm inspect rank0.pickle rank1.pickle        one after the other
  vmm inspect run.pickle.gz --json             for programs
  vmm inspect run.pickle.gz --no-replay        faster, without the policies

A trace with stacks: torch.cuda.memory._record_memory_history() before the work starts, and
torch.cuda.memory._dump_snapshot(\"run.pickle\") when it has failed. RMM's logs and this
pool's own snapshots work too.";

/// Options of `vmm inspect`.
#[derive(Debug, Args)]
pub struct InspectOptions {
    /// Snapshots or logs, or folders of them (*.pickle, *.pickle.gz, *.csv)
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,

    /// Do not replay the trace: faster, but without the budgets of other policies
    #[arg(long)]
    pub no_replay: bool,

    /// Print one JSON array with an object for each file and device
    #[arg(long)]
    pub json: bool,

    /// Show no progress; it is only shown on a terminal anyway
    #[arg(long)]
    pub no_progress: bool,
}

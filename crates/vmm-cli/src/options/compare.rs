//! The command line of `vmm compare`.

use super::parse_duration;
use crate::policy::PolicyOption;
use clap::{Args, ValueEnum, ValueHint};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

pub(super) const HELP: &str = "\
The table, for each trace the policies in the order of --sort:
  reserved  the most memory held at once; ratio is that over what the program needs
  budget    the smallest limit under which every allocation succeeds, over what it needs
  calls     driver calls on the allocating thread; driver is their time, and its share of
            the trace's duration, without waits for the device
  tail      driver time that 999 of 1000 allocations did not exceed, waits for the device
            included
  worst     driver time of the dearest single allocation, waits for the device included
  waits     how often the host waited for the device, --lag each
  host      real time of one allocation or release in nanoseconds, while other replays ran;
            only of this pool, for how fast a model runs says nothing of what it models
  failed    allocations for which there was no memory
  checked   what a model was held against: 'recorded' memory over time, peaks of 'live'
            runs, or 'no'; the lines below say with what result
Reserved memory and driver time are those of a run without a limit, or with the policy's.
Behind several traces there are rows for all: geometric means of ratios, shares and host
time, sums of calls, waits and driver time, the most of tail and worst.

Policies, with their settings; several settings are joined by colons:
  vmm          this pool, on a mock device with the costs of an H200: limit, target
  native       PyTorch's allocator: limit, max_split_size, roundup_power2_divisions,
               garbage_collection_threshold (only acts under a limit)
  expandable   PyTorch's with expandable segments: the same settings
  async        a stream-ordered pool of the driver (cudaMallocAsync): limit
  rmm-pool     RMM's coalescing pool: limit, initial (bytes to begin with)
  rmm-arena    RMM's arena: limit
  cudamalloc   cudaMalloc and cudaFree for every tensor: limit
and blocks in chunks of this pool, of each stream its own, placed by: limit, target, chunk
(the length of a chunk, 64MiB if nothing is said; what needs more has memory of its own, and so
has what comes when the limit leaves no room for a chunk)
  bump         one behind the other, until all of a chunk are released
  first-fit    the lowest free range that fits
  next-fit     the next one behind the last block
  best-fit     the shortest one
  buddy        powers of two, halved and joined again
  slab         slabs of 2 MiB with blocks of one of 40 lengths up to 1 MiB
  fixed        blocks of 2 MiB
  tiers        slab up to 1 MiB, best-fit above
  tlsf         two-level segregated fit
  segregated   bins, as this pool has them

Examples:
  vmm compare traces
  vmm compare run.pickle.gz --policy vmm,native,expandable
  vmm compare run.pickle.gz --policy native:max_split_size=128MiB,vmm:limit=1.03x
  vmm compare run.pickle.gz --policy best-fit:chunk=1.1x,buddy:chunk=1GiB,tlsf
  vmm compare traces --markdown --sort budget > table.md";

/// Options of `vmm compare`.
#[derive(Debug, Args)]
pub struct CompareOptions {
    /// Traces, or folders of them (*.pickle, *.pickle.gz, *.csv)
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,

    /// What to compare, with settings: native,vmm:limit=1.03x [default: a dozen]
    #[arg(long = "policy", value_name = "POLICY,...", value_delimiter = ',')]
    pub policies: Vec<PolicyOption>,

    /// Do not search the smallest limit of each policy, which takes most of the time
    #[arg(long)]
    pub no_budget: bool,

    /// What policies are sorted by, best first
    #[arg(long, value_name = "COLUMN", default_value = "ratio")]
    pub sort: SortOption,

    /// How far the device runs behind the host
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    pub lag: Duration,

    /// Print one JSON array with an object for each trace and policy, with the keys of 'vmm replay'
    #[arg(long, group = "format")]
    pub json: bool,

    /// Print comma-separated values
    #[arg(long, group = "format")]
    pub csv: bool,

    /// Print a Markdown table
    #[arg(long, group = "format")]
    pub markdown: bool,

    /// Threads that replay [default: one for each core]
    #[arg(long, value_name = "NUMBER")]
    pub jobs: Option<NonZeroUsize>,

    /// Show no progress; it is only shown on a terminal anyway
    #[arg(long)]
    pub no_progress: bool,
}

/// Settings of `--sort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SortOption {
    /// Reserved memory
    Ratio,
    /// The smallest limit
    Budget,
    /// Driver time
    Driver,
    /// The dearest of a thousand allocations
    Tail,
    /// The dearest allocation
    Worst,
    /// As on the command line
    Given,
}

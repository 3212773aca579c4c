//! The command line.

mod compare;
mod device;
mod inspect;
mod probe;
mod recording;
mod report;

pub use compare::{CompareOptions, SortOption};
pub use device::DeviceOption;
pub use inspect::InspectOptions;
pub use probe::ProbeOptions;
pub use recording::RecordingOptions;
pub use report::{FigureFormat, ReportOptions};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;
use vmm_core::CrossStream;
use vmm_replay::{Amount, Placed, Upkeep};

/// GPU memory on the GPU's own virtual memory: see how much a program needs and what it would take.
#[derive(Debug, Parser)]
#[command(name = "vmm", version, propagate_version = true, after_help = EXIT_CODES)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the command can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay recorded memory traces on a pool and report memory and cost
    #[command(after_help = REPLAY_HELP)]
    Replay(ReplayOptions),
    /// Compare this pool with models of other allocators on recorded memory traces
    #[command(after_help = compare::HELP)]
    Compare(CompareOptions),
    /// Say what a recorded program did with its memory, and why it ran out
    #[command(after_help = inspect::HELP)]
    Inspect(InspectOptions),
    /// Draw what a recorded program did with its memory, as one HTML file
    #[command(after_help = report::HELP)]
    Report(ReportOptions),
    /// Show a device: its memory, what its virtual memory can do, and what its calls take
    #[command(after_help = probe::HELP)]
    Probe(ProbeOptions),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell to complete for
        shell: Shell,
    },
}

const EXIT_CODES: &str = "\
Exit codes:
  0  everything was done and every allocation succeeded
  1  a replay had allocations that failed or wrong bytes, no limit works, or a device
     failed while it was measured
  2  the command line is wrong, a device is not there, or an input could not be read or
     replayed (the others were)";

const REPLAY_HELP: &str = "\
The table, one row for each trace and device:
  needed    the most bytes that the program held at once; no allocator needs less
  recorded  the most that the program's own allocator had reserved
  reserved  the most that the pool reserved; ratio is reserved over needed. It can be
            below 1: memory that another stream still uses serves the next tensor
            already, if that waits for it on the device
  calls     device calls on the allocating thread; driver is their time, and its
            share of the trace's duration
  worker    the share of the maintenance thread, which delays nobody
  worst     driver time of the dearest single allocation
  waits     how often the host had to wait for the device
  host      real time of one allocation or release, in nanoseconds
  failed    allocations for which there was no memory; below the table is why the first failed
  wrong     with --check: bytes that were not what had been written; below the table are
            the first such leases, and what else the device noticed
  budget    with --budget: the smallest limit that works, over needed
The last row is the geometric mean; shares below 0.0001 % count as that.

Examples:
  vmm replay traces                            every trace of a folder
  vmm replay run.pickle.gz --limit 1.03x       at most 3 % above what it needs
  vmm replay run.pickle.gz --target 20GiB      stay under 20 GiB where possible
  vmm replay run.pickle.gz --budget            the smallest limit that works
  vmm replay traces --placement best-fit       blocks in chunks of the pool
  vmm replay traces --json                     for programs
  vmm replay traces --device cuda --check      real calls on a card, every byte checked
  vmm replay traces --device vulkan            the same pool on Vulkan's sparse buffers
  vmm probe --json > card.json                 on your card, while it is idle; then anywhere
  vmm replay traces --costs card.json          what its driver would take

On a card (--device cuda or vulkan) the pool's calls are made for real, so driver, worker
and worst are measured. The clock stays that of the trace, and skips its gaps: a fence
counts as reached --lag after it was recorded, as on the mock, and if the card is not there
yet the host waits for it, uncounted. Before each fence the card gets 20 us of stand-in
work. So the figures say what this card and driver take for the calls that the pool makes
in this program. The program's own kernels do not run; --busy lets one run beside the
replay, on CUDA for half a minute at most, and on the mock multiplies the costs by 3, as was
measured on a card. The worker is modelled in all cases. Vulkan binds on the device, behind
the call: that counts where the host waits for it, as the worker does, not where a stream
does.

--check fills each lease on its stream with a pattern of its own and compares all of it on
the stream that uses it last, before its release, all on the device. It writes and reads
every byte that the trace allocates. On a card its kernels make device calls slower; apart
from that it changes no other figure.

A trace is a snapshot of PyTorch's allocator, pickled, or a CSV log of RAPIDS RMM:
  torch.cuda.memory._record_memory_history()
  ...
  torch.cuda.memory._dump_snapshot(\"run.pickle\")

Exit codes:
  0  every allocation succeeded
  1  allocations failed, bytes were wrong, or no limit works
  2  the command line is wrong, the device is not there, or an input could not be read or
     replayed (the others were)";

const COMPLETIONS_HELP: &str = "\
Examples:
  vmm completions bash > ~/.local/share/bash-completion/completions/vmm
  vmm completions zsh > \"${fpath[1]}/_vmm\"";

/// Options of `vmm replay`.
#[derive(Debug, Args)]
pub struct ReplayOptions {
    /// Traces, or folders of them (*.pickle, *.pickle.gz, *.csv)
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,

    /// Memory that is never exceeded: bytes (20GiB, 512MiB) or a multiple of what is needed (1.03x)
    #[arg(long, value_name = "AMOUNT")]
    pub limit: Option<Amount>,

    /// Memory that the pool tries to stay under, written like a limit, or none [default: the limit]
    #[arg(long, value_name = "AMOUNT")]
    pub target: Option<Amount>,

    /// Put tensors into blocks in chunks of the pool, by this placement: buddy, or buddy:chunk=1GiB
    ///
    /// There are bump, first-fit, next-fit, best-fit, buddy, slab, fixed, tiers, tlsf and segregated:
    /// 'vmm compare --help' says what they do. Each stream has chunks of its own, of 64 MiB or of the
    /// length given; a tensor that needs more has memory of its own.
    #[arg(long, value_name = "NAME[:chunk=AMOUNT]")]
    pub placement: Option<Placed>,

    /// Search the smallest limit that works, to a thousandth of what is needed
    #[arg(long, conflicts_with = "limit")]
    pub budget: bool,

    /// How far the device runs behind the host
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    pub lag: Duration,

    /// When memory that one stream released may serve another
    #[arg(long, value_name = "WHEN", default_value = "wait")]
    pub cross_stream: CrossStreamOption,

    /// Who makes device calls that need not be made at once
    #[arg(long, value_name = "WHO", default_value = "worker")]
    pub maintenance: MaintenanceOption,

    /// The device to replay on: mock, cuda, cuda:N, vulkan, vulkan:N or vulkan:NAME
    ///
    /// The mock is host-only, with the rules and the measured costs of an NVIDIA H200, or the costs
    /// of --costs. On a card the driver's calls are made and measured. A Vulkan device is named by its
    /// index or by a part of its name; without either the best is taken, GPUs first.
    #[arg(long, value_name = "DEVICE", default_value = "mock")]
    pub device: DeviceOption,

    /// What calls cost on the mock: the output of 'vmm probe --json' on a CUDA card [default: an H200]
    ///
    /// Times between the measured lengths are interpolated. What a probe does not measure (peer
    /// access, copies and fills) and what the file lacks costs what it does on an H200.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub costs: Option<PathBuf>,

    /// Let a kernel run beside the replay: device calls take longer then
    #[arg(long)]
    pub busy: bool,

    /// Check that each lease keeps its bytes from its first use to its last
    #[arg(long)]
    pub check: bool,

    /// Print one JSON array with an object for each trace and device
    #[arg(long)]
    pub json: bool,

    /// Show no progress; it is only shown on a terminal anyway
    #[arg(long)]
    pub no_progress: bool,
}

/// Settings of `--cross-stream`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CrossStreamOption {
    /// At once: the taker's stream waits on the device
    Wait,
    /// Once the device has finished with it
    Reached,
    /// Never
    Never,
}

impl From<CrossStreamOption> for CrossStream {
    fn from(option: CrossStreamOption) -> Self {
        match option {
            CrossStreamOption::Wait => Self::WaitOnDevice,
            CrossStreamOption::Reached => Self::WhenReached,
            CrossStreamOption::Never => Self::Never,
        }
    }
}

/// Settings of `--maintenance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MaintenanceOption {
    /// A second thread, modelled
    Worker,
    /// The allocating thread
    Inline,
    /// Nobody
    None,
}

impl From<MaintenanceOption> for Upkeep {
    fn from(option: MaintenanceOption) -> Self {
        match option {
            MaintenanceOption::Worker => Self::Worker,
            MaintenanceOption::Inline => Self::Inline,
            MaintenanceOption::None => Self::None,
        }
    }
}

/// Reads `5ms`, `250us`, `1.5s` or `0`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits_end);
    let number: f64 =
        number.parse().map_err(|_| "write a time such as 5ms, 250us or 0.1s".to_owned())?;
    let seconds = match unit.trim() {
        "s" => number,
        "ms" => number / 1e3,
        "us" | "µs" => number / 1e6,
        "ns" => number / 1e9,
        "" if number == 0.0 => 0.0,
        "" => return Err("the unit is missing: write 5ms, 250us or 0.1s".to_owned()),
        other => return Err(format!("unknown unit '{other}': use s, ms, us or ns")),
    };
    // Above an hour the device would never catch up with any trace, and sums could overflow.
    if seconds > 3600.0 {
        return Err("at most 3600s".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("5ms"), Ok(Duration::from_millis(5)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("1.5 s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        for wrong in ["", "5", "ms", "-1ms", "5min", "1e9s", "99999s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }
}

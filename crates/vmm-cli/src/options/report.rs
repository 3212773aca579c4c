//! Options of `vmm report`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use vmm_replay::Amount;

pub(super) const HELP: &str = "\
The report is one HTML file that needs no network: memory over time, fragmentation by cause,
addresses over time, what lay where at the peak, what this pool and PyTorch's settings would
need, device calls, and all that 'vmm inspect' says. Several files, such as the ranks of one job, stand side by
side in one report.

Examples:
  vmm report run.pickle.gz -o run.html
  vmm report rank*.pickle -o job.html          all ranks in one report
  vmm report run.pickle.gz -o run.html --limit 80GiB
  vmm report run.pickle.gz --figures out       each figure as a file, SVG and PNG
  vmm report run.pickle.gz --figures out --format svg";

/// Options of `vmm report`.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// Snapshots or logs, or folders of them (*.pickle, *.pickle.gz, *.csv)
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,

    /// Where to write the report
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath,
          required_unless_present = "figures")]
    pub output: Option<PathBuf>,

    /// Write each figure as a file of its own into this folder
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub figures: Option<PathBuf>,

    /// Of what kind these files are
    #[arg(long, value_name = "KIND", default_value = "both", requires = "figures")]
    pub format: FigureFormat,

    /// A line to draw: bytes (80GiB) or a multiple of what is needed (1.1x) [default: what the
    /// process could have when an allocation failed]
    #[arg(long, value_name = "AMOUNT")]
    pub limit: Option<Amount>,

    /// Do not replay the trace: faster, but without the memory and calls of policies
    #[arg(long)]
    pub no_replay: bool,

    /// Show no progress; it is only shown on a terminal anyway
    #[arg(long)]
    pub no_progress: bool,
}

/// Settings of `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FigureFormat {
    /// SVG
    Svg,
    /// PNG, for which a font must be installed
    Png,
    /// A file of each
    Both,
}

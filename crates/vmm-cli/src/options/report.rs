//! Options of `vmm report`.

use super::RecordingOptions;
use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;
use vmm_replay::Amount;

pub(super) const HELP: &str = "\
The report is one HTML file that needs no network: memory over time, fragmentation by cause,
addresses over time, what lay where at the peak and when it failed, what this pool (vmm) and
other policies would need, device calls, and all that 'vmm inspect' says. Several files, such as the ranks of
one job, stand side by side in one report. 'vmm compare --help' lists the policies.

Examples:
  vmm report run.pickle.gz -o run.html
  vmm report rank*.pickle -o job.html          all ranks in one report
  vmm report run.pickle.gz -o run.html --limit 80GiB
  vmm report run.pickle.gz -o run.html --policy vmm,best-fit,rmm-pool
  vmm report run.pickle.gz --figures out       each figure as a file, SVG and PNG
  vmm report run.pickle.gz --figures out --format svg";

/// Options of `vmm report`.
#[derive(Debug, Args)]
pub struct ReportOptions {
    /// What is drawn.
    #[command(flatten)]
    pub recordings: RecordingOptions,

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

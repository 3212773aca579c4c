//! Options of commands that look at recorded programs.

use crate::policy::PolicyOption;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// What is looked at, and what is set beside it.
#[derive(Debug, Args)]
pub struct RecordingOptions {
    /// Snapshots or logs, or folders of them (*.pickle, *.pickle.gz, *.csv)
    #[arg(required = true, value_name = "FILE|DIR", value_hint = ValueHint::AnyPath)]
    pub inputs: Vec<PathBuf>,

    /// Policies to set beside the recording, as in 'vmm compare': native,vmm:limit=1.03x [default: a
    /// few that users choose among]
    #[arg(
        long = "policy",
        value_name = "POLICY,...",
        value_delimiter = ',',
        conflicts_with = "no_replay"
    )]
    pub policies: Vec<PolicyOption>,

    /// Do not replay the trace: faster, but without what policies need
    #[arg(long)]
    pub no_replay: bool,

    /// Show no progress; it is only shown on a terminal anyway
    #[arg(long)]
    pub no_progress: bool,
}

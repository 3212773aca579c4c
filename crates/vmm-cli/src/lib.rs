//! The `vmm` command as a library; the binary only calls [`main`].
//!
//! `vmm replay` reads traces (`vmm-trace`), replays them (`vmm-replay`) on a device that is chosen
//! here, and prints a table or JSON. `vmm compare` does so beside models of other allocators
//! (`vmm-models`). `vmm inspect` says where a recorded program's memory went (`vmm-report`), `vmm report`
//! draws it. `vmm probe` shows a device. [`options`] is the command line.
#![forbid(unsafe_code)]

mod compare;
mod device;
mod exit;
mod figures;
mod inputs;
mod inspect;
pub mod options;
mod outcome;
mod pages;
mod policies;
mod policy;
mod probe;
mod progress;
mod recordings;
mod replay;
mod report;
mod table;
mod terminal;

pub use device::{MockContents, MockTimeline, replay_on_mock};
pub use exit::Exit;
pub use policy::{Manager, PolicyOption};
pub use terminal::Terminal;

use clap::{CommandFactory, Parser};
use options::{Command, Options};
use std::process::ExitCode;

/// Runs the command with the arguments of the process.
#[must_use]
pub fn main() -> ExitCode {
    run(&Options::parse(), &Terminal::detect()).into()
}

/// Runs a command.
#[must_use]
pub fn run(options: &Options, terminal: &Terminal) -> Exit {
    match &options.command {
        Command::Replay(options) => replay::run(options, *terminal),
        Command::Compare(options) => compare::run(options, *terminal),
        Command::Inspect(options) => inspect::run(options, *terminal),
        Command::Report(options) => pages::run(options, *terminal),
        Command::Probe(options) => probe::run(options, *terminal),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Options::command(), "vmm", &mut script);
            terminal.print(&String::from_utf8_lossy(&script))
        }
    }
}

//! The `vmm` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    vmm_cli::main()
}

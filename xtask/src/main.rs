//! The project's own commands: `cargo xtask test`, `lint`, `ci` and `tidy`.
//!
//! It uses nothing but the standard library, so that the checks are there a second after a clone.
#![forbid(unsafe_code)]

mod bundle;
mod cargo;
mod ci;
mod install;
mod python;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <COMMAND>

Commands:
  test [ARGS]  run all tests that need no hardware; ARGS go to the test runner
  lint         formatting, lints, documentation, licences
  ci           lint, then test
  tidy         checks of the tree: lengths, README, where unsafe code may be
  install [--prefix DIR] [--from DIR]  the libraries for C, header and pkg-config file
  wheel [DIR]  the Python package for PyTorch
  gpu-bundle [DIR]  one folder to run tests and measurements on a GPU machine without Rust
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match args.split_first() {
        Some((command, rest)) if command == "test" => test::run(rest),
        Some((command, [])) if command == "lint" => ci::lint(),
        Some((command, [])) if command == "ci" => ci::run(),
        Some((command, [])) if command == "tidy" => tidy::run(),
        Some((command, rest)) if command == "install" => install::run(rest),
        Some((command, rest)) if command == "wheel" => python::wheel(rest),
        Some((command, rest)) if command == "gpu-bundle" => bundle::run(rest),
        Some((command, [])) if command == "help" || command == "--help" => {
            print!("{HELP}");
            Ok(())
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

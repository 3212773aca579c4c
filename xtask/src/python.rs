//! The Python package for `PyTorch`: its wheel, and those of its tests that need no GPU.

use crate::cargo::{Outcome, Report, lines_of, root};
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Modules that run without a GPU. The last skips itself where there is no `PyTorch`.
const TESTS: [&str; 8] =
    ["options", "program", "install", "build", "last", "wheel", "measure", "on_mock"];

/// `cargo xtask wheel [FOLDER]`: builds the wheel for `PyTorch`.
pub(crate) fn wheel(args: &[String]) -> Outcome {
    let folder = match args {
        [] => root().join("target/wheels"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => return Err("usage: cargo xtask wheel [FOLDER]".to_owned()),
    };
    let mut command = python("build_backend.py");
    command.arg(&folder);
    let status = command.status().map_err(|e| format!("python3: {e}"))?;
    if status.success() { Ok(()) } else { Err("the wheel could not be built".to_owned()) }
}

/// Runs the tests without a GPU and returns how many passed, failed and were skipped; `None` where
/// there is no Python.
pub(crate) fn tests() -> Result<Option<[u64; 3]>, String> {
    if !Command::new("python3").arg("--version").output().is_ok_and(|o| o.status.success()) {
        return Ok(None);
    }
    let mut command = python("tests/run.py");
    command.args(TESTS);
    let built =
        env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    // Where cargo puts it that has built it for tests, and for its own sake.
    let libraries = ["debug/deps/libvmm.so", "debug/libvmm.so"].map(|name| built.join(name));
    if env::var_os("VMM_LIBRARY").is_none()
        && let Some(library) = libraries.iter().find(|library| library.exists())
    {
        command.env("VMM_LIBRARY", library);
    }
    let mut counts = None;
    lines_of(&mut command, "python3 crates/vmm-torch/tests/run.py", Report::Stdout, |line| {
        println!("{line}");
        counts = read_counts(line).or(counts);
    })?;
    counts.map(Some).ok_or_else(|| "the tests of vmm-torch ended without a count".to_owned())
}

fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("crates/vmm-torch").join(script));
    command
}

/// The numbers of `3 passed, 0 failed, 1 skipped`.
fn read_counts(line: &str) -> Option<[u64; 3]> {
    let mut counts = [0; 3];
    let mut parts = line.split(", ");
    for (count, word) in counts.iter_mut().zip(["passed", "failed", "skipped"]) {
        let (number, found) = parts.next()?.split_once(' ')?;
        if found != word {
            return None;
        }
        *count = number.parse().ok()?;
    }
    parts.next().is_none().then_some(counts)
}

#[cfg(test)]
mod tests {
    use super::read_counts;

    #[test]
    fn counts_are_read() {
        assert_eq!(read_counts("18 passed, 1 failed, 14 skipped"), Some([18, 1, 14]));
        assert_eq!(read_counts("test_wheel: exit status 0"), None);
        assert_eq!(read_counts("1 passed, 2 skipped, 3 failed"), None);
    }
}

//! `cargo xtask gpu-bundle`: one folder to be carried to a machine with a GPU and without Rust.
//!
//! It holds the test programs of the CUDA backend, the command, the libraries for C, the measuring
//! programs, recorded traces, and `run.sh`, which runs them all and ends with a line that counts.

use crate::cargo::{Outcome, Report, lines, release, root};
use crate::install;
use std::fs;
use std::path::{Path, PathBuf};

/// Packages whose tests and examples need a GPU.
const TESTED: [&str; 2] = ["vmm-cuda", "vmm-vulkan"];

/// A test of theirs that builds a driver of its own, and so needs no GPU but this repository.
const HOST_ONLY: &str = "fake_driver";

/// Files that travel as they are, and where to.
const FILES: [(&str, &str); 4] = [
    ("xtask/bundle/run.sh", "run.sh"),
    ("xtask/bundle/allocators.cpp", "src/allocators.cpp"),
    ("xtask/bundle/tables.py", "src/tables.py"),
    ("crates/vmm-c/examples/c/pool.c", "src/pool.c"),
];

/// Makes the bundle in the folder named in `args`, or in `target/gpu-bundle`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let out = match args {
        [] => root().join("target/gpu-bundle"),
        [folder] if !folder.starts_with('-') => PathBuf::from(folder),
        _ => return Err("gpu-bundle takes one argument at most, a folder".to_owned()),
    };
    if out.exists() {
        // Only what looks like a bundle is replaced: the folder is the user's choice.
        if !out.join("run.sh").exists() {
            return Err(format!("{} exists and is no bundle: name another folder", out.display()));
        }
        fs::remove_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    }
    for package in TESTED {
        for (kind, program) in programs(package)? {
            let name = plain_name(&program);
            let to = match kind {
                Program::Test if name == HOST_ONLY => continue,
                Program::Test => format!("tests/{package}.{name}"),
                Program::Example => format!("bin/{name}"),
            };
            copy(&program, &out.join(to))?;
        }
    }
    copy(&command()?, &out.join("bin/vmm"))?;
    install::run(&["--prefix".to_owned(), out.display().to_string()])?;
    for (from, to) in FILES {
        copy(&root().join(from), &out.join(to))?;
    }
    copy_folder(&root().join("traces"), &out.join("traces"))?;
    println!("{}: {} MiB", out.display(), size(&out) >> 20);
    println!("carry it to a machine with a GPU and run ./run.sh there");
    Ok(())
}

enum Program {
    Test,
    Example,
}

/// The tests and examples of a package.
fn programs(package: &str) -> Result<Vec<(Program, PathBuf)>, String> {
    // This builds the examples, too.
    let mut command = release(&["test", "--no-run", "-p", package]);
    let mut programs = Vec::new();
    let built = lines(&mut command, Report::Stdout, |line| {
        let example = line.contains(r#""kind":["example"]"#);
        let kind = if example { Program::Example } else { Program::Test };
        programs.extend(field(line, "executable").map(|path| (kind, PathBuf::from(path))));
    })?;
    if built && !programs.is_empty() { Ok(programs) } else { Err("the build failed".to_owned()) }
}

/// The `vmm` command.
fn command() -> Result<PathBuf, String> {
    let mut command = release(&["build", "-p", "vmm-cli"]);
    let mut found = None;
    let built = lines(&mut command, Report::Stdout, |line| {
        found = field(line, "executable").map(PathBuf::from).or(found.take());
    })?;
    found.filter(|_| built).ok_or_else(|| "the build failed".to_owned())
}

/// A text field of one of cargo's messages. They are JSON, one object a line, and the paths of a
/// workspace hold nothing that JSON would escape.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// A program's name without the hash that cargo puts behind it.
fn plain_name(program: &Path) -> String {
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('-') {
        Some((plain, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            plain.to_owned()
        }
        _ => name.into_owned(),
    }
}

fn copy(from: &Path, to: &Path) -> Outcome {
    let failed = |e: std::io::Error| format!("{} to {}: {e}", from.display(), to.display());
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::copy(from, to).map(|_| ()).map_err(failed)
}

fn copy_folder(from: &Path, to: &Path) -> Outcome {
    let entries = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    for entry in entries.flatten().filter(|entry| entry.path().is_file()) {
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(data) if data.is_dir() => size(&entry.path()),
            Ok(data) => data.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_a_message() {
        let line = r#"{"reason":"compiler-artifact","executable":"/t/deps/a-0123456789abcdef"}"#;
        assert_eq!(field(line, "executable"), Some("/t/deps/a-0123456789abcdef"));
        assert_eq!(field(r#"{"executable":null}"#, "executable"), None);
    }

    #[test]
    fn a_name_without_its_hash() {
        assert_eq!(plain_name(Path::new("/t/deps/two_cards-0123456789abcdef")), "two_cards");
        assert_eq!(plain_name(Path::new("/t/examples/cudarc_kernel")), "cudarc_kernel");
        assert_eq!(plain_name(Path::new("/t/examples/with-dash")), "with-dash");
    }

    #[test]
    fn what_travels_exists() {
        for (from, _) in FILES {
            assert!(root().join(from).exists(), "{from}");
        }
    }
}

//! `cargo xtask tidy`: checks of the tree that no compiler makes. They are tests as well.

use crate::cargo::{Outcome, root};
use std::fs;
use std::path::{Path, PathBuf};

/// A README that is longer is not read.
const README_LINES: usize = 80;

/// A file that is longer holds more than one idea.
const FILE_LINES: usize = 600;

/// Where unsafe code is the point: what calls drivers, and what C calls.
const UNSAFE_FOLDERS: [&str; 4] =
    ["backends/vmm-cuda", "backends/vmm-vulkan", "crates/vmm-c", "crates/vmm-torch"];

/// Runs all checks and prints what is wrong.
pub(crate) fn run() -> Outcome {
    let faults: Vec<String> =
        [readme_is_short, readme_commands_exist, files_are_short, unsafe_code_is_where_it_belongs]
            .iter()
            .flat_map(|check| check())
            .collect();
    for fault in &faults {
        println!("{fault}");
    }
    if faults.is_empty() { Ok(()) } else { Err(format!("{} faults", faults.len())) }
}

fn readme_is_short() -> Vec<String> {
    match read("README.md") {
        Ok(text) if text.lines().count() < README_LINES => Vec::new(),
        Ok(text) => vec![format!("README.md: {} lines, at most 79 allowed", text.lines().count())],
        Err(fault) => vec![fault],
    }
}

/// Each cargo command of the README names a task, a package and files that exist.
fn readme_commands_exist() -> Vec<String> {
    let Ok(text) = read("README.md") else {
        return Vec::new();
    };
    let commands = commands(&text);
    let mut faults: Vec<String> =
        commands.iter().filter_map(|command| command_fault(command)).collect();
    if commands.is_empty() {
        faults.push("README.md: names no cargo command".to_owned());
    }
    faults
}

/// Lines of fenced blocks that call cargo, without their comments.
fn commands(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let mut commands = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced && line.starts_with("cargo ") {
            commands.push(line.split(" #").next().unwrap_or(line).trim());
        }
    }
    commands
}

fn command_fault(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    if words.get(1) == Some(&"xtask") {
        let known = matches!(
            words.get(2),
            Some(&("test" | "lint" | "ci" | "tidy" | "install" | "wheel" | "gpu-bundle"))
        );
        return (!known).then(|| format!("README.md: no such task: {command}"));
    }
    for pair in words.windows(2) {
        let [option, package] = pair else { continue };
        if ["-p", "--package"].contains(option) {
            let folders = ["crates", "backends", "."];
            let exists =
                folders.iter().any(|f| root().join(f).join(package).join("Cargo.toml").exists());
            if !exists {
                return Some(format!("README.md: no package {package}: {command}"));
            }
        }
    }
    // What looks like a path of the repository must be one.
    let paths = words.iter().skip(1).filter(|word| word.starts_with("traces"));
    let mut missing = paths.filter(|path| !root().join(path).exists());
    missing.next().map(|path| format!("README.md: {path} does not exist: {command}"))
}

fn files_are_short() -> Vec<String> {
    let long = |path: &PathBuf| {
        let lines = fs::read_to_string(path).ok()?.lines().count();
        (lines > FILE_LINES)
            .then(|| format!("{}: {lines} lines, at most {FILE_LINES}", shown(path)))
    };
    rust_files().iter().filter_map(long).collect()
}

fn unsafe_code_is_where_it_belongs() -> Vec<String> {
    // In two parts, so that this file passes its own check.
    let word = ["un", "safe"].concat();
    let forms = ["{", "fn", "impl", "trait", "extern"].map(|next| format!("{word} {next}"));
    let allowed: Vec<PathBuf> = UNSAFE_FOLDERS.iter().map(|folder| root().join(folder)).collect();
    let mut faults = Vec::new();
    for path in rust_files() {
        if allowed.iter().any(|folder| path.starts_with(folder)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or(line);
            if forms.iter().any(|form| code.contains(form)) {
                faults.push(format!(
                    "{}:{}: {word} code does not belong here",
                    shown(&path),
                    number + 1
                ));
            }
        }
    }
    faults
}

fn read(name: &str) -> Result<String, String> {
    fs::read_to_string(root().join(name)).map_err(|e| format!("{name}: {e}"))
}

/// All source files of the workspace.
fn rust_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "backends", "conformance", "examples", "xtask"] {
        collect(&root().join(folder), &mut files);
    }
    files.sort();
    files
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect(&path, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(faults: Vec<String>) {
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn readme() {
        check(readme_is_short());
        check(readme_commands_exist());
    }

    #[test]
    fn lengths() {
        check(files_are_short());
    }

    #[test]
    fn unsafe_code() {
        check(unsafe_code_is_where_it_belongs());
    }

    #[test]
    fn commands_of_fenced_blocks_are_found() {
        let text = "cargo no\n```sh\ncargo xtask test   # all of them\nls\n```\ncargo neither\n";
        assert_eq!(commands(text), ["cargo xtask test"]);
        assert_eq!(command_fault("cargo xtask test"), None);
        assert!(command_fault("cargo xtask fly").is_some());
        assert_eq!(command_fault("cargo run -p vmm-cli -- replay x"), None);
        assert!(command_fault("cargo run -p vmm-none -- replay x").is_some());
        assert!(command_fault("cargo run -p vmm-cli -- replay traces/none.pickle").is_some());
    }
}

//! Compiling and running C programs against the libraries that cargo built for this test.

#![allow(dead_code, reason = "each test uses a part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the static library needs beside itself: what vmm.pc says.
pub(crate) fn private_libs() -> Vec<String> {
    let template = std::fs::read_to_string(folder().join("vmm.pc.in")).expect("vmm.pc.in");
    let line = template.lines().find_map(|line| line.strip_prefix("Libs.private:"));
    line.expect("a line Libs.private").split_whitespace().map(str::to_owned).collect()
}

/// The folder of the package.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A library of this package, which cargo built for this test and put beside it.
pub(crate) fn library(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let path = test.parent().expect("a folder").join(name);
    assert!(path.exists(), "{} is built with this test", path.display());
    path
}

/// A folder with the shared library under the names that the linker and the loader look for.
pub(crate) struct Stage {
    folder: tempfile::TempDir,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in ["libvmm.so", env!("VMM_SONAME")] {
            let link = std::os::unix::fs::symlink(library("libvmm.so"), folder.path().join(name));
            link.expect("a link to the library");
        }
        Self { folder }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A command that finds the shared library at run time.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path());
        command
    }

    /// Compiles a program; `None`, with a line that says so, where there is no compiler.
    pub(crate) fn compile(&self, compiler: &str, source: &str, args: &[&str]) -> Option<PathBuf> {
        let source = folder().join(source);
        let program = self.path().join(format!("program-{}", args.len()));
        let mut command = Command::new(compiler);
        command
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g"])
            .arg("-I")
            .arg(folder().join("include"))
            .arg(source)
            .args(args)
            .arg("-o")
            .arg(&program);
        match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                println!("skipped: no compiler {compiler}");
                None
            }
            output => {
                succeeded(compiler, &output.expect("the compiler starts"));
                Some(program)
            }
        }
    }

    /// Arguments that link with the shared library.
    pub(crate) fn shared(&self) -> Vec<String> {
        vec![format!("-L{}", self.path().display()), "-lvmm".to_owned(), "-pthread".to_owned()]
    }

    /// Arguments that link with the static library.
    pub(crate) fn fixed(&self) -> Vec<String> {
        let mut args = vec![library("libvmm.a").display().to_string(), "-pthread".to_owned()];
        args.extend(private_libs());
        args
    }
}

/// Runs a command that must succeed, and returns what it wrote to standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    succeeded(&format!("{command:?}"), &output);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn succeeded(what: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{what}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether a tool is installed; says so by name if it is not.
pub(crate) fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

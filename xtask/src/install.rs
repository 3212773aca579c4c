//! `cargo xtask install`: the libraries for C, their header, and what other builds find them by.

use crate::cargo::{Outcome, Report, lines, release, root};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The version of the workspace, which is that of the library.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where things go, and where they come from.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// The folder that the installed files will be used in.
    prefix: PathBuf,
    /// A folder with libraries that are built already.
    from: Option<PathBuf>,
}

pub(crate) fn run(args: &[String]) -> Outcome {
    let plan = Plan::parse(args)?;
    let from = match &plan.from {
        Some(folder) => folder.clone(),
        None => build()?,
    };
    // As in make and meson: a packager's folder that stands for the root while packing.
    let root_folder = std::env::var_os("DESTDIR").map(PathBuf::from);
    let installed = Tree { prefix: &plan.prefix, under: below(root_folder, &plan.prefix) };
    installed.libraries(&from)?;
    installed.file(&root().join("crates/vmm-c/include/vmm.h"), "include/vmm.h")?;
    installed.pkg_config()?;
    for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
        installed.file(&root().join(license), &format!("share/licenses/vmm/{license}"))?;
    }
    println!("compile with: cc program.c $(pkg-config --cflags --libs vmm)");
    println!(
        "where pkg-config or the loader do not look: PKG_CONFIG_PATH={0}/lib/pkgconfig and \
         LD_LIBRARY_PATH={0}/lib, or ldconfig",
        plan.prefix.display()
    );
    Ok(())
}

impl Plan {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut plan = Self { prefix: PathBuf::from("/usr/local"), from: None };
        let mut args = args.iter();
        while let Some(option) = args.next() {
            let folder = args.next().ok_or_else(|| format!("{option} wants a folder"));
            let folder = std::path::absolute(folder?).map_err(|e| format!("{option}: {e}"))?;
            match option.as_str() {
                "--prefix" => plan.prefix = folder,
                "--from" => plan.from = Some(folder),
                _ => {
                    return Err(format!(
                        "install knows no option {option}: it takes --prefix DIR, where to install \
                         (/usr/local), and --from DIR, libraries that are built already"
                    ));
                }
            }
        }
        Ok(plan)
    }
}

/// Builds the libraries for release; the folder that they are in.
fn build() -> Result<PathBuf, String> {
    let mut command = release(&["build", "-p", "vmm-c", "--lib"]);
    let mut found = None;
    let built = lines(&mut command, Report::Stdout, |line| {
        // The messages are JSON, one object a line, and a path is one of its texts.
        let library = line.split('"').find(|text| text.ends_with("/libvmm.so"));
        found = library.map(PathBuf::from).or(found.take());
    })?;
    match found.as_deref().and_then(Path::parent) {
        Some(folder) if built => Ok(folder.to_owned()),
        _ => Err("the build failed".to_owned()),
    }
}

/// A folder inside another that stands for the root.
fn below(root_folder: Option<PathBuf>, folder: &Path) -> PathBuf {
    match root_folder {
        Some(root_folder) => root_folder.join(folder.strip_prefix("/").unwrap_or(folder)),
        None => folder.to_owned(),
    }
}

/// The name that programs look for when they start: what the build script of `vmm-c` gives the
/// library. Versions 0.x may change the interface with x, later ones with the first number.
fn soname() -> String {
    let parts: Vec<&str> = VERSION.split('.').collect();
    match parts[..] {
        ["0", minor, ..] => format!("libvmm.so.0.{minor}"),
        [major, ..] => format!("libvmm.so.{major}"),
        [] => unreachable!("a version has a number"),
    }
}

/// The folder that files are written to.
struct Tree<'a> {
    prefix: &'a Path,
    under: PathBuf,
}

impl Tree<'_> {
    fn libraries(&self, from: &Path) -> Outcome {
        let versioned = format!("libvmm.so.{VERSION}");
        self.file(&from.join("libvmm.so"), &format!("lib/{versioned}"))?;
        self.link(&versioned, &format!("lib/{}", soname()))?;
        self.link(&soname(), "lib/libvmm.so")?;
        self.file(&from.join("libvmm.a"), "lib/libvmm.a")
    }

    fn pkg_config(&self) -> Outcome {
        let template = root().join("crates/vmm-c/vmm.pc.in");
        let text = fs::read_to_string(&template)
            .map_err(|e| format!("{}: {e}", template.display()))?
            .replace("@PREFIX@", &self.prefix.display().to_string())
            .replace("@VERSION@", VERSION);
        self.put("lib/pkgconfig/vmm.pc", |to| fs::write(to, text))
    }

    fn file(&self, from: &Path, to: &str) -> Outcome {
        self.put(to, |path| fs::copy(from, path).map(|_| ()))
            .map_err(|e| format!("{}: {e}", from.display()))
    }

    fn link(&self, target: &str, to: &str) -> Outcome {
        self.put(to, |path| symlink(target, path))
    }

    /// Replaces one file. The old one is removed first, not written over: programs may be running
    /// with it.
    fn put(&self, to: &str, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Outcome {
        let path = self.under.join(to);
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
        write(&path).map_err(failed)?;
        println!("{}", path.display());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Plan, String> {
        Plan::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read() {
        let plan = Plan { prefix: PathBuf::from("/usr/local"), from: None };
        assert_eq!(parse(&[]), Ok(plan));
        let plan = Plan { prefix: PathBuf::from("/opt/vmm"), from: Some(PathBuf::from("/built")) };
        assert_eq!(parse(&["--from", "/built", "--prefix", "/opt/vmm"]), Ok(plan));
        assert!(parse(&["--prefix"]).is_err_and(|e| e.contains("wants a folder")));
        assert!(parse(&["--libdir", "x"]).is_err_and(|e| e.contains("--prefix DIR")));
    }

    #[test]
    fn a_root_may_stand_elsewhere() {
        let prefix = Path::new("/usr/local");
        assert_eq!(below(None, prefix), prefix);
        assert_eq!(below(Some("/tmp/pack".into()), prefix), Path::new("/tmp/pack/usr/local"));
    }
}

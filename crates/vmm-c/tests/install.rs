//! `cargo xtask install` makes a tree that other builds find with pkg-config.
#![cfg(target_os = "linux")]

mod support;

use std::process::Command;
use support::{folder, has, library, run};

#[test]
fn the_installed_tree_serves_a_program() {
    if !has("pkg-config") || !has("gcc") {
        return;
    }
    let target = tempfile::tempdir().expect("a temporary folder");
    let prefix = target.path().join("opt/vmm");
    let built = library("libvmm.so");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut install = Command::new(cargo);
    install.args(["run", "--quiet", "-p", "xtask", "--", "install", "--prefix"]).arg(&prefix);
    install.arg("--from").arg(built.parent().expect("a folder"));
    let report = run(install.current_dir(folder()).env_remove("DESTDIR"));
    let version = env!("CARGO_PKG_VERSION");
    for file in [
        &format!("lib/libvmm.so.{version}"),
        &format!("lib/{}", env!("VMM_SONAME")),
        "lib/libvmm.so",
        "lib/libvmm.a",
        "lib/pkgconfig/vmm.pc",
        "include/vmm.h",
        "share/licenses/vmm/LICENSE-MIT",
        "share/licenses/vmm/LICENSE-APACHE",
    ] {
        let path = prefix.join(file);
        assert!(path.exists(), "{file} is there and no dangling link");
        assert!(report.contains(&path.display().to_string()), "{file} is reported: {report}");
    }

    let flags = |args: &[&str]| -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(args).arg("vmm");
        run(&mut command).split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(flags(&["--modversion"]), [version]);
    let source = folder().join("examples/c/pool.c");
    let compile = |flags: Vec<String>, name: &str| {
        let program = target.path().join(name);
        let mut command = Command::new("gcc");
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror"]).arg(&source);
        run(command.args(flags).arg("-o").arg(&program));
        Command::new(program)
    };
    let mut shared = compile(flags(&["--cflags", "--libs"]), "shared");
    shared.env("LD_LIBRARY_PATH", prefix.join("lib"));
    assert!(run(&mut shared).contains("bytes trimmed"));

    // Without the shared one the linker takes the static library; the program then needs no path.
    std::fs::remove_file(prefix.join("lib/libvmm.so")).expect("the link was there");
    let mut alone = compile(flags(&["--static", "--cflags", "--libs"]), "alone");
    assert!(run(&mut alone).contains("bytes trimmed"));
}

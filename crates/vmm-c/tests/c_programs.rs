//! Programs in C and C++, compiled as their users would and run on the mock device.
#![cfg(target_os = "linux")]

mod support;

use std::path::Path;
use std::process::Command;
use support::{Stage, has, library, run};

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

fn with_standard<'a>(standard: &'a str, args: &'a [String]) -> Vec<&'a str> {
    std::iter::once(standard).chain(strs(args)).collect()
}

/// The example says what it finds, and its snapshot can be read again.
fn check_example(text: &str, snapshot: &Path) {
    for expected in [
        "vmm 0.",
        "released twice: no live lease of this pool begins at 0x",
        "pressure: 41943040 bytes wanted",
        "out of memory: 52428800 bytes asked for",
        "held by",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    let trace = vmm_trace::read_file(snapshot, &mut |_| {}).expect("a snapshot that can be read");
    let device = &trace.devices[0];
    assert_eq!(device.peak_requested_bytes(), 5 << 20);
    let active: u64 = device
        .end_segments
        .iter()
        .flat_map(|segment| &segment.blocks)
        .filter(|block| block.state == vmm_trace::BlockState::Active)
        .map(|block| block.requested_size)
        .sum();
    assert_eq!(active, 5 << 20);
}

#[test]
fn example_with_the_shared_library() {
    let stage = Stage::new();
    let args = stage.shared();
    let Some(program) =
        stage.compile("gcc", "examples/c/pool.c", &with_standard("-std=c11", &args))
    else {
        return;
    };
    let snapshot = stage.path().join("pool.pickle");
    check_example(&run(stage.command(&program).arg(&snapshot)), &snapshot);
}

#[test]
fn example_with_the_static_library() {
    let stage = Stage::new();
    let args = stage.fixed();
    let Some(program) =
        stage.compile("gcc", "examples/c/pool.c", &with_standard("-std=c11", &args))
    else {
        return;
    };
    let snapshot = stage.path().join("pool.pickle.gz");
    check_example(&run(Command::new(&program).arg(&snapshot)), &snapshot);
}

#[test]
fn example_under_valgrind() {
    if !has("valgrind") {
        return;
    }
    let stage = Stage::new();
    let args = stage.shared();
    let Some(program) =
        stage.compile("gcc", "examples/c/pool.c", &with_standard("-std=c11", &args))
    else {
        return;
    };
    let mut command = stage.command("valgrind");
    command.args([
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite,possible",
    ]);
    run(command.arg(&program).arg(stage.path().join("pool.pickle")));
}

#[test]
fn header_in_cpp() {
    let stage = Stage::new();
    let args = stage.shared();
    let args = with_standard("-std=c++17", &args);
    let Some(program) = stage.compile("g++", "tests/c/header.cpp", &args) else { return };
    run(&mut stage.command(&program));
}

#[test]
fn threads() {
    let stage = Stage::new();
    let args = stage.shared();
    let Some(program) =
        stage.compile("gcc", "tests/c/threads.c", &with_standard("-std=gnu11", &args))
    else {
        return;
    };
    let rounds = std::env::var("VMM_C_ROUNDS").unwrap_or_else(|_| "5000".to_owned());
    let text = run(stage.command(&program).arg(rounds));
    assert!(text.contains("6 threads"), "{text}");
}

#[test]
fn loading_needs_no_driver() {
    let stage = Stage::new();
    let Some(program) = stage.compile("gcc", "tests/c/load.c", &["-std=c11", "-ldl"]) else {
        return;
    };
    run(Command::new(&program).arg(library("libvmm.so")));
}

#[test]
fn nothing_is_linked_but_the_system() {
    if !has("readelf") {
        return;
    }
    let text = run(Command::new("readelf").arg("-dW").arg(library("libvmm.so")));
    let needed: Vec<&str> =
        text.lines().filter(|line| line.contains("(NEEDED)")).filter_map(in_brackets).collect();
    assert!(needed.contains(&"libc.so.6"), "{text}");
    let system =
        ["libc.so.", "libgcc_s.so.", "libm.so.", "libdl.so.", "libpthread.so.", "ld-linux"];
    for library in needed {
        assert!(system.iter().any(|name| library.starts_with(name)), "linked with {library}");
    }
    let soname = text.lines().find(|line| line.contains("(SONAME)")).and_then(in_brackets);
    assert_eq!(soname, Some(env!("VMM_SONAME")));
    assert!(text.contains("NODELETE"), "closing the library leaves it in place: {text}");
}

fn in_brackets(line: &str) -> Option<&str> {
    line.split_once('[')?.1.split(']').next()
}

/// What the shared library exports is what the header declares: no more, no less.
#[test]
fn exports_are_those_of_the_header() {
    if !has("nm") {
        return;
    }
    let text = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library("libvmm.so")));
    let mut exported: Vec<&str> =
        text.lines().filter_map(|line| line.split_whitespace().last()).collect();
    exported.sort_unstable();
    let header = std::fs::read_to_string(support::folder().join("include/vmm.h")).expect("vmm.h");
    let words = header.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(');
    let mut declared: Vec<&str> = words
        .filter_map(|word| word.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("vmm_"))
        .collect();
    declared.sort_unstable();
    declared.dedup();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

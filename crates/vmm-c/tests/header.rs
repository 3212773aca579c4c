//! `include/vmm.h` is what the sources say.

use std::path::{Path, PathBuf};

/// The sources with public items, in the order in which the header shows them.
const SOURCES: [&str; 15] = [
    "version",
    "status",
    "error",
    "device",
    "options",
    "pool",
    "owners",
    "memory",
    "private",
    "peers",
    "upkeep",
    "callbacks",
    "stats",
    "snapshot",
    "walk",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn generate() -> String {
    let config =
        cbindgen::Config::from_file(folder().join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(folder().join("src").join(source).with_extension("rs"));
    }
    let mut header = Vec::new();
    builder.generate().expect("cbindgen understands the sources").write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    for_c(&header)
}

/// What Rust's convention calls safety is to readers of C simply what a function needs.
fn for_c(header: &str) -> String {
    let lines = header.lines().map(|line| line.replace("/// # Safety", "/// Needs:"));
    lines.map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[test]
fn header_is_up_to_date() {
    let path = folder().join("include").join("vmm.h");
    let made = generate();
    if std::env::var_os("VMM_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).expect("the header can be written");
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    if found != made {
        let differ = made.lines().zip(found.lines()).position(|(made, found)| made != found);
        let line = differ.unwrap_or_else(|| made.lines().count().min(found.lines().count()));
        panic!(
            "include/vmm.h is not what the sources say, from line {}: {:?}; make it anew with \
             VMM_WRITE_HEADER=1 cargo test -p vmm-c --test header",
            line + 1,
            made.lines().nth(line)
        );
    }
}

#[test]
fn every_source_with_functions_is_in_the_header() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(sources).expect("the sources") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a source file");
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        if text.contains("no_mangle") {
            assert!(SOURCES.contains(&name), "{name}.rs has functions for C");
        }
    }
}

//! `cargo xtask lint` and `cargo xtask ci`: everything that a change must pass, cheapest first.

use crate::cargo::{Outcome, cargo, execute, succeeds};
use crate::test;

/// Everything but the tests.
pub(crate) fn lint() -> Outcome {
    execute(&mut cargo(&["fmt", "--all", "--check"]))?;
    execute(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    let mut doc = cargo(&["doc", "--workspace", "--no-deps"]);
    execute(doc.env("RUSTDOCFLAGS", "-D warnings"))?;
    deny()
}

pub(crate) fn run() -> Outcome {
    lint()?;
    test::run(&[])
}

/// Licences, sources and duplicates always; advisories where their database can be fetched.
fn deny() -> Outcome {
    if !succeeds(&mut cargo(&["deny", "--version"])) {
        println!("note: licences and advisories not checked: cargo-deny is not installed");
        return Ok(());
    }
    execute(&mut cargo(&["deny", "check", "licenses", "bans", "sources"]))?;
    if succeeds(&mut cargo(&["deny", "fetch", "db"])) {
        execute(&mut cargo(&["deny", "--offline", "check", "advisories"]))
    } else {
        println!("note: advisories not checked: their database cannot be fetched from here");
        Ok(())
    }
}

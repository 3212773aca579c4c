//! The documentation of the device interface and the suite say the same.

use std::collections::BTreeSet;
use vmm_conformance::MockHarness;
use vmm_conformance::contract::CLAUSES;

const SOURCE: &str = include_str!("../../crates/vmm-core/src/device.rs");

/// Method and text of every bullet of the trait.
fn bullets() -> Vec<(String, String)> {
    let from = SOURCE.find("pub trait VirtualMemoryDevice").expect("the trait");
    let mut found = Vec::new();
    let mut pending: Vec<String> = Vec::new();
    for line in SOURCE[from..].lines() {
        if line == "}" {
            break;
        }
        let line = line.trim();
        if let Some(text) = line.strip_prefix("/// - ") {
            pending.push(text.to_owned());
        } else if let Some(more) = line.strip_prefix("///   ") {
            let bullet = pending.last_mut().expect("a bullet that goes on");
            *bullet = format!("{bullet} {}", more.trim());
        } else if let Some(rest) = line.strip_prefix("fn ") {
            let method = rest.split('(').next().expect("a name");
            found.extend(pending.drain(..).map(|text| (method.to_owned(), text)));
        }
    }
    found
}

#[test]
fn every_bullet_has_a_case() {
    let bullets = bullets();
    assert!(bullets.len() > 30, "the parser finds the bullets: {bullets:?}");
    let listed: Vec<_> = CLAUSES.iter().map(|c| (c.method.to_owned(), c.text.to_owned())).collect();
    for bullet in &bullets {
        assert!(listed.contains(bullet), "no case for {bullet:?}");
    }
    for clause in &listed {
        assert!(bullets.contains(clause), "the interface does not say {clause:?}");
    }
}

#[test]
fn every_case_of_the_table_exists_and_checks_one_sentence() {
    let cases: BTreeSet<&str> =
        vmm_conformance::device_cases::all::<MockHarness>().iter().map(|case| case.name).collect();
    let mut seen = BTreeSet::new();
    for clause in CLAUSES {
        assert!(cases.contains(clause.case), "{clause:?} names no case");
        assert!(seen.insert(clause.case), "{} is listed twice", clause.case);
    }
}

#[test]
fn names_of_cases_are_unique() {
    let cases = vmm_conformance::case::all::<MockHarness>();
    let names: BTreeSet<&str> = cases.iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases.len());
}

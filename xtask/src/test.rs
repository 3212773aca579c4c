//! `cargo xtask test`: all tests that need no hardware, and one line that counts them.
//!
//! A test that lacks its input prints `skipped: <what is missing>` and returns. It is counted and
//! shown as skipped here, so that a run without the input does not look like a complete one.

use crate::cargo::{Outcome, Report, cargo, lines, succeeds};

/// How many tests ended which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
}

pub(crate) fn run(args: &[String]) -> Outcome {
    let mut counts = Counts::default();
    // Without a choice of packages cargo takes all of the workspace.
    let unit_tests = if succeeds(&mut cargo(&["nextest", "--version"])) {
        let mut command = cargo(&["nextest", "run", "--no-fail-fast"]);
        command.args(["--success-output", "immediate", "--no-tests", "pass"]);
        command.args(args);
        let mut output = Nextest::default();
        let succeeded = lines(&mut command, Report::Stderr, |line| {
            if let Some(shown) = output.line(line) {
                println!("{shown}");
            }
        })?;
        counts.add(output.counts);
        succeeded
    } else {
        println!("note: cargo-nextest is not installed, using cargo test");
        let mut command = cargo(&["test", "--no-fail-fast"]);
        command.args(["--tests", "--examples"]);
        command.args(args).args(["--", "--show-output"]);
        libtest(&mut command, &mut counts)?
    };
    let doc_tests = if args.is_empty() {
        let mut command = cargo(&["test", "--no-fail-fast", "--doc"]);
        libtest(&mut command, &mut counts)?
    } else {
        true
    };
    // Like the doc tests, when all is to be tested.
    let python = if args.is_empty() { crate::python::tests()? } else { Some([0; 3]) };
    if let Some([passed, failed, skipped]) = python {
        counts.add(Counts { passed, failed, skipped });
    } else {
        println!("skipped: the tests of vmm-torch, for there is no python3");
        counts.skipped += 1;
    }
    let python = python.is_none_or(|[_, failed, _]| failed == 0);
    let Counts { passed, failed, skipped } = counts;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if unit_tests && doc_tests && python { Ok(()) } else { Err("tests failed".to_owned()) }
}

fn libtest(command: &mut std::process::Command, counts: &mut Counts) -> Result<bool, String> {
    let mut output = Libtest::default();
    let succeeded = lines(command, Report::Stdout, |line| {
        if let Some(shown) = output.line(line) {
            println!("{shown}");
        }
    })?;
    counts.add(output.counts);
    Ok(succeeded)
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// A test that its runner took for passed says that it was skipped.
    fn skip_one(&mut self) {
        self.passed = self.passed.saturating_sub(1);
        self.skipped += 1;
    }
}

/// What a test says that lacks its input.
fn skip_reason(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("skipped: ")
}

/// The number before each word of `text`: `3 passed, 1 failed`.
fn number_before(text: &str, word: &str) -> u64 {
    let words: Vec<&str> = text.split([' ', ',', ';', '.']).filter(|w| !w.is_empty()).collect();
    let pair = words.windows(2).find(|pair| pair[1] == word);
    pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// Reads the report of cargo-nextest and hides what passing tests print.
#[derive(Default)]
struct Nextest {
    counts: Counts,
    /// Inside what a passing test printed.
    in_output: bool,
    /// The passing test, until it has said that it was skipped.
    test: Option<String>,
    /// Skips seen before the summary, which counts them as passed.
    skips: u64,
}

impl Nextest {
    /// How lines begin that are no test's output.
    const OWN: [&str; 7] = ["FAIL [", "SLOW [", "LEAK [", "SIG", "TIMEOUT [", "Summary [", "────"];

    /// What to show for a line, if anything.
    fn line(&mut self, line: &str) -> Option<String> {
        let text = line.trim_start();
        if let Some(result) = text.strip_prefix("PASS [") {
            let name = result.split_once(") ").map_or(result, |(_, name)| name);
            self.test = Some(name.to_owned());
            self.in_output = true;
            return Some(line.to_owned());
        }
        if Self::OWN.iter().any(|start| text.starts_with(start)) {
            self.in_output = false;
        }
        if text.starts_with("Summary [") {
            self.counts = Counts {
                passed: number_before(text, "passed"),
                failed: number_before(text, "failed"),
                skipped: number_before(text, "skipped"),
            };
            (0..std::mem::take(&mut self.skips)).for_each(|_| self.counts.skip_one());
        }
        if !self.in_output {
            return Some(line.to_owned());
        }
        let reason = skip_reason(line)?;
        // A second such line of the same test is not a second test.
        self.test.take().map(|test| {
            self.skips += 1;
            format!("        SKIP {test}: {reason}")
        })
    }
}

/// Reads the report of the standard test harness, run with `--show-output`.
#[derive(Default)]
struct Libtest {
    counts: Counts,
    /// Inside the part that shows what passing tests printed.
    in_successes: bool,
    /// The test whose output is being read, until it has said that it was skipped.
    test: Option<String>,
    skips: u64,
}

impl Libtest {
    fn line(&mut self, line: &str) -> Option<String> {
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" {
            self.in_successes = false;
        } else if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.counts.add(Counts {
                passed: number_before(result, "passed"),
                failed: number_before(result, "failed"),
                skipped: number_before(result, "ignored"),
            });
            (0..std::mem::take(&mut self.skips)).for_each(|_| self.counts.skip_one());
        }
        if !self.in_successes {
            return Some(line.to_owned());
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----"))
        {
            self.test = Some(name.to_owned());
        }
        let reason = skip_reason(line)?;
        self.test.take().map(|test| {
            self.skips += 1;
            format!("test {test} ... skipped: {reason}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nextest_is_read() {
        let report = "\
    Starting 3 tests across 1 binary (1 test skipped)
        PASS [   0.005s] (1/3) p b
  stdout ───

    running 1 test
    noise
  stderr ───
    skipped: no traces here
    skipped: nor there
        PASS [   0.007s] (2/3) p a
        FAIL [   0.196s] (3/3) p d
    boo
────────────
     Summary [   0.202s] 3 tests run: 2 passed, 1 failed, 1 skipped";
        let mut reader = Nextest::default();
        let shown: Vec<String> = report.lines().filter_map(|line| reader.line(line)).collect();
        assert_eq!(reader.counts, Counts { passed: 1, failed: 1, skipped: 2 });
        assert!(shown.contains(&"        SKIP p b: no traces here".to_owned()), "{shown:?}");
        assert!(shown.contains(&"    boo".to_owned()), "{shown:?}");
        assert!(!shown.iter().any(|line| line.contains("noise") || line.contains("nor there")));
    }

    #[test]
    fn libtest_is_read() {
        let report = "\
running 3 tests
test a ... ok

successes:

---- a stdout ----
skipped: no traces here

successes:
    a

test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out
test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";
        let mut reader = Libtest::default();
        let shown: Vec<String> = report.lines().filter_map(|line| reader.line(line)).collect();
        assert_eq!(reader.counts, Counts { passed: 2, failed: 2, skipped: 2 });
        assert!(shown.contains(&"test a ... skipped: no traces here".to_owned()), "{shown:?}");
    }
}

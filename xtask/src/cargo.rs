//! Calling cargo.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What a task gives: nothing, or one line that says what went wrong.
pub(crate) type Outcome = Result<(), String>;

/// The folder of the workspace: that of the cargo that runs this. Checkouts may share a target folder, and
/// cargo takes what one has built for what another would build.
pub(crate) fn root() -> PathBuf {
    let run_from = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let own = run_from.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    own.parent().map_or(own.clone(), PathBuf::from)
}

/// A cargo command in the workspace; the same cargo that runs this program.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    command
}

/// A release build whose messages are JSON, one object a line, for programs and libraries that are
/// carried elsewhere: without what only a debugger needs, they are a tenth as long.
pub(crate) fn release(args: &[&str]) -> Command {
    let mut command = cargo(args);
    command.args(["--release", "--message-format", "json-render-diagnostics"]);
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "0").env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    command
}

/// Runs a cargo command whose output goes to the terminal.
pub(crate) fn execute(command: &mut Command) -> Outcome {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command.status().map_err(|e| format!("{shown}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{shown}: failed ({status})")) }
}

/// Runs a command quietly and says whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs a command and gives each line of its standard output or error to `line`, whichever the
/// caller says it writes its report to; the other goes to the terminal. Returns whether it succeeded.
pub(crate) fn lines(
    command: &mut Command,
    report: Report,
    line: impl FnMut(&str),
) -> Result<bool, String> {
    let shown = shown(command);
    lines_of(command, &shown, report, line)
}

/// As [`lines`], for any command; `shown` is what is told of it.
pub(crate) fn lines_of(
    command: &mut Command,
    shown: &str,
    report: Report,
    mut line: impl FnMut(&str),
) -> Result<bool, String> {
    println!("$ {shown}");
    match report {
        Report::Stdout => command.stdout(Stdio::piped()),
        Report::Stderr => command.stderr(Stdio::piped()),
    };
    let failed = |e: std::io::Error| format!("{shown}: {e}");
    let mut child = command.spawn().map_err(failed)?;
    let out = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn std::io::Read>);
    let err = child.stderr.take().map(|pipe| Box::new(pipe) as Box<dyn std::io::Read>);
    if let Some(pipe) = out.or(err) {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        // Tests may print anything, so lines are not always UTF-8.
        while pipe.read_until(b'\n', &mut bytes).map_err(failed)? > 0 {
            line(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']));
            bytes.clear();
        }
    }
    Ok(child.wait().map_err(failed)?.success())
}

/// Where a command writes what [`lines`] is to read.
#[derive(Clone, Copy)]
pub(crate) enum Report {
    Stdout,
    Stderr,
}

fn shown(command: &Command) -> String {
    let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
    format!("cargo {}", args.join(" "))
}

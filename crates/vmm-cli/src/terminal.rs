//! What the standard streams are connected to.

use crate::exit::Exit;
use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    /// Standard output shows colours.
    pub coloured: bool,
    /// Standard error shows a progress bar.
    pub shows_progress: bool,
}

impl Terminal {
    /// As the process finds it. `NO_COLOR`, if set and not empty, switches colours off
    /// (<https://no-color.org>).
    #[must_use]
    pub fn detect() -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            coloured: io::stdout().is_terminal() && !unwanted && !dumb,
            shows_progress: io::stderr().is_terminal() && !dumb,
        }
    }

    /// Prints to standard output and says whether that went well. A reader that has gone away
    /// (`| head`) is no error.
    pub(crate) fn print(self, text: &str) -> Exit {
        let mut out = io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                eprintln!("error: the output cannot be written: {error}");
                Exit::BadInput
            }
            Ok(()) | Err(_) => Exit::Success,
        }
    }
}

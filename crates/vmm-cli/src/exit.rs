//! Exit codes that scripts can use.

use std::process::ExitCode;

/// How the command ended, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Everything was done and every allocation succeeded.
    Success = 0,
    /// A replay had allocations that failed or wrong bytes, no limit works, or a measurement failed.
    Failures = 1,
    /// The command line is wrong, the device is not there, an input could not be read or replayed, or
    /// the output not written.
    BadInput = 2,
}

impl Exit {
    /// The worse of two ends.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        self.max(other)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

//! How cases end.

use std::fmt;
use vmm_core::device::DeviceError;

/// Something that a case needs and a backend may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// `Capabilities::remapping`
    Remapping,
    /// `Capabilities::aliases`
    Aliases,
    /// `Capabilities::queued_binds`
    QueuedBinds,
    /// Binds that happen during the call: no `Capabilities::queued_binds`.
    ImmediateBinds,
    /// No `Capabilities::remapping`: the way round for devices that cannot map.
    NoRemapping,
    /// `Capabilities::capture` and a harness that can capture.
    Capture,
    /// `Capabilities::peers` and a harness that has some.
    Peers,
    /// A kind of frame without a granule.
    MissingKind,
    /// A kind of frame that network cards can register.
    RdmaFrames,
    /// `Abilities::strict`
    Strict,
    /// `Abilities::occupy`
    Occupy,
    /// `Abilities::exhaustible`
    Exhaustible,
    /// `Abilities::memory_control`
    MemoryControl,
    /// `Abilities::leftovers`
    Leftovers,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Remapping => "remapping",
            Self::Aliases => "aliases",
            Self::QueuedBinds => "queued binds",
            Self::ImmediateBinds => "immediate binds",
            Self::NoRemapping => "no remapping",
            Self::Capture => "capture",
            Self::Peers => "peers",
            Self::MissingKind => "a kind of frame that the device lacks",
            Self::RdmaFrames => "frames for network cards",
            Self::Strict => "a strict device",
            Self::Occupy => "work that can be held up",
            Self::Exhaustible => "memory that can run out",
            Self::MemoryControl => "control of free memory",
            Self::Leftovers => "a view of what lives on the device",
        })
    }
}

/// Why a case stopped before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The backend lacks something.
    RuledOut(Need),
    /// Something was not as it must be.
    Failed(String),
}

/// What a case returns.
pub type CaseResult = Result<(), Stop>;

impl From<String> for Stop {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error.to_string())
    }
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was as it must be.
    Passed,
    /// The backend lacks what the case needs.
    RuledOut(Need),
    /// Something was not as it must be.
    Failed(String),
}

impl From<CaseResult> for Outcome {
    fn from(result: CaseResult) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(Stop::RuledOut(need)) => Self::RuledOut(need),
            Err(Stop::Failed(message)) => Self::Failed(message),
        }
    }
}

/// How all cases ended, in their order.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The name of each case and how it ended.
    pub outcomes: Vec<(&'static str, Outcome)>,
}

impl Report {
    /// How one case ended; `None` for a case that does not exist.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|(case, _)| *case == name).map(|(_, outcome)| outcome)
    }

    /// The cases that failed, and why.
    #[must_use]
    pub fn failed(&self) -> Vec<(&'static str, &str)> {
        let mut found = Vec::new();
        for (name, outcome) in &self.outcomes {
            if let Outcome::Failed(why) = outcome {
                found.push((*name, why.as_str()));
            }
        }
        found
    }

    /// The cases that were ruled out, and by what.
    #[must_use]
    pub fn ruled_out(&self) -> Vec<(&'static str, Need)> {
        let ruled_out = |(name, outcome): &(&'static str, Outcome)| match outcome {
            Outcome::RuledOut(need) => Some((*name, *need)),
            _ => None,
        };
        self.outcomes.iter().filter_map(ruled_out).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, outcome) in &self.outcomes {
            match outcome {
                Outcome::Passed => writeln!(f, "passed     {name}")?,
                Outcome::RuledOut(need) => writeln!(f, "ruled out  {name}: {need}")?,
                Outcome::Failed(why) => writeln!(f, "FAILED     {name}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::outcome::Stop::Failed(format!($($message)+)));
        }
    };
}

/// Fails the case unless both are equal.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($message:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let what = format!($($message)+);
            let message = format!("{what}: {left:?} where {right:?} was expected");
            return Err($crate::outcome::Stop::Failed(message));
        }
    }};
}

pub(crate) use {ensure, ensure_eq};

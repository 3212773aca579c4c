//! All placements by name.

use super::{Buddy, Bump, Fit, FitRule, Fixed, Placement, Segregated, Slab, Tier, Tiers, Tlsf};
use std::fmt;
use std::str::FromStr;

/// The blocks of [`PlacementKind::Fixed`].
const FIXED_LEN: u64 = 2 << 20;
/// What [`PlacementKind::Tiers`] keeps apart.
const SHORT: u64 = 1 << 20;

/// A placement by name, with settings that suit GPU memory. The types themselves have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementKind {
    /// [`Bump`].
    Bump,
    /// [`Fit`] by [`FitRule::First`].
    FirstFit,
    /// [`Fit`] by [`FitRule::Next`].
    NextFit,
    /// [`Fit`] by [`FitRule::Best`].
    BestFit,
    /// [`Buddy`].
    Buddy,
    /// [`Slab`] with classes up to 1 MiB; longer requests are not for it.
    Slab,
    /// [`Fixed`] with blocks of 2 MiB; longer requests are not for it.
    Fixed,
    /// [`Tiers`]: [`Slab`] up to 1 MiB, and [`Fit`] by [`FitRule::Best`] above.
    Tiers,
    /// [`Tlsf`].
    Tlsf,
    /// [`Segregated`].
    Segregated,
}

impl PlacementKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Bump,
        Self::FirstFit,
        Self::NextFit,
        Self::BestFit,
        Self::Buddy,
        Self::Slab,
        Self::Fixed,
        Self::Tiers,
        Self::Tlsf,
        Self::Segregated,
    ];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bump => "bump",
            Self::FirstFit => "first-fit",
            Self::NextFit => "next-fit",
            Self::BestFit => "best-fit",
            Self::Buddy => "buddy",
            Self::Slab => "slab",
            Self::Fixed => "fixed",
            Self::Tiers => "tiers",
            Self::Tlsf => "tlsf",
            Self::Segregated => "segregated",
        }
    }

    /// A new one, without chunks.
    #[must_use]
    pub fn make(self) -> Box<dyn Placement> {
        match self {
            Self::Bump => Box::new(Bump::new()),
            Self::FirstFit => Box::new(Fit::new(FitRule::First)),
            Self::NextFit => Box::new(Fit::new(FitRule::Next)),
            Self::BestFit => Box::new(Fit::new(FitRule::Best)),
            Self::Buddy => Box::new(Buddy::new()),
            Self::Slab => Box::new(Slab::default()),
            Self::Fixed => Box::new(Fixed::new(FIXED_LEN)),
            Self::Tiers => Box::new(Tiers::new(vec![
                Tier { longest: SHORT, placement: Self::Slab.make() },
                Tier { longest: u64::MAX, placement: Self::BestFit.make() },
            ])),
            Self::Tlsf => Box::new(Tlsf::new()),
            Self::Segregated => Box::new(Segregated::new()),
        }
    }
}

impl fmt::Display for PlacementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no placement has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown placement '{name}': there are {}", names())]
pub struct UnknownPlacement {
    /// The name.
    pub name: String,
}

fn names() -> String {
    PlacementKind::ALL.map(PlacementKind::name).join(", ")
}

impl FromStr for PlacementKind {
    type Err = UnknownPlacement;

    fn from_str(name: &str) -> Result<Self, UnknownPlacement> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPlacement { name: name.to_owned() })
    }
}

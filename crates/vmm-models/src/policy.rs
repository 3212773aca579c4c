//! Policies by name, and how far each is to be believed.

use crate::costs::Costs;
use crate::model::Model;
use crate::plain::Plain;
use crate::rmm::{Arena, Pool};
use crate::stream_ordered::DriverPool;
use crate::torch::{CachingAllocator, TorchOptions};
use std::fmt;
use std::str::FromStr;
use vmm_replay::Amount;

/// An allocator that there is a model of, and its settings.
///
/// Its text form is a name and then settings, all joined by colons: `native:max_split_size=128MiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Policy {
    /// `cudamalloc`: `cudaMalloc` and `cudaFree` for every tensor.
    CudaMalloc,
    /// `native`: `PyTorch`'s caching allocator.
    Native(TorchOptions),
    /// `expandable`: `PyTorch`'s with expandable segments.
    Expandable(TorchOptions),
    /// `async`: a stream-ordered pool of the driver, as behind `cudaMallocAsync`.
    Async,
    /// `rmm-pool`: RMM's coalescing pool.
    RmmPool {
        /// Bytes to begin with; 0 for as much as the first request needs.
        initial: u64,
    },
    /// `rmm-arena`: RMM's arena.
    RmmArena,
}

/// How far a model was checked against the allocator that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fidelity {
    /// Against the reserved memory that recordings show.
    Recorded,
    /// Against peaks of live runs of the same programs.
    Live,
    /// Not, or with too little success.
    Unchecked,
}

impl Fidelity {
    /// The word for it in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Live => "live",
            Self::Unchecked => "no",
        }
    }
}

/// Settings of both of `PyTorch`'s allocators.
const TORCH_KEYS: [&str; 3] =
    ["max_split_size", "roundup_power2_divisions", "garbage_collection_threshold"];

impl Policy {
    /// Every name with the settings that it takes.
    pub const NAMES: [(&'static str, &'static [&'static str]); 6] = [
        ("native", &TORCH_KEYS),
        ("expandable", &TORCH_KEYS),
        ("async", &[]),
        ("rmm-pool", &["initial"]),
        ("rmm-arena", &[]),
        ("cudamalloc", &[]),
    ];

    /// How far the model was checked, and what came of it in one sentence.
    #[must_use]
    pub fn fidelity(&self) -> (Fidelity, &'static str) {
        match self {
            Self::Native(options) if *options == TorchOptions::default() => (
                Fidelity::Recorded,
                "peaks within 1 % of 14 recordings of PyTorch 2.11, reserved memory over time within 1 %",
            ),
            Self::Expandable(options) if *options == TorchOptions::default() => {
                (Fidelity::Live, "peaks within 2 % of 14 live runs of PyTorch 2.11")
            }
            Self::Native(_) | Self::Expandable(_) => {
                (Fidelity::Unchecked, "no recording has these settings")
            }
            Self::Async => (
                Fidelity::Unchecked,
                "made from 13 live runs: peaks within 17 % of 12, 36 % above in one",
            ),
            Self::RmmPool { .. } | Self::RmmArena | Self::CudaMalloc => {
                (Fidelity::Unchecked, "there is no recording to check it against")
            }
        }
    }

    /// Whether the model keeps the pools of captured graphs apart. A program under one that does not
    /// may need more than the model says.
    #[must_use]
    pub fn keeps_pools_apart(&self) -> bool {
        matches!(self, Self::Native(_) | Self::Expandable(_))
    }

    /// A fresh model.
    pub(crate) fn model(&self, limit: Option<u64>, costs: &Costs) -> Box<dyn Model> {
        match *self {
            Self::CudaMalloc => Box::new(Plain::default()),
            Self::Native(options) => Box::new(CachingAllocator::native(options)),
            Self::Expandable(options) => Box::new(CachingAllocator::expandable(options)),
            Self::Async => Box::new(DriverPool::new(costs.lag_ns)),
            Self::RmmPool { initial } => Box::new(Pool::new(initial)),
            Self::RmmArena => Box::new(Arena::new(limit)),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::CudaMalloc => "cudamalloc",
            Self::Native(_) => "native",
            Self::Expandable(_) => "expandable",
            Self::Async => "async",
            Self::RmmPool { .. } => "rmm-pool",
            Self::RmmArena => "rmm-arena",
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), PolicyError> {
        match (&mut *self, key) {
            (Self::Native(options) | Self::Expandable(options), _) => match key {
                "max_split_size" => options.max_split_size = Some(max_split(key, value)?),
                "roundup_power2_divisions" => {
                    options.roundup_power2_divisions = divisions(key, value)?;
                }
                "garbage_collection_threshold" => {
                    options.garbage_collection_threshold = share(key, value)?;
                }
                _ => return Err(self.unknown_key(key)),
            },
            (Self::RmmPool { initial }, "initial") => *initial = bytes(key, value)?,
            _ => return Err(self.unknown_key(key)),
        }
        Ok(())
    }

    fn unknown_key(&self, key: &str) -> PolicyError {
        let keys = Self::NAMES.iter().find(|(name, _)| *name == self.name()).map(|(_, keys)| *keys);
        PolicyError::UnknownKey {
            policy: self.name(),
            key: key.to_owned(),
            known: keys.unwrap_or_default(),
        }
    }
}

/// Why a text is no [`Policy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no model of that name.
    #[error("unknown policy '{0}'")]
    UnknownName(String),
    /// The model has no such setting.
    #[error("{policy} has no setting '{key}'{}", known_keys(known))]
    UnknownKey {
        /// The policy.
        policy: &'static str,
        /// What was written.
        key: String,
        /// What there is.
        known: &'static [&'static str],
    },
    /// A setting without a value.
    #[error("'{0}' is no setting: write key=value")]
    NoValue(String),
    /// The value does not fit the setting.
    #[error("'{value}' is no {key}: {rule}")]
    WrongValue {
        /// The setting.
        key: String,
        /// What was written.
        value: String,
        /// What it has to be.
        rule: &'static str,
    },
}

fn known_keys(keys: &[&str]) -> String {
    match keys {
        [] => ": it has none".to_owned(),
        keys => format!(": it has {}", keys.join(", ")),
    }
}

fn wrong(key: &str, value: &str, rule: &'static str) -> PolicyError {
    PolicyError::WrongValue { key: key.to_owned(), value: value.to_owned(), rule }
}

fn bytes(key: &str, value: &str) -> Result<u64, PolicyError> {
    match value.parse() {
        // No device has more, and sums must not overflow.
        Ok(Amount::Bytes(bytes)) if bytes <= 1 << 48 => Ok(bytes),
        _ => Err(wrong(key, value, "write bytes, such as 128MiB, below 256 TiB")),
    }
}

/// `PyTorch` refuses less as well: segments of 20 MiB must be splittable.
fn max_split(key: &str, value: &str) -> Result<u64, PolicyError> {
    match bytes(key, value)? {
        bytes if bytes > 20 << 20 => Ok(bytes),
        _ => Err(wrong(key, value, "it must be above 20MiB, as in PyTorch")),
    }
}

fn divisions(key: &str, value: &str) -> Result<u64, PolicyError> {
    match value.parse::<u64>() {
        Ok(number) if number.is_power_of_two() && number <= 1 << 16 => Ok(number),
        _ => Err(wrong(key, value, "write a power of two, such as 4")),
    }
}

fn share(key: &str, value: &str) -> Result<f64, PolicyError> {
    match value.parse::<f64>() {
        Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
        _ => Err(wrong(key, value, "write a number between 0 and 1, such as 0.8")),
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let mut parts = text.split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let mut policy = match name {
            "cudamalloc" => Self::CudaMalloc,
            "native" => Self::Native(TorchOptions::default()),
            "expandable" => Self::Expandable(TorchOptions::default()),
            "async" => Self::Async,
            "rmm-pool" => Self::RmmPool { initial: 0 },
            "rmm-arena" => Self::RmmArena,
            _ => return Err(PolicyError::UnknownName(name.to_owned())),
        };
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                return Err(PolicyError::NoValue(part.to_owned()));
            };
            policy.set(key.trim(), value.trim())?;
        }
        Ok(policy)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Native(options) | Self::Expandable(options) => {
                if let Some(bytes) = options.max_split_size {
                    write!(f, ":max_split_size={}", Amount::Bytes(bytes))?;
                }
                if options.roundup_power2_divisions > 0 {
                    write!(f, ":roundup_power2_divisions={}", options.roundup_power2_divisions)?;
                }
                if options.garbage_collection_threshold > 0.0 {
                    let share = options.garbage_collection_threshold;
                    write!(f, ":garbage_collection_threshold={share}")?;
                }
                Ok(())
            }
            Self::RmmPool { initial } if *initial > 0 => {
                write!(f, ":initial={}", Amount::Bytes(*initial))
            }
            Self::CudaMalloc | Self::Async | Self::RmmPool { .. } | Self::RmmArena => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Policy>().expect_err(text).to_string()
    }

    #[test]
    fn texts_and_policies() {
        for text in [
            "native",
            "native:max_split_size=128MiB:roundup_power2_divisions=4:garbage_collection_threshold=0.8",
            "expandable:roundup_power2_divisions=8",
            "async",
            "rmm-pool",
            "rmm-pool:initial=1GiB",
            "rmm-arena",
            "cudamalloc",
        ] {
            let policy: Policy = text.parse().expect(text);
            assert_eq!(policy.to_string(), text);
        }
        let policy: Policy = "native: max_split_size = 128M".parse().expect("blanks and units");
        assert_eq!(policy.to_string(), "native:max_split_size=128MiB");
        for (name, keys) in Policy::NAMES {
            let policy: Policy = name.parse().expect("every listed name");
            for key in keys {
                let known = { policy }.set(key, "").expect_err("no value");
                assert!(matches!(known, PolicyError::WrongValue { .. }), "{name}: {key}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(error("jemalloc"), "unknown policy 'jemalloc'");
        assert_eq!(
            error("native:split=1"),
            "native has no setting 'split': it has max_split_size, roundup_power2_divisions, \
             garbage_collection_threshold"
        );
        assert_eq!(error("async:x=1"), "async has no setting 'x': it has none");
        assert_eq!(
            error("native:max_split_size"),
            "'max_split_size' is no setting: write key=value"
        );
        for wrong in [
            "native:max_split_size=20M",
            "native:max_split_size=2x",
            "native:roundup_power2_divisions=3",
            "native:garbage_collection_threshold=1.5",
            "native:garbage_collection_threshold=nan",
            "rmm-pool:initial=lots",
        ] {
            assert!(error(wrong).contains("is no "), "{wrong}");
        }
    }
}

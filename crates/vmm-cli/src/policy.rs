//! Policies by name: this pool, heaps over it, and models of others.

use std::fmt;
use std::str::FromStr;
use vmm_core::placement::PlacementKind;
use vmm_models::{Fidelity, Policy, PolicyError, TorchOptions};
use vmm_replay::{Amount, Placed, PlacedError};
use vmm_report::Allocator;

/// The settings of this pool.
const POOL_KEYS: &str = "limit, target";

/// What [`vmm compare`](crate::options::CompareOptions) compares if nothing is named.
const COMPARED: [&str; 12] = [
    "vmm",
    "vmm:limit=1.03x",
    "vmm:target=1.015x",
    "native",
    "native:max_split_size=128MiB",
    "native:roundup_power2_divisions=4",
    "native:garbage_collection_threshold=0.8",
    "expandable",
    "async",
    "rmm-pool",
    "rmm-arena",
    "cudamalloc",
];

/// What is set beside a program of `PyTorch` if nothing is named: what its user can choose by a setting,
/// and this pool.
const BESIDE_A_PROGRAM: [&str; 6] = [
    "vmm",
    "native",
    "expandable",
    "native:max_split_size=128MiB",
    "native:roundup_power2_divisions=4",
    "async",
];

/// The same beside a log of RMM: its own resources, and `PyTorch`'s allocator for comparison.
const BESIDE_RMM: [&str; 6] = ["vmm", "rmm-pool", "rmm-arena", "async", "native", "expandable"];

/// A memory manager and its settings, as on a command line.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyOption {
    /// Which.
    pub manager: Manager,
    /// What it must never exceed.
    pub limit: Option<Amount>,
    /// As it was written.
    text: String,
}

/// A memory manager.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manager {
    /// This pool, or a heap over it.
    Pool {
        /// Where tensors lie: in blocks of such a heap, or in leases of the pool.
        placement: Option<Placed>,
        /// What the pool tries to stay under.
        target: Option<Amount>,
    },
    /// A model of another.
    Model(Policy),
}

impl PolicyOption {
    /// What `vmm compare` compares if nothing is named.
    #[must_use]
    pub fn compared() -> Vec<Self> {
        Self::all(&COMPARED)
    }

    /// What `vmm inspect` and `vmm report` set beside a recorded program if nothing is named.
    #[must_use]
    pub fn beside_a_program(allocator: Allocator) -> Vec<Self> {
        Self::all(match allocator {
            Allocator::PyTorch | Allocator::Vmm => &BESIDE_A_PROGRAM,
            Allocator::Unknown => &BESIDE_RMM,
        })
    }

    fn all(texts: &[&str]) -> Vec<Self> {
        texts.iter().map(|text| text.parse().expect("a test parses them")).collect()
    }

    /// How far a model was checked; `None` for this pool, which is no model.
    pub(crate) fn fidelity(&self) -> Option<Fidelity> {
        match self.manager {
            Manager::Pool { .. } => None,
            Manager::Model(model) => Some(model.fidelity().0),
        }
    }

    /// What people read in reports: the allocator's own name and settings, and whether it is a model.
    pub(crate) fn title(&self) -> String {
        let (mut title, target) = match self.manager {
            Manager::Pool { placement: None, target } => ("vmm".to_owned(), target),
            Manager::Pool { placement: Some(placed), target } => {
                (format!("vmm, blocks by {placed}"), target)
            }
            Manager::Model(model) => (model_title(model), None),
        };
        for (key, amount) in [("limit", self.limit), ("target", target)] {
            let amount = amount.map(|amount| match amount {
                Amount::Bytes(bytes) => vmm_report::text::bytes(bytes),
                Amount::OfPeak(_) | Amount::None => amount.to_string(),
            });
            title.extend(amount.map(|amount| format!(", {key} {amount}")));
        }
        match self.fidelity() {
            None => title,
            Some(Fidelity::Unchecked) => title + ", unchecked model",
            Some(_) => title + ", modelled",
        }
    }
}

fn model_title(model: Policy) -> String {
    match model {
        Policy::Native(options) if options == TorchOptions::default() => {
            "PyTorch native".to_owned()
        }
        Policy::Native(options) => format!("PyTorch {}", torch_settings(&options)),
        Policy::Expandable(options) if options == TorchOptions::default() => {
            "PyTorch expandable segments".to_owned()
        }
        Policy::Expandable(options) => {
            format!("PyTorch expandable segments, {}", torch_settings(&options))
        }
        Policy::Async => "cudaMallocAsync".to_owned(),
        Policy::RmmPool { .. } => "RMM pool".to_owned(),
        Policy::RmmArena => "RMM arena".to_owned(),
        Policy::CudaMalloc => "cudaMalloc".to_owned(),
    }
}

/// As in `PYTORCH_CUDA_ALLOC_CONF`.
#[expect(clippy::cast_precision_loss, reason = "a length in MiB, as it was given")]
fn torch_settings(options: &TorchOptions) -> String {
    let mut settings = Vec::new();
    if let Some(bytes) = options.max_split_size {
        settings.push(format!("max_split_size_mb:{}", bytes as f64 / f64::from(1 << 20)));
    }
    if options.roundup_power2_divisions > 0 {
        settings.push(format!("roundup_power2_divisions:{}", options.roundup_power2_divisions));
    }
    if options.garbage_collection_threshold > 0.0 {
        let share = options.garbage_collection_threshold;
        settings.push(format!("garbage_collection_threshold:{share}"));
    }
    settings.join(",")
}

impl FromStr for PolicyOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let name = text.split(':').next().unwrap_or_default().trim();
        let is_heap = name.parse::<PlacementKind>().is_ok();
        let is_pool = is_heap || name == "vmm";
        let (mut limit, mut target) = (None, None);
        let mut others = vec![name];
        for setting in text.split(':').skip(1) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            match key.trim() {
                "limit" => limit = Some(amount(value)?),
                "target" if is_pool => target = Some(amount(value)?),
                key if name == "vmm" => {
                    return Err(format!("vmm has no setting '{key}': it has {POOL_KEYS}"));
                }
                _ => others.push(setting),
            }
        }
        let others = others.join(":");
        let manager = if is_heap {
            let placed = others.parse().map(Some);
            Manager::Pool { placement: placed.map_err(explain_placed)?, target }
        } else if is_pool {
            Manager::Pool { placement: None, target }
        } else {
            Manager::Model(others.parse().map_err(explain)?)
        };
        Ok(Self { manager, limit, text: text.to_owned() })
    }
}

fn amount(value: &str) -> Result<Amount, String> {
    value.trim().parse().map_err(|error: vmm_replay::AmountError| error.to_string())
}

/// The error and what there is instead.
fn explain(error: PolicyError) -> String {
    match error {
        PolicyError::UnknownName(_) => {
            let models = Policy::NAMES.iter().map(|(name, _)| *name);
            let placements = PlacementKind::ALL.into_iter().map(PlacementKind::name);
            let names: Vec<&str> = models.chain(placements).collect();
            format!("{error}: there are vmm, {}", names.join(", "))
        }
        PolicyError::UnknownKey { .. } => format!("{error}; limit is for all"),
        PolicyError::NoValue(_) | PolicyError::WrongValue { .. } => error.to_string(),
    }
}

fn explain_placed(error: PlacedError) -> String {
    match error {
        PlacedError::UnknownKey { .. } => format!("{error}, {POOL_KEYS}"),
        PlacedError::UnknownPlacement(_) | PlacedError::Chunk(_) => error.to_string(),
    }
}

impl fmt::Display for PolicyOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_policies() {
        let texts = |defaults: Vec<PolicyOption>| {
            defaults.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(texts(PolicyOption::compared()), COMPARED);
        let beside = |allocator| texts(PolicyOption::beside_a_program(allocator));
        assert_eq!(beside(Allocator::PyTorch), BESIDE_A_PROGRAM);
        assert_eq!(beside(Allocator::Vmm), BESIDE_A_PROGRAM);
        assert_eq!(beside(Allocator::Unknown), BESIDE_RMM);
    }

    #[test]
    fn titles_are_the_names_that_users_know() {
        let title = |text: &str| text.parse::<PolicyOption>().expect(text).title();
        assert_eq!(title("vmm"), "vmm");
        assert_eq!(title("vmm:target=1.5x:limit=2GiB"), "vmm, limit 2.00 GiB, target 1.5x");
        assert_eq!(title("buddy"), "vmm, blocks by buddy");
        assert_eq!(title("native"), "PyTorch native, modelled");
        assert_eq!(title("expandable"), "PyTorch expandable segments, modelled");
        assert_eq!(
            title("native:max_split_size=128MiB:garbage_collection_threshold=0.8"),
            "PyTorch max_split_size_mb:128,garbage_collection_threshold:0.8, unchecked model"
        );
        assert_eq!(title("async:limit=1x"), "cudaMallocAsync, limit 1x, unchecked model");
    }

    #[test]
    fn a_limit_is_for_all() {
        let policy: PolicyOption =
            "native:limit=1.1x:max_split_size=64M".parse().expect("a policy");
        assert_eq!(policy.limit, Some(Amount::OfPeak(1.1)));
        assert_eq!(
            policy.manager,
            Manager::Model("native:max_split_size=64M".parse().expect("a policy"))
        );
        let policy: PolicyOption = " vmm:target=1GiB ".parse().expect("a policy");
        let target = Some(Amount::Bytes(1 << 30));
        assert_eq!(policy.manager, Manager::Pool { placement: None, target });
        assert_eq!(policy.to_string(), "vmm:target=1GiB");
    }

    #[test]
    fn a_placement_has_the_settings_of_a_pool_and_its_own() {
        let policy: PolicyOption =
            "buddy:limit=1.1x:chunk=1GiB:target=1x".parse().expect("a policy");
        assert_eq!(policy.limit, Some(Amount::OfPeak(1.1)));
        let placed = Placed { kind: PlacementKind::Buddy, chunk: Amount::Bytes(1 << 30) };
        let target = Some(Amount::OfPeak(1.0));
        assert_eq!(policy.manager, Manager::Pool { placement: Some(placed), target });
    }

    #[test]
    fn errors_list_what_there_is() {
        let error = |text: &str| text.parse::<PolicyOption>().expect_err(text);
        assert_eq!(
            error("tcmalloc:limit=1x"),
            "unknown policy 'tcmalloc': there are vmm, native, expandable, async, rmm-pool, \
             rmm-arena, cudamalloc, bump, first-fit, next-fit, best-fit, buddy, slab, fixed, \
             tiers, tlsf, segregated"
        );
        assert_eq!(error("vmm:split=1"), "vmm has no setting 'split': it has limit, target");
        assert_eq!(
            error("tlsf:split=1"),
            "tlsf has no setting 'split': it has chunk, limit, target"
        );
        assert_eq!(
            error("async:target=1x"),
            "async has no setting 'target': it has none; limit is for all"
        );
        assert!(error("vmm:limit=much").starts_with("no number in 'much'"));
        assert!(error("native:limit").starts_with("no number in ''"));
    }
}

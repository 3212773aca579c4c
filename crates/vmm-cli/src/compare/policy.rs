//! What can be compared: this pool, heaps over it, and models of others.

use std::fmt;
use std::str::FromStr;
use vmm_core::placement::PlacementKind;
use vmm_models::PolicyError;
use vmm_replay::{Amount, PlacedError, Policy};

/// The settings of this pool.
const POOL_KEYS: &str = "limit, target";

/// What is compared if nothing is named.
const DEFAULTS: [&str; 12] = [
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

/// A memory manager and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ComparedPolicy {
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
        /// Which of them.
        policy: Policy,
        /// What the pool tries to stay under.
        target: Option<Amount>,
    },
    /// A model of another.
    Model(vmm_models::Policy),
}

impl ComparedPolicy {
    /// What is compared if nothing is named.
    ///
    /// # Panics
    /// Never: the texts are policies.
    #[must_use]
    pub fn defaults() -> Vec<Self> {
        DEFAULTS.iter().map(|text| text.parse().expect("a test parses them")).collect()
    }
}

impl FromStr for ComparedPolicy {
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
            let placed = others.parse().map(Policy::Placed);
            Manager::Pool { policy: placed.map_err(explain_placed)?, target }
        } else if is_pool {
            Manager::Pool { policy: Policy::Vmm, target }
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
            let models = vmm_models::Policy::NAMES.iter().map(|(name, _)| *name);
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

impl fmt::Display for ComparedPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmm_replay::Placed;

    #[test]
    fn defaults_are_policies() {
        let defaults = ComparedPolicy::defaults();
        let texts: Vec<String> = defaults.iter().map(ToString::to_string).collect();
        assert_eq!(texts, DEFAULTS);
    }

    #[test]
    fn a_limit_is_for_all() {
        let policy: ComparedPolicy =
            "native:limit=1.1x:max_split_size=64M".parse().expect("a policy");
        assert_eq!(policy.limit, Some(Amount::OfPeak(1.1)));
        assert_eq!(
            policy.manager,
            Manager::Model("native:max_split_size=64M".parse().expect("a policy"))
        );
        let policy: ComparedPolicy = " vmm:target=1GiB ".parse().expect("a policy");
        let target = Some(Amount::Bytes(1 << 30));
        assert_eq!(policy.manager, Manager::Pool { policy: Policy::Vmm, target });
        assert_eq!(policy.to_string(), "vmm:target=1GiB");
    }

    #[test]
    fn a_placement_has_the_settings_of_a_pool_and_its_own() {
        let policy: ComparedPolicy =
            "buddy:limit=1.1x:chunk=1GiB:target=1x".parse().expect("a policy");
        assert_eq!(policy.limit, Some(Amount::OfPeak(1.1)));
        let placed = Placed { kind: PlacementKind::Buddy, chunk: Amount::Bytes(1 << 30) };
        let target = Some(Amount::OfPeak(1.0));
        assert_eq!(policy.manager, Manager::Pool { policy: Policy::Placed(placed), target });
    }

    #[test]
    fn errors_list_what_there_is() {
        let error = |text: &str| text.parse::<ComparedPolicy>().expect_err(text);
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

//! What can be compared: this pool, and models of others.

use std::fmt;
use std::str::FromStr;
use vmm_models::{Policy, PolicyError};
use vmm_replay::Amount;

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
    /// This pool, with a target.
    Pool(Option<Amount>),
    /// A model of another.
    Model(Policy),
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
        let (mut limit, mut target) = (None, None);
        let mut others = vec![name];
        for setting in text.split(':').skip(1) {
            let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
            match (key.trim(), name) {
                ("limit", _) => limit = Some(amount(value)?),
                ("target", "vmm") => target = Some(amount(value)?),
                (key, "vmm") => {
                    return Err(format!("vmm has no setting '{key}': it has {POOL_KEYS}"));
                }
                _ => others.push(setting),
            }
        }
        let manager = match name {
            "vmm" => Manager::Pool(target),
            _ => Manager::Model(others.join(":").parse().map_err(explain)?),
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
            let names: Vec<&str> = Policy::NAMES.iter().map(|(name, _)| *name).collect();
            format!("{error}: there are vmm, {}", names.join(", "))
        }
        PolicyError::UnknownKey { .. } => format!("{error}; limit is for all"),
        PolicyError::NoValue(_) | PolicyError::WrongValue { .. } => error.to_string(),
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
        assert_eq!(policy.manager, Manager::Pool(Some(Amount::Bytes(1 << 30))));
        assert_eq!(policy.to_string(), "vmm:target=1GiB");
    }

    #[test]
    fn errors_list_what_there_is() {
        let error = |text: &str| text.parse::<ComparedPolicy>().expect_err(text);
        assert_eq!(
            error("tcmalloc:limit=1x"),
            "unknown policy 'tcmalloc': there are vmm, native, expandable, async, rmm-pool, \
             rmm-arena, cudamalloc"
        );
        assert_eq!(error("vmm:split=1"), "vmm has no setting 'split': it has limit, target");
        assert_eq!(
            error("async:target=1x"),
            "async has no setting 'target': it has none; limit is for all"
        );
        assert!(error("vmm:limit=much").starts_with("no number in 'much'"));
        assert!(error("native:limit").starts_with("no number in ''"));
    }
}

//! What came of one trace under one policy.

use serde::Serialize;
use vmm_models::{Fidelity, ModelResult};
use vmm_replay::ReplayResult;

/// The figures of a trace under a policy, and how far they are to be believed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Outcome {
    #[serde(flatten)]
    figures: Figures,
    /// What a model was checked against; `None` for this pool, which is no model.
    checked: Option<&'static str>,
    /// What came of the check.
    #[serde(skip)]
    pub(crate) remark: Option<&'static str>,
    /// Whether the trace has pools of captured graphs that the model does not keep apart.
    #[serde(skip)]
    pub(crate) mixes_pools: bool,
}

/// Both kinds have the same keys.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Figures {
    Pool(Box<ReplayResult>),
    Model(Box<ModelResult>),
}

/// Reads a field that both kinds have.
macro_rules! field {
    ($outcome:expr, $name:ident) => {
        match &$outcome.figures {
            Figures::Pool(result) => result.$name,
            Figures::Model(result) => result.$name,
        }
    };
}

impl Outcome {
    /// Of a replay on this pool.
    pub(crate) fn of_pool(result: ReplayResult) -> Self {
        let figures = Figures::Pool(Box::new(result));
        Self { figures, checked: None, remark: None, mixes_pools: false }
    }

    /// Of a run of a model.
    pub(crate) fn of_model(
        result: ModelResult,
        fidelity: (Fidelity, &'static str),
        mixes_pools: bool,
    ) -> Self {
        Self {
            mixes_pools,
            figures: Figures::Model(Box::new(result)),
            checked: Some(fidelity.0.name()),
            remark: Some(fidelity.1),
        }
    }

    /// Gives it names, and the smallest limit that was found.
    pub(crate) fn named(mut self, trace: &str, policy: &str, budget_bytes: Option<u64>) -> Self {
        match &mut self.figures {
            Figures::Pool(result) => {
                trace.clone_into(&mut result.trace);
                policy.clone_into(&mut result.policy);
                "mock".clone_into(&mut result.device);
                result.budget_bytes = budget_bytes;
            }
            Figures::Model(result) => {
                trace.clone_into(&mut result.trace);
                policy.clone_into(&mut result.policy);
                result.budget_bytes = budget_bytes;
            }
        }
        self
    }

    pub(crate) fn trace(&self) -> &str {
        match &self.figures {
            Figures::Pool(result) => &result.trace,
            Figures::Model(result) => &result.trace,
        }
    }

    pub(crate) fn policy(&self) -> &str {
        match &self.figures {
            Figures::Pool(result) => &result.policy,
            Figures::Model(result) => &result.policy,
        }
    }

    /// The word for what the model was checked against; empty for this pool.
    pub(crate) fn checked(&self) -> &'static str {
        self.checked.unwrap_or_default()
    }

    pub(crate) fn needed_bytes(&self) -> u64 {
        field!(self, peak_requested_bytes)
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        field!(self, peak_reserved_bytes)
    }

    pub(crate) fn recorded_bytes(&self) -> Option<u64> {
        field!(self, recorded_peak_reserved_bytes)
    }

    pub(crate) fn ratio(&self) -> Option<f64> {
        match &self.figures {
            Figures::Pool(result) => result.reserved_ratio(),
            Figures::Model(result) => result.reserved_ratio(),
        }
    }

    /// The smallest limit that works, where it was searched for and found.
    pub(crate) fn budget_bytes(&self) -> Option<u64> {
        field!(self, budget_bytes)
    }

    /// The same over what the program needs.
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits behind the point")]
    pub(crate) fn budget(&self) -> Option<f64> {
        let needed = self.needed_bytes();
        self.budget_bytes().filter(|_| needed > 0).map(|bytes| bytes as f64 / needed as f64)
    }

    pub(crate) fn driver_calls(&self) -> u64 {
        field!(self, driver_calls)
    }

    pub(crate) fn driver_us(&self) -> f64 {
        field!(self, driver_time_us)
    }

    /// Driver time as a share of the duration.
    pub(crate) fn driver_share(&self) -> Option<f64> {
        match &self.figures {
            Figures::Pool(result) => result.driver_share(),
            Figures::Model(result) => result.driver_share(),
        }
    }

    /// Driver time that 999 of 1000 allocations did not exceed.
    pub(crate) fn tail_us(&self) -> f64 {
        field!(self, tail_allocation_us)
    }

    pub(crate) fn worst_us(&self) -> f64 {
        field!(self, worst_allocation_us)
    }

    pub(crate) fn waits(&self) -> u64 {
        field!(self, waits)
    }

    /// Host time; only this pool's is known.
    pub(crate) fn host_ns(&self) -> Option<f64> {
        match &self.figures {
            Figures::Pool(result) => Some(result.host_ns_per_op),
            Figures::Model(result) => result.host_ns_per_op,
        }
    }

    pub(crate) fn failures(&self) -> u64 {
        field!(self, failures)
    }
}

//! Ways to manage memory, compared on one program.

use serde::Serialize;

/// What a program would need under one policy. Whoever runs the policies fills these in.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PolicyRow {
    /// The policy and its setting, as people name them.
    pub policy: String,
    /// Whether it is what recorded the program, or a model of that.
    #[serde(skip)]
    pub is_recorded: bool,
    /// Whether it is a model of what recorded the program, whatever its settings.
    #[serde(skip)]
    pub is_variant: bool,
    /// Whether it is a model that nothing was held against.
    #[serde(skip)]
    pub is_unchecked: bool,
    /// What is to be known of the figures, or why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Allocations that failed under it.
    pub failures: usize,
    /// The most that it reserved when nothing limited it.
    pub peak_reserved_bytes: Option<u64>,
    /// The smallest limit under which no allocation fails.
    pub smallest_budget_bytes: Option<u64>,
    /// Device calls on the allocating thread.
    pub driver_calls: Option<u64>,
    /// Their time, in microseconds.
    pub driver_time_us: Option<f64>,
    /// What was reserved, as (microseconds, bytes): each holds until the next.
    #[serde(skip)]
    pub reserved: Vec<(u64, u64)>,
    /// Device calls by operation, as (name, calls, microseconds), on the allocating thread.
    #[serde(skip)]
    pub calls: Vec<(String, u64, f64)>,
    /// The same on the worker.
    #[serde(skip)]
    pub worker_calls: Vec<(String, u64, f64)>,
}

impl PolicyRow {
    /// The memory that the policy needs: its smallest limit, or else what it reserved. `None` where
    /// that was not enough.
    #[must_use]
    pub fn budget_bytes(&self) -> Option<u64> {
        self.smallest_budget_bytes.or(self.peak_reserved_bytes.filter(|_| self.failures == 0))
    }
}

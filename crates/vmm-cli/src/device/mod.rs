//! The devices that the command can use, each named in a file of its own.

mod cuda;
mod cuda_contents;
mod cuda_probe;
mod mock;
mod mock_contents;
mod mock_costs;

pub use mock::{MockTimeline, replay_on_mock};
pub use mock_contents::MockContents;

pub(crate) use cuda_probe::ProbedCard;
pub(crate) use mock::probed_mock;

use crate::options::DeviceOption;
use cuda::CudaReplays;
use std::path::Path;
use vmm_mock::CostModel;
use vmm_replay::{ReplayError, ReplayResult, ReplaySettings};
use vmm_trace::DeviceTrace;

/// The device that the command line names, ready for replays.
pub(crate) enum ReplayDevice {
    /// A fresh mock with these costs for each replay.
    Mock(Box<CostModel>),
    /// One card for all.
    Cuda(CudaReplays),
}

impl ReplayDevice {
    /// Opens the device. `costs` is a file with the costs of the mock's calls, in place of an H200's.
    ///
    /// # Errors
    /// One line that says what is missing or wrong and what to do.
    pub(crate) fn open(option: DeviceOption, costs: Option<&Path>) -> Result<Self, String> {
        match (option, costs) {
            (DeviceOption::Mock, None) => Ok(Self::mock(CostModel::h200())),
            (DeviceOption::Mock, Some(file)) => mock_costs::read(file).map(Self::mock),
            (DeviceOption::Cuda(ordinal), None) => {
                let opened = CudaReplays::open(ordinal).map(Self::Cuda);
                opened.map_err(|line| format!("{option}: {line}"))
            }
            (DeviceOption::Cuda(_), Some(_)) => Err(format!(
                "--costs is for the mock device, and on {option} the calls are measured; \
                 leave out --costs, or use --device mock"
            )),
        }
    }

    fn mock(cost: CostModel) -> Self {
        Self::Mock(Box::new(cost))
    }

    /// Replays a trace and checks the bytes of its leases if `checked` says so.
    ///
    /// # Errors
    /// As [`vmm_replay::replay`].
    pub(crate) fn replay(
        &self,
        trace: &DeviceTrace,
        settings: &ReplaySettings,
        checked: bool,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ReplayResult, ReplayError> {
        match self {
            Self::Mock(cost) => replay_on_mock(trace, settings, cost, checked, progress),
            Self::Cuda(card) => card.replay(trace, settings, checked, progress),
        }
    }
}

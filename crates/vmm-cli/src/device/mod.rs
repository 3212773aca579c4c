//! The devices that the command can use, each named in a file of its own.

mod card;
mod card_contents;
mod cuda;
mod cuda_probe;
mod mock;
mod mock_contents;
mod mock_costs;
mod vulkan;

pub use mock::{MockTimeline, replay_on_mock};
pub use mock_contents::MockContents;

pub(crate) use card::Card;
pub(crate) use cuda_probe::ProbedCard;
pub(crate) use mock::probed_mock;
pub(crate) use vulkan::VulkanCard;

use crate::options::DeviceOption;
use card::CardReplays;
use cuda::CudaCard;
use std::path::Path;
use vmm_mock::CostModel;
use vmm_replay::{ReplayError, ReplayResult, ReplaySettings};
use vmm_trace::DeviceTrace;

/// The device that the command line names, ready for replays.
pub(crate) enum ReplayDevice {
    /// A fresh mock with these costs for each replay.
    Mock(Box<CostModel>),
    /// One card for all.
    Cuda(CardReplays<CudaCard>),
    /// The same.
    Vulkan(CardReplays<VulkanCard>),
}

impl ReplayDevice {
    /// Opens the device. `costs` is a file with the costs of the mock's calls, in place of an H200's.
    ///
    /// # Errors
    /// One line that says what is missing or wrong and what to do.
    pub(crate) fn open(option: &DeviceOption, costs: Option<&Path>) -> Result<Self, String> {
        if costs.is_some() && *option != DeviceOption::Mock {
            return Err(format!(
                "--costs is for the mock device, and on {option} the calls are measured; \
                 leave out --costs, or use --device mock"
            ));
        }
        let opened = match option {
            DeviceOption::Mock => match costs {
                None => Ok(Self::mock(CostModel::h200())),
                // Its errors name the file.
                Some(file) => return mock_costs::read(file).map(Self::mock),
            },
            DeviceOption::Cuda(ordinal) => {
                CudaCard::open(*ordinal).and_then(CardReplays::new).map(Self::Cuda)
            }
            DeviceOption::Vulkan(choice) => {
                VulkanCard::open(choice).and_then(CardReplays::new).map(Self::Vulkan)
            }
        };
        opened.map_err(|line| format!("{option}: {line}"))
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
            Self::Vulkan(card) => card.replay(trace, settings, checked, progress),
        }
    }
}

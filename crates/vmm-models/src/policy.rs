//! Policies by name.
use crate::model::Model;
use crate::torch::{CachingAllocator, TorchOptions};
use std::fmt;

/// An allocator that there is a model of, and its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// PyTorch's native allocator.
    Native(TorchOptions),
    /// PyTorch's with expandable segments.
    Expandable(TorchOptions),
}

impl Policy {
    pub(crate) fn model(&self, _limit: Option<u64>) -> Box<dyn Model> {
        match self {
            Self::Native(options) => Box::new(CachingAllocator::native(*options)),
            Self::Expandable(options) => Box::new(CachingAllocator::expandable(*options)),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native(_) => "native",
            Self::Expandable(_) => "expandable",
        })
    }
}

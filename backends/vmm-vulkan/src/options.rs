//! Which device, and how.

use ash::vk;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// How [`crate::VulkanDevice::new`] opens a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VulkanOptions {
    /// Which device.
    pub choice: DeviceChoice,
    /// Whether the validation layer watches: see [`crate::VulkanDevice::messages`]. It must be
    /// installed.
    pub validation: bool,
    /// How many queues there are for streams at most. More streams than queues share them.
    pub queues: u32,
    /// The least granule, in bytes: a power of two. Where the driver's is finer, a coarser one makes
    /// for fewer and longer binds.
    pub granule: u64,
    /// Whether memory may be bound at several places, where the device offers it
    /// (`sparseResidencyAliased`). Without it the pool unmaps before it maps.
    pub aliases: bool,
    /// What is in memory that was just made.
    pub fresh: Fresh,
    /// The length of the blocks that memory for frames is taken from, in bytes: 4 MiB to 256 MiB, a
    /// multiple of 4 MiB. A frame longer than an eighth of it, and 4 MiB, has a block of its own.
    pub block: u64,
    /// Whether frames may lie in host memory when the device's own is full. They are slower then.
    pub spill: bool,
}

impl Default for VulkanOptions {
    fn default() -> Self {
        Self {
            choice: DeviceChoice::Best,
            validation: false,
            queues: 8,
            granule: 1,
            aliases: true,
            fresh: Fresh::AsIs,
            block: 64 << 20,
            spill: false,
        }
    }
}

impl VulkanOptions {
    /// The default for one device.
    #[must_use]
    pub fn of_device(choice: DeviceChoice) -> Self {
        Self { choice, ..Self::default() }
    }
}

/// Which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first of those that can be used, GPUs before devices that run on the host.
    #[default]
    Best,
    /// The device of this index in [`crate::list_devices`].
    Index(usize),
    /// The first device whose name contains this, in any case.
    Name(String),
}

impl DeviceChoice {
    /// A number is an index, anything else a part of a name.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim().parse() {
            Ok(index) => Self::Index(index),
            Err(_) if text.trim().is_empty() => Self::Best,
            Err(_) => Self::Name(text.trim().to_owned()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Best => f.write_str("of any kind"),
            Self::Index(index) => write!(f, "{index}"),
            Self::Name(name) => write!(f, "named {name}"),
        }
    }
}

/// What is in memory that was just made. Vulkan leaves it open: some drivers hand out what another
/// owner has left there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fresh {
    /// Whatever the driver gives.
    #[default]
    AsIs,
    /// Zeros.
    Zero,
    /// This byte, so that reading what was never written shows.
    Poison(u8),
}

impl Fresh {
    pub(crate) fn byte(self) -> Option<u8> {
        match self {
            Self::AsIs => None,
            Self::Zero => Some(0),
            Self::Poison(byte) => Some(byte),
        }
    }
}

/// A device that the user has made: see [`crate::VulkanDevice::from_external`].
#[derive(Clone)]
pub struct ExternalDevice {
    /// The instance, made for Vulkan 1.2 or later.
    pub instance: ash::Instance,
    /// The version that the instance was made for, as `vk::make_api_version` gives it.
    pub api_version: u32,
    /// The physical device.
    pub physical_device: vk::PhysicalDevice,
    /// The device, with the features in [`crate::FEATURES`] enabled.
    pub device: ash::Device,
    /// The queues that streams may use, all of one family with compute.
    pub queues: Vec<ExternalQueue>,
    /// The queue that binds go to, of a family with sparse binding; one of `queues` or another.
    pub bind_queue: ExternalQueue,
    /// Other families whose queues will use the memory.
    pub other_families: Vec<u32>,
    /// Whether `sparseResidencyAliased` is enabled.
    pub aliased: bool,
    /// What guards the queues; needed if anybody else submits to one of them.
    pub lock: Option<Arc<dyn QueueLock>>,
    /// Dropped after everything that was made on the device.
    pub keep: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for ExternalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalDevice")
            .field("physical_device", &self.physical_device)
            .field("queues", &self.queues)
            .field("bind_queue", &self.bind_queue)
            .field("aliased", &self.aliased)
            .finish_non_exhaustive()
    }
}

/// A queue and its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalQueue {
    /// The queue.
    pub queue: vk::Queue,
    /// The index of its family.
    pub family: u32,
}

/// Vulkan wants that one thread at a time uses a queue. Whoever submits to a queue that the backend
/// uses, too, hands over the lock that guards it.
///
/// The backend holds the lock for the length of one submit or bind and calls nothing else meanwhile.
pub trait QueueLock: Send + Sync {
    /// Returns once the calling thread alone may use the queue.
    fn lock(&self, queue: vk::Queue);

    /// Lets others use it again. Called by the thread that called `lock`.
    fn unlock(&self, queue: vk::Queue);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_an_index_or_a_name() {
        assert_eq!(DeviceChoice::parse(" 3"), DeviceChoice::Index(3));
        assert_eq!(DeviceChoice::parse("llvm"), DeviceChoice::Name("llvm".to_owned()));
        assert_eq!(DeviceChoice::parse(""), DeviceChoice::Best);
    }
}

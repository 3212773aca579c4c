//! The devices of this machine, and how one is chosen.

use crate::context::Instance;
use crate::facts::{self, Facts};
use crate::options::DeviceChoice;
use crate::unavailable::Unavailable;
use ash::vk;

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSummary {
    /// For [`DeviceChoice::Index`].
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Its driver and the driver's version; empty if it cannot be used.
    pub driver: String,
    /// Whether it is a GPU and not a program on the host.
    pub is_gpu: bool,
    /// Why a pool cannot live on it, if so.
    pub unsupported: Option<Unavailable>,
}

/// Every device of this machine, those that cannot be used among them.
///
/// # Errors
/// If there is no loader or no driver.
pub fn list_devices() -> Result<Vec<DeviceSummary>, Unavailable> {
    let instance = Instance::shared()?;
    let mut all = Vec::new();
    for (index, physical) in instance.physical_devices()?.into_iter().enumerate() {
        let inspected = facts::inspect(&instance.handle, physical, instance.api_version);
        let driver = inspected.as_ref().map_or(String::new(), |facts| facts.driver.clone());
        all.push(DeviceSummary {
            index,
            name: name_of(&instance, physical),
            driver,
            is_gpu: rank(kind_of(&instance, physical)) < CPU,
            unsupported: inspected.err(),
        });
    }
    Ok(all)
}

/// A device that can be used.
pub(crate) struct Candidate {
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) facts: Facts,
}

/// The device of that choice.
pub(crate) fn choose(instance: &Instance, choice: &DeviceChoice) -> Result<Candidate, Unavailable> {
    let all = instance.physical_devices()?;
    if all.is_empty() {
        return Err(Unavailable::NoDevice);
    }
    let none = || Unavailable::NoSuchDevice {
        wanted: choice.to_string(),
        found: all.iter().map(|physical| name_of(instance, *physical)).collect(),
    };
    let inspect = |physical| {
        let facts = facts::inspect(&instance.handle, physical, instance.api_version)?;
        Ok(Candidate { physical, facts })
    };
    match choice {
        DeviceChoice::Index(index) => inspect(*all.get(*index).ok_or_else(none)?),
        DeviceChoice::Name(part) => {
            let part = part.to_lowercase();
            let named =
                all.iter().find(|one| name_of(instance, **one).to_lowercase().contains(&part));
            inspect(*named.ok_or_else(none)?)
        }
        DeviceChoice::Best => {
            let mut ordered = all.clone();
            ordered.sort_by_key(|physical| rank(kind_of(instance, *physical)));
            let mut first_error = None;
            for physical in ordered {
                match inspect(physical) {
                    Ok(candidate) => return Ok(candidate),
                    Err(error) => first_error = first_error.or(Some(error)),
                }
            }
            Err(first_error.unwrap_or(Unavailable::NoDevice))
        }
    }
}

/// The rank of devices that run on the host.
const CPU: u8 = 4;

/// Which kinds of device come first.
pub(crate) fn rank(kind: vk::PhysicalDeviceType) -> u8 {
    match kind {
        vk::PhysicalDeviceType::DISCRETE_GPU => 0,
        vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
        vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
        vk::PhysicalDeviceType::CPU => CPU,
        _ => 3,
    }
}

fn properties(instance: &Instance, physical: vk::PhysicalDevice) -> vk::PhysicalDeviceProperties {
    // SAFETY: `physical` was enumerated from this instance.
    unsafe { instance.handle.get_physical_device_properties(physical) }
}

fn kind_of(instance: &Instance, physical: vk::PhysicalDevice) -> vk::PhysicalDeviceType {
    properties(instance, physical).device_type
}

fn name_of(instance: &Instance, physical: vk::PhysicalDevice) -> String {
    let properties = properties(instance, physical);
    properties.device_name_as_c_str().unwrap_or_default().to_string_lossy().into_owned()
}

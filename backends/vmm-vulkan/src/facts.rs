//! What a physical device is, and whether a pool can live on it.

use crate::unavailable::Unavailable;
use ash::vk;
use std::ffi::CStr;

/// The features that a device must have, and have enabled, by their names in the Vulkan
/// specification. `sparseResidencyAliased` is used where it is there.
pub const FEATURES: [&str; 4] =
    ["sparseBinding", "sparseResidencyBuffer", "timelineSemaphore", "bufferDeviceAddress"];

/// The version that is needed of the loader and of the device.
pub(crate) const NEEDED: (u32, u32) = (1, 2);

/// NVIDIA's driver binds neighbouring ranges wrongly that were joined, before this version.
const NVIDIA_JOINS_FROM: u32 = 535;

/// What a physical device is.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) driver: String,
    /// Major, minor and patch of the device's version of Vulkan.
    pub(crate) api_version: [u32; 3],
    pub(crate) kind: vk::PhysicalDeviceType,
    /// Whether one piece of memory may be bound at several places.
    pub(crate) aliased: bool,
    /// Whether work that uses addresses without memory reads zeros and writes nothing.
    pub(crate) strict_residency: bool,
    /// Whether neighbouring ranges may be bound as one.
    pub(crate) joins_binds: bool,
    /// In bytes.
    pub(crate) max_buffer: u64,
    /// The longest piece of memory that the driver need give, in bytes.
    pub(crate) max_allocation: u64,
    /// All sparse buffers together, in bytes.
    pub(crate) sparse_space: u64,
    pub(crate) wide_integers: bool,
    /// Whether the driver says how much memory is left.
    pub(crate) budget: bool,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) families: Vec<vk::QueueFamilyProperties>,
}

impl Facts {
    /// The family of the queues for streams: one with compute, and graphics where there is such, for
    /// that is the one that users' other work goes to.
    pub(crate) fn work_family(&self) -> Option<u32> {
        let with = |flags| self.family(|family| family.queue_flags.contains(flags));
        with(vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE)
            .or_else(|| with(vk::QueueFlags::COMPUTE))
    }

    /// The family of the queue for binds, beside `work` queues of the work family: one that does
    /// little else, then any with a queue to spare, then the work family.
    pub(crate) fn bind_family(&self, work_family: u32) -> Option<u32> {
        let binds = |family: &vk::QueueFamilyProperties| {
            family.queue_flags.contains(vk::QueueFlags::SPARSE_BINDING)
        };
        let busy = vk::QueueFlags::GRAPHICS | vk::QueueFlags::COMPUTE;
        let others = |flags| {
            let mut all = (0..).zip(&self.families);
            let fits = |(index, family): &(u32, &vk::QueueFamilyProperties)| {
                *index != work_family && binds(family) && !family.queue_flags.intersects(flags)
            };
            all.find(fits).map(|(index, _)| index)
        };
        let work = usize::try_from(work_family).ok().and_then(|index| self.families.get(index));
        let spare = work.filter(|family| binds(family));
        others(busy)
            .or_else(|| spare.filter(|family| family.queue_count > 1).map(|_| work_family))
            .or_else(|| others(vk::QueueFlags::empty()))
            .or_else(|| spare.map(|_| work_family))
    }

    fn family(&self, fits: impl Fn(&vk::QueueFamilyProperties) -> bool) -> Option<u32> {
        (0..).zip(&self.families).find(|(_, family)| fits(family)).map(|(index, _)| index)
    }
}

/// Major and minor of a Vulkan version.
pub(crate) fn version(raw: u32) -> (u32, u32) {
    (vk::api_version_major(raw), vk::api_version_minor(raw))
}

/// Looks at a device. Errs if it cannot be used; `api_version` is what the instance was made for.
pub(crate) fn inspect(
    instance: &ash::Instance,
    physical: vk::PhysicalDevice,
    api_version: u32,
) -> Result<Facts, Unavailable> {
    // SAFETY: `physical` is one of `instance`, as the callers have enumerated it or been told.
    let plain = unsafe { instance.get_physical_device_properties(physical) };
    let name = text(&plain.device_name);
    let usable = plain.api_version.min(api_version);
    if version(usable) < NEEDED {
        let found = version(usable);
        return Err(Unavailable::TooOld { what: name, found, needed: NEEDED });
    }
    let mut driver = vk::PhysicalDeviceDriverProperties::default();
    let mut maintenance3 = vk::PhysicalDeviceMaintenance3Properties::default();
    let mut maintenance4 = vk::PhysicalDeviceMaintenance4Properties::default();
    let mut properties = vk::PhysicalDeviceProperties2::default()
        .push_next(&mut driver)
        .push_next(&mut maintenance3);
    if version(usable) >= (1, 3) {
        properties = properties.push_next(&mut maintenance4);
    }
    // SAFETY: as above; the chained structures belong to versions that the device has.
    unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
    let plain = properties.properties;
    let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut vulkan12);
    // SAFETY: as above.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    let core = features.features;
    let has = [
        core.sparse_binding,
        core.sparse_residency_buffer,
        vulkan12.timeline_semaphore,
        vulkan12.buffer_device_address,
    ];
    if let Some((feature, _)) = FEATURES.into_iter().zip(has).find(|(_, has)| *has == vk::FALSE) {
        return Err(Unavailable::MissingFeature { device: name, feature });
    }
    // SAFETY: as above.
    let (memory, families, extensions) = unsafe {
        (
            instance.get_physical_device_memory_properties(physical),
            instance.get_physical_device_queue_family_properties(physical),
            instance.enumerate_device_extension_properties(physical).unwrap_or_default(),
        )
    };
    let has_extension = |wanted: &CStr| {
        extensions.iter().any(|extension| extension.extension_name_as_c_str() == Ok(wanted))
    };
    let max_buffer = match maintenance4.max_buffer_size {
        // Older devices do not say.
        0 => u64::MAX,
        len => len,
    };
    let facts = Facts {
        driver: format!("{} {}", text(&driver.driver_name), text(&driver.driver_info)),
        api_version: [
            vk::api_version_major(plain.api_version),
            vk::api_version_minor(plain.api_version),
            vk::api_version_patch(plain.api_version),
        ],
        kind: plain.device_type,
        aliased: core.sparse_residency_aliased != vk::FALSE,
        strict_residency: plain.sparse_properties.residency_non_resident_strict != vk::FALSE,
        joins_binds: joins_binds(driver.driver_id, plain.driver_version),
        max_buffer,
        max_allocation: maintenance3.max_memory_allocation_size,
        sparse_space: plain.limits.sparse_address_space_size,
        wide_integers: core.shader_int64 != vk::FALSE,
        budget: has_extension(ash::ext::memory_budget::NAME),
        memory,
        families,
        name: name.clone(),
    };
    let Some(work) = facts.work_family() else {
        return Err(Unavailable::MissingFeature { device: name, feature: "compute queue" });
    };
    if facts.bind_family(work).is_none() {
        let feature = "queue with VK_QUEUE_SPARSE_BINDING_BIT";
        return Err(Unavailable::MissingFeature { device: name, feature });
    }
    Ok(facts)
}

/// Whether the driver may be given neighbouring ranges as one.
fn joins_binds(driver: vk::DriverId, version: u32) -> bool {
    // NVIDIA packs its versions in its own way: ten bits of major, eight of minor.
    driver != vk::DriverId::NVIDIA_PROPRIETARY || version >> 22 >= NVIDIA_JOINS_FROM
}

/// The text in one of Vulkan's fixed arrays of characters.
fn text(chars: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> =
        chars.iter().take_while(|c| **c != 0).map(|c| c.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(families: &[(vk::QueueFlags, u32)]) -> Facts {
        let family = |(queue_flags, queue_count): &(vk::QueueFlags, u32)| {
            let (queue_flags, queue_count) = (*queue_flags, *queue_count);
            vk::QueueFamilyProperties { queue_flags, queue_count, ..Default::default() }
        };
        Facts {
            name: String::new(),
            driver: String::new(),
            api_version: [1, 2, 0],
            kind: vk::PhysicalDeviceType::OTHER,
            aliased: false,
            strict_residency: false,
            joins_binds: true,
            max_buffer: 0,
            max_allocation: 0,
            sparse_space: 0,
            wide_integers: false,
            budget: false,
            memory: vk::PhysicalDeviceMemoryProperties::default(),
            families: families.iter().map(family).collect(),
        }
    }

    #[test]
    fn binds_have_a_queue_of_their_own_where_there_is_one() {
        const G: vk::QueueFlags = vk::QueueFlags::GRAPHICS;
        const C: vk::QueueFlags = vk::QueueFlags::COMPUTE;
        const T: vk::QueueFlags = vk::QueueFlags::TRANSFER;
        const S: vk::QueueFlags = vk::QueueFlags::SPARSE_BINDING;
        let check = |families: &[(vk::QueueFlags, u32)], work, bind| {
            let facts = facts(families);
            assert_eq!(facts.work_family(), work, "{families:?}");
            assert_eq!(work.and_then(|work| facts.bind_family(work)), bind, "{families:?}");
        };
        // lavapipe; an NVIDIA card; a card that binds on a family that does nothing else.
        check(&[(G | C | T | S, 1)], Some(0), Some(0));
        check(&[(G | C | T | S, 16), (T | S, 2), (C | T | S, 8)], Some(0), Some(1));
        check(&[(G | C | T, 1), (C | T, 4), (S, 1)], Some(0), Some(2));
        // No transfer queue that binds: a second queue of the same family, or another family.
        check(&[(G | C | T | S, 2), (C | S, 2)], Some(0), Some(0));
        check(&[(G | C | T | S, 1), (C | S, 2)], Some(0), Some(1));
        check(&[(C | T, 4)], Some(0), None);
        check(&[(T | S, 4)], None, None);
    }

    #[test]
    fn old_drivers_of_nvidia_get_every_piece_by_itself() {
        let nvidia = vk::DriverId::NVIDIA_PROPRIETARY;
        assert!(!joins_binds(nvidia, 525 << 22));
        assert!(joins_binds(nvidia, 535 << 22));
        assert!(joins_binds(vk::DriverId::MESA_RADV, 1));
    }
}

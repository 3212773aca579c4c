//! What NVML, NVIDIA's management library, knows of a card.
//!
//! It is loaded when it is asked for, and a machine without it is no error. NVML sees all cards and
//! numbers them by their place in the machine; CUDA numbers those that it may see in an order of its
//! own (`CUDA_VISIBLE_DEVICES`, `CUDA_DEVICE_ORDER`). So a card is found by its UUID.

use super::findings::Memory;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml, cuda_driver_version_major, cuda_driver_version_minor};

/// What NVML says of one card; what it does not know of this card is `None`.
#[derive(Debug, Default)]
pub(super) struct Board {
    pub(super) name: Option<String>,
    pub(super) uuid: Option<String>,
    pub(super) driver_version: Option<String>,
    pub(super) cuda_version: Option<String>,
    pub(super) memory: Option<Memory>,
    pub(super) utilisation_percent: Option<u32>,
    pub(super) memory_utilisation_percent: Option<u32>,
    pub(super) memory_clock_mhz: Option<u32>,
    pub(super) bus_width_bits: Option<u32>,
}

impl Board {
    /// The card that has this UUID, 16 bytes as CUDA gives them.
    ///
    /// # Errors
    /// Why there is no answer, and what to do.
    pub(super) fn of_uuid(uuid: &[u8; 16]) -> Result<Self, String> {
        let nvml = Nvml::init().map_err(|e| reason(&e))?;
        let text = hyphenated(uuid);
        // CUDA gives the UUID of a part of a card where the process was given one.
        let device = nvml
            .device_by_uuid(format!("GPU-{text}"))
            .or_else(|_| nvml.device_by_uuid(format!("MIG-{text}")))
            .map_err(|e| format!("it does not know the card {text}: {}", reason(&e)))?;
        Ok(Self::of(&nvml, &device))
    }

    /// The card of this index, as NVML counts.
    ///
    /// # Errors
    /// Why there is no answer, and what to do.
    pub(super) fn of_index(index: u32) -> Result<Self, String> {
        let nvml = Nvml::init().map_err(|e| reason(&e))?;
        let device = nvml
            .device_by_index(index)
            .map_err(|e| format!("it has no card {index}: {}", reason(&e)))?;
        Ok(Self::of(&nvml, &device))
    }

    fn of(nvml: &Nvml, device: &Device<'_>) -> Self {
        let utilisation = device.utilization_rates().ok();
        let cuda = nvml.sys_cuda_driver_version().ok();
        let memory = device.memory_info().ok();
        Self {
            name: device.name().ok(),
            uuid: device.uuid().ok(),
            driver_version: nvml.sys_driver_version().ok(),
            cuda_version: cuda.map(|packed| {
                let (major, minor) =
                    (cuda_driver_version_major(packed), cuda_driver_version_minor(packed));
                format!("{major}.{minor}")
            }),
            memory: memory.map(|info| Memory {
                total_bytes: Some(info.total),
                free_bytes: Some(info.free),
                used_bytes: Some(info.total - info.free.min(info.total)),
                largest_block_bytes: None,
            }),
            utilisation_percent: utilisation.as_ref().map(|rates| rates.gpu),
            memory_utilisation_percent: utilisation.as_ref().map(|rates| rates.memory),
            memory_clock_mhz: device.max_clock_info(Clock::Memory).ok(),
            bus_width_bits: device.memory_bus_width().ok(),
        }
    }
}

/// The error in words that say what to do.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!(
            "its library does not load: {error}; it comes with NVIDIA's driver, and in a container \
             needs the capability utility (NVIDIA_DRIVER_CAPABILITIES)"
        ),
        NvmlError::DriverNotLoaded => {
            "NVIDIA's driver is not loaded; install it, or load its kernel module".to_owned()
        }
        other => other.to_string(),
    }
}

/// 8-4-4-4-12 hexadecimal digits.
pub(super) fn hyphenated(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let mut uuid = [0; 16];
        for (byte, i) in uuid.iter_mut().zip(0..) {
            *byte = i * 16 + 1;
        }
        assert_eq!(hyphenated(&uuid), "01112131-4151-6171-8191-a1b1c1d1e1f1");
    }
}

//! Why there is no device.

use ash::vk;

/// Why a Vulkan device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The Vulkan loader is not there or does not load.
    #[error(
        "the Vulkan loader does not load: {reason}; install it (Debian and Ubuntu: libvulkan1) and a \
         driver"
    )]
    NoLoader {
        /// What the system says.
        reason: String,
    },
    /// The validation layer was asked for and is not installed.
    #[error(
        "the validation layer VK_LAYER_KHRONOS_validation is not installed; install it (Debian and \
         Ubuntu: vulkan-validationlayers) or open the device without validation"
    )]
    NoValidationLayer,
    /// The loader finds no driver that loads.
    #[error(
        "the Vulkan loader finds no driver that it can load (vkCreateInstance: \
         ERROR_INCOMPATIBLE_DRIVER); install one (without a GPU: lavapipe, from Debian's and Ubuntu's \
         mesa-vulkan-drivers), check that VK_DRIVER_FILES names it if that is set, and let \
         VK_LOADER_DEBUG=error,warn say what was tried"
    )]
    NoDriver,
    /// There are drivers, and none has a device.
    #[error(
        "Vulkan's drivers load and see no device (vkEnumeratePhysicalDevices: none); check that the \
         process may open the card's device files, or install lavapipe (Debian's and Ubuntu's \
         mesa-vulkan-drivers)"
    )]
    NoDevice,
    /// No device has the index or the name that was asked for.
    #[error("there is no Vulkan device {wanted}; there are: {}", list(found))]
    NoSuchDevice {
        /// The index, or a part of the name.
        wanted: String,
        /// The names of those that there are, by index.
        found: Vec<String>,
    },
    /// The loader or the device is older than what this crate needs. Versions are Vulkan's.
    #[error(
        "{what} is made for Vulkan {}.{}; Vulkan {}.{} is needed: install a newer one",
        found.0, found.1, needed.0, needed.1
    )]
    TooOld {
        /// The loader, or the name of the device.
        what: String,
        /// Its version, major and minor.
        found: (u32, u32),
        /// The oldest that will do.
        needed: (u32, u32),
    },
    /// The device lacks something that a pool of virtual memory cannot do without.
    #[error(
        "the Vulkan device {device} is not supported: it has no {feature}; choose another device or \
         install a newer driver (lavapipe has it from Mesa 25.0)"
    )]
    MissingFeature {
        /// The name of the device.
        device: String,
        /// The feature, by the name it has in the Vulkan specification.
        feature: &'static str,
    },
    /// The options, or the parts that were handed over, do not fit the device.
    #[error("the Vulkan device {device} cannot be used as was asked: {reason}")]
    BadParts {
        /// The name of the device.
        device: String,
        /// What is wrong, and what to do.
        reason: &'static str,
    },
    /// A call of the driver failed.
    #[error(
        "{call} failed with {result:?}; look the code up in the Vulkan specification, and check the \
         kernel's log (dmesg) for messages of the driver"
    )]
    Call {
        /// The function.
        call: &'static str,
        /// Its result.
        result: vk::Result,
    },
}

fn list(names: &[String]) -> String {
    let numbered = names.iter().enumerate().map(|(index, name)| format!("{index}: {name}"));
    numbered.collect::<Vec<_>>().join(", ")
}

/// Names the call whose result an error is.
pub(crate) fn call(call: &'static str) -> impl Fn(vk::Result) -> Unavailable {
    move |result| Unavailable::Call { call, result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_say_what_and_what_to_do() {
        let check = |error: Unavailable, parts: &[&str]| {
            let text = error.to_string();
            parts.iter().for_each(|part| assert!(text.contains(part), "{part} in: {text}"));
        };
        let found = vec!["llvmpipe".to_owned(), "H200".to_owned()];
        let wanted = "7".to_owned();
        check(Unavailable::NoSuchDevice { wanted, found }, &["device 7", "0: llvmpipe, 1: H200"]);
        let device = "old card".to_owned();
        let missing = Unavailable::MissingFeature { device, feature: "sparseBinding" };
        check(missing, &["old card", "not supported", "no sparseBinding", "choose another device"]);
        let result = vk::Result::ERROR_INITIALIZATION_FAILED;
        check(
            call("vkCreateDevice")(result),
            &["vkCreateDevice", "INITIALIZATION_FAILED", "dmesg"],
        );
        check(Unavailable::NoDriver, &["INCOMPATIBLE_DRIVER", "install one", "VK_DRIVER_FILES"]);
        check(Unavailable::NoDevice, &["vkEnumeratePhysicalDevices", "device files"]);
    }
}

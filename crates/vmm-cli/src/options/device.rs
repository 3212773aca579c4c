//! The names of devices.

use std::fmt;
use std::str::FromStr;
use vmm_vulkan::DeviceChoice;

/// A device that the command can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOption {
    /// Host-only, with the rules and the measured costs of an NVIDIA H200.
    Mock,
    /// The CUDA card of this ordinal, as the driver counts those that the process may see.
    Cuda(u32),
    /// The Vulkan device of that choice.
    Vulkan(DeviceChoice),
}

impl FromStr for DeviceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (api, which) = match text.trim().split_once(':') {
            Some((api, which)) => (api, Some(which.trim())),
            None => (text.trim(), None),
        };
        match (api, which) {
            ("mock", None) => Ok(Self::Mock),
            ("cuda", None) => Ok(Self::Cuda(0)),
            ("cuda", Some(ordinal)) => ordinal.parse().map(Self::Cuda).map_err(|_| {
                format!("'{ordinal}' is no number of a card: write cuda:0, cuda:1 and so on")
            }),
            ("vulkan", None) => Ok(Self::Vulkan(DeviceChoice::Best)),
            ("vulkan", Some("")) => {
                Err("write vulkan:0, vulkan:1 and so on, or a part of the device's name".to_owned())
            }
            ("vulkan", Some(choice)) => Ok(Self::Vulkan(DeviceChoice::parse(choice))),
            _ => Err(format!(
                "unknown device '{text}': use mock, cuda, cuda:N, vulkan, vulkan:N or vulkan:NAME"
            )),
        }
    }
}

impl fmt::Display for DeviceOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mock => f.write_str("mock"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Vulkan(DeviceChoice::Best) => f.write_str("vulkan"),
            Self::Vulkan(DeviceChoice::Index(index)) => write!(f, "vulkan:{index}"),
            Self::Vulkan(DeviceChoice::Name(name)) => write!(f, "vulkan:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let parse = str::parse::<DeviceOption>;
        assert_eq!(parse("mock"), Ok(DeviceOption::Mock));
        assert_eq!(parse("cuda"), Ok(DeviceOption::Cuda(0)));
        assert_eq!(parse("cuda:3"), Ok(DeviceOption::Cuda(3)));
        assert_eq!(parse("vulkan"), Ok(DeviceOption::Vulkan(DeviceChoice::Best)));
        assert_eq!(parse("vulkan:1"), Ok(DeviceOption::Vulkan(DeviceChoice::Index(1))));
        let named = DeviceOption::Vulkan(DeviceChoice::Name("NVIDIA H200".to_owned()));
        assert_eq!(parse("vulkan: NVIDIA H200"), Ok(named.clone()));
        let wrong = ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "mock:0", "cuda:99999999999"];
        for wrong in wrong.into_iter().chain(["vulkan:", "vulkan0"]) {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        let best = DeviceOption::Vulkan(DeviceChoice::Best);
        let second = DeviceOption::Vulkan(DeviceChoice::Index(1));
        for device in [DeviceOption::Mock, DeviceOption::Cuda(2), best, second, named] {
            assert_eq!(parse(&device.to_string()), Ok(device));
        }
    }
}

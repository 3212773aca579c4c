//! The names of devices.

use std::fmt;
use std::str::FromStr;

/// A device that the command can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOption {
    /// Host-only, with the rules and the measured costs of an NVIDIA H200.
    Mock,
    /// The CUDA card of this ordinal, as the driver counts those that the process may see.
    Cuda(u32),
}

impl FromStr for DeviceOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device '{text}': use mock, cuda or cuda:N");
        match text.trim() {
            "mock" => Ok(Self::Mock),
            "cuda" => Ok(Self::Cuda(0)),
            other => {
                let ordinal = other.strip_prefix("cuda:").ok_or_else(unknown)?;
                let ordinal = ordinal.parse().map_err(|_| {
                    format!("'{ordinal}' is no number of a card: write cuda:0, cuda:1 and so on")
                })?;
                Ok(Self::Cuda(ordinal))
            }
        }
    }
}

impl fmt::Display for DeviceOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mock => f.write_str("mock"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
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
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "mock:0", "cuda:99999999999"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        for device in [DeviceOption::Mock, DeviceOption::Cuda(2)] {
            assert_eq!(parse(&device.to_string()), Ok(device));
        }
    }
}

//! The driver's results as errors of the device interface.

use crate::driver::Driver;
use crate::ffi::{Code, code};
use vmm_core::device::{AddrRange, DeviceError, DeviceErrorKind, DeviceOp};
use vmm_core::units::DeviceAddr;

/// Which call an error would be about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) op: DeviceOp,
    pub(crate) addr: DeviceAddr,
    pub(crate) len: u64,
}

impl About {
    pub(crate) fn op(op: DeviceOp) -> Self {
        Self::range(op, AddrRange { addr: DeviceAddr(0), len: 0 })
    }

    pub(crate) fn len(op: DeviceOp, len: u64) -> Self {
        Self::range(op, AddrRange { addr: DeviceAddr(0), len })
    }

    pub(crate) fn range(op: DeviceOp, range: AddrRange) -> Self {
        Self { op, addr: range.addr, len: range.len }
    }

    /// An error that no call of the driver has returned.
    pub(crate) fn error(self, kind: DeviceErrorKind, detail: &'static str) -> DeviceError {
        DeviceError { addr: self.addr, len: self.len, ..DeviceError::new(self.op, kind, detail) }
    }

    /// The error of a call that has returned `result`, which is not success.
    pub(crate) fn failed(self, driver: &Driver, result: Code) -> DeviceError {
        let kind = kind_of(self.op, result);
        let detail = driver.name_of(result);
        DeviceError { code: i64::from(result), ..self.error(kind, detail) }
    }
}

fn kind_of(op: DeviceOp, result: Code) -> DeviceErrorKind {
    match result {
        // A reservation takes addresses, and what is too long for the driver is refused as a value.
        code::OUT_OF_MEMORY | code::INVALID_VALUE if op == DeviceOp::Reserve => {
            DeviceErrorKind::OutOfAddresses
        }
        code::OUT_OF_MEMORY => DeviceErrorKind::OutOfMemory,
        code::NOT_SUPPORTED | code::PEER_ACCESS_UNSUPPORTED => DeviceErrorKind::NotSupported,
        code::NOT_READY => DeviceErrorKind::NotReady,
        code::NOT_INITIALIZED
        | code::DEINITIALIZED
        | code::INVALID_CONTEXT
        | code::CONTEXT_IS_DESTROYED => DeviceErrorKind::Deinitialized,
        _ => DeviceErrorKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_call_and_the_result() {
        let cases = [
            (DeviceOp::MakeFrame, 2, DeviceErrorKind::OutOfMemory),
            (DeviceOp::Map, 2, DeviceErrorKind::OutOfMemory),
            (DeviceOp::Reserve, 2, DeviceErrorKind::OutOfAddresses),
            (DeviceOp::Reserve, 1, DeviceErrorKind::OutOfAddresses),
            (DeviceOp::Map, 1, DeviceErrorKind::Failed),
            (DeviceOp::Map, 801, DeviceErrorKind::NotSupported),
            (DeviceOp::SetAccess, 217, DeviceErrorKind::NotSupported),
            (DeviceOp::SetAccess, 600, DeviceErrorKind::NotReady),
            // Frames with the flag for network cards, where the driver cannot keep the promise.
            (DeviceOp::SetAccess, 999, DeviceErrorKind::Failed),
            (DeviceOp::Record, 3, DeviceErrorKind::Deinitialized),
            (DeviceOp::Record, 4, DeviceErrorKind::Deinitialized),
            (DeviceOp::Record, 201, DeviceErrorKind::Deinitialized),
            (DeviceOp::Record, 709, DeviceErrorKind::Deinitialized),
            (DeviceOp::Copy, 700, DeviceErrorKind::Failed),
        ];
        for (op, result, kind) in cases {
            assert_eq!(kind_of(op, result), kind, "{op} {result}");
        }
    }
}

//! Results of the driver as errors of the device interface.

use ash::vk;
use vmm_core::device::{AddrRange, DeviceError, DeviceErrorKind, DeviceOp};
use vmm_core::units::DeviceAddr;

/// What a call is about, for its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    op: DeviceOp,
    addr: DeviceAddr,
    len: u64,
}

impl Call {
    pub(crate) fn of(op: DeviceOp) -> Self {
        Self { op, addr: DeviceAddr(0), len: 0 }
    }

    pub(crate) fn on(op: DeviceOp, range: AddrRange) -> Self {
        Self { op, addr: range.addr, len: range.len }
    }

    pub(crate) fn with_len(op: DeviceOp, len: u64) -> Self {
        Self { op, addr: DeviceAddr(0), len }
    }

    pub(crate) fn error(self, kind: DeviceErrorKind, detail: &'static str) -> DeviceError {
        DeviceError { addr: self.addr, len: self.len, ..DeviceError::new(self.op, kind, detail) }
    }

    /// A call that broke the contract.
    pub(crate) fn illegal(self, detail: &'static str) -> DeviceError {
        self.error(DeviceErrorKind::Illegal, detail)
    }

    /// What the driver said.
    pub(crate) fn failed(self, result: vk::Result) -> DeviceError {
        let (kind, detail) = meaning(result);
        let code = i64::from(result.as_raw());
        DeviceError { op: self.op, kind, addr: self.addr, len: self.len, code, detail }
    }

    /// What the driver said of a reservation, which needs addresses and no memory to speak of.
    pub(crate) fn failed_to_reserve(self, result: vk::Result) -> DeviceError {
        let error = self.failed(result);
        if error.kind == DeviceErrorKind::OutOfMemory {
            return DeviceError { kind: DeviceErrorKind::OutOfAddresses, ..error };
        }
        error
    }
}

fn meaning(result: vk::Result) -> (DeviceErrorKind, &'static str) {
    match result {
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            (DeviceErrorKind::OutOfMemory, "VK_ERROR_OUT_OF_DEVICE_MEMORY")
        }
        vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
            (DeviceErrorKind::OutOfMemory, "VK_ERROR_OUT_OF_HOST_MEMORY")
        }
        vk::Result::ERROR_TOO_MANY_OBJECTS => {
            (DeviceErrorKind::OutOfMemory, "VK_ERROR_TOO_MANY_OBJECTS")
        }
        // A lost device keeps nothing, and every later call fails the same way.
        vk::Result::ERROR_DEVICE_LOST => (DeviceErrorKind::Deinitialized, "VK_ERROR_DEVICE_LOST"),
        vk::Result::ERROR_INITIALIZATION_FAILED => {
            (DeviceErrorKind::Failed, "VK_ERROR_INITIALIZATION_FAILED")
        }
        vk::Result::ERROR_MEMORY_MAP_FAILED => {
            (DeviceErrorKind::Failed, "VK_ERROR_MEMORY_MAP_FAILED")
        }
        vk::Result::ERROR_UNKNOWN => (DeviceErrorKind::Failed, "VK_ERROR_UNKNOWN"),
        _ => (DeviceErrorKind::Failed, "an error of the Vulkan driver"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_code() {
        let call = Call::with_len(DeviceOp::Reserve, 64);
        let error = call.failed(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY);
        assert_eq!((error.kind, error.code, error.len), (DeviceErrorKind::OutOfMemory, -2, 64));
        let error = call.failed_to_reserve(vk::Result::ERROR_OUT_OF_HOST_MEMORY);
        assert_eq!((error.kind, error.code), (DeviceErrorKind::OutOfAddresses, -1));
        let error = call.failed_to_reserve(vk::Result::ERROR_DEVICE_LOST);
        assert_eq!(error.kind, DeviceErrorKind::Deinitialized);
    }
}

//! Why there is no device.

/// Why a CUDA device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The driver's library is not there or does not load.
    #[error(
        "the CUDA driver library (libcuda.so.1) does not load: {reason}; install NVIDIA's driver, \
         or in a container start it with access to the GPU"
    )]
    NoLibrary {
        /// What the loader says.
        reason: String,
    },
    /// The library lacks a function that every supported driver has.
    #[error(
        "the CUDA driver library has no function {symbol}; install a driver for CUDA {}.{} or newer",
        NEEDED.0, NEEDED.1
    )]
    Incomplete {
        /// The function.
        symbol: &'static str,
    },
    /// The driver is older than what this crate needs. Versions are CUDA's, major and minor.
    #[error(
        "the driver is made for CUDA {}.{}; install one for CUDA {}.{} or newer",
        found.0, found.1, needed.0, needed.1
    )]
    TooOld {
        /// The driver's version.
        found: (u32, u32),
        /// The oldest that will do.
        needed: (u32, u32),
    },
    /// The driver sees no device.
    #[error(
        "the CUDA driver sees no device; check that nvidia-smi lists one and that \
         CUDA_VISIBLE_DEVICES does not hide it"
    )]
    NoDevice,
    /// The machine has fewer devices.
    #[error("there is no CUDA device {ordinal}: the driver sees {count}, counted from 0")]
    NoSuchDevice {
        /// The ordinal that was asked for.
        ordinal: u32,
        /// How many devices there are.
        count: u32,
    },
    /// The machine has no such NUMA node, or the device cannot reach its memory.
    #[error(
        "the device cannot use memory of NUMA node {node}; choose one that numactl --hardware lists, \
         or leave the choice to the device"
    )]
    NoSuchNode {
        /// The node that was asked for.
        node: u32,
    },
    /// The process is a fork of one that had used CUDA, which the driver does not support.
    #[error(
        "this process was forked from one that had used CUDA already; start it anew (exec, or the \
         spawn method of Python's multiprocessing)"
    )]
    Forked,
    /// A call of the driver failed.
    #[error(
        "{call} failed with code {code} ({detail}); look it up under CUresult in NVIDIA's documentation of the driver, and check the kernel's log (dmesg) for messages of the driver"
    )]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its result.
        code: i32,
        /// The driver's name for the result.
        detail: &'static str,
    },
}

/// The oldest driver that will do, as a version of CUDA.
pub(crate) const NEEDED: (u32, u32) = (11, 4);

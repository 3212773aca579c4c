//! What went wrong, kept for the thread that it went wrong in.

use crate::sized::SizedStruct;
use crate::status::vmm_status_t;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use vmm_core::{AllocError, DeviceError, DeviceErrorKind, OutOfMemory, PoolError};

/// A call that failed: what its caller is told.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) status: vmm_status_t,
    pub(crate) text: String,
    pub(crate) out_of_memory: Option<vmm_out_of_memory_t>,
}

impl Fault {
    #[cold]
    pub(crate) fn new(status: vmm_status_t, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), out_of_memory: None }
    }

    #[cold]
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(vmm_status_t::VMM_INVALID_ARGUMENT, text)
    }

    #[cold]
    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("no text");
        let text =
            format!("a fault inside the library: {text}; please report it with what led to it");
        Self::new(vmm_status_t::VMM_PANICKED, text)
    }
}

impl From<DeviceError> for Fault {
    #[cold]
    fn from(error: DeviceError) -> Self {
        let status = match error.kind {
            DeviceErrorKind::Deinitialized => vmm_status_t::VMM_DEVICE_LOST,
            DeviceErrorKind::NotSupported => vmm_status_t::VMM_NOT_SUPPORTED,
            _ => vmm_status_t::VMM_DEVICE_FAILED,
        };
        Self::new(status, error.to_string())
    }
}

impl From<AllocError> for Fault {
    #[cold]
    fn from(error: AllocError) -> Self {
        let text = error.to_string();
        match error {
            AllocError::TooLarge { .. } => Self::new(vmm_status_t::VMM_TOO_LARGE, text),
            AllocError::OutOfMemory(facts) => Self {
                status: vmm_status_t::VMM_OUT_OF_MEMORY,
                text,
                out_of_memory: Some(vmm_out_of_memory_t::new(&facts)),
            },
            AllocError::Device(error) => error.into(),
        }
    }
}

impl From<PoolError> for Fault {
    #[cold]
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Device(error) => error.into(),
            PoolError::NotSupported { .. } => {
                Self::new(vmm_status_t::VMM_NOT_SUPPORTED, error.to_string())
            }
            PoolError::Capturing => Self::new(vmm_status_t::VMM_CAPTURING, error.to_string()),
            PoolError::NotALease(_) => Self::new(vmm_status_t::VMM_NOT_A_LEASE, error.to_string()),
            PoolError::Options(_) => Self::argument(error.to_string()),
            PoolError::TooManyPrivatePools { .. } => {
                Self::new(vmm_status_t::VMM_OUT_OF_MEMORY, error.to_string())
            }
        }
    }
}

/// The state of a pool when it could do nothing more for a request, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_out_of_memory_t {
    /// Set it to `sizeof(vmm_out_of_memory_t)` before the call.
    pub size: usize,
    /// What was asked for.
    pub requested: u64,
    /// The limit of the pool; 0: none.
    pub limit: u64,
    /// Physical memory of the pool.
    pub reserved: u64,
    /// In leases.
    pub live: u64,
    /// Released but still in use by queued work.
    pub retired: u64,
    /// The largest request that would have succeeded, as far as the pool could tell.
    pub largest_possible: u64,
    /// Not 0: the device refused memory before the limit was reached.
    pub device_refused: u32,
    /// Always 0.
    pub reserved_for_later: u32,
    /// The driver's own code where the device refused, else 0.
    pub device_code: i64,
}

// SAFETY: `size` comes first, all other fields are integers, and the fields leave no gap: 64-bit
// ones, and two 32-bit ones side by side.
unsafe impl SizedStruct for vmm_out_of_memory_t {}

impl vmm_out_of_memory_t {
    fn new(facts: &OutOfMemory) -> Self {
        Self {
            size: size_of::<Self>(),
            requested: facts.requested,
            limit: facts.limit.unwrap_or(0),
            reserved: facts.reserved,
            live: facts.live,
            retired: facts.retired,
            largest_possible: facts.largest_possible,
            device_refused: u32::from(facts.device.is_some()),
            reserved_for_later: 0,
            device_code: facts.device.map_or(0, |error| error.code),
        }
    }
}

#[derive(Debug, Default)]
struct Last {
    text: CString,
    out_of_memory: Option<vmm_out_of_memory_t>,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Keeps a fault for the functions below.
#[cold]
pub(crate) fn keep(fault: Fault) -> vmm_status_t {
    let Fault { status, text, out_of_memory } = fault;
    let mut bytes = text.into_bytes();
    bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'?');
    let text = CString::new(bytes).unwrap_or_default();
    // A thread that is ending has nowhere to keep it, and nobody to read it.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.text = text;
        if out_of_memory.is_some() {
            last.out_of_memory = out_of_memory;
        }
    });
    status
}

/// Says what went wrong in the last call of this thread that failed, with the facts: for an
/// out-of-memory the limit, what is reserved and live, the largest request possible and the largest
/// holders. An empty text if none has failed.
///
/// The text belongs to the library and stays as it is until the next call of this thread fails, or
/// the thread ends. A call that succeeds does not change it.
#[unsafe(no_mangle)]
pub extern "C" fn vmm_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The figures of the last `VMM_OUT_OF_MEMORY` of this thread, for those who make a message of
/// their own. `VMM_INVALID_ARGUMENT` if there was none.
///
/// # Safety
/// `out` is NULL or points to a `vmm_out_of_memory_t` whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_last_out_of_memory(out: *mut vmm_out_of_memory_t) -> vmm_status_t {
    crate::guard::call(|| {
        let facts = LAST.try_with(|last| last.borrow().out_of_memory).ok().flatten();
        let facts = facts
            .ok_or_else(|| Fault::argument("no allocation of this thread ran out of memory"))?;
        // SAFETY: what this function asks of its caller is what `write_to` asks.
        unsafe { facts.write_to(out, "out") }
    })
}

//! What a call came to.

use std::ffi::{CStr, c_char};

/// What a call came to. A value exists because a caller acts differently on it; the facts of a
/// failure are in `vmm_last_error`. Later versions may have more values.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_status_t {
    /// The call did what it says.
    VMM_OK = 0,
    /// An argument makes no sense. Nothing has changed.
    VMM_INVALID_ARGUMENT = 1,
    /// No memory now; it may succeed once others release. Nothing has changed.
    /// `vmm_last_out_of_memory` has the figures.
    VMM_OUT_OF_MEMORY = 2,
    /// No state of the pool could ever serve this. A retry cannot help.
    VMM_TOO_LARGE = 3,
    /// `vmm_allocate_at_hand` found no memory at hand.
    VMM_NOT_AT_HAND = 4,
    /// The address is not that of a live lease of this pool: released already, or never given out
    /// by it. Nothing has changed.
    VMM_NOT_A_LEASE = 5,
    /// The device cannot do this.
    VMM_NOT_SUPPORTED = 6,
    /// There is no such device here, or no driver for it.
    VMM_UNAVAILABLE = 7,
    /// A stream is capturing a graph, which the call would break. Call again afterwards.
    VMM_CAPTURING = 8,
    /// A device call failed in a way that memory cannot mend.
    VMM_DEVICE_FAILED = 9,
    /// The driver or its context has shut down: all memory of the pool is gone.
    VMM_DEVICE_LOST = 10,
    /// A file could not be written.
    VMM_IO_FAILED = 11,
    /// A fault inside the library. The pool refuses further use; its memory stays as it is.
    VMM_PANICKED = 12,
}

use vmm_status_t::{
    VMM_CAPTURING, VMM_DEVICE_FAILED, VMM_DEVICE_LOST, VMM_INVALID_ARGUMENT, VMM_IO_FAILED,
    VMM_NOT_A_LEASE, VMM_NOT_AT_HAND, VMM_NOT_SUPPORTED, VMM_OK, VMM_OUT_OF_MEMORY, VMM_PANICKED,
    VMM_TOO_LARGE, VMM_UNAVAILABLE,
};

const NAMES: [(vmm_status_t, &CStr); 13] = [
    (VMM_OK, c"VMM_OK"),
    (VMM_INVALID_ARGUMENT, c"VMM_INVALID_ARGUMENT"),
    (VMM_OUT_OF_MEMORY, c"VMM_OUT_OF_MEMORY"),
    (VMM_TOO_LARGE, c"VMM_TOO_LARGE"),
    (VMM_NOT_AT_HAND, c"VMM_NOT_AT_HAND"),
    (VMM_NOT_A_LEASE, c"VMM_NOT_A_LEASE"),
    (VMM_NOT_SUPPORTED, c"VMM_NOT_SUPPORTED"),
    (VMM_UNAVAILABLE, c"VMM_UNAVAILABLE"),
    (VMM_CAPTURING, c"VMM_CAPTURING"),
    (VMM_DEVICE_FAILED, c"VMM_DEVICE_FAILED"),
    (VMM_DEVICE_LOST, c"VMM_DEVICE_LOST"),
    (VMM_IO_FAILED, c"VMM_IO_FAILED"),
    (VMM_PANICKED, c"VMM_PANICKED"),
];

/// The name of a status, `VMM_OUT_OF_MEMORY` say; "unknown status" for a number that is none. The
/// text lives as long as the library.
#[unsafe(no_mangle)]
pub extern "C" fn vmm_status_name(status: u32) -> *const c_char {
    let name = NAMES.iter().find(|(known, _)| *known as u32 == status);
    name.map_or(c"unknown status", |(_, name)| name).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_the_name_that_c_knows_it_by() {
        for (number, (status, name)) in (0_u32..).zip(NAMES) {
            assert_eq!(status as u32, number);
            assert_eq!(format!("{status:?}"), name.to_str().unwrap());
        }
    }
}

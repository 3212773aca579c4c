//! Which version this is.

use std::ffi::{CStr, c_char};

/// The first part of the version of this header.
pub const VMM_VERSION_MAJOR: u32 = 0;
/// Its second part.
pub const VMM_VERSION_MINOR: u32 = 1;
/// Its third part.
pub const VMM_VERSION_PATCH: u32 = 0;

const TEXT: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the version ends in the only zero"),
    };

/// The version of the library as a text, "0.1.0". It may be later than that of the header a program
/// was compiled with. The text lives as long as the library.
#[unsafe(no_mangle)]
pub extern "C" fn vmm_version() -> *const c_char {
    TEXT.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_package_agree() {
        let parts =
            [VMM_VERSION_MAJOR, VMM_VERSION_MINOR, VMM_VERSION_PATCH].map(|n| n.to_string());
        assert_eq!(parts.join("."), TEXT.to_str().unwrap());
    }
}

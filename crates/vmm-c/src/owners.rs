//! Owners by number: what C passes instead of an [`Owner`].

use crate::error::Fault;
use crate::guard;
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};
use vmm_core::Owner;

/// The owners of one pool. Reading one takes no lock.
#[derive(Debug)]
pub(crate) struct Owners {
    /// By number.
    list: boxcar::Vec<Owner>,
    numbers: Mutex<HashMap<Owner, u32>>,
}

impl Owners {
    pub(crate) fn new() -> Self {
        let nobody = HashMap::from([(Owner::NONE, 0)]);
        Self { list: boxcar::vec![Owner::NONE], numbers: Mutex::new(nobody) }
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Result<Owner, Fault> {
        if number == 0 {
            return Ok(Owner::NONE);
        }
        self.list.get(number as usize).copied().ok_or_else(|| {
            Fault::argument(format!(
                "there is no owner {number} in this pool: make it with vmm_owner, or pass 0 for \
                 nobody in particular"
            ))
        })
    }

    pub(crate) fn number(&self, owner: Owner) -> u32 {
        let mut numbers = self.numbers.lock();
        // Under the lock, so that the same owner gets one number.
        *numbers.entry(owner).or_insert_with(|| {
            u32::try_from(self.list.push(owner)).expect("fewer than 2^32 owners")
        })
    }
}

/// The number of the owner of this name, for accounts and error messages; the same name has the
/// same number. It is valid in this pool, for as long as that lives. Costs a lookup: keep it.
///
/// # Safety
/// `pool` is NULL or lives, `name` is NULL or a text that ends in a zero
/// byte, `owner` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_owner(
    pool: *mut vmm_pool_t,
    name: *const c_char,
    owner: *mut u32,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        if name.is_null() {
            return Err(Fault::argument("name is NULL"));
        }
        // SAFETY: not NULL as checked, and a text by this function's contract.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let number = pool.owners.number(pool.pool.owner(&name));
        // SAFETY: by this function's contract.
        unsafe { guard::write(owner, number, "owner") }
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

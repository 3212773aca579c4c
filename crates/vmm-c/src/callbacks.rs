//! Callbacks before an allocation fails.

use crate::error::Fault;
use crate::guard;
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use vmm_core::Pressure;

/// What a pressure callback learns, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_pressure_t {
    /// The size of this struct; a later library may have more fields.
    pub size: usize,
    /// What an allocation is about to fail for.
    pub requested: u64,
    /// Physical memory of the pool.
    pub reserved: u64,
    /// The limit of the pool; 0: none.
    pub limit: u64,
}

/// Called before an allocation fails, in the thread that allocates and without any lock. It may
/// release leases and call the pool, but not destroy it; an allocation that fails in it calls no
/// callbacks. It must return: neither an exception nor `longjmp` may leave it. `pressure` lives
/// until it returns.
pub type vmm_pressure_callback_t =
    Option<unsafe extern "C" fn(pressure: *const vmm_pressure_t, user_data: *mut c_void)>;

/// The callbacks of one pool.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    entries: Vec<Arc<Entry>>,
    last_number: u64,
    /// The pool knows of this list. Before that, failing allocations need not look at it.
    installed: bool,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    callback: unsafe extern "C" fn(*const vmm_pressure_t, *mut c_void),
    user_data: UserData,
    state: Mutex<EntryState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct EntryState {
    removed: bool,
    running: u32,
}

#[derive(Debug)]
struct UserData(*mut c_void);

// SAFETY: this library only hands the pointer back. Whoever adds a callback says, by the contract
// of `vmm_add_pressure_callback`, that it may be called with it from any thread, also from several
// at once.
unsafe impl Send for UserData {}
// SAFETY: as for `Send`.
unsafe impl Sync for UserData {}

thread_local! {
    /// This thread is inside a callback.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Entry {
    fn call(&self, pressure: &vmm_pressure_t) {
        {
            let mut state = self.state.lock();
            if state.removed {
                return;
            }
            state.running += 1;
        }
        let before = INSIDE.replace(true);
        // SAFETY: by the contract of `vmm_add_pressure_callback` the function can be called with
        // this data, from any thread, until its removal has returned: which waits for us.
        unsafe { (self.callback)(pressure, self.user_data.0) };
        INSIDE.set(before);
        self.state.lock().running -= 1;
        self.returned.notify_all();
    }

    /// No call begins from now on. Waits for those under way, unless this thread is in one itself.
    fn remove(&self) {
        let mut state = self.state.lock();
        state.removed = true;
        while state.running > 0 && !INSIDE.get() {
            self.returned.wait(&mut state);
        }
    }
}

impl Callbacks {
    fn call(&self, pressure: &Pressure) {
        let entries = self.list.lock().entries.clone();
        let pressure = vmm_pressure_t {
            size: size_of::<vmm_pressure_t>(),
            requested: pressure.requested,
            reserved: pressure.reserved,
            limit: pressure.limit.unwrap_or(0),
        };
        for entry in entries {
            entry.call(&pressure);
        }
    }

    /// Removes all, for the end of a pool.
    pub(crate) fn clear(&self) {
        self.list.lock().entries.clear();
    }
}

/// Adds a callback that is called before an allocation of the pool fails; the allocation is tried
/// once more afterwards. Several are called in the order in which they were added. `id` names this
/// one for its removal.
///
/// # Safety
/// `pool` is NULL or lives, `id` is NULL or can be written. `callback` can
/// be called with `user_data` by any thread, also by several at once, until
/// `vmm_remove_pressure_callback` has returned or the pool is destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_add_pressure_callback(
    pool: *mut vmm_pool_t,
    callback: vmm_pressure_callback_t,
    user_data: *mut c_void,
    id: *mut u64,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let callback = callback.ok_or_else(|| Fault::argument("callback is NULL"))?;
        let mut list = pool.callbacks.list.lock();
        let number = list.last_number + 1;
        // SAFETY: by this function's contract.
        unsafe { guard::write(id, number, "id")? };
        list.last_number = number;
        list.entries.push(Arc::new(Entry {
            number,
            callback,
            user_data: UserData(user_data),
            state: Mutex::default(),
            returned: Condvar::new(),
        }));
        if !std::mem::replace(&mut list.installed, true) {
            // The pool keeps it for good, so it must not hold the pool.
            let callbacks = Arc::clone(&pool.callbacks);
            pool.pool.on_pressure(Arc::new(move |pressure| callbacks.call(pressure)));
        }
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// Removes a callback, and waits for calls of it that are under way: afterwards `user_data` may go.
/// Called from inside a callback it does not wait. `VMM_INVALID_ARGUMENT` if there is none of this
/// `id`.
///
/// # Safety
/// `pool` is NULL or lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_remove_pressure_callback(
    pool: *mut vmm_pool_t,
    id: u64,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let entry = {
            let mut list = pool.callbacks.list.lock();
            let at = list.entries.iter().position(|entry| entry.number == id);
            let at = at.ok_or_else(|| {
                Fault::argument(format!(
                    "there is no pressure callback {id}: it was removed already, or never added"
                ))
            })?;
            list.entries.remove(at)
        };
        entry.remove();
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

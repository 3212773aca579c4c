//! Forks.
//!
//! The driver does not work in a fork of a process that has used it: its threads are not there, and
//! its locks stay as they were. So the child makes no call at all. That it is one must be cheap to
//! see, for every call asks.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// From now on children of this process know that they are forks.
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, which is legal in the child of a process with
        // many threads. It stays valid: code that Rust links is not unloaded while it is in use.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        assert_eq!(result, 0, "no memory for the handler of forks");
    });
}

/// Whether this process was forked from one that had loaded the driver.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

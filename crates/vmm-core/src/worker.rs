//! The thread that does maintenance, so that allocations need not.

use crate::device::VirtualMemoryDevice;
use crate::pool::Inner;
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the worker looks by itself: stale mappings become free without anybody telling.
const LOOK: Duration = Duration::from_millis(2);

#[derive(Debug, Default)]
struct Signal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    woken: bool,
    stopped: bool,
}

#[derive(Debug)]
pub(crate) struct Worker {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// # Panics
    /// If the system cannot start a thread.
    pub(crate) fn start<D: VirtualMemoryDevice + 'static>(pool: Weak<Inner<D>>) -> Self {
        let signal = Arc::new(Signal::default());
        let seen = signal.clone();
        let thread = std::thread::Builder::new()
            .name("vmm-maintenance".into())
            .spawn(move || work(&pool, &seen))
            .expect("a thread for maintenance");
        Self { signal, thread }
    }

    pub(crate) fn wake(&self) {
        self.signal.state.lock().woken = true;
        self.signal.changed.notify_one();
    }

    pub(crate) fn stop(self) {
        self.signal.state.lock().stopped = true;
        self.signal.changed.notify_one();
        // The worker itself may hold the last reference to the pool and so run this.
        if self.thread.thread().id() != std::thread::current().id() {
            drop(self.thread.join());
        }
    }
}

fn work<D: VirtualMemoryDevice + 'static>(pool: &Weak<Inner<D>>, signal: &Signal) {
    loop {
        {
            let mut state = signal.state.lock();
            if !state.woken && !state.stopped {
                signal.changed.wait_for(&mut state, LOOK);
            }
            if state.stopped {
                return;
            }
            state.woken = false;
        }
        loop {
            // Held for one step only, so that a pool whose users are gone is not kept alive.
            let Some(pool) = pool.upgrade() else { break };
            if !pool.maintain() {
                break;
            }
        }
    }
}

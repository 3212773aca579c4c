//! The thread that does maintenance, so that allocations need not.

use crate::device::VirtualMemoryDevice;
use crate::shared::Shared;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
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
    pub(crate) fn start<D: VirtualMemoryDevice + 'static>(pool: Arc<Shared<D>>) -> Self {
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
        // A worker that panicked has nothing to say here: its panic was reported when it happened.
        drop(self.thread.join());
    }
}

fn work<D: VirtualMemoryDevice + 'static>(pool: &Shared<D>, signal: &Signal) {
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
        while !signal.state.lock().stopped && pool.maintain() {}
    }
}

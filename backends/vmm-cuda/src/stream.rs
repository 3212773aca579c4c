//! Streams, by name and by handle.
//!
//! | stream | its name |
//! |---|---|
//! | the legacy default stream (handles 0 and `CU_STREAM_LEGACY`) | `StreamId(0)` |
//! | the per-thread default stream (`CU_STREAM_PER_THREAD`) | a number of the thread, with the top bit set |
//! | any other | its handle |
//!
//! The handle `CU_STREAM_PER_THREAD` means another stream on each thread, so that it names none.
//! On its own thread a per-thread stream is used by that handle. Other threads, the pool's worker
//! say, cannot name it to the driver at all, and use the legacy stream in its place: that one waits
//! for all that was queued before on the blocking streams of the context, to which the per-thread
//! streams belong, and they wait for it (CUDA driver API, "Stream synchronization behavior"). So a
//! fence that is recorded there is behind all work of the per-thread stream, and what it is made to
//! wait for, later work of the per-thread stream waits for.

use crate::ffi::{STREAM_LEGACY, STREAM_PER_THREAD, Stream};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use vmm_core::units::StreamId;

/// The legacy default stream.
pub(crate) const LEGACY: StreamId = StreamId(0);

/// Set in the names of per-thread streams. No address of a process has it: the upper half of the
/// address space is the system's on x86-64 and on Arm.
const PER_THREAD: u64 = 1 << 63;

/// What an error says about the handle that names no stream.
pub(crate) const NOT_A_NAME: &str =
    "CU_STREAM_PER_THREAD is another stream on each thread: name it with CudaDevice::stream_id";

/// The name of the stream that `raw` means on this thread.
pub(crate) fn name(raw: Stream) -> StreamId {
    match raw.addr() {
        0 | STREAM_LEGACY => LEGACY,
        STREAM_PER_THREAD => StreamId(PER_THREAD | this_thread()),
        handle => StreamId(handle as u64),
    }
}

/// The handle that means the stream on this thread, or another that serves in its place; `None` for
/// a number that names no stream.
pub(crate) fn handle(stream: StreamId) -> Option<Stream> {
    const PER_THREAD_HANDLE: u64 = STREAM_PER_THREAD as u64;
    let handle = match stream.0 {
        0 => STREAM_LEGACY,
        PER_THREAD_HANDLE => return None,
        named if named & PER_THREAD == 0 => usize::try_from(named).ok()?,
        named if named == PER_THREAD | this_thread() => STREAM_PER_THREAD,
        _ => STREAM_LEGACY,
    };
    Some(ptr::without_provenance_mut(handle))
}

/// A number of this thread that no other has or had.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // No destructor, so that a thread may still ask while it ends.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(handle: usize) -> Stream {
        ptr::without_provenance_mut(handle)
    }

    #[test]
    fn the_legacy_stream_has_one_name() {
        assert_eq!(name(raw(0)), LEGACY);
        assert_eq!(name(raw(1)), LEGACY);
        assert_eq!(handle(LEGACY), Some(raw(1)));
        // The number of its other handle, given directly, means it as well.
        assert_eq!(handle(StreamId(1)), Some(raw(1)));
    }

    #[test]
    fn a_handle_is_its_own_name() {
        let stream = name(raw(0x7f00_1234_5678));
        assert_eq!(stream, StreamId(0x7f00_1234_5678));
        assert_eq!(handle(stream), Some(raw(0x7f00_1234_5678)));
    }

    #[test]
    fn each_thread_has_a_per_thread_stream_of_its_own() {
        let mine = name(raw(2));
        assert_eq!(name(raw(2)), mine);
        assert_eq!(handle(mine), Some(raw(2)));
        let other = std::thread::spawn(move || {
            let other = name(raw(2));
            assert_eq!(handle(other), Some(raw(2)));
            assert_eq!(handle(mine), Some(raw(1)), "the legacy stream in its place");
            other
        });
        let other = other.join().expect("no panic");
        assert_ne!(other, mine);
        assert_eq!(handle(other), Some(raw(1)), "its thread has ended");
    }

    #[test]
    fn the_handle_of_all_per_thread_streams_names_none() {
        assert_eq!(handle(StreamId(2)), None);
    }
}

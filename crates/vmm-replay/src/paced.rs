//! A real device under a logical clock.
//!
//! A recorded program ran for a minute; its replay shall take seconds and still make the calls that
//! a pool makes in that minute. So time is logical: it jumps from event to event, and device calls
//! add what they really took. Two things follow for the device's streams, which know no logical time:
//!
//! - A fence counts as reached when the logical clock says so: `lag` after it was recorded, after
//!   the work of [`Timeline::work_until`] and after what its stream waits for, exactly as on the mock
//!   device. That only ever holds a fence back that the device has reached already.
//! - If the clock says so and the device has not got there yet, the host waits, and this wait is on no
//!   account: it is the price of the time that was skipped.
//!
//! Before each fence a short stand-in for work is queued, so that the device really has not reached it
//! when the calls that follow are made.
//!
//! Binds that a device queues take no logical time of their own: their fences count as reached once
//! those are that they wait for. What the device takes for them is on the account where the host waits
//! for a bind, as a pool does whose worker makes memory for all streams; where a stream waits, it is
//! not. A bind never stands behind one of another moment of the clock, for in a program that one would
//! be over.

use crate::calls::CallAccount;
use crate::timeline::Timeline;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmm_core::device::{AddrRange, FrameKind, Mapping, MemoryInfo, Properties};
use vmm_core::{
    DeviceAddr, DeviceOrdinal, DeviceResult, Fence, FrameHandle, StreamId, VirtualMemoryDevice,
};

/// What a paced device needs beside the calls that the pool makes. None of this is on the account.
pub trait Ground: Send + Sync {
    /// The device's stream of that index; the same each time.
    ///
    /// # Errors
    /// If the device cannot make one more stream.
    fn stream(&self, index: usize) -> DeviceResult<StreamId>;

    /// Queues a short piece of work that uses no memory of the pool.
    ///
    /// # Errors
    /// What the device says.
    fn occupy(&self, stream: StreamId) -> DeviceResult<()>;

    /// Waits on the host until the device has reached `fence`, however long that takes.
    ///
    /// # Errors
    /// What the device says; a device that does not get there is an error as well.
    fn catch_up(&self, fence: Fence) -> DeviceResult<()>;

    /// The device calls so far and their time.
    fn calls(&self) -> CallAccount;
}

/// A device with its streams held to a logical clock. It is its own [`Timeline`].
pub struct Paced<D, G> {
    device: Arc<D>,
    ground: G,
    now_ns: AtomicU64,
    lag_ns: u64,
    streams: Mutex<HashMap<StreamId, Stream>>,
    last_bind: Mutex<Option<QueuedBind>>,
}

/// A bind that the device has queued.
#[derive(Clone, Copy, Debug)]
struct QueuedBind {
    fence: Fence,
    at_ns: u64,
}

impl<D: VirtualMemoryDevice, G: Ground> Paced<D, G> {
    /// A device at time zero, on which a fence is reached `lag` after its recording at the soonest.
    #[must_use]
    pub fn new(device: Arc<D>, ground: G, lag: Duration) -> Self {
        Self {
            device,
            ground,
            now_ns: AtomicU64::new(0),
            lag_ns: nanoseconds(lag),
            streams: Mutex::default(),
            last_bind: Mutex::default(),
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<StreamId, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a call that binds, and notes the fence of a bind that is queued.
    fn bind(
        &self,
        after: &[Fence],
        call: impl FnOnce(&D) -> DeviceResult<Fence>,
    ) -> DeviceResult<Fence> {
        if !self.device.properties().capabilities.queued_binds {
            return call(&self.device);
        }
        let at_ns = self.now_ns();
        let mut last = self.last_bind.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(earlier) = last.take_if(|earlier| earlier.at_ns < at_ns) {
            self.ground.catch_up(earlier.fence)?;
        }
        let fence = call(&self.device)?;
        if fence == Fence::REACHED {
            return Ok(fence);
        }
        *last = Some(QueuedBind { fence, at_ns });
        drop(last);
        let mut streams = self.streams();
        let due_ns = |fence: &Fence| streams.get(&fence.stream).and_then(|s| s.due_ns(fence.value));
        let latest_ns = after.iter().filter_map(due_ns).max().unwrap_or(0);
        let stream = streams.entry(fence.stream).or_default();
        stream.is_of_binds = true;
        stream.tail_ns = stream.tail_ns.max(latest_ns).max(at_ns);
        stream.unreached.push_back((fence.value, stream.tail_ns));
        Ok(fence)
    }
}

/// Beyond 584 years there is no telling.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl<D: VirtualMemoryDevice, G> fmt::Debug for Paced<D, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paced")
            .field("device", &self.device.properties().name)
            .field("now_ns", &self.now_ns)
            .finish_non_exhaustive()
    }
}

/// A stream as the logical clock sees it.
#[derive(Debug, Default)]
struct Stream {
    /// When all that is queued is done.
    tail_ns: u64,
    /// When the work queued by [`Timeline::work_until`] is done.
    work_end_ns: u64,
    /// The highest value that is reached.
    reached: u64,
    /// Fences that are not reached, in the order of their values and times.
    unreached: VecDeque<(u64, u64)>,
    /// It is the device's own, of binds that are queued.
    is_of_binds: bool,
}

impl Stream {
    /// Takes note of the fences that are reached by `now_ns`; says whether there are new ones.
    fn settle(&mut self, now_ns: u64) -> bool {
        let before = self.reached;
        while let Some((value, _)) = self.unreached.pop_front_if(|(_, due_ns)| *due_ns <= now_ns) {
            self.reached = value;
        }
        self.reached > before
    }

    /// When the fence of this value is due; `None` if it is reached.
    fn due_ns(&self, value: u64) -> Option<u64> {
        if value <= self.reached {
            return None;
        }
        let at = self.unreached.partition_point(|(recorded, _)| *recorded < value);
        self.unreached.get(at).map(|(_, due_ns)| *due_ns)
    }
}

impl<D: VirtualMemoryDevice, G: Ground> Timeline for Paced<D, G> {
    fn stream(&self, index: usize) -> DeviceResult<StreamId> {
        self.ground.stream(index)
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Acquire)
    }

    fn advance_to(&self, at_ns: u64) {
        self.now_ns.fetch_max(at_ns, Ordering::AcqRel);
    }

    fn work_until(&self, stream: StreamId, end_ns: u64) {
        let now_ns = self.now_ns();
        let mut streams = self.streams();
        let stream = streams.entry(stream).or_default();
        let start_ns = now_ns.max(stream.work_end_ns);
        stream.work_end_ns = end_ns.max(stream.work_end_ns);
        let duration_ns = end_ns.saturating_sub(start_ns);
        stream.tail_ns = stream.tail_ns.max(now_ns).saturating_add(duration_ns);
    }

    fn driver_time_ns(&self) -> u64 {
        self.ground.calls().total().time_ns
    }

    fn driver_calls(&self) -> u64 {
        self.ground.calls().total().count
    }

    fn calls(&self) -> CallAccount {
        self.ground.calls()
    }
}

impl<D: VirtualMemoryDevice, G: Ground> VirtualMemoryDevice for Paced<D, G> {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.device.memory_info()
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.device.is_capturing(stream)
    }

    fn fixed_addr(&self, frame: FrameHandle) -> Option<DeviceAddr> {
        self.device.fixed_addr(frame)
    }

    fn reserve(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        self.device.reserve(len, alignment)
    }

    fn free_region(&self, base: DeviceAddr, len: u64) -> DeviceResult<()> {
        self.device.free_region(base, len)
    }

    fn make_frame(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        self.device.make_frame(len, kind)
    }

    fn release_frame(&self, frame: FrameHandle) -> DeviceResult<()> {
        self.device.release_frame(frame)
    }

    fn map(&self, batch: &[Mapping], after: &[Fence]) -> DeviceResult<Fence> {
        self.bind(after, |device| device.map(batch, after))
    }

    fn unmap(&self, ranges: &[AddrRange], after: &[Fence]) -> DeviceResult<Fence> {
        self.bind(after, |device| device.unmap(ranges, after))
    }

    fn set_access(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        self.device.set_access(range, peers)
    }

    fn record(&self, stream: StreamId) -> DeviceResult<Fence> {
        self.ground.occupy(stream)?;
        let fence = self.device.record(stream)?;
        let now_ns = self.now_ns();
        let mut streams = self.streams();
        let stream = streams.entry(stream).or_default();
        // The lag is idle work of the stream, so that what is queued behind the fence stays behind.
        stream.tail_ns = stream.tail_ns.max(now_ns.saturating_add(self.lag_ns));
        stream.unreached.push_back((fence.value, stream.tail_ns));
        Ok(fence)
    }

    fn reached(&self, stream: StreamId) -> DeviceResult<u64> {
        let on_device = self.device.reached(stream)?;
        let (value, news) = {
            let mut streams = self.streams();
            let Some(known) = streams.get_mut(&stream) else { return Ok(0) };
            let news = known.settle(self.now_ns());
            (known.reached, news)
        };
        if news && on_device < value {
            self.ground.catch_up(Fence { stream, value })?;
        }
        Ok(value)
    }

    fn wait(&self, fence: Fence, timeout: Duration) -> DeviceResult<bool> {
        let now_ns = self.now_ns();
        let (due_ns, is_of_binds) = match self.streams().get(&fence.stream) {
            Some(stream) => (stream.due_ns(fence.value), stream.is_of_binds),
            None => (None, false),
        };
        let until_ns = due_ns.unwrap_or(now_ns).min(now_ns.saturating_add(nanoseconds(timeout)));
        self.advance_to(until_ns);
        let is_due = due_ns.is_none_or(|due_ns| due_ns <= until_ns);
        if is_due && is_of_binds {
            // On the account: it is the rest of the call that has queued the bind.
            return self.device.wait(fence, timeout);
        }
        if is_due {
            self.ground.catch_up(fence)?;
        }
        Ok(self.device.wait(fence, Duration::ZERO)? && is_due)
    }

    fn wait_idle(&self) -> DeviceResult<()> {
        self.device.wait_idle()?;
        // What is queued is over on the logical clock too, and the wait has lasted until then.
        let end_ns = self.streams().values().map(|stream| stream.tail_ns).max().unwrap_or(0);
        self.advance_to(end_ns);
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, fence: Fence) -> DeviceResult<()> {
        self.device.stream_wait(stream, fence)?;
        let mut streams = self.streams();
        let due_ns = streams.get(&fence.stream).and_then(|s| s.due_ns(fence.value));
        let stream = streams.entry(stream).or_default();
        stream.tail_ns = stream.tail_ns.max(due_ns.unwrap_or(0));
        Ok(())
    }

    fn copy(
        &self,
        to: DeviceAddr,
        from: DeviceAddr,
        len: u64,
        stream: StreamId,
    ) -> DeviceResult<()> {
        self.device.copy(to, from, len, stream)
    }

    fn fill(&self, to: DeviceAddr, byte: u8, len: u64, stream: StreamId) -> DeviceResult<()> {
        self.device.fill(to, byte, len, stream)
    }
}

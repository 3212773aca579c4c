//! A pool of the driver for stream-ordered allocation, as behind `cudaMallocAsync`.
//!
//! NVIDIA does not publish how its pool works. This model is made of what its programming guide says
//! (reuse in the order of a stream, and by other streams once work is over) and of what was observed: memory is
//! reserved in steps of 32 MiB, and reserved memory stays low where that is only possible if idle
//! memory moves to other addresses. So there is one range of addresses that grows at its end, by pages
//! of 32 MiB: first idle ones that move there, then new ones.
//!
//! *Guarantees*: free neighbours of one stream merge; a page is moved only when the device has done
//! with it. *Cost*: the measured times of a warm `cudaMallocAsync` and `cudaFreeAsync`; new and moved
//! pages are charged as calls on virtual memory, which is an assumption. The release threshold is
//! infinite, as `PyTorch` sets it.
//!
//! *Checked* against live figures of `PyTorch`'s backend for `cudaMallocAsync` only roughly: see
//! [`Policy::fidelity`](crate::Policy::fidelity). *Left out*: reuse that follows events between
//! streams, the stream of its own to which `PyTorch` sends memory that several streams used, and graphs.

use crate::driver::{Call, Driver};
use crate::heap::Heap;
use crate::model::{BlockId, Model, Request};

/// Bytes of a page.
const PAGE: u64 = 32 << 20;

/// What lengths are rounded up to.
const ROUND: u64 = 512;

/// The model.
#[derive(Debug)]
pub(crate) struct DriverPool {
    heap: Heap,
    /// Where new addresses begin.
    end: u64,
    lag_ns: u64,
}

impl DriverPool {
    /// A pool on a device that runs `lag_ns` behind the host.
    pub(crate) fn new(lag_ns: u64) -> Self {
        Self { heap: Heap::default(), end: PAGE, lag_ns }
    }

    fn find(&self, stream: u16, len: u64, now_ns: u64) -> Option<u64> {
        self.heap.best_fit(stream, len).or_else(|| self.heap.ready_fit(stream, len, now_ns))
    }

    /// Adds pages for `len` bytes at the end of the addresses. `false` beyond the limit.
    fn grow(&mut self, driver: &mut Driver, stream: u16, len: u64, now_ns: u64) -> bool {
        let wanted = len.next_multiple_of(PAGE);
        let idle = self.idle_pages(Some(stream), wanted, now_ns);
        let moved: u64 = idle.iter().map(|&(_, _, len)| len).sum();
        // Addresses are consumed, so in the end there are none.
        let Some(end) = self.end.checked_add(wanted) else { return false };
        if !driver.map(PAGE, (wanted - moved) / PAGE) {
            return false;
        }
        for (piece, start, len) in idle {
            self.heap.remove(piece, start, len);
        }
        driver.remap(PAGE, moved / PAGE);
        self.heap.add(self.end, wanted, stream, true);
        self.end = end;
        true
    }

    /// Whole free pages that the device has done with, of one stream or of all, up to `most` bytes: for
    /// each the piece, the start and the length, from the shortest piece on.
    fn idle_pages(&self, stream: Option<u16>, most: u64, now_ns: u64) -> Vec<(u64, u64, u64)> {
        let mut left = most;
        let mut pages = Vec::new();
        for (of, addr, len) in self.heap.free_pieces() {
            if left == 0 {
                break;
            }
            let (first, last) = (addr.next_multiple_of(PAGE), (addr + len) / PAGE * PAGE);
            let others = stream.is_some_and(|stream| stream != of);
            if others || first >= last || self.heap.ready_ns(addr) > now_ns {
                continue;
            }
            let len = (last - first).min(left);
            pages.push((addr, first, len));
            left -= len;
        }
        pages
    }

    fn serve(
        &mut self,
        driver: &mut Driver,
        request: Request,
        len: u64,
        now_ns: u64,
    ) -> Option<u64> {
        let stream = request.stream;
        if let Some(addr) = self.find(stream, len, now_ns) {
            return Some(addr);
        }
        self.grow(driver, stream, len, now_ns).then(|| self.find(stream, len, now_ns)).flatten()
    }
}

impl Model for DriverPool {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        let len = request.len.next_multiple_of(ROUND);
        driver.charge(Call::MallocAsync, len);
        let addr = self.serve(driver, request, len, request.now_ns).or_else(|| {
            // Once the device has done all, everything that is free can move or serve.
            driver.wait();
            self.heap.make_ready();
            self.serve(driver, request, len, request.now_ns)
        })?;
        self.heap.take(addr, len, request.stream);
        Some(addr)
    }

    fn release(&mut self, driver: &mut Driver, block: BlockId, now_ns: u64) {
        driver.charge(Call::FreeAsync, self.heap.len(block));
        let stream = self.heap.stream(block);
        self.heap.release(block, stream, now_ns.saturating_add(self.lag_ns));
    }

    fn release_cached(&mut self, driver: &mut Driver) {
        driver.wait();
        self.heap.make_ready();
        for (piece, start, len) in self.idle_pages(None, u64::MAX, u64::MAX) {
            self.heap.remove(piece, start, len);
            driver.unmap(PAGE, len / PAGE);
        }
    }

    fn defers_frees(&self) -> bool {
        false
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        (block, self.heap.len(block))
    }
}

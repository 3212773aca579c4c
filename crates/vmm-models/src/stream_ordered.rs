//! A pool of the driver for stream-ordered allocation, as behind `cudaMallocAsync`.
//!
//! NVIDIA does not publish how its pool works. This model is made of what its programming guide says
//! (reuse in the order of a stream) and of what live runs of `PyTorch` on it show: memory is reserved in
//! steps of 32 MiB; it stays low where that is only possible if idle memory moves to other addresses;
//! and it rises where streams could only use each other's memory. So there is one range of addresses
//! that grows at its end, by pages of 32 MiB: first idle ones of the stream that move there, then new
//! ones. Memory that several streams used belongs to a stream of its own, as in `PyTorch`'s backend.
//! What other streams have is used when there is nothing else, after a wait for the device.
//!
//! *Guarantees*: free neighbours of one stream merge; a page is moved only when the device has done
//! with it. *Cost*: the measured times of a warm `cudaMallocAsync` and `cudaFreeAsync`; new and moved
//! pages are charged as calls on virtual memory, which is an assumption. The release threshold is
//! infinite, as `PyTorch` sets it.
//!
//! *Checked* against those live runs, from which it was made, and so only roughly: see
//! [`Policy::fidelity`](crate::Policy::fidelity). *Left out*: reuse that follows events between
//! streams, reuse of what the driver finds to be over, which the live runs do not show, and graphs.

use crate::driver::{Call, Driver};
use crate::model::{BlockId, Model, Release, Request};
use crate::pieces::Pieces;

/// Bytes of a page.
const PAGE: u64 = 32 << 20;

/// What lengths are rounded up to.
const ROUND: u64 = 512;

/// The stream of memory that several streams used. No program has so many.
const SHARED: u16 = u16::MAX;

/// The model.
#[derive(Debug)]
pub(crate) struct DriverPool {
    pieces: Pieces,
    /// Where new addresses begin.
    end: u64,
    lag_ns: u64,
}

impl DriverPool {
    /// A pool on a device that runs `lag_ns` behind the host.
    pub(crate) fn new(lag_ns: u64) -> Self {
        Self { pieces: Pieces::default(), end: PAGE, lag_ns }
    }

    /// Adds pages for `len` bytes at the end of the addresses, idle ones of `from` first: a stream, or
    /// all. `false` beyond the limit.
    fn grow(&mut self, driver: &mut Driver, request: Request, len: u64, from: Option<u16>) -> bool {
        let wanted = len.next_multiple_of(PAGE);
        let idle = self.idle_pages(from, wanted, request.now_ns);
        let moved: u64 = idle.iter().map(|&(_, _, len)| len).sum();
        // Addresses are consumed, so in the end there are none.
        let Some(end) = self.end.checked_add(wanted) else { return false };
        if !driver.map(PAGE, (wanted - moved) / PAGE) {
            return false;
        }
        for (piece, start, len) in idle {
            self.pieces.remove(piece, start, len);
        }
        driver.remap(PAGE, moved / PAGE);
        self.pieces.add(self.end, wanted, request.stream, true);
        self.end = end;
        true
    }

    /// Whole free pages that the device has done with, of one stream or of all, up to `most` bytes: for
    /// each the piece, the start and the length, from the shortest piece of a stream on.
    fn idle_pages(&self, stream: Option<u16>, most: u64, now_ns: u64) -> Vec<(u64, u64, u64)> {
        let mut left = most;
        let mut pages = Vec::new();
        for (of, addr, len) in self.pieces.free_pieces() {
            if left == 0 {
                break;
            }
            let (first, last) = (addr.next_multiple_of(PAGE), (addr + len) / PAGE * PAGE);
            let is_others = stream.is_some_and(|stream| stream != of);
            if is_others || first >= last || self.pieces.ready_ns(addr) > now_ns {
                continue;
            }
            let len = (last - first).min(left);
            pages.push((addr, first, len));
            left -= len;
        }
        pages
    }
}

impl Model for DriverPool {
    fn allocate(&mut self, driver: &mut Driver, request: Request) -> Option<BlockId> {
        let (len, stream) = (request.len.next_multiple_of(ROUND), request.stream);
        driver.charge(Call::MallocAsync, len);
        let mut found = self.pieces.best_fit(stream, len);
        if found.is_none() && self.grow(driver, request, len, Some(stream)) {
            found = self.pieces.best_fit(stream, len);
        }
        if found.is_none() {
            // Once the device has done all, everything that is free can serve or move.
            driver.wait();
            self.pieces.make_ready();
            found = self.pieces.best_fit_of_all(len);
        }
        if found.is_none() && self.grow(driver, request, len, None) {
            found = self.pieces.best_fit(stream, len);
        }
        let addr = found?;
        self.pieces.take(addr, len, stream);
        Some(addr)
    }

    fn release(&mut self, driver: &mut Driver, release: Release) {
        let Release { block, now_ns, is_in_use } = release;
        driver.charge(Call::FreeAsync, self.pieces.len(block));
        let stream = if is_in_use { SHARED } else { self.pieces.stream(block) };
        self.pieces.release(block, stream, now_ns.saturating_add(self.lag_ns));
    }

    fn release_cached(&mut self, driver: &mut Driver) {
        driver.wait();
        self.pieces.make_ready();
        for (piece, start, len) in self.idle_pages(None, u64::MAX, u64::MAX) {
            self.pieces.remove(piece, start, len);
            driver.unmap(PAGE, len / PAGE);
        }
    }

    fn defers_frees(&self) -> bool {
        false
    }

    fn range(&self, block: BlockId) -> (u64, u64) {
        (block, self.pieces.len(block))
    }
}

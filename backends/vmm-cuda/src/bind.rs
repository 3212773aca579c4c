//! Reservations, frames and mappings.
//!
//! None of these calls needs the context, but all find out by it that the driver is gone, or that the
//! process is a fork.

use crate::device::CudaDevice;
use crate::error::About;
use crate::ffi::{
    ACCESS_READ_WRITE, AccessDesc, HANDLE_POSIX_FILE_DESCRIPTOR, LOCATION_DEVICE,
    LOCATION_HOST_NUMA, Location,
};
use crate::memory::{Frame, Mapped};
use crate::open;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use vmm_core::device::{
    AddrRange, DeviceError, DeviceErrorKind, DeviceOp, DeviceResult, FrameKind, Mapping,
};
use vmm_core::units::{DeviceAddr, DeviceOrdinal, FrameHandle, round_up};

/// A length as the driver takes it.
fn size(about: About, len: u64) -> DeviceResult<usize> {
    usize::try_from(len)
        .map_err(|_| about.error(DeviceErrorKind::Illegal, "longer than the address space"))
}

impl CudaDevice {
    /// Whether frames can be mapped.
    pub(crate) fn maps(&self) -> bool {
        self.facts.properties.capabilities.remapping
    }

    pub(crate) fn mappable(&self, about: About) -> DeviceResult<()> {
        let detail = "opened without virtual memory, or the device has none";
        if self.maps() { Ok(()) } else { Err(about.error(DeviceErrorKind::NotSupported, detail)) }
    }

    pub(crate) fn reserve_range(&self, len: u64, alignment: u64) -> DeviceResult<DeviceAddr> {
        let about = About::len(DeviceOp::Reserve, len);
        let (size, alignment) = (size(about, len)?, size(about, alignment)?);
        let _current = self.context.enter_relaxed(about)?;
        let mut base = 0;
        // SAFETY: the driver checks the lengths and writes the address; it chooses where.
        let result = unsafe {
            (self.context.driver().mem_address_reserve)(&raw mut base, size, alignment, 0, 0)
        };
        self.context.check(about, result)?;
        self.accounts.lock().add_region(DeviceAddr(base), len);
        Ok(DeviceAddr(base))
    }

    pub(crate) fn free_range(&self, range: AddrRange) -> DeviceResult<()> {
        let about = About::range(DeviceOp::FreeRegion, range);
        let size = size(about, range.len)?;
        let _current = self.context.enter_relaxed(about)?;
        // Noted first: from then on the driver may give the same address to another thread.
        self.accounts.lock().remove_region(range.addr);
        // SAFETY: the driver refuses what is not a whole reservation; that nothing is mapped in it
        // is the caller's promise (`free_region`).
        let result = unsafe { (self.context.driver().mem_address_free)(range.addr.0, size) };
        self.context.check(about, result).inspect_err(|_| {
            self.accounts.lock().add_region(range.addr, range.len);
        })
    }

    pub(crate) fn create(&self, len: u64, kind: FrameKind) -> DeviceResult<FrameHandle> {
        let about = About::len(DeviceOp::MakeFrame, len);
        let size = size(about, len)?;
        let _current = self.context.enter_relaxed(about)?;
        let prop = open::prop(self.facts.device, self.facts.node, kind);
        let mut handle = 0;
        // SAFETY: the driver reads the properties, checks the length and writes the handle.
        let result = unsafe {
            (self.context.driver().mem_create)(&raw mut handle, size, &raw const prop, 0)
        };
        self.context.check(about, result)?;
        self.accounts.lock().add_frame(FrameHandle(handle), Frame { len, kind, base: 0 });
        Ok(FrameHandle(handle))
    }

    pub(crate) fn release(&self, frame: FrameHandle) -> DeviceResult<()> {
        let noted = self.forget(frame)?;
        let about = About::len(DeviceOp::ReleaseFrame, noted.len);
        let _current =
            self.context.enter_relaxed(about).inspect_err(|_| self.note(frame, noted))?;
        // SAFETY: a handle of this device that lives, for it was in the accounts, and is now in
        // nobody's. The driver keeps the memory as long as it is mapped anywhere.
        let result = unsafe { (self.context.driver().mem_release)(frame.0) };
        self.context.check(about, result).inspect_err(|_| self.note(frame, noted))
    }

    /// A plain allocation, at a multiple of the granule.
    pub(crate) fn allocate(&self, len: u64) -> DeviceResult<FrameHandle> {
        let about = About::len(DeviceOp::MakeFrame, len);
        let granule = self.facts.properties.granule;
        let _current = self.context.enter_relaxed(about)?;
        let mut base = self.allocate_bytes(about, len)?;
        if base % granule != 0 {
            // The driver promises less than it does on current devices. Take enough to choose from.
            self.free_bytes(about, base)?;
            let detail = "longer than the address space";
            let longer = len.checked_add(granule);
            let longer = longer.ok_or_else(|| about.error(DeviceErrorKind::Illegal, detail))?;
            base = self.allocate_bytes(about, longer)?;
        }
        let addr = round_up(base, granule).expect("the driver's addresses end far below 2^64");
        let frame = Frame { len, kind: FrameKind::Device, base };
        self.accounts.lock().add_frame(FrameHandle(addr), frame);
        Ok(FrameHandle(addr))
    }

    fn allocate_bytes(&self, about: About, len: u64) -> DeviceResult<u64> {
        let mut base = 0;
        let size = size(about, len)?;
        // SAFETY: the context is current; the driver checks the length and writes the address.
        let result = unsafe { (self.context.driver().mem_alloc)(&raw mut base, size) };
        self.context.check(about, result)?;
        Ok(base)
    }

    fn free_bytes(&self, about: About, base: u64) -> DeviceResult<()> {
        // SAFETY: what `allocate_bytes` has returned and nobody else has freed: `free` takes it out of
        // the accounts first. The driver waits for work that uses it.
        let result = unsafe { (self.context.driver().mem_free)(base) };
        self.context.check(about, result)
    }

    pub(crate) fn free(&self, frame: FrameHandle) -> DeviceResult<()> {
        let noted = self.forget(frame)?;
        let range = AddrRange { addr: DeviceAddr(frame.0), len: noted.len };
        let about = About::range(DeviceOp::ReleaseFrame, range);
        let _current =
            self.context.enter_relaxed(about).inspect_err(|_| self.note(frame, noted))?;
        self.free_bytes(about, noted.base).inspect_err(|_| self.note(frame, noted))
    }

    /// Takes a frame out of the accounts, before the driver may give its handle to another thread.
    fn forget(&self, frame: FrameHandle) -> DeviceResult<Frame> {
        let about = About::op(DeviceOp::ReleaseFrame);
        // Before the lock is taken: in a fork it may be held for ever.
        drop(self.context.enter(about)?);
        let mut accounts = self.accounts.lock();
        let noted = accounts.frame(frame);
        let noted = noted.ok_or_else(|| about.error(DeviceErrorKind::Illegal, "no such frame"))?;
        accounts.remove_frame(frame);
        Ok(noted)
    }

    fn note(&self, frame: FrameHandle, noted: Frame) {
        self.accounts.lock().add_frame(frame, noted);
    }

    pub(crate) fn map_all(&self, batch: &[Mapping]) -> DeviceResult<()> {
        let _current = self.context.enter_relaxed(About::op(DeviceOp::Map))?;
        for (done, mapping) in batch.iter().enumerate() {
            if let Err(error) = self.map_one(mapping.range, mapping.frame) {
                for undone in batch[..done].iter().rev() {
                    // The first error is the one to report. This one would mean that the driver is
                    // gone, and the mappings with it.
                    let _ = self.unmap_one(undone.range);
                }
                return Err(error);
            }
        }
        let mut accounts = self.accounts.lock();
        for &Mapping { range, frame } in batch {
            accounts.add_mapping(Mapped { range, frame, access: false, peers: Vec::new() });
        }
        Ok(())
    }

    fn map_one(&self, range: AddrRange, frame: FrameHandle) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Map, range);
        let size = size(about, range.len)?;
        // SAFETY: the driver refuses what is not reserved, or mapped already, or not the whole frame.
        // That the frame lives is the caller's promise (`map`).
        let result = unsafe { (self.context.driver().mem_map)(range.addr.0, size, 0, frame.0, 0) };
        self.context.check(about, result)
    }

    fn unmap_one(&self, range: AddrRange) -> DeviceResult<()> {
        let about = About::range(DeviceOp::Unmap, range);
        let size = size(about, range.len)?;
        // SAFETY: the driver refuses what are not whole mappings. That no work uses them any more is
        // the caller's promise (`unmap`).
        let result = unsafe { (self.context.driver().mem_unmap)(range.addr.0, size) };
        self.context.check(about, result)
    }

    pub(crate) fn unmap_all(&self, ranges: &[AddrRange]) -> DeviceResult<()> {
        let _current = self.context.enter_relaxed(About::op(DeviceOp::Unmap))?;
        let mut gone = Vec::new();
        for &range in ranges {
            let noted = self.accounts.lock().take_mappings(range);
            match self.unmap_one(range) {
                Ok(()) => gone.extend(noted),
                Err(error) => {
                    let mut accounts = self.accounts.lock();
                    noted.into_iter().for_each(|mapped| accounts.add_mapping(mapped));
                    drop(accounts);
                    return Err(self.put_back(gone).err().unwrap_or(error));
                }
            }
        }
        Ok(())
    }

    /// Makes mappings again, with the access that they had. An error says that some are lost.
    fn put_back(&self, gone: Vec<Mapped>) -> DeviceResult<()> {
        let mut result = Ok(());
        for mapped in gone {
            let again = self.map_one(mapped.range, mapped.frame).and_then(|()| {
                let granted = if mapped.access {
                    self.set_for_devices(mapped.range, &mapped.peers)
                        .and_then(|()| self.set_for_host(mapped.range, mapped.frame))
                } else {
                    Ok(())
                };
                self.accounts.lock().add_mapping(mapped);
                granted
            });
            result = result.and(again.map_err(|error| DeviceError {
                op: DeviceOp::Unmap,
                detail: "the batch was unmapped in part, and could not be mapped again",
                ..error
            }));
        }
        result
    }

    pub(crate) fn grant(&self, range: AddrRange, peers: &[DeviceOrdinal]) -> DeviceResult<()> {
        let about = About::range(DeviceOp::SetAccess, range);
        let peers = self.peers_of(about, peers)?;
        let _current = self.context.enter_relaxed(about)?;
        self.set_for_devices(range, &peers)?;
        let host = self.accounts.lock().host_parts(range);
        for part in host {
            self.set(part, &[read_write(LOCATION_HOST_NUMA, self.facts.node)])?;
        }
        self.accounts.lock().grant(range, &peers);
        Ok(())
    }

    /// The driver's devices of these ordinals, this one left out.
    fn peers_of(&self, about: About, peers: &[DeviceOrdinal]) -> DeviceResult<Vec<c_int>> {
        let others = peers.iter().filter(|peer| peer.0 != self.ordinal);
        let device = |ordinal: &DeviceOrdinal| {
            let known = self.facts.peers.iter().find(|peer| peer.ordinal == ordinal.0);
            let detail = "the peer cannot reach the memory of this device";
            known
                .map(|peer| peer.device)
                .ok_or_else(|| about.error(DeviceErrorKind::NotSupported, detail))
        };
        others.map(device).collect()
    }

    fn set_for_devices(&self, range: AddrRange, peers: &[c_int]) -> DeviceResult<()> {
        let own = read_write(LOCATION_DEVICE, self.facts.device);
        if peers.is_empty() {
            return self.set(range, &[own]);
        }
        let others = peers.iter().map(|peer| read_write(LOCATION_DEVICE, *peer));
        self.set(range, &std::iter::once(own).chain(others).collect::<Vec<_>>())
    }

    /// Host memory is for the host to use as well. The driver takes that for frames in host memory
    /// only, and the node is the frame's own, whatever the number (`cuMemSetAccess`).
    fn set_for_host(&self, range: AddrRange, frame: FrameHandle) -> DeviceResult<()> {
        let kind = self.accounts.lock().frame(frame).map(|frame| frame.kind);
        if kind == Some(FrameKind::Host) {
            self.set(range, &[read_write(LOCATION_HOST_NUMA, self.facts.node)])?;
        }
        Ok(())
    }

    fn set(&self, range: AddrRange, access: &[AccessDesc]) -> DeviceResult<()> {
        let about = About::range(DeviceOp::SetAccess, range);
        let size = size(about, range.len)?;
        // SAFETY: the driver reads as many descriptions as it is told, and refuses ranges that are
        // not whole mappings.
        let result = unsafe {
            let set = self.context.driver().mem_set_access;
            set(range.addr.0, size, access.as_ptr(), access.len())
        };
        self.context.check(about, result)
    }

    pub(crate) fn remove_all(&self) -> DeviceResult<()> {
        drop(self.context.enter(About::op(DeviceOp::Unmap))?);
        let (mappings, frames, regions) = self.accounts.lock().all();
        self.unmap_all(&mappings)?;
        for frame in frames {
            if self.maps() { self.release(frame)? } else { self.free(frame)? }
        }
        regions.into_iter().try_for_each(|region| self.free_range(region))
    }

    pub(crate) fn export_frame(&self, frame: FrameHandle) -> DeviceResult<OwnedFd> {
        let about = About::op(DeviceOp::MakeFrame);
        let _current = self.context.enter_relaxed(about)?;
        let kind = self.accounts.lock().frame(frame).map(|frame| frame.kind);
        match kind {
            Some(FrameKind::Exportable) => {}
            Some(_) => {
                let detail = "only frames of kind Exportable can be exported";
                return Err(about.error(DeviceErrorKind::NotSupported, detail));
            }
            None => return Err(about.error(DeviceErrorKind::Illegal, "no such frame")),
        }
        let mut descriptor: c_int = -1;
        // SAFETY: for this type of handle the driver writes one `int`; the frame lives, for it is in
        // the accounts and releasing it while it is exported breaks the caller's promise.
        let result = unsafe {
            (self.context.driver().mem_export)(
                ptr::from_mut(&mut descriptor).cast(),
                frame.0,
                HANDLE_POSIX_FILE_DESCRIPTOR,
                0,
            )
        };
        self.context.check(about, result)?;
        if descriptor < 0 {
            let detail = "the driver returned no descriptor";
            return Err(about.error(DeviceErrorKind::Failed, detail));
        }
        // SAFETY: the driver has made the descriptor for the caller, who owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // SAFETY: sets a flag of a descriptor that is open. It cannot fail on such a one.
        unsafe { libc::fcntl(owned.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        Ok(owned)
    }
}

fn read_write(kind: c_int, id: c_int) -> AccessDesc {
    AccessDesc { location: Location { kind, id }, flags: ACCESS_READ_WRITE }
}

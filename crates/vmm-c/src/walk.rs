//! Shows a program everything that a pool has, piece by piece.

use crate::error::Fault;
use crate::guard;
use crate::memory::pointer;
use crate::pool::vmm_pool_t;
use crate::snapshot::{blocks, filled, mapped, private_pool};
use crate::status::vmm_status_t;
use std::ffi::c_void;
use vmm_core::DeviceAddr;
use vmm_trace::BlockState;

/// What a piece of a pool's address space is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum vmm_piece_kind_t {
    /// A range of addresses with memory. The pieces that fill it follow, in the order of addresses.
    VMM_PIECE_RANGE = 0,
    /// A lease that somebody holds.
    VMM_PIECE_LIVE = 1,
    /// A lease that nobody holds any more, while work on several streams may still use it.
    VMM_PIECE_RETIRED = 2,
    /// Memory without a lease.
    VMM_PIECE_FREE = 3,
}

/// One piece of a pool's address space.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct vmm_piece_t {
    /// The size of this struct; a later library may have more fields.
    pub size: usize,
    /// Where it begins.
    pub address: *mut c_void,
    /// Its length in bytes.
    pub len: u64,
    /// Bytes that were asked for; 0 unless it is a lease.
    pub requested: u64,
    /// The private pool that the range around it belongs to; 0: none that lives.
    pub private_id: u64,
    /// A `vmm_piece_kind_t`.
    pub kind: u32,
    /// Always 0.
    pub reserved_for_later: u32,
}

/// Called for each piece, in the thread that called `vmm_walk` and without any lock; it may call
/// the pool. It must return: neither an exception nor `longjmp` may leave it. `piece` lives until
/// it returns.
pub type vmm_visit_t =
    Option<unsafe extern "C" fn(piece: *const vmm_piece_t, user_data: *mut c_void)>;

/// Visits everything that the pool had at the moment of the call: each range of addresses with
/// memory, in the order of addresses, followed by the leases and the free memory in it.
///
/// # Safety
/// `pool` is NULL or lives. `visit` is NULL or can be called with
/// `user_data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_walk(
    pool: *mut vmm_pool_t,
    visit: vmm_visit_t,
    user_data: *mut c_void,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        let visit = visit.ok_or_else(|| Fault::argument("visit is NULL"))?;
        for piece in pieces(&pool.pool.snapshot()) {
            // SAFETY: callable with `user_data` by this function's contract; `piece` outlives the
            // call.
            unsafe { visit(&raw const piece, user_data) };
        }
        Ok(())
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

fn pieces(snapshot: &vmm_core::Snapshot) -> Vec<vmm_piece_t> {
    let mut blocks = blocks(snapshot);
    blocks.sort_by_key(|block| block.address);
    let mut pieces = Vec::new();
    for range in mapped(snapshot) {
        let private_id = private_pool(snapshot, range);
        let piece = |kind: vmm_piece_kind_t, address: u64, len, requested| vmm_piece_t {
            size: size_of::<vmm_piece_t>(),
            address: pointer(DeviceAddr(address)),
            len,
            requested,
            private_id,
            kind: kind as u32,
            reserved_for_later: 0,
        };
        pieces.push(piece(vmm_piece_kind_t::VMM_PIECE_RANGE, range.addr.0, range.len, 0));
        pieces.extend(filled(range, &blocks).iter().map(|block| {
            let kind = match block.state {
                BlockState::Active => vmm_piece_kind_t::VMM_PIECE_LIVE,
                BlockState::PendingFree => vmm_piece_kind_t::VMM_PIECE_RETIRED,
                BlockState::Inactive => vmm_piece_kind_t::VMM_PIECE_FREE,
            };
            piece(kind, block.address, block.size, block.requested_size)
        }));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{vmm_allocate, vmm_release};
    use crate::options::vmm_pool_options_t;
    use crate::pool::{vmm_pool_create, vmm_pool_destroy};
    use crate::private::{vmm_private_allocate, vmm_private_create};
    use std::ptr::{null_mut, without_provenance_mut};

    unsafe extern "C" fn collect(piece: *const vmm_piece_t, user_data: *mut c_void) {
        // SAFETY: the library passes a piece that lives, and the test a list of pieces.
        unsafe { (*user_data.cast::<Vec<vmm_piece_t>>()).push(*piece) };
    }

    #[test]
    fn pieces_fill_their_ranges_and_leases_are_among_them() {
        // SAFETY: all fields are integers, or a pointer that may be NULL.
        let mut options: vmm_pool_options_t = unsafe { std::mem::zeroed() };
        options.size = size_of::<vmm_pool_options_t>();
        options.device_kind = crate::device::vmm_device_kind_t::VMM_DEVICE_MOCK as u32;
        options.maintenance = 1;
        let mut pool = null_mut();
        // SAFETY: options with their size, and a place for the pool.
        let made = unsafe { vmm_pool_create(&raw const options, &raw mut pool) };
        assert_eq!(made, vmm_status_t::VMM_OK);
        let mut nothing: Vec<vmm_piece_t> = Vec::new();
        // SAFETY: the pool lives, and `collect` gets the list it expects.
        let walked = unsafe { vmm_walk(pool, Some(collect), (&raw mut nothing).cast()) };
        assert_eq!((walked, nothing.len()), (vmm_status_t::VMM_OK, 0), "addresses are no memory");
        let stream = without_provenance_mut(1);
        let allocate = |len: u64| {
            let mut ptr = null_mut();
            // SAFETY: the pool lives, `ptr` can be written.
            let status = unsafe { vmm_allocate(pool, len, 0, stream, 0, &raw mut ptr) };
            assert_eq!(status, vmm_status_t::VMM_OK);
            ptr
        };
        let (kept, gone) = (allocate(1000), allocate(5 << 20));
        // SAFETY: the pool lives.
        assert_eq!(unsafe { vmm_release(pool, gone, stream) }, vmm_status_t::VMM_OK);
        let mut seen: Vec<vmm_piece_t> = Vec::new();
        // SAFETY: the pool lives, and `collect` gets the list it expects.
        let status = unsafe { vmm_walk(pool, Some(collect), (&raw mut seen).cast()) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        let of = |kind: vmm_piece_kind_t| {
            seen.iter().filter(move |p| p.kind == kind as u32).map(|p| p.len).sum::<u64>()
        };
        let live: Vec<_> =
            seen.iter().filter(|p| p.kind == vmm_piece_kind_t::VMM_PIECE_LIVE as u32).collect();
        assert_eq!(live.len(), 1);
        assert_eq!((live[0].address, live[0].len, live[0].requested), (kept, 1024, 1000));
        assert!(of(vmm_piece_kind_t::VMM_PIECE_FREE) >= 5 << 20);
        assert!(seen.iter().all(|piece| piece.private_id == 0));
        let filled = of(vmm_piece_kind_t::VMM_PIECE_LIVE) + of(vmm_piece_kind_t::VMM_PIECE_FREE);
        assert_eq!(of(vmm_piece_kind_t::VMM_PIECE_RANGE), filled);
        let (mut id, mut own) = (0, null_mut());
        // SAFETY: the pool lives, `id` and `own` can be written.
        let status = unsafe {
            vmm_private_create(pool, &raw mut id);
            vmm_private_allocate(pool, id, 3000, 0, stream, 0, &raw mut own)
        };
        assert_eq!(status, vmm_status_t::VMM_OK);
        seen.clear();
        // SAFETY: the pool lives, and `collect` gets the list it expects.
        let status = unsafe { vmm_walk(pool, Some(collect), (&raw mut seen).cast()) };
        assert_eq!(status, vmm_status_t::VMM_OK);
        let private: Vec<_> = seen.iter().filter(|piece| piece.private_id == id).collect();
        assert_eq!(private[0].kind, vmm_piece_kind_t::VMM_PIECE_RANGE as u32);
        assert!(private.iter().any(|piece| piece.address == own && piece.requested == 3000));
        // SAFETY: the pool lives.
        let status = unsafe { vmm_walk(pool, None, null_mut()) };
        assert_eq!(status, vmm_status_t::VMM_INVALID_ARGUMENT);
        // SAFETY: the pool lives, and nobody uses it afterwards.
        unsafe { vmm_pool_destroy(pool) };
    }
}

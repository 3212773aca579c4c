//! Writes what a pool has to a file that memory viewers open.

use crate::error::Fault;
use crate::guard;
use crate::pool::vmm_pool_t;
use crate::status::vmm_status_t;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;
use vmm_core::{AddrRange, PrivateId, Snapshot};
use vmm_trace::write::{self, Entry, Frame, Segment};
use vmm_trace::{Action, Block, BlockState};

/// Writes everything the pool has at this moment to a file: mapped ranges with leases and free
/// memory in them, and one allocation for each live lease, with its owner where a stack would be.
/// The form is that of `PyTorch`'s memory snapshots, which `vmm replay` and `PyTorch`'s viewer
/// (`pytorch.org/memory_viz`) open; gzipped if the name ends in ".gz". How the leases came
/// to be is not recorded, so the times are all that of the call.
///
/// # Safety
/// `pool` is NULL or lives, `path` is NULL or a text that ends in a zero
/// byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmm_write_snapshot(
    pool: *mut vmm_pool_t,
    path: *const c_char,
) -> vmm_status_t {
    let body = |pool: &vmm_pool_t| {
        if path.is_null() {
            return Err(Fault::argument("path is NULL"));
        }
        // SAFETY: not NULL as checked, and a text by this function's contract.
        let path = unsafe { CStr::from_ptr(path) };
        let path = Path::new(OsStr::from_bytes(path.to_bytes()));
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let snapshot = for_viewers(&pool.pool.snapshot(), pool.ordinal, now_us);
        write::write_file(path, &snapshot).map_err(|error| {
            Fault::new(vmm_status_t::VMM_IO_FAILED, format!("{}: {error}", path.display()))
        })
    };
    // SAFETY: by this function's contract.
    unsafe { guard::with_pool(pool, body) }
}

/// A pool's snapshot in the form of the file.
fn for_viewers(snapshot: &Snapshot, device: u32, now_us: u64) -> write::Snapshot {
    let mut blocks = blocks(snapshot);
    blocks.sort_by_key(|block| block.address);
    let segments = mapped(snapshot)
        .into_iter()
        .map(|range| Segment {
            device,
            address: range.addr.0,
            stream: 0,
            pool: (0, private_pool(snapshot, range)),
            is_small: false,
            is_expandable: true,
            blocks: filled(range, &blocks),
        })
        .collect();
    let mut trace: Vec<Entry> = snapshot
        .leases
        .iter()
        .filter(|lease| lease.count > 0)
        .map(|lease| Entry {
            action: Action::Alloc,
            addr: lease.addr.0,
            size: lease.requested,
            stream: lease.stream.0,
            time_us: now_us,
            pool: (0, lease.private_pool.map_or(0, PrivateId::number)),
            frames: vec![Frame {
                filename: "owner".to_owned(),
                line: 0,
                name: lease.owner.clone(),
            }],
        })
        .collect();
    trace.sort_by_key(|entry| entry.addr);
    let mut device_traces = vec![Vec::new(); device as usize];
    device_traces.push(trace);
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "none".to_owned(), |b| b.to_string());
    let settings = vec![
        ("allocator".to_owned(), format!("vmm {}", env!("CARGO_PKG_VERSION"))),
        ("limit".to_owned(), bytes(snapshot.stats.limit)),
        ("target".to_owned(), bytes(snapshot.stats.target)),
    ];
    write::Snapshot { segments, device_traces, settings }
}

/// Leases and free memory, as they lie.
pub(crate) fn blocks(snapshot: &Snapshot) -> Vec<Block> {
    let leases = snapshot.leases.iter().map(|lease| Block {
        address: lease.addr.0,
        size: lease.len,
        requested_size: lease.requested,
        state: if lease.count > 0 { BlockState::Active } else { BlockState::PendingFree },
    });
    let free = snapshot.free.iter().map(|free| unused(free.range.addr.0, free.range.len));
    leases.chain(free).collect()
}

fn unused(address: u64, size: u64) -> Block {
    Block { address, size, requested_size: 0, state: BlockState::Inactive }
}

/// The number of the private pool that a range belongs to, as viewers show graph pools; 0 if none.
pub(crate) fn private_pool(snapshot: &Snapshot, range: AddrRange) -> u64 {
    let holds = |region: &AddrRange| region.addr <= range.addr && range.addr < region.end();
    let mut pools = snapshot.private_pools.iter();
    let found = pools.find(|pool| pool.regions.iter().any(holds));
    found.map_or(0, |pool| pool.id.number())
}

/// Ranges that have memory, as long as they are in one piece, by address.
pub(crate) fn mapped(snapshot: &Snapshot) -> Vec<AddrRange> {
    let mut ranges: Vec<AddrRange> =
        snapshot.mappings.iter().filter(|m| !m.stale).map(|m| m.range).collect();
    ranges.sort_by_key(|range| range.addr);
    let of_same_pool = |one, other| private_pool(snapshot, one) == private_pool(snapshot, other);
    let mut joined: Vec<AddrRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end() == range.addr && of_same_pool(*last, range) => {
                last.len += range.len;
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// The blocks of a range, with what is neither live nor free (it is changing at this moment) as
/// unused.
pub(crate) fn filled(range: AddrRange, sorted: &[Block]) -> Vec<Block> {
    let first = sorted.partition_point(|block| block.address < range.addr.0);
    let inside = sorted[first..].iter().take_while(|block| block.address < range.end().0);
    let mut blocks = Vec::new();
    let mut at = range.addr.0;
    for block in inside {
        if block.address > at {
            blocks.push(unused(at, block.address - at));
        }
        at = block.address + block.size;
        blocks.push(*block);
    }
    if at < range.end().0 {
        blocks.push(unused(at, range.end().0 - at));
    }
    blocks
}

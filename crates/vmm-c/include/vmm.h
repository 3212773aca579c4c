/*
 * vmm: a pool of GPU memory on the GPU's own virtual memory.
 *
 * Addresses are reserved once, physical memory is made in pieces, and mapping joins the two: memory
 * that is free anywhere serves a request everywhere.
 *
 * A lease is allocated for work on a stream, and released on the stream whose queued work is its
 * user's last. Nobody waits: the pool sees to it that whoever gets the memory next comes after that
 * work.
 *
 * Every function may be called by any thread at any time, but for vmm_pool_destroy, which must be
 * the last call with its pool. A pool lives from vmm_pool_create to vmm_pool_destroy. NULL for a
 * pool or for the place of a result is an error, VMM_INVALID_ARGUMENT. Structs begin with their
 * size, which the caller sets to sizeof. A call that does not return VMM_OK has changed nothing
 * unless it says so, and vmm_last_error says why.
 *
 * Made by cbindgen from the sources of crates/vmm-c: change those.
 */

#ifndef VMM_H
#define VMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// The first part of the version of this header.
#define VMM_VERSION_MAJOR 0

/// Its second part.
#define VMM_VERSION_MINOR 1

/// Its third part.
#define VMM_VERSION_PATCH 0

/// As a target: none, also where there is a limit. The pool follows what is needed.
#define VMM_NO_TARGET UINT64_MAX

/// What a call came to. A value exists because a caller acts differently on it; the facts of a
/// failure are in `vmm_last_error`. Later versions may have more values.
typedef enum {
    /// The call did what it says.
    VMM_OK = 0,
    /// An argument makes no sense. Nothing has changed.
    VMM_INVALID_ARGUMENT = 1,
    /// No memory now; it may succeed once others release. Nothing has changed.
    /// `vmm_last_out_of_memory` has the figures.
    VMM_OUT_OF_MEMORY = 2,
    /// No state of the pool could ever serve this. A retry cannot help.
    VMM_TOO_LARGE = 3,
    /// `vmm_allocate_at_hand` found no memory at hand.
    VMM_NOT_AT_HAND = 4,
    /// The address is not that of a live lease of this pool: released already, or never given out
    /// by it. Nothing has changed.
    VMM_NOT_A_LEASE = 5,
    /// The device cannot do this.
    VMM_NOT_SUPPORTED = 6,
    /// There is no such device here, or no driver for it.
    VMM_UNAVAILABLE = 7,
    /// A stream is capturing a graph, which the call would break. Call again afterwards.
    VMM_CAPTURING = 8,
    /// A device call failed in a way that memory cannot mend.
    VMM_DEVICE_FAILED = 9,
    /// The driver or its context has shut down: all memory of the pool is gone.
    VMM_DEVICE_LOST = 10,
    /// A file could not be written.
    VMM_IO_FAILED = 11,
    /// A fault inside the library. The pool refuses further use; its memory stays as it is.
    VMM_PANICKED = 12,
} vmm_status_t;

/// What a device is.
typedef enum {
    /// A CUDA device of this machine. The driver library is loaded when the first one is named.
    VMM_DEVICE_CUDA = 0,
    /// A device without hardware, with the rules and the memory of an NVIDIA H200: its addresses
    /// are numbers that nothing can be stored at. For tests.
    VMM_DEVICE_MOCK = 1,
} vmm_device_kind_t;

/// How memory that one stream released becomes usable by another.
typedef enum {
    /// The taker's stream waits on the device for the work that may still use it. The host never
    /// does.
    VMM_CROSS_STREAM_WAIT_ON_DEVICE = 0,
    /// Only once that work is over.
    VMM_CROSS_STREAM_WHEN_REACHED = 1,
    /// Never, short of an allocation that would fail.
    VMM_CROSS_STREAM_NEVER = 2,
} vmm_cross_stream_t;

/// Who makes memory ahead of need and gives back what is above the target.
typedef enum {
    /// A thread of the pool.
    VMM_MAINTENANCE_WORKER = 0,
    /// The user, by calling `vmm_maintain`.
    VMM_MAINTENANCE_USER_LOOP = 1,
    /// Allocations that must call the device anyway do a step more.
    VMM_MAINTENANCE_INLINE = 2,
} vmm_maintenance_t;

/// Where memory lies and what else can be done with it. If the device refuses the kind, plain
/// device memory is used from then on.
typedef enum {
    /// Memory of the device.
    VMM_FRAME_DEVICE = 0,
    /// Memory of the device that can be exported to another process.
    VMM_FRAME_EXPORTABLE = 1,
    /// Memory of the device that network cards can register, and that can be exported.
    VMM_FRAME_RDMA = 2,
    /// Pinned memory of the host.
    VMM_FRAME_HOST = 3,
} vmm_frame_kind_t;

/// Whether the device's virtual memory is used.
typedef enum {
    /// Where the device has it.
    VMM_VIRTUAL_MEMORY_AUTO = 0,
    /// Never: memory stays where the driver has put it, and none moves.
    VMM_VIRTUAL_MEMORY_PLAIN = 1,
} vmm_virtual_memory_t;

/// What a piece of a pool's address space is.
typedef enum {
    /// A range of addresses with memory. The pieces that fill it follow, in the order of addresses.
    VMM_PIECE_RANGE = 0,
    /// A lease that somebody holds.
    VMM_PIECE_LIVE = 1,
    /// A lease that nobody holds any more, while work on several streams may still use it.
    VMM_PIECE_RETIRED = 2,
    /// Memory without a lease.
    VMM_PIECE_FREE = 3,
} vmm_piece_kind_t;

/// A pool of one device's memory.
typedef struct vmm_pool_t vmm_pool_t;

/// The state of a pool when it could do nothing more for a request, in bytes.
typedef struct {
    /// Set it to `sizeof(vmm_out_of_memory_t)` before the call.
    size_t size;
    /// What was asked for.
    uint64_t requested;
    /// The limit of the pool; 0: none.
    uint64_t limit;
    /// Physical memory of the pool.
    uint64_t reserved;
    /// In leases.
    uint64_t live;
    /// Released but still in use by queued work.
    uint64_t retired;
    /// The largest request that would have succeeded, as far as the pool could tell.
    uint64_t largest_possible;
    /// Not 0: the device refused memory before the limit was reached.
    uint32_t device_refused;
    /// Always 0.
    uint32_t reserved_for_later;
    /// The driver's own code where the device refused, else 0.
    int64_t device_code;
} vmm_out_of_memory_t;

/// How a pool is to be. Zero is the default of each field, so that
///
/// ```c
/// vmm_pool_options_t options = {0};
/// options.size = sizeof options;
/// ```
///
/// gives a pool on CUDA device 0 for a program that has it to itself and whose needs are not known.
/// Lengths are in bytes.
typedef struct {
    /// `sizeof(vmm_pool_options_t)`. Later versions have more fields behind the last.
    size_t size;
    /// A `vmm_device_kind_t`.
    uint32_t device_kind;
    /// Which device of that kind, counted from 0.
    uint32_t device_ordinal;
    /// Physical memory of a mock device. 0: that of an H200.
    uint64_t mock_memory;
    /// Physical memory that is never passed, not even for a moment. 0: no limit.
    uint64_t limit;
    /// Physical memory that the pool makes ahead of need and tries to stay under. 0: the limit;
    /// `VMM_NO_TARGET`: none, so that the limit is only not passed. The last run's peak, where it is known,
    /// serves best. All that the device has, or more, is as good as none.
    uint64_t target;
    /// The longest range of addresses to reserve at once. A device that refuses it is asked for
    /// less. 0: 16 times the device's memory.
    uint64_t reservation;
    /// How long memory above the target stays after it was last needed, in nanoseconds. 0: 10
    /// seconds.
    uint64_t time_to_live_ns;
    /// A `vmm_cross_stream_t`.
    uint32_t cross_stream;
    /// A `vmm_maintenance_t`.
    uint32_t maintenance;
    /// A `vmm_frame_kind_t`.
    uint32_t frame_kind;
    /// A `vmm_virtual_memory_t`.
    uint32_t virtual_memory;
    /// Ordinals of the devices that can use all memory of the pool beside its own; read during the
    /// call only. NULL if there are none.
    const uint32_t *peers;
    /// How many `peers` has.
    size_t peer_count;
} vmm_pool_options_t;

/// What the device of a pool is and can do. Lengths are in bytes.
typedef struct {
    /// Set it to `sizeof(vmm_device_info_t)` before the call.
    size_t size;
    /// Physical memory that nobody uses, at this moment.
    uint64_t free;
    /// Physical memory.
    uint64_t total;
    /// The smallest mappable length of device memory.
    uint64_t granule;
    /// The longest range of addresses worth asking for.
    uint64_t max_reservation;
    /// Not 0: memory can move to other addresses while it is free.
    uint32_t remapping;
    /// Not 0: one piece of memory can be mapped at several addresses at once.
    uint32_t aliases;
    /// Not 0: other devices can be given access.
    uint32_t peers;
    /// Not 0: streams can capture graphs.
    uint32_t capture;
} vmm_device_info_t;

/// A stream of the device: a `cudaStream_t` or `CUstream` as it is, NULL being the default stream.
/// A mock device takes any number.
typedef void *vmm_stream_t;

/// The lease that an address lies in.
typedef struct {
    /// Set it to `sizeof(vmm_lease_t)` before the call.
    size_t size;
    /// Where the lease begins: what `vmm_release` takes.
    void *base;
    /// Bytes as they were asked for.
    uint64_t len;
    /// Bytes from its beginning to the address that was asked about.
    uint64_t offset;
    /// Whom it is accounted to.
    uint32_t owner;
    /// How many hold it.
    uint32_t count;
} vmm_lease_t;

/// What a pressure callback learns, in bytes.
typedef struct {
    /// The size of this struct; a later library may have more fields.
    size_t size;
    /// What an allocation is about to fail for.
    uint64_t requested;
    /// Physical memory of the pool.
    uint64_t reserved;
    /// The limit of the pool; 0: none.
    uint64_t limit;
} vmm_pressure_t;

/// Called before an allocation fails, in the thread that allocates and without any lock. It may
/// release leases and call the pool, but not destroy it; an allocation that fails in it calls no
/// callbacks. It must return: neither an exception nor `longjmp` may leave it. `pressure` lives
/// until it returns.
typedef void (*vmm_pressure_callback_t)(const vmm_pressure_t *pressure, void *user_data);

/// The figures of a pool at one moment. Lengths are in bytes, of whole units of 512.
typedef struct {
    /// Set it to `sizeof(vmm_stats_t)` before the call. Later versions have more fields behind the
    /// last.
    size_t size;
    /// In leases.
    uint64_t live_bytes;
    /// In leases as they were asked for, before rounding.
    uint64_t requested_bytes;
    /// Leases that somebody holds.
    uint64_t live_leases;
    /// Physical memory of the pool, what is being made included.
    uint64_t reserved_bytes;
    /// Released with uses on several streams that are not over.
    uint64_t retired_bytes;
    /// Addresses whose memory has moved on but that are still mapped. They hold no memory.
    uint64_t stale_bytes;
    /// The highest `live_bytes` so far.
    uint64_t peak_live_bytes;
    /// The highest `requested_bytes` so far.
    uint64_t peak_requested_bytes;
    /// The most bytes that frames had so far. Those that other threads were making or releasing when some were
    /// made count; a request that the device refused does not.
    uint64_t peak_reserved_bytes;
    /// Leases made.
    uint64_t allocations;
    /// Leases ended.
    uint64_t releases;
    /// Allocations that memory at hand could not serve.
    uint64_t misses;
    /// Allocations that failed, also those that could never be served.
    uint64_t failures;
    /// Frames (pieces of physical memory) made.
    uint64_t frames_made;
    /// Idle frames that moved to another address.
    uint64_t frames_moved;
    /// Frames that went back to an address that they were still mapped at.
    uint64_t frames_recalled;
    /// Frames released.
    uint64_t frames_released;
    /// In frames released.
    uint64_t frames_released_bytes;
    /// Mappings removed.
    uint64_t unmaps;
    /// Times that a stream was made to wait on the device for another.
    uint64_t device_waits;
    /// Times that the host waited for the device.
    uint64_t host_waits;
    /// Steps that the device refused.
    uint64_t failed_steps;
    /// The limit; 0: none.
    uint64_t limit;
    /// The target; 0: none of its own.
    uint64_t target;
    /// Frames of the pool.
    uint64_t frames;
    /// Mappings of the pool.
    uint64_t mappings;
    /// Address space reserved.
    uint64_t address_bytes;
    /// Private pools that were made and not released.
    uint64_t private_pools;
    /// Of `reserved_bytes`, what serves private pools and leases that these have left.
    uint64_t private_reserved_bytes;
    /// The highest `live_bytes` and `retired_bytes` together so far, as found whenever memory at hand did
    /// not serve a request.
    uint64_t peak_active_bytes;
    /// The most frames that there were at once so far.
    uint64_t peak_frames;
    /// The kind of frames that are made, a `vmm_frame_kind_t`: that of the options, or `VMM_FRAME_DEVICE`
    /// once the device refused it.
    uint64_t frame_kind;
    /// Nanoseconds that threads took to find memory in `misses`: device calls, waits and callbacks. It is what
    /// the pool costs beyond the fixed price of an allocation, which is below a microsecond.
    uint64_t miss_ns;
} vmm_stats_t;

/// One piece of a pool's address space.
typedef struct {
    /// The size of this struct; a later library may have more fields.
    size_t size;
    /// Where it begins.
    void *address;
    /// Its length in bytes.
    uint64_t len;
    /// Bytes that were asked for; 0 unless it is a lease.
    uint64_t requested;
    /// The private pool that the range around it belongs to; 0: none that lives.
    uint64_t private_id;
    /// A `vmm_piece_kind_t`.
    uint32_t kind;
    /// Always 0.
    uint32_t reserved_for_later;
} vmm_piece_t;

/// Called for each piece, in the thread that called `vmm_walk` and without any lock; it may call
/// the pool. It must return: neither an exception nor `longjmp` may leave it. `piece` lives until
/// it returns.
typedef void (*vmm_visit_t)(const vmm_piece_t *piece, void *user_data);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The version of the library as a text, "0.1.0". It may be later than that of the header a program
/// was compiled with. The text lives as long as the library.
const char *vmm_version(void);

/// The name of a status, `VMM_OUT_OF_MEMORY` say; "unknown status" for a number that is none. The
/// text lives as long as the library.
const char *vmm_status_name(uint32_t status);

/// Says what went wrong in the last call of this thread that failed, with the facts: for an
/// out-of-memory the limit, what is reserved and live, the largest request possible and the largest
/// holders. An empty text if none has failed.
///
/// The text belongs to the library and stays as it is until the next call of this thread fails, or
/// the thread ends. A call that succeeds does not change it.
const char *vmm_last_error(void);

/// The figures of the last `VMM_OUT_OF_MEMORY` of this thread, for those who make a message of
/// their own. `VMM_INVALID_ARGUMENT` if there was none.
///
/// Needs:
/// `out` is NULL or points to a `vmm_out_of_memory_t` whose `size` is set.
vmm_status_t vmm_last_out_of_memory(vmm_out_of_memory_t *out);

/// How many devices of a `vmm_device_kind_t` there are. For CUDA this loads the driver; for the
/// mock the answer is 1, though each pool on it has a device of its own.
///
/// Needs:
/// `count` is NULL or can be written.
vmm_status_t vmm_device_count(uint32_t kind, uint32_t *count);

/// Makes a pool and writes it to `pool`. Reserves addresses and makes no memory yet.
///
/// `VMM_UNAVAILABLE` where there is no such device or no driver, `VMM_NOT_SUPPORTED` where the
/// device lacks what the options ask for, `VMM_INVALID_ARGUMENT` for options that make no sense. On
/// an error `pool` is set to NULL.
///
/// Needs:
/// `options` is NULL or points to options whose `size` is set, with `peers` NULL or as many
/// ordinals as `peer_count` says. `pool` is NULL or can be written.
vmm_status_t vmm_pool_create(const vmm_pool_options_t *options, vmm_pool_t **pool);

/// Ends a pool and gives everything it has back to the device. Waits for work that still uses its
/// memory.
///
/// Leases that are still held end with it: no work may be queued on their memory any more. NULL is
/// fine. A pool that refuses use after `VMM_PANICKED` is left behind with its memory, and the call
/// says so.
///
/// Needs:
/// `pool` is NULL or lives. No other call with this pool is under way or
/// comes later.
vmm_status_t vmm_pool_destroy(vmm_pool_t *pool);

/// The name of the device of a pool; an empty text for NULL. It lives as long as the pool.
///
/// Needs:
/// `pool` is NULL or lives.
const char *vmm_device_name(const vmm_pool_t *pool);

/// Writes what the device of a pool is and can do to `info`. Asks the device for its free memory.
///
/// Needs:
/// `pool` is NULL or lives, `info` is NULL or points to a
/// `vmm_device_info_t` whose `size` is set.
vmm_status_t vmm_device_info(vmm_pool_t *pool, vmm_device_info_t *info);

/// The number of the owner of this name, for accounts and error messages; the same name has the
/// same number. It is valid in this pool, for as long as that lives. Costs a lookup: keep it.
///
/// Needs:
/// `pool` is NULL or lives, `name` is NULL or a text that ends in a zero
/// byte, `owner` is NULL or can be written.
vmm_status_t vmm_owner(vmm_pool_t *pool, const char *name, uint32_t *owner);

/// Allocates `len` bytes for work on `stream` and writes their address to `ptr`; one user holds
/// them.
///
/// `alignment` is a power of two in bytes; less than 512 means 512. `owner` comes from `vmm_owner`,
/// 0 is nobody in particular. No bytes give NULL, for which nothing needs to be released.
/// `VMM_OUT_OF_MEMORY`: not now. `VMM_TOO_LARGE`: never. On an error `ptr` is set to NULL and
/// nothing has changed.
///
/// Needs:
/// `pool` is NULL or lives, `ptr` is NULL or can be written.
vmm_status_t vmm_allocate(vmm_pool_t *pool,
                          uint64_t len,
                          uint64_t alignment,
                          vmm_stream_t stream,
                          uint32_t owner,
                          void **ptr);

/// As `vmm_allocate`, from memory that is at hand: makes no device call whatever. `VMM_NOT_AT_HAND`
/// if there is none; the pool may still be able to make some.
///
/// Needs:
/// As `vmm_allocate`.
vmm_status_t vmm_allocate_at_hand(vmm_pool_t *pool,
                                  uint64_t len,
                                  uint64_t alignment,
                                  vmm_stream_t stream,
                                  uint32_t owner,
                                  void **ptr);

/// Declares a further user of the lease at `ptr`: it ends only after one release more. NULL is
/// fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_share(vmm_pool_t *pool, void *ptr);

/// Notes that work on a further stream uses the lease at `ptr`, from now until its last release.
/// NULL is fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_used_on(vmm_pool_t *pool, void *ptr, vmm_stream_t stream);

/// One user of the lease at `ptr` lets go. Its work ends with what is queued on `stream` by now;
/// the program need not wait for it. After the last release the address is not the caller's any
/// more. NULL is fine.
///
/// `VMM_NOT_A_LEASE`, with nothing changed, if no lease of this pool begins there: it was released
/// already, belongs to another pool, or `ptr` lies in the middle of a lease. An address that was
/// released and then given out anew is live again, so a release too many of it cannot be told from
/// a right one.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_release(vmm_pool_t *pool, void *ptr, vmm_stream_t stream);

/// As `vmm_release`, on the stream that the lease was allocated for, which may be destroyed by now:
/// for a user that knows no more than the address. Writes the bytes that were asked for to `len`,
/// unless that is NULL; 0 for NULL.
///
/// Needs:
/// `pool` is NULL or lives, `len` is NULL or can be written.
vmm_status_t vmm_free(vmm_pool_t *pool, void *ptr, uint64_t *len);

/// Finds the live lease that `ptr` lies in, at its beginning or anywhere in it. Looks at this
/// pool only, not at the device. `VMM_NOT_A_LEASE` if there is none.
///
/// Needs:
/// `pool` is NULL or lives, `lease` is NULL or points to a `vmm_lease_t`
/// whose `size` is set.
vmm_status_t vmm_find(vmm_pool_t *pool, const void *ptr, vmm_lease_t *lease);

/// Makes a private pool and writes its number to `id`: from 1 on, and never used twice in one pool.
///
/// A private pool has addresses of its own. Its memory stays mapped where it is and serves its own
/// allocations only, until it is released: as a captured graph needs it, which uses the addresses
/// that it was captured with whenever it runs. Limit, accounts and streams are those of the pool.
/// It has no memory before the first allocation.
///
/// `VMM_OUT_OF_MEMORY` if 4094 others live or have leases. On an error `id` is set to 0.
///
/// Needs:
/// `pool` is NULL or lives, `id` is NULL or can be written.
vmm_status_t vmm_private_create(vmm_pool_t *pool, uint64_t *id);

/// As `vmm_allocate`, from a private pool. While a stream captures it asks nothing of it: memory
/// comes from what the private pool has free for that stream, from idle memory of the pool that no
/// queued work uses, or is made.
///
/// What is released during a capture is used again by what the stream captures later. Afterwards it
/// is free for later captures: the program orders the launches of graphs that share a private pool.
///
/// The lease is one like all others: `vmm_release`, `vmm_share`, `vmm_used_on` and `vmm_find` take
/// its address. `VMM_INVALID_ARGUMENT` if there is no private pool of this number.
///
/// Needs:
/// `pool` is NULL or lives, `ptr` is NULL or can be written.
vmm_status_t vmm_private_allocate(vmm_pool_t *pool,
                                  uint64_t id,
                                  uint64_t len,
                                  uint64_t alignment,
                                  vmm_stream_t stream,
                                  uint32_t owner,
                                  void **ptr);

/// Allocates exactly the `len` bytes at `ptr`, free memory of a private pool: so leases can be put
/// back where they were before they were released, as the checkpoints of CUDA graph trees want.
///
/// `VMM_OUT_OF_MEMORY`, with nothing changed, if a part of the range is held, in use by work that
/// `stream` cannot be ordered after, or not memory of the private pool. No bytes are fine anywhere,
/// and nothing needs to be released then.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_private_allocate_at(vmm_pool_t *pool,
                                     uint64_t id,
                                     void *ptr,
                                     uint64_t len,
                                     vmm_stream_t stream,
                                     uint32_t owner);

/// Ends a private pool: nothing can be allocated from it any more, and its number means nothing.
/// Its memory goes back to the pool as its leases end, once all work has passed that is queued by
/// then on any stream that the pool has seen; launches of its graphs on other streams must be over.
/// Makes no device call. `VMM_INVALID_ARGUMENT` if there is no private pool of this number.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_private_release(vmm_pool_t *pool, uint64_t id);

/// Lets a further device use all memory of the pool: what there is before the call returns, and
/// what is made later. Costs about a millisecond for each piece of memory on real cards.
/// `VMM_NOT_SUPPORTED` where the devices cannot reach each other. On an error the device is not
/// registered, and a later call may succeed.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_add_peer(vmm_pool_t *pool, uint32_t ordinal);

/// Lets other devices use the memory of the lease at `ptr`, until the lease ends. The memory stays
/// where it is. NULL is fine. `VMM_NOT_A_LEASE` if no lease of this pool begins there.
///
/// Needs:
/// `pool` is NULL or lives, `peers` is NULL or points to `peer_count`
/// ordinals.
vmm_status_t vmm_grant(vmm_pool_t *pool, void *ptr, const uint32_t *peers, size_t peer_count);

/// Releases memory that is idle until at most `keep` bytes are reserved. Never waits: memory that
/// queued work still uses goes later, during maintenance. Writes the bytes released to `released`,
/// unless that is NULL.
///
/// Needs:
/// `pool` is NULL or lives, `released` is NULL or can be written.
vmm_status_t vmm_trim(vmm_pool_t *pool, uint64_t keep, uint64_t *released);

/// As `vmm_trim`, but waits on the host for work that still uses idle memory.
///
/// Needs:
/// As `vmm_trim`.
vmm_status_t vmm_trim_and_wait(vmm_pool_t *pool, uint64_t keep, uint64_t *released);

/// Sets the limit in bytes; 0: none. One below what is reserved stops growth at once, and
/// `vmm_trim` brings the pool below it. `VMM_INVALID_ARGUMENT` for less than one granule of the
/// device.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_set_limit(vmm_pool_t *pool, uint64_t limit);

/// Sets the target in bytes: what the pool makes ahead of need and tries to stay under. 0: the
/// limit; `VMM_NO_TARGET`: none, also where there is a limit.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_set_target(vmm_pool_t *pool, uint64_t target);

/// Does one step of maintenance: a few device calls, none that waits. For pools with
/// `VMM_MAINTENANCE_USER_LOOP`; on others it is allowed and not needed. Sets `worked` unless that
/// is NULL: false when there was nothing to do, and after a failure.
///
/// Needs:
/// `pool` is NULL or lives, `worked` is NULL or can be written.
vmm_status_t vmm_maintain(vmm_pool_t *pool, bool *worked);

/// To be called before a stream is destroyed: the pool records where its work ends. A later stream
/// of the same handle is a new one. `VMM_CAPTURING` while a stream captures a graph; the stream is
/// not forgotten then.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_forget_stream(vmm_pool_t *pool, vmm_stream_t stream);

/// Says whether the pool may ask the device about a stream, as it may about all others. Where it may not,
/// the stream can be destroyed at any moment, without `vmm_forget_stream` and before its leases end. What
/// it released since its last request serves it alone, and others once the pool has waited for the whole
/// device, as it does where it would fail otherwise. For streams of other libraries.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_watch_stream(vmm_pool_t *pool,
                              vmm_stream_t stream,
                              bool watched);

/// Checks all structures of the pool against each other, for tests of programs that use it. A fault
/// makes it `VMM_PANICKED`. Holds up all other calls meanwhile.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_validate(vmm_pool_t *pool);

/// Adds a callback that is called before an allocation of the pool fails; the allocation is tried
/// once more afterwards. Several are called in the order in which they were added. `id` names this
/// one for its removal.
///
/// Needs:
/// `pool` is NULL or lives, `id` is NULL or can be written. `callback` can
/// be called with `user_data` by any thread, also by several at once, until
/// `vmm_remove_pressure_callback` has returned or the pool is destroyed.
vmm_status_t vmm_add_pressure_callback(vmm_pool_t *pool,
                                       vmm_pressure_callback_t callback,
                                       void *user_data,
                                       uint64_t *id);

/// Removes a callback, and waits for calls of it that are under way: afterwards `user_data` may go.
/// Called from inside a callback it does not wait. `VMM_INVALID_ARGUMENT` if there is none of this
/// `id`.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_remove_pressure_callback(vmm_pool_t *pool, uint64_t id);

/// Writes the figures of this moment to `stats`.
///
/// Needs:
/// `pool` is NULL or lives, `stats` is NULL or points to a `vmm_stats_t`
/// whose `size` is set.
vmm_status_t vmm_stats(vmm_pool_t *pool, vmm_stats_t *stats);

/// Lets the three peaks among the figures begin anew, at what there is now.
///
/// Needs:
/// `pool` is NULL or lives.
vmm_status_t vmm_reset_peaks(vmm_pool_t *pool);

/// Writes everything the pool has at this moment to a file: mapped ranges with leases and free
/// memory in them, and one allocation for each live lease, with its owner where a stack would be.
/// The form is that of `PyTorch`'s memory snapshots, which `vmm replay` and `PyTorch`'s viewer
/// (`pytorch.org/memory_viz`) open; gzipped if the name ends in ".gz". How the leases came
/// to be is not recorded, so the times are all that of the call.
///
/// Needs:
/// `pool` is NULL or lives, `path` is NULL or a text that ends in a zero
/// byte.
vmm_status_t vmm_write_snapshot(vmm_pool_t *pool, const char *path);

/// Visits everything that the pool had at the moment of the call: each range of addresses with
/// memory, in the order of addresses, followed by the leases and the free memory in it.
///
/// Needs:
/// `pool` is NULL or lives. `visit` is NULL or can be called with
/// `user_data`.
vmm_status_t vmm_walk(vmm_pool_t *pool, vmm_visit_t visit, void *user_data);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* VMM_H */

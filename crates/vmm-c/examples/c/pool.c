/*
 * A tour of vmm.h: make a pool, allocate, share a lease between two streams, see what happened, run
 * out of memory, and clean up. It runs on the mock device, so it needs no GPU:
 *
 *     cc -std=c11 pool.c $(pkg-config --cflags --libs vmm) -o pool && ./pool
 *
 * `./pool cuda` takes CUDA device 0 instead, and its default stream. Any other argument is the file
 * that a snapshot is written to, OUT.pickle say.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vmm.h>

#define MIB ((uint64_t)1 << 20)

/* Ends the program where a call does not come to what is expected of it. */
static void expect(vmm_status_t found, vmm_status_t expected, const char *call) {
    if (found == expected) {
        return;
    }
    fprintf(stderr, "%s: %s, expected %s: %s\n", call, vmm_status_name(found),
            vmm_status_name(expected), vmm_last_error());
    exit(1);
}

static void ensure(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "not so: %s\n", what);
        exit(1);
    }
}

#define OK(call) expect((call), VMM_OK, #call)
#define GIVES(status, call) expect((call), (status), #call)
#define ENSURE(condition) ensure((condition), #condition)

/* What the program can do without: a cache that is dropped under pressure. */
struct cache {
    vmm_pool_t *pool;
    void *memory;
    vmm_stream_t stream;
    int calls;
};

static void drop_cache(const vmm_pressure_t *pressure, void *user_data) {
    struct cache *cache = user_data;
    cache->calls++;
    printf("pressure: %" PRIu64 " bytes wanted, %" PRIu64 " reserved of %" PRIu64 "\n",
           pressure->requested, pressure->reserved, pressure->limit);
    OK(vmm_release(cache->pool, cache->memory, cache->stream));
    cache->memory = NULL;
}

static vmm_stats_t stats_of(vmm_pool_t *pool) {
    vmm_stats_t stats = {0};
    stats.size = sizeof stats;
    OK(vmm_stats(pool, &stats));
    return stats;
}

/* One lease, two users on two streams: it ends with the last of them. Nobody waits on the host. */
static void share_a_lease(vmm_pool_t *pool, vmm_stream_t producer, vmm_stream_t consumer) {
    uint32_t owner = 0;
    OK(vmm_owner(pool, "activations", &owner));
    void *activations = NULL;
    OK(vmm_allocate(pool, 10 * MIB, 0, producer, owner, &activations));
    OK(vmm_share(pool, activations)); /* another operator will read it */
    OK(vmm_used_on(pool, activations, consumer));
    OK(vmm_release(pool, activations, producer)); /* the memory stays */
    ENSURE(stats_of(pool).live_leases == 1);

    /* Any address inside leads to its lease. */
    vmm_lease_t lease = {0};
    lease.size = sizeof lease;
    OK(vmm_find(pool, (char *)activations + 3 * MIB + 5, &lease));
    ENSURE(lease.base == activations && lease.len == 10 * MIB);
    ENSURE(lease.offset == 3 * MIB + 5 && lease.owner == owner && lease.count == 1);

    OK(vmm_release(pool, activations, consumer));
    ENSURE(stats_of(pool).live_leases == 0);

    GIVES(VMM_NOT_A_LEASE, vmm_release(pool, activations, consumer));
    printf("released twice: %s\n", vmm_last_error());
}

/* The limit is 64 MiB. */
static void run_out_of_memory(vmm_pool_t *pool, vmm_stream_t stream) {
    struct cache cache = {pool, NULL, stream, 0};
    void *weights = NULL;
    OK(vmm_allocate(pool, 20 * MIB, 0, stream, 0, &weights));
    OK(vmm_allocate(pool, 30 * MIB, 0, stream, 0, &cache.memory));

    uint64_t id = 0;
    OK(vmm_add_pressure_callback(pool, drop_cache, &cache, &id));
    void *batch = NULL;
    OK(vmm_allocate(pool, 40 * MIB, 0, stream, 0, &batch)); /* only without the cache */
    ENSURE(cache.calls == 1 && cache.memory == NULL);
    OK(vmm_remove_pressure_callback(pool, id));

    void *more = NULL;
    GIVES(VMM_OUT_OF_MEMORY, vmm_allocate(pool, 50 * MIB, 0, stream, 0, &more));
    ENSURE(more == NULL && cache.calls == 1);
    printf("%s\n", vmm_last_error());
    vmm_out_of_memory_t facts = {0};
    facts.size = sizeof facts;
    OK(vmm_last_out_of_memory(&facts));
    ENSURE(facts.requested == 50 * MIB && facts.limit == 64 * MIB && facts.live == 60 * MIB);
    GIVES(VMM_TOO_LARGE, vmm_allocate(pool, 1 << 30, 0, stream, 0, &more));

    OK(vmm_release(pool, batch, stream));
    OK(vmm_release(pool, weights, stream));
}

int main(int argc, char **argv) {
    vmm_pool_options_t options = {0};
    options.size = sizeof options;
    options.device_kind = VMM_DEVICE_MOCK;
    options.limit = 64 * MIB;
    /* A program that wants to know exactly what happens does the maintenance itself. */
    options.maintenance = VMM_MAINTENANCE_USER_LOOP;
    vmm_stream_t producer = (vmm_stream_t)0x1000, consumer = (vmm_stream_t)0x2000;
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "cuda") == 0) {
            options.device_kind = VMM_DEVICE_CUDA;
            producer = consumer = NULL;
        } else {
            path = argv[i];
        }
    }

    vmm_pool_t *pool = NULL;
    OK(vmm_pool_create(&options, &pool));
    printf("vmm %s on %s\n", vmm_version(), vmm_device_name(pool));

    share_a_lease(pool, producer, consumer);
    run_out_of_memory(pool, producer);

    /* No bytes are NULL, and NULL needs no release. */
    void *nothing = &options;
    OK(vmm_allocate(pool, 0, 0, producer, 0, &nothing));
    ENSURE(nothing == NULL);
    OK(vmm_release(pool, nothing, producer));

    if (path != NULL) {
        void *kept = NULL;
        OK(vmm_allocate(pool, 5 * MIB, 0, producer, 0, &kept));
        OK(vmm_write_snapshot(pool, path));
        OK(vmm_release(pool, kept, producer));
        printf("wrote %s\n", path);
    }

    uint64_t released = 0;
    OK(vmm_trim_and_wait(pool, 0, &released));
    vmm_stats_t stats = stats_of(pool);
    printf("%" PRIu64 " allocations, %" PRIu64 " failed; peak %" PRIu64 " live, %" PRIu64
           " reserved; %" PRIu64 " bytes trimmed\n",
           stats.allocations, stats.failures, stats.peak_live_bytes, stats.peak_reserved_bytes,
           released);
    ENSURE(stats.live_leases == 0 && stats.reserved_bytes == 0);
    ENSURE(stats.peak_reserved_bytes <= 64 * MIB);
    OK(vmm_validate(pool));
    OK(vmm_pool_destroy(pool));
    return 0;
}

/*
 * Threads that allocate, share, ask about and release leases of one pool, each other's as well. A
 * lease is accounted to the thread that allocated it, so that an address that was live twice would
 * show another owner or length.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <vmm.h>

enum { THREADS = 6, LIVE = 48, SHELF = 64 };

static vmm_pool_t *pool;
static uint64_t rounds;
/* Leases that their thread leaves to others, by address. */
static _Atomic(void *) shelf[SHELF];

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: not so: %s (%s)\n", __LINE__, #condition, vmm_last_error()); \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct held {
    char *memory;
    uint64_t len;
    int users;
};

static uint64_t next(uint64_t *state) { /* xorshift64, Marsaglia 2003 */
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static void ask(const struct held *held, uint64_t offset, uint32_t owner) {
    vmm_lease_t lease = {0};
    lease.size = sizeof lease;
    CHECK(vmm_find(pool, held->memory + offset, &lease) == VMM_OK);
    CHECK(lease.base == held->memory && lease.offset == offset && lease.len == held->len);
    CHECK(lease.owner == owner && lease.count == (uint32_t)held->users);
}

static void *work(void *argument) {
    uint64_t thread = (uintptr_t)argument, random = 88172645463325252u + thread;
    vmm_stream_t stream = (vmm_stream_t)(uintptr_t)(thread + 1);
    char name[16];
    snprintf(name, sizeof name, "thread %d", (int)thread);
    uint32_t owner = 0;
    CHECK(vmm_owner(pool, name, &owner) == VMM_OK && owner != 0);
    struct held live[LIVE] = {{0}};
    for (uint64_t round = 0; round < rounds; round++) {
        struct held *held = &live[next(&random) % LIVE];
        uint64_t what = next(&random) % 8;
        if (held->users == 0) {
            uint64_t shift = 6 + next(&random) % 17;
            held->len = 1 + next(&random) % ((uint64_t)1 << shift);
            void *memory = NULL;
            CHECK(vmm_allocate(pool, held->len, 0, stream, owner, &memory) == VMM_OK);
            held->memory = memory;
            held->users = 1;
            ask(held, 0, owner);
        } else if (what == 0) {
            CHECK(vmm_share(pool, held->memory) == VMM_OK);
            held->users++;
        } else if (what == 1) {
            CHECK(vmm_used_on(pool, held->memory, (vmm_stream_t)(uintptr_t)99) == VMM_OK);
        } else if (what == 2) {
            ask(held, next(&random) % held->len, owner);
        } else if (what == 3 && held->users == 1) {
            /* Whoever finds it there releases it. */
            void *other = atomic_exchange(&shelf[next(&random) % SHELF], held->memory);
            CHECK(vmm_release(pool, other, stream) == VMM_OK);
            held->users = 0;
        } else {
            CHECK(vmm_release(pool, held->memory, stream) == VMM_OK);
            held->users--;
        }
    }
    for (int i = 0; i < LIVE; i++) {
        while (live[i].users-- > 0) {
            CHECK(vmm_release(pool, live[i].memory, stream) == VMM_OK);
        }
    }
    /* An error is that of its thread. */
    CHECK(vmm_release(pool, &live, stream) == VMM_NOT_A_LEASE);
    return NULL;
}

static void *validate(void *argument) {
    atomic_bool *done = argument;
    while (!atomic_load(done)) {
        CHECK(vmm_validate(pool) == VMM_OK);
        sched_yield();
    }
    return NULL;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000;
    vmm_pool_options_t options = {0};
    options.size = sizeof options;
    options.device_kind = VMM_DEVICE_MOCK;
    CHECK(vmm_pool_create(&options, &pool) == VMM_OK);
    pthread_t threads[THREADS], validator;
    atomic_bool done = false;
    CHECK(pthread_create(&validator, NULL, validate, &done) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    atomic_store(&done, true);
    CHECK(pthread_join(validator, NULL) == 0);
    for (int i = 0; i < SHELF; i++) {
        CHECK(vmm_release(pool, atomic_load(&shelf[i]), NULL) == VMM_OK);
    }
    vmm_stats_t stats = {0};
    stats.size = sizeof stats;
    CHECK(vmm_stats(pool, &stats) == VMM_OK);
    CHECK(stats.live_leases == 0 && stats.allocations == stats.releases);
    CHECK(stats.allocations > rounds / 8);
    CHECK(vmm_pool_destroy(pool) == VMM_OK);
    printf("%d threads, %lu allocations\n", THREADS, (unsigned long)stats.allocations);
    return 0;
}

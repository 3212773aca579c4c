// Memory that an allocator of the user's gave: how it is cut, when it serves again, and what it counts
// for, on libvmm's mock device. The program is compiled and run by tests/test_on_mock.py; it prints one
// line for each check that fails.
//
// usage: users_on_mock LIBVMM

#include "users.h"

namespace {

Fake fake;

// Lets the device be idle, and gives back what is free then.
void settle(const Pool &pool) { memory().settle(0, pool.name); }

// The segments of a pool: of each the lengths of its blocks, those that are not in use below zero.
std::vector<std::vector<int64_t>> listed(const Pool &pool) {
    std::vector<std::vector<int64_t>> all;
    for (const auto &segment : allocator().snapshot(pool.name, false).segments) {
        std::vector<int64_t> blocks;
        size_t live = 0;
        size_t total = 0;
        for (const auto &block : segment.blocks) {
            auto len = static_cast<int64_t>(block.size);
            blocks.push_back(block.allocated ? len : -len);
            live += block.allocated ? block.size : 0;
            total += block.size;
        }
        CHECK(segment.allocated_size == live && segment.total_size == total);
        all.push_back(blocks);
    }
    return all;
}

using Blocks = std::vector<std::vector<int64_t>>;
constexpr auto M = static_cast<int64_t>(MIB);

void short_requests_share_pieces() {
    Pool pool(std::make_shared<Users>());
    std::vector<void *> held;
    for (int i = 0; i < 1000; ++i) {
        held.push_back(pool.allocate(4096));
    }
    CHECK(std::set<void *>(held.begin(), held.end()).size() == 1000);
    CHECK(pool.users->out == 4 * MIB);
    auto stats = allocator().getDeviceStats(0);
    CHECK(current(stats.allocated_bytes) == 1000 * 4096);
    for (void *ptr : held) {
        CHECK(memory().release(ptr));
    }
    // All neighbours have joined, and nothing has gone to the users' allocator meanwhile.
    CHECK((listed(pool) == Blocks{{-2 * M}, {-2 * M}}) && pool.users->freed == 0);
    // A short request is one of 1 MiB as well, and takes no part of a longer one's piece.
    void *a = pool.allocate(MIB);
    void *b = pool.allocate(MIB);
    void *c = pool.allocate(MIB + 512);
    CHECK((listed(pool) == Blocks{{M, M}, {-2 * M}, {M + 512, 512 - M}}));
    CHECK(pool.users->out == 6 * MIB);
    for (void *ptr : {a, c, b}) {
        CHECK(memory().release(ptr));
    }
    settle(pool);
    CHECK(pool.users->out == 0 && pool.users->freed == 3);
}

void long_requests_are_cut_from_what_is_free() {
    Pool pool(std::make_shared<Users>());
    CHECK(memory().release(pool.allocate(64 * MIB)));
    void *a = pool.allocate(20 * MIB);
    void *b = pool.allocate(20 * MIB);
    void *c = pool.allocate(24 * MIB);
    CHECK(pool.users->out == 64 * MIB && (listed(pool) == Blocks{{20 * M, 20 * M, 24 * M}}));
    // Neither another stream's nor, with one block in use, the users' allocator's.
    CHECK(memory().release(b));
    void *other = pool.allocate(20 * MIB, 2);
    settle(pool);
    CHECK(pool.users->out == 84 * MIB && pool.users->freed == 0);
    CHECK(memory().release(a));
    CHECK((listed(pool) == Blocks{{-40 * M, 24 * M}, {20 * M}}));
    CHECK(pool.allocate(40 * MIB) == a && memory().release(a));
    CHECK(memory().release(c) && memory().release(other));
    CHECK((listed(pool) == Blocks{{-64 * M}, {-20 * M}}));
    settle(pool);
    CHECK(pool.users->out == 0);
}

// Releases memory that a further stream used.
void use_and_release(void *ptr, int on) {
    memory().used_on(ptr, {stream(on)});
    CHECK(memory().release(ptr));
}

void what_others_used_serves_again_when_they_are_done() {
    Pool pool(std::make_shared<Users>());
    for (int i = 0; i < 500; ++i) {
        use_and_release(pool.allocate(64 * MIB), 9);
        fake.over = fake.made;
    }
    CHECK(pool.users->out == 64 * MIB);
    // A stream that is behind keeps what it used, and nothing else.
    void *a = pool.allocate(64 * MIB);
    use_and_release(a, 9);
    void *b = pool.allocate(64 * MIB);
    CHECK(b != a && pool.users->out == 128 * MIB);
    CHECK((listed(pool) == Blocks{{-64 * M}, {64 * M}}));
    memory().used_on(b, {stream(8)});
    use_and_release(b, 9);
    // Both streams are to be done.
    fake.over = fake.made - 1;
    CHECK(pool.allocate(64 * MIB) == a);
    void *c = pool.allocate(64 * MIB);
    CHECK(c != b);
    fake.over = fake.made;
    CHECK(pool.allocate(64 * MIB) == b);
    for (void *ptr : {a, b, c}) {
        CHECK(memory().release(ptr));
    }
    CHECK(fake.open.empty());
    settle(pool);
    CHECK(pool.users->out == 0);
}

void the_idle_device_ends_all_uses() {
    Pool pool(std::make_shared<Users>());
    void *a = pool.allocate(20 * MIB);
    CHECK(memory().release(pool.allocate(64 * MIB)));
    void *b = pool.allocate(20 * MIB);
    void *c = pool.allocate(20 * MIB);
    use_and_release(a, 9);
    use_and_release(b, 9);
    // Of a stream that captures no event tells.
    void *d = pool.allocate(4 * MIB);
    fake.captures = {stream(7)};
    memory().used_on(d, {stream(9)});
    use_and_release(d, 7);
    fake.captures = {};
    fake.over = 0;
    CHECK(fake.open.size() == 3);
    settle(pool);
    CHECK(fake.open.empty() && pool.users->freed == 1);
    CHECK((listed(pool) == Blocks{{-20 * M, 20 * M, -24 * M}}));
    CHECK(pool.allocate(20 * MIB) == b && memory().release(b) && memory().release(c));
    // What could not be recorded serves nobody before that.
    a = pool.allocate(64 * MIB);
    fake.captures = {stream(7)};
    use_and_release(a, 7);
    fake.captures = {};
    fake.over = fake.made;
    b = pool.allocate(64 * MIB);
    CHECK(b != a && pool.users->out == 128 * MIB && memory().release(b));
    settle(pool);
    CHECK(pool.users->out == 0);
}

// Its memory serves it again at once, and others when the device was idle.
void a_stream_that_may_be_destroyed_is_not_asked() {
    Pool pool(std::make_shared<Users>());
    auto allocate = [&] {
        allocator().beginAllocateToPool(0, pool.name, everywhere);
        void *ptr = memory().allocate(0, 4 * MIB, stream(5), true);
        allocator().endAllocateToPool(0, pool.name);
        allocator().releasePool(0, pool.name);
        return ptr;
    };
    fake.over = fake.made;
    void *ptr = allocate();
    CHECK(memory().release(ptr));
    void *other = allocate();
    CHECK(other == ptr && fake.open.empty());
    // Nor is it behind a use on another device before that is over.
    fake.waiting.clear();
    memory().used_on(other, {stream(5), 1});
    memory().used_on(other, {stream(9), 0, true});
    CHECK(memory().release(other));
    fake.destroyed = {stream(5), stream(9)};
    settle(pool);
    CHECK(pool.users->out == 4 * MIB && fake.open.size() == 2);
    allocator().emptyCache({0, 0});
    CHECK(fake.open.size() == 1 && fake.waiting.empty());
    settle(pool);
    CHECK(pool.users->out == 0 && fake.open.empty());
    fake.destroyed = {};
}

void users_memory_counts_for_the_limit() {
    CHECK(empties());
    Pool pool(std::make_shared<Users>());
    // The general pool can have no less than a granule.
    memory().pools.set_limit(1026 * MIB);
    // The general pool's idle memory makes way.
    CHECK(memory().release(memory().allocate(0, 600 * MIB, stream(1))));
    std::vector<void *> held;
    for (int i = 0; i < 64; ++i) {
        if (void *ptr = pool.allocate(256 * MIB)) {
            held.push_back(ptr);
        }
    }
    CHECK(held.size() == 4 && pool.users->out == 1 << 30);
    CHECK(contains(pool.failure, "out of memory: CUDA out of memory. Tried to allocate 256.00 MiB"));
    CHECK(contains(pool.failure, "the limit of 1.00 GiB has no room for 256.00 MiB more beside 1.00 GiB"));
    CHECK(memory().release(held[3]));
    // What the pool keeps for one stream goes where another one needs room.
    held[3] = pool.allocate(256 * MIB, 2);
    CHECK(held[3] != nullptr && pool.users->freed == 1);
    allocator().setMemoryFraction(0.0, 0);
    CHECK(pool.allocate(4096) == nullptr);
    allocator().setMemoryFraction(1.0, 0);
    memory().pools.set_limit(0);
    void *more = pool.allocate(256 * MIB);
    CHECK(more != nullptr && memory().release(more));
    for (void *ptr : held) {
        CHECK(memory().release(ptr));
    }
}

void users_memory_leaves_the_rest_of_the_limit_to_the_general_pool() {
    CHECK(empties());
    auto of_libvmm = [] {
        vmm_stats_t stats = {};
        stats.size = sizeof stats;
        CHECK(lib.stats(memory().pools.find(0), &stats) == VMM_OK);
        return stats.limit;
    };
    auto fails = [](size_t len) {
        return failure_of([&] { CHECK(memory().release(memory().allocate(0, len, stream(1)))); });
    };
    auto users = std::make_shared<Users>();
    {
        Pool pool(users);
        void *ptr = pool.allocate(256 * MIB);
        allocator().setMemoryFraction(0.9, 0);
        memory().pools.set_limit(1 << 30);
        CHECK(of_libvmm() == 768 * MIB);
        CHECK(fails(768 * MIB).empty());
        void *more = pool.allocate(256 * MIB, 2);
        // No more idle memory goes for it than has to.
        CHECK(memory().pool_stats(0).reserved_bytes >= 400 * MIB);
        // Users see what they chose, and why there is no more.
        CHECK(of_libvmm() == 512 * MIB && memory().pool_stats(0).limit == 1 << 30);
        CHECK(vmm_torch_limit(0) == 1 << 30 && allocator().getMemoryFraction(0) == 0.9);
        void *held = memory().allocate(0, 200 * MIB, stream(1));
        for (size_t len : {400 * MIB, 600 * MIB}) {
            std::string text = fails(len);
            CHECK(contains(text, "out of memory: CUDA out of memory. "));
            CHECK(contains(text, ", of which allocators of users have 512.00 MiB"));
            CHECK(len != 400 * MIB || contains(text, "memory fraction) is 1.00 GiB, of which"));
        }
        size_t largest = 0;
        allocator().cacheInfo(0, &largest);
        CHECK(largest == 312 * MIB && fails(largest).empty());
        CHECK(memory().pool_stats(0).reserved_bytes + users->out <= 1 << 30);
        CHECK(memory().release(held) && memory().release(ptr) && memory().release(more));
        // A limit that is no limit of a pool is refused as ever.
        CHECK(!failure_of([] { memory().pools.set_limit(1); }).empty());
        CHECK(of_libvmm() == 512 * MIB);
        // One that users' memory fills leaves the pool the least that it can have.
        memory().pools.set_limit(300 * MIB);
        CHECK(of_libvmm() == 2 * MIB && vmm_torch_limit(0) == 300 * MIB);
        memory().pools.set_limit(1 << 30);
        // Something refers to the pool until now; then what it kept serves others.
        allocator().setMemoryFraction(1.0, 0);
        CHECK(users->out == 512 * MIB && !fails(1000 * MIB).empty());
        allocator().releasePool(0, pool.name);
        CHECK(fails(1000 * MIB).empty() && users->out == 0);
        CHECK(of_libvmm() == 1 << 30 && memory().pools.share(0) == 0);
        allocator().createOrIncrefPool(0, pool.name, users);
    }
    // What was not to be had takes nothing of it.
    Pool poor(std::make_shared<Users>(MIB));
    CHECK(poor.allocate(4 * MIB) == nullptr && of_libvmm() == 1 << 30);
    memory().pools.set_limit(0);
    CHECK(of_libvmm() == 0 && memory().pools.share(0) == 0);
}

// None of which knows how much the others ask for.
void threads_do_not_pass_the_limit() {
    CHECK(empties());
    Pool pool(std::make_shared<Users>());
    constexpr size_t LIMIT = 40 * MIB;
    memory().pools.set_limit(LIMIT);
    allocator().beginAllocateToPool(0, pool.name, everywhere);
    std::atomic<size_t> most{0};
    std::vector<std::thread> threads;
    for (int number = 1; number <= 3; ++number) {
        threads.emplace_back([&, number] {
            std::vector<void *> held;
            for (size_t i = 0; i < 1500; ++i) {
                void *ptr = nullptr;
                size_t len = i % 2 == 0 ? (1 + i % 7) * MIB : 1 + i * 100;
                (void)failure_of([&] { ptr = memory().allocate(0, len, stream(number)); });
                most = std::max(most.load(), pool.users->out.load());
                if (ptr != nullptr) {
                    held.push_back(ptr);
                }
                if (held.size() > 5 || (ptr == nullptr && !held.empty())) {
                    auto at = held.begin() + static_cast<ptrdiff_t>(i % held.size());
                    memory().used_on(*at, {stream(9)});
                    memory().used_on(*at, {stream(number + 1), 1});
                    CHECK(memory().release(*at));
                    held.erase(at);
                }
                fake.over = i % 3 == 0 ? 0 : UINTPTR_MAX;
            }
            for (void *ptr : held) {
                CHECK(memory().release(ptr));
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK(most <= LIMIT && most > LIMIT / 2);
    allocator().endAllocateToPool(0, pool.name);
    allocator().releasePool(0, pool.name);
    settle(pool);
    CHECK(pool.users->out == 0 && fake.open.empty() && memory().ledger.size() == 0);
    memory().pools.set_limit(0);
}

} // namespace

int main(int argc, char **argv) {
    if (!start_on_mock(argc, argv, 2)) {
        return 1;
    }
    memory().returns.orders = &fake;
    short_requests_share_pieces();
    long_requests_are_cut_from_what_is_free();
    what_others_used_serves_again_when_they_are_done();
    the_idle_device_ends_all_uses();
    a_stream_that_may_be_destroyed_is_not_asked();
    users_memory_counts_for_the_limit();
    users_memory_leaves_the_rest_of_the_limit_to_the_general_pool();
    threads_do_not_pass_the_limit();
    CHECK(memory().ledger.size() == 0);
    std::printf("%d failed\n", failures);
    return failures != 0;
}

// Pools with an allocator of the user's, and pools as a last resort, on libvmm's mock device. The
// program is compiled and run by tests/test_on_mock.py; it prints one line for each check that
// fails.
//
// usage: pools_on_mock LIBVMM

#include "users.h"

namespace {

void a_tensor_that_outlives_its_pool_waits_for_the_device() {
    auto users = std::make_shared<Users>();
    void *ptr = std::make_unique<Pool>(users)->allocate(3 * MIB);
    int before = waits;
    CHECK(memory().release(ptr));
    CHECK(users->freed == 0);
    allocator().emptyCache({0, 0});
    CHECK(users->freed == 1 && users->waits_before > before);
    // Nothing of it is left.
    CHECK(users.use_count() == 1);
}

void what_a_pool_that_lives_keeps_is_given_back_for_it_alone() {
    Pool pool(std::make_shared<Users>());
    void *ptr = pool.allocate(3 * MIB);
    CHECK(memory().release(ptr));
    allocator().emptyCache({0, 0});
    {
        Pool other(std::make_shared<Users>(MIB));
        CHECK(other.allocate(3 * MIB) == nullptr);
    }
    CHECK(pool.users->freed == 0 && pool.allocate(3 * MIB) == ptr);
    CHECK(memory().release(ptr));
    allocator().emptyCache(pool.name);
    CHECK(pool.users->freed == 1);
}

void a_pool_that_goes_during_a_request_keeps_nothing() {
    auto users = std::make_shared<Users>();
    c10::MempoolId_t name{0, 49};
    allocator().createOrIncrefPool(0, name, users);
    allocator().beginAllocateToPool(0, name, everywhere);
    users->meanwhile = [&] {
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
        allocator().releasePool(0, name);
        allocator().emptyCache({0, 0});
        CHECK(routes().find(name) == nullptr);
    };
    void *ptr = memory().allocate(0, 3 * MIB, stream(1));
    CHECK(allocator().snapshot({0, 0}, false).segments.size() == 1);
    CHECK(memory().release(ptr));
    allocator().emptyCache({0, 0});
    CHECK(users->out == 0 && users.use_count() == 1);
}

void what_is_released_during_a_wait_does_not_go_with_it() {
    for (int on : {1, 2}) {
        Pool pool(std::make_shared<Users>());
        void *kept = pool.allocate(MIB);
        void *used = pool.allocate(3 * MIB);
        CHECK(memory().release(kept));
        auto wait = std::exchange(routes().wait, [&] {
            // Another thread has queued work, and then lets go.
            memory().used_on(used, {stream(on)});
            CHECK(memory().release(used));
            return true;
        });
        memory().settle(0, pool.name);
        CHECK(pool.users->freed == 1 && pool.users->out == 4 * MIB);
        routes().wait = wait;
        memory().settle(0, pool.name);
        CHECK(pool.users->freed == 2);
    }
}

void a_pool_that_was_used_during_a_wait_stays() {
    c10::MempoolId_t name{0, 50};
    // A graph is captured, launched, and gone.
    auto captured = [&] {
        allocator().createOrIncrefPool(0, name, nullptr);
        routes().find(name)->captured = true;
        allocator().releasePool(0, name);
    };
    captured();
    auto wait = std::exchange(routes().wait, [&] {
        captured();
        return true;
    });
    memory().settle(0);
    CHECK(routes().find(name) != nullptr);
    routes().wait = wait;
    memory().settle(0);
    CHECK(routes().find(name) == nullptr);
}

void a_wait_that_fails_loses_nothing() {
    Pool pool(std::make_shared<Users>());
    void *first = pool.allocate(3 * MIB);
    CHECK(memory().release(first));
    auto wait = std::exchange(routes().wait, [] { return false; });
    memory().settle(0, pool.name);
    routes().wait = []() -> bool { throw std::runtime_error("the device is lost"); };
    CHECK(contains(failure_of([&] { memory().settle(0, pool.name); }), "lost"));
    routes().wait = wait;
    CHECK(pool.users->freed == 0);
    void *again = pool.allocate(3 * MIB);
    CHECK(again == first && memory().release(again));
}

void varying_lengths_serve_each_other() {
    for (bool throws : {false, true}) {
        Pool pool(std::make_shared<Users>(1024 * MIB));
        pool.users->throws = throws;
        // A little shorter each time: the first piece serves all.
        for (size_t i = 0; i < 200; ++i) {
            void *ptr = pool.allocate(64 * MIB - i * 512);
            CHECK(ptr != nullptr && memory().release(ptr));
        }
        CHECK(pool.users->out == 64 * MIB);
        // Longer each time: what is kept goes where there is no more.
        int retries = static_cast<int>(allocator().getDeviceStats(0).num_alloc_retries);
        for (size_t i = 1; i <= 200; ++i) {
            void *ptr = pool.allocate(64 * MIB + i * MIB);
            CHECK(ptr != nullptr && memory().release(ptr));
        }
        CHECK(allocator().getDeviceStats(0).num_alloc_retries > retries);
        CHECK(pool.allocate(2048 * MIB) == nullptr);
        CHECK(contains(pool.failure, throws ? "the users' allocator has no more"
                                            : "out of memory: CUDA out of memory"));
        CHECK(pool.users->out == 0);
        // A short one takes no long piece, and no stream takes another's.
        void *ptr = pool.allocate(64 * MIB);
        CHECK(memory().release(ptr));
        void *other = pool.allocate(MIB);
        CHECK(other != ptr && memory().release(other));
        other = pool.allocate(64 * MIB, 2);
        CHECK(other != ptr && memory().release(other));
    }
    CHECK(memory().ledger.size() == 0);
}

void whoever_throws_keeps_no_memory() {
    static std::set<TraceEntry::Action> throwing;
    allocator().attachAllocatorTraceTracker([](const TraceEntry &entry) {
        if (throwing.count(entry.action_) != 0) {
            throw std::runtime_error("not registered");
        }
    });
    Pool pool(std::make_shared<Users>());
    std::vector<void *> held;
    for (size_t i = 0; i < 3; ++i) {
        held.push_back(pool.allocate(3 * MIB));
    }
    for (void *ptr : held) {
        CHECK(memory().release(ptr));
    }
    throwing = {TraceEntry::SEGMENT_FREE};
    memory().settle(0, pool.name);
    CHECK(pool.users->freed == 0);
    throwing = {};
    pool.users->refused = 1;
    memory().settle(0, pool.name);
    CHECK(pool.users->freed == 2);
    // The one that may be freed already serves nobody.
    void *ptr = pool.allocate(3 * MIB);
    CHECK(ptr != held.front());
    memory().settle(0, pool.name);
    CHECK(pool.users->freed == 3);
    CHECK(memory().release(ptr));
    // As memory comes: who did not take it does not take it out either.
    throwing = {TraceEntry::SEGMENT_ALLOC, TraceEntry::SEGMENT_FREE};
    CHECK(pool.allocate(5 * MIB) == nullptr && pool.failure == "not registered");
    memory().settle(0, pool.name);
    CHECK(pool.users->out == 4 * MIB);
    throwing = {};
    memory().settle(0, pool.name);
    CHECK(pool.users->out == 0);
    throwing = {TraceEntry::ALLOC};
    CHECK(pool.allocate(3 * MIB) == nullptr && pool.failure == "not registered");
    CHECK(failure_of([] { memory().allocate(0, MIB, stream(1)); }) == "not registered");
    throwing = {};
    ptr = pool.allocate(3 * MIB);
    void *general = memory().allocate(0, MIB, stream(1));
    // As it goes: the memory goes all the same.
    throwing = {TraceEntry::FREE_REQUESTED};
    delete_allocation(ptr);
    CHECK(failure_of([&] { allocator().raw_delete(general); }) == "not registered");
    throwing = {};
    CHECK(memory().ledger.size() == 0 && memory().pool_stats(0).live_bytes == 0);
    memory().settle(0, pool.name);
    CHECK(pool.users->out == 0);
}

void threads_do_not_disturb_each_other() {
    Pool pool(std::make_shared<Users>());
    allocator().beginAllocateToPool(0, pool.name, everywhere);
    std::atomic<int> running{3};
    std::vector<std::thread> threads;
    for (int number = 1; number <= 3; ++number) {
        threads.emplace_back([&running, number] {
            std::vector<void *> held;
            for (size_t i = 0; i < 3000; ++i) {
                held.push_back(memory().allocate(0, (1 + i % 5) * MIB, stream(number)));
                if (i % 3 == 0) {
                    memory().used_on(held.back(), {stream(9)});
                }
                if (i % 4 != 3) {
                    CHECK(memory().release(held[i % held.size()]));
                    held.erase(held.begin() + static_cast<ptrdiff_t>(i % held.size()));
                }
            }
            for (void *ptr : held) {
                CHECK(memory().release(ptr));
            }
            --running;
        });
    }
    while (running != 0) {
        memory().settle(0, pool.name);
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    allocator().endAllocateToPool(0, pool.name);
    allocator().releasePool(0, pool.name);
    memory().settle(0, pool.name);
    CHECK(pool.users->out == 0 && memory().ledger.size() == 0);
    CHECK(current(allocator().getDeviceStats(0).allocated_bytes) == 0);
    CHECK(current(allocator().getDeviceStats(0).segment) ==
          static_cast<int64_t>(memory().pool_stats(0).frames));
}

void nccl_registers_users_memory_only() {
    Pool pool(std::make_shared<Users>());
    CHECK(failure_of([&] { refuse_registration(memory(), pool.name); }).empty());
    c10::MempoolId_t name{0, 70};
    allocator().createOrIncrefPool(0, name, nullptr);
    CHECK(contains(failure_of([&] { refuse_registration(memory(), name); }), "backend.mem_allocator"));
    allocator().releasePool(0, name);
}

void users_memory_counts_and_is_listed() {
    CHECK(empties());
    allocator().resetPeakStats(0);
    Pool pool(std::make_shared<Users>());
    void *first = pool.allocate(3 * MIB);
    void *second = pool.allocate(4 * MIB);
    auto stats = allocator().getDeviceStats(0);
    CHECK(current(stats.allocated_bytes) == 7 * MIB);
    CHECK(current(stats.reserved_bytes) == 8 * MIB && current(stats.segment) == 2);
    size_t len = 0;
    CHECK(allocator().getBaseAllocation(first, &len) == first && len == 3 * MIB);
    auto listed = allocator().snapshot(pool.name, false).segments;
    CHECK(listed.size() == 2);
    CHECK(listed[0].registration_counter > 0);
    CHECK(listed[1].registration_counter > listed[0].registration_counter);
    // Kept ones are there still, and shorter tensors leave something.
    CHECK(memory().release(first) && memory().release(second));
    first = pool.allocate(3 * MIB - 1000);
    stats = allocator().getDeviceStats(0);
    CHECK(current(stats.reserved_bytes) == 8 * MIB && current(stats.segment) == 2);
    for (const auto &segment : allocator().snapshot({0, 0}, false).segments) {
        CHECK(segment.owner_private_pool_id == pool.name);
        size_t filled = 0;
        for (const auto &block : segment.blocks) {
            CHECK(block.active == block.allocated);
            filled += block.size;
        }
        CHECK(filled == segment.total_size);
        bool live = segment.address == reinterpret_cast<size_t>(first);
        CHECK(segment.allocated_size == (live ? rounded(3 * MIB - 1000) : 0));
        CHECK(segment.blocks.size() == (live ? 2 : 1));
    }
    CHECK(memory().release(first));
    memory().settle(0, pool.name);
    stats = allocator().getDeviceStats(0);
    CHECK(current(stats.reserved_bytes) == 0 && current(stats.segment) == 0);
    CHECK(stats.reserved_bytes[0].peak == 8 * MIB && stats.segment[0].freed >= 2);
    CHECK(allocator().snapshot(pool.name, false).segments.empty());
}

// A pool of the own kind with free memory, as a last resort, and no room beside it.
void leave_a_last_resort(c10::MempoolId_t name) {
    CHECK(empties());
    allocator().createOrIncrefPool(0, name, nullptr);
    allocator().setUseOnOOM(0, name, true);
    allocator().beginAllocateToPool(0, name, everywhere);
    CHECK(memory().release(memory().allocate(0, 300 * MIB, stream(4))));
    allocator().endAllocateToPool(0, name);
    allocator().releasePool(0, name);
    allocator().emptyCache({0, 0});
    memory().pools.set_limit(memory().pool_stats(0).reserved_bytes);
}

void a_last_resort_serves_no_private_pool() {
    static bool captures = false;
    c10::MempoolId_t resort{0, 60};
    leave_a_last_resort(resort);
    routes().is_capturing = [](Stream) { return captures; };
    for (c10::MempoolId_t name : {c10::MempoolId_t{61, 0}, c10::MempoolId_t{0, 62}}) {
        captures = name.first != 0;
        allocator().beginAllocateToPool(0, name, everywhere);
        void *ptr = nullptr;
        auto text = failure_of([&] { ptr = memory().allocate(0, 200 * MIB, stream(4)); });
        CHECK(ptr == nullptr && contains(text, "out of memory: "));
        captures = false;
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
    }
    routes().is_capturing = nullptr;
    auto before = allocator().getDeviceStats(0);
    void *ptr = memory().allocate(0, 200 * MIB, stream(4));
    CHECK(pool_of(ptr) == resort);
    // One failure, however often it was tried again.
    auto after = allocator().getDeviceStats(0);
    CHECK(after.num_alloc_retries == before.num_alloc_retries + 1);
    CHECK(after.num_ooms == before.num_ooms);
    CHECK(memory().release(ptr));
    // Once a graph was captured with it, what is free in it is the graph's.
    routes().is_capturing = [](Stream) { return true; };
    allocator().beginAllocateToPool(0, resort, everywhere);
    CHECK(memory().release(memory().allocate(0, 200 * MIB, stream(4))));
    routes().is_capturing = nullptr;
    allocator().endAllocateToPool(0, resort);
    allocator().releasePool(0, resort);
    CHECK(!failure_of([] { memory().allocate(0, 200 * MIB, stream(4)); }).empty());
    memory().pools.set_limit(0);
    allocator().releasePool(0, resort);
}

void a_last_resort_that_became_a_graphs_serves_nobody() {
    static auto allocate = lib.private_allocate;
    static std::function<void()> meanwhile;
    auto attempt = [] { memory().release(memory().allocate(0, 200 * MIB, stream(4))); };
    c10::MempoolId_t name{0, 63};
    leave_a_last_resort(name);
    CHECK(failure_of(attempt).empty());
    lib.private_allocate = [](vmm_pool_t *pool, uint64_t id, uint64_t len, uint64_t alignment,
                              vmm_stream_t on, uint32_t owner, void **ptr) {
        if (auto once = std::exchange(meanwhile, nullptr)) {
            std::thread(once).join();
        }
        return allocate(pool, id, len, alignment, on, owner, ptr);
    };
    // Between the look at the pool and the memory from it.
    meanwhile = [&] { allocator().beginAllocateToPool(0, name, everywhere); };
    uint64_t live = memory().pool_stats(0).live_bytes;
    CHECK(contains(failure_of(attempt), "out of memory: "));
    CHECK(memory().pool_stats(0).live_bytes == live && meanwhile == nullptr);
    lib.private_allocate = allocate;
    // While allocations go there.
    {
        Hold hold(memory().mutex, routes());
        CHECK(!hold.change(name));
    }
    allocator().endAllocateToPool(0, name);
    allocator().releasePool(0, name);
    {
        Hold hold(memory().mutex, routes());
        CHECK(hold.change(name));
        CHECK(!hold.change({0, 1}));
    }
    allocator().setUseOnOOM(0, name, false);
    {
        Hold hold(memory().mutex, routes());
        CHECK(!hold.change(name));
    }
    memory().pools.set_limit(0);
    allocator().releasePool(0, name);
    CHECK(empties());
}

void users_memory_as_a_last_resort_passes_no_limit() {
    Pool pool(std::make_shared<Users>(), true);
    void *ptr = pool.allocate(256 * MIB);
    memory().pools.set_limit(300 * MIB);
    void *held = memory().allocate(0, 40 * MIB, stream(1));
    auto attempt = [] { return memory().allocate(0, 256 * MIB, stream(1)); };
    CHECK(contains(failure_of(attempt), "out of memory: "));
    CHECK(memory().release(ptr));
    void *again = nullptr;
    CHECK(failure_of([&] { again = attempt(); }).empty());
    CHECK(again == ptr && pool_of(again) == pool.name);
    CHECK(pool.users->out == 256 * MIB);
    CHECK(memory().release(again) && memory().release(held));
    memory().pools.set_limit(0);
}

} // namespace

int main(int argc, char **argv) {
    if (!start_on_mock(argc, argv, 1)) {
        return 1;
    }
    routes().wait = [] {
        ++waits;
        return true;
    };
    a_tensor_that_outlives_its_pool_waits_for_the_device();
    what_a_pool_that_lives_keeps_is_given_back_for_it_alone();
    a_pool_that_goes_during_a_request_keeps_nothing();
    what_is_released_during_a_wait_does_not_go_with_it();
    a_pool_that_was_used_during_a_wait_stays();
    a_wait_that_fails_loses_nothing();
    varying_lengths_serve_each_other();
    users_memory_counts_and_is_listed();
    threads_do_not_disturb_each_other();
    nccl_registers_users_memory_only();
    a_last_resort_serves_no_private_pool();
    a_last_resort_that_became_a_graphs_serves_nobody();
    users_memory_as_a_last_resort_passes_no_limit();
    whoever_throws_keeps_no_memory();
    CHECK(empties());
    CHECK(memory().ledger.size() == 0);
    std::printf("%d failed\n", failures);
    return failures != 0;
}

// The allocator on libvmm's mock device: everything that needs no CUDA. The program is compiled and
// run by tests/test_on_mock.py; it prints one line for each check that fails.
//
// usage: on_mock LIBVMM

#include "mock.h"

namespace {

void statistics_follow_allocations() {
    void *small = memory().allocate(0, 1000, stream(1));
    void *large = memory().allocate(0, 5 << 20, stream(1));
    auto stats = allocator().getDeviceStats(0);
    CHECK(current(stats.allocation) == 2);
    CHECK(current(stats.allocated_bytes) == 1024 + (5 << 20));
    CHECK(current(stats.requested_bytes) == 1000 + (5 << 20));
    CHECK(stats.allocation[1].current == 1 && stats.allocation[2].current == 1);
    CHECK(current(stats.reserved_bytes) >= current(stats.allocated_bytes));
    CHECK(current(stats.segment) > 0 && stats.num_device_alloc > 0);
    CHECK(memory().release(large));
    CHECK(!memory().release(large));
    stats = allocator().getDeviceStats(0);
    CHECK(current(stats.allocation) == 1);
    CHECK(stats.allocated_bytes[0].peak == 1024 + (5 << 20));
    CHECK(stats.allocated_bytes[0].freed == 5 << 20);
    allocator().resetPeakStats(0);
    allocator().resetAccumulatedStats(0);
    stats = allocator().getDeviceStats(0);
    CHECK(stats.allocated_bytes[0].peak == 1024);
    CHECK(stats.allocated_bytes[0].allocated == 0 && stats.num_device_alloc == 0);
    CHECK(stats.reserved_bytes[0].peak == current(stats.reserved_bytes));
    CHECK(memory().release(small));
    CHECK(empties());
    CHECK(current(allocator().getDeviceStats(0).allocation) == 0);
}

void out_of_memory_says_why_and_a_retry_works() {
    // Observers stay for ever.
    static size_t seen = 0;
    allocator().attachOutOfMemoryObserver(
        [](int64_t, size_t wanted, size_t, size_t) { seen = wanted; });
    memory().pools.set_limit(1 << 30);
    void *held = memory().allocate(0, 700 << 20, stream(1));
    std::string text = failure_of([] { memory().allocate(0, 600 << 20, stream(1)); });
    CHECK(contains(text, "out of memory: CUDA out of memory. Tried to allocate 600.00 MiB"));
    CHECK(contains(text, "vmm_torch: 700.00 MiB is in use of "));
    CHECK(contains(text, "the limit (VMM_LIMIT, set_limit or the memory fraction) is 1.00 GiB"));
    CHECK(contains(text, "; the largest request that fits now is 3"));
    CHECK(seen == 600u << 20);
    auto stats = allocator().getDeviceStats(0);
    CHECK(stats.num_ooms == 1);
    size_t largest = 0;
    allocator().cacheInfo(0, &largest);
    CHECK(largest == (1u << 30) - (700u << 20));
    CHECK(memory().release(held));
    void *again = failure_of([&] { held = memory().allocate(0, 600 << 20, stream(1)); }).empty()
                      ? held
                      : nullptr;
    CHECK(again != nullptr && memory().release(again));
    text = failure_of([] { memory().allocate(0, size_t{1} << 59, stream(1)); });
    CHECK(contains(text, "out of memory: ") && contains(text, "can never fit: the limit is "));
    memory().pools.set_limit(0);
    allocator().emptyCache({0, 0});
}

// The pool's figures are asked for before and after each pause of a request that waits.
void what_other_threads_release_meanwhile_serves() {
    static vmm_status_t (*const really)(vmm_pool_t *, vmm_stats_t *) = lib.stats;
    static void *held = nullptr;
    static int until_release = 0;
    memory().pools.set_limit(1 << 30);
    held = memory().allocate(0, 700 << 20, stream(1));
    lib.stats = [](vmm_pool_t *pool, vmm_stats_t *stats) {
        if (until_release > 0 && --until_release == 0) {
            std::thread([] { CHECK(memory().release(held)); }).join();
        }
        return really(pool, stats);
    };
    void *ptr = nullptr;
    auto wants = [&] { ptr = memory().allocate(0, 600 << 20, stream(2)); };
    // Nobody releases anything: then a request does not wait for long.
    CHECK(contains(failure_of(wants), "out of memory: "));
    until_release = 3;
    CHECK(failure_of(wants).empty());
    lib.stats = really;
    CHECK(ptr != nullptr && memory().release(ptr));
    memory().pools.set_limit(0);
    allocator().emptyCache({0, 0});
}

void a_fraction_is_a_limit() {
    CHECK(allocator().getMemoryFraction(0) == 1.0);
    CHECK(contains(failure_of([] { allocator().setMemoryFraction(1.5, 0); }), "invalid fraction"));
    CHECK(contains(failure_of([] { allocator().setMemoryFraction(0.5, 9); }), "no CUDA device 9"));
    vmm_device_info_t info = {};
    info.size = sizeof info;
    lib.device_info(memory().pools.of(0), &info);
    allocator().setMemoryFraction(0.25, 0);
    CHECK(allocator().getMemoryFraction(0) == 0.25);
    CHECK(memory().pool_stats(0).limit == info.total / 4);
    memory().pools.set_limit(1 << 30);
    CHECK(memory().pool_stats(0).limit == 1 << 30);
    memory().pools.set_limit(0);
    // None at all is the least that a pool can have.
    allocator().setMemoryFraction(0.0, 0);
    CHECK(allocator().getMemoryFraction(0) == 0.0);
    CHECK(memory().pool_stats(0).limit == info.granule);
    CHECK(contains(failure_of([&] { memory().allocate(0, info.granule + 1, stream(1)); }),
                   "out of memory: "));
    allocator().setMemoryFraction(1.0, 0);
    CHECK(memory().pool_stats(0).limit == 0);
}

// Programs set these for PyTorch's own allocator, where nothing is made because of them.
void later_limits_are_only_not_passed() {
    void *ptr = memory().allocate(0, 64 << 20, stream(1));
    allocator().setMemoryFraction(0.9, 0);
    memory().pools.set_limit(uint64_t{30} << 30);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    CHECK(memory().pool_stats(0).reserved_bytes < 128 << 20);
    CHECK(memory().release(ptr));
    allocator().setMemoryFraction(1.0, 0);
    memory().pools.set_limit(0);
}

void a_limit_that_is_refused_changes_nothing() {
    memory().pools.set_limit(1 << 30);
    CHECK(!failure_of([] { memory().pools.set_limit(1); }).empty());
    CHECK(memory().pool_stats(0).limit == 1 << 30);
    // Nor for devices that are used later.
    CHECK(memory().pools.find(1) == nullptr);
    void *ptr = nullptr;
    CHECK(failure_of([&] { ptr = memory().allocate(1, 1000, stream(1)); }).empty());
    CHECK(memory().pool_stats(1).limit == 1 << 30);
    CHECK(memory().release(ptr));
    memory().pools.set_limit(0);
}

void caching_is_off_where_the_variable_says_so() {
    const char *name = "PYTORCH_NO_CUDA_MEMORY_CACHING";
    setenv(name, "0", 1);
    CHECK(Allocator().isEnabled());
    setenv(name, "1", 1);
    Allocator off;
    off.enable(true);
    CHECK(!off.isEnabled() && off.raw_deleter() == &delete_uncached);
    unsetenv(name);
    Allocator on;
    CHECK(on.isEnabled() && on.raw_deleter() == &delete_allocation);
    on.enable(false);
    CHECK(!on.isEnabled() && on.raw_deleter() == &delete_uncached);
    // What was allocated before goes to where it came from.
    void *ptr = memory().allocate(0, 1000, stream(1));
    on.raw_delete(ptr);
    CHECK(memory().ledger.size() == 0);
}

void snapshots_and_history_show_allocations() {
    allocator().recordHistory(true, gather, 3, RecordContext::ALL, true, {});
    CHECK(allocator().isHistoryEnabled());
    void *first = memory().allocate(0, 3000, stream(1));
    std::string name = "compiled";
    allocator().pushCompileContext(name);
    void *second = memory().allocate(0, 2 << 20, stream(2));
    allocator().popCompileContext();
    memory().release(first);
    auto snapshot = allocator().snapshot({0, 0}, true);
    size_t live = 0;
    size_t total = 0;
    for (const auto &segment : snapshot.segments) {
        size_t filled = 0;
        for (const auto &block : segment.blocks) {
            filled += block.size;
            if (block.allocated) {
                ++live;
                CHECK(block.requested_size == 2 << 20);
                CHECK(block.context_when_allocated != nullptr);
            }
        }
        CHECK(filled == segment.total_size);
        total += segment.total_size;
    }
    CHECK(live == 1);
    CHECK(total >= 2 << 20);
    CHECK(snapshot.device_traces.size() == 2);
    const auto &trace = snapshot.device_traces[0];
    CHECK(trace.size() == 3);
    CHECK(trace[0].action_ == TraceEntry::FREE_REQUESTED && trace[0].size_ == 3000);
    CHECK(trace[1].action_ == TraceEntry::FREE_COMPLETED);
    CHECK(trace[2].action_ == TraceEntry::SNAPSHOT);
    CHECK(trace[0].time_.t_ > 1600000000000000);
    CHECK(trace[0].time_.t_ <= trace[2].time_.t_);
    CHECK(allocator().snapshot({0, 0}, false).device_traces.empty());
    std::string wrong =
        failure_of([] { allocator().recordHistory(true, gather, 3, RecordContext::ALL, true, {"x"}); });
    CHECK(contains(wrong, "no action \"x\""));
    allocator().recordHistory(true, gather, 100, RecordContext::STATE, true, {"free_completed"});
    memory().release(second);
    snapshot = allocator().snapshot({0, 0}, true);
    CHECK(snapshot.device_traces[0].size() == 2);
    CHECK(snapshot.device_traces[0][0].context_ == nullptr);
    // The interpreter ends: what was recorded stays.
    allocator().recordHistory(true, gather, 100, RecordContext::ALL, true, {});
    vmm_torch_end();
    CHECK(memory().release(memory().allocate(0, 3000, stream(1))));
    snapshot = allocator().snapshot({0, 0}, true);
    CHECK(snapshot.device_traces[0].size() == 4);
    CHECK(snapshot.device_traces[0][0].context_ == nullptr);
    allocator().recordHistory(false, nullptr, 1, RecordContext::NEVER, false, {});
    CHECK(!allocator().isHistoryEnabled());
    CHECK(allocator().snapshot({0, 0}, true).device_traces[0].empty());
}

void private_pools_route_and_come_back() {
    c10::MempoolId_t name{0, 7};
    auto on_three = [](cudaStream_t s) { return s == stream(3); };
    allocator().beginAllocateToPool(0, name, on_three);
    CHECK(!failure_of([&] { allocator().beginAllocateToPool(0, name, on_three); }).empty());
    CHECK(allocator().getPoolUseCount(0, name) == 1);
    void *inside = memory().allocate(0, 3 << 20, stream(3));
    void *inside_too = memory().allocate(0, 4000, stream(3));
    void *outside = memory().allocate(0, 3 << 20, stream(1));
    allocator().endAllocateToPool(0, name);
    CHECK(!failure_of([&] { allocator().endAllocateToPool(0, name); }).empty());
    void *later = memory().allocate(0, 3 << 20, stream(3));
    CHECK(allocator().checkPoolLiveAllocations(0, name, {inside, inside_too}));
    CHECK(!allocator().checkPoolLiveAllocations(0, name, {inside}));
    CHECK(!allocator().checkPoolLiveAllocations(0, name, {inside, inside_too, outside}));
    size_t live = 0;
    for (const auto &segment : allocator().snapshot(name, false).segments) {
        CHECK(segment.owner_private_pool_id == name);
        live += segment.allocated_size;
    }
    CHECK(live == (3 << 20) + 4096);
    // A graph of torch.compile was recorded; its outputs go, others come, and then the state after
    // the recording is wanted back.
    auto state = allocator().getCheckpointState(0, name);
    allocator().recordHistory(true, gather, 100, RecordContext::STATE, true, {});
    memory().release(inside);
    allocator().beginAllocateToPool(0, name, on_three);
    void *other = memory().allocate(0, 1 << 20, stream(3));
    allocator().endAllocateToPool(0, name);
    allocator().releasePool(0, name);
    {
        auto delta = allocator().setCheckpointPoolState(0, state);
        CHECK(delta.ptrs_freed.size() == 2);
        CHECK(delta.dataptrs_allocd.size() == 2);
        CHECK(allocator().checkPoolLiveAllocations(0, name, {inside, inside_too}));
        // The history shows one allocation that ended and one that came.
        auto trace = allocator().snapshot({0, 0}, true).device_traces[0];
        CHECK(trace.size() == 7);
        CHECK(trace[3].action_ == TraceEntry::FREE_REQUESTED);
        CHECK(trace[3].addr_ == reinterpret_cast<size_t>(other));
        CHECK(trace[4].action_ == TraceEntry::FREE_COMPLETED);
        CHECK(trace[5].action_ == TraceEntry::ALLOC && trace[5].mempool_ == name);
        CHECK(trace[5].addr_ == reinterpret_cast<size_t>(inside));
        allocator().recordHistory(false, nullptr, 1, RecordContext::NEVER, false, {});
        // It may have lain where `inside` is again.
        CHECK(other == inside || !memory().release(other));
        // Nobody takes the smaller one: it ends with the delta.
        for (auto &data : delta.dataptrs_allocd) {
            if (data.get() == inside) {
                data.release_context();
            }
        }
    }
    CHECK(allocator().checkPoolLiveAllocations(0, name, {inside}));
    // One allocation outlives its pool.
    allocator().releasePool(0, name);
    CHECK(allocator().getPoolUseCount(0, name) == 0);
    allocator().emptyCache({0, 0});
    CHECK(memory().pool_stats(0).private_pools == 0);
    CHECK(!allocator().snapshot(name, false).segments.empty());
    CHECK(memory().release(inside));
    CHECK(memory().release(outside) && memory().release(later));
    CHECK(empties());
}

std::atomic<bool> stream_captures{false};

void a_capture_that_failed_keeps_nothing() {
    Routes &routes = memory().device(0).routes;
    routes.is_capturing = [](Stream) { return stream_captures.load(); };
    c10::MempoolId_t name{9, 0};
    allocator().beginAllocateToPool(0, name, [](cudaStream_t s) { return s == stream(4); });
    std::thread([] { memory().settle(0); }).join();
    // The capture has not begun yet.
    CHECK(allocator().getPoolUseCount(0, name) == 1);
    stream_captures = true;
    void *inside = memory().allocate(0, 3 << 20, stream(4));
    memory().settle(0);
    CHECK(allocator().getPoolUseCount(0, name) == 1);
    // It fails, and PyTorch says no more about it.
    stream_captures = false;
    CHECK(memory().release(inside));
    std::thread([] { memory().settle(0); }).join();
    CHECK(allocator().getPoolUseCount(0, name) == 1);
    CHECK(empties());
    CHECK(allocator().getPoolUseCount(0, name) == 0 && !routes.any());
    routes.is_capturing = nullptr;
}

void a_capture_that_failed_in_a_thread_that_ended_keeps_nothing() {
    Routes &routes = memory().device(0).routes;
    routes.is_capturing = [](Stream) { return stream_captures.load(); };
    std::thread([] {
        c10::MempoolId_t name{10, 0};
        allocator().beginAllocateToPool(0, name, [](cudaStream_t s) { return s == stream(4); });
        stream_captures = true;
        CHECK(memory().release(memory().allocate(0, 3 << 20, stream(4))));
        stream_captures = false;
    }).join();
    CHECK(empties());
    CHECK(!routes.any());
    routes.is_capturing = nullptr;
}

// How many waits for the device there were, and how many of them broke a capture.
std::atomic<int> waits{0};
std::atomic<int> broken{0};

// Leaves the memory of a private pool to be given back at the next wait.
void leave_a_pool(c10::MempoolId_t name) {
    allocator().beginAllocateToPool(0, name, everywhere);
    CHECK(memory().release(memory().allocate(0, 3 << 20, stream(5))));
    allocator().endAllocateToPool(0, name);
    memory().device(0).routes.find(name)->captured = true;
    allocator().releasePool(0, name);
}

void waits_and_captures_of_threads_are_kept_apart() {
    Routes &routes = memory().device(0).routes;
    routes.is_capturing = [](Stream) { return stream_captures.load(); };
    std::function<void()> meanwhile;
    routes.wait = [&] {
        ++waits;
        broken += stream_captures;
        if (auto once = std::exchange(meanwhile, nullptr)) {
            once();
        }
        broken += stream_captures;
        return true;
    };
    c10::MempoolId_t name{11, 0};
    c10::MempoolId_t uncaptured{13, 0};
    allocator().createOrIncrefPool(0, uncaptured, nullptr);
    // As that of a CUDAGraph: it takes nothing before its capture has begun.
    auto of_capture = [](cudaStream_t s) { return stream_captures && s == stream(4); };
    std::atomic<int> step{0};
    auto reached = [&](int which) {
        while (step < which) {
            std::this_thread::yield();
        }
    };
    std::thread other([&] {
        allocator().beginAllocateToPool(0, name, of_capture);
        step = 1;
        reached(2);
        stream_captures = true;
        step = 3;
        reached(4);
        stream_captures = false;
        allocator().endAllocateToPool(0, name);
    });
    reached(1);
    leave_a_pool({12, 0});
    int before = waits;
    // The other thread is about to begin.
    CHECK(!memory().settle(0) && waits == before);
    step = 2;
    reached(3);
    // It captures.
    CHECK(!memory().settle(0) && waits == before);
    step = 4;
    other.join();
    // Now a capture is to begin during a wait. A route that is for none does not wait for that.
    std::atomic<bool> begun{false};
    std::thread capturing;
    meanwhile = [&] {
        std::thread([&] {
            allocator().beginAllocateToPool(0, uncaptured, everywhere);
            allocator().endAllocateToPool(0, uncaptured);
        }).join();
        capturing = std::thread([&] {
            allocator().beginAllocateToPool(0, name, of_capture);
            stream_captures = true;
            begun = true;
        });
        // Long enough for it to begin if it would.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        CHECK(!begun);
    };
    CHECK(memory().settle(0));
    CHECK(capturing.joinable());
    if (capturing.joinable()) {
        capturing.join();
        stream_captures = false;
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
        allocator().releasePool(0, uncaptured);
    }
    CHECK(begun && broken == 0);
    allocator().releasePool(0, name);
    allocator().releasePool(0, uncaptured);
    CHECK(empties());
    routes.wait = nullptr;
    routes.is_capturing = nullptr;
}

void threads_do_not_disturb_each_other() {
    std::vector<std::thread> threads;
    for (uintptr_t number = 1; number <= 4; ++number) {
        threads.emplace_back([number] {
            std::vector<void *> held;
            uint64_t random = number;
            for (int i = 0; i < 5000; ++i) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                if (held.size() > 20 || (!held.empty() && (random >> 60) < 6)) {
                    std::swap(held[random % held.size()], held.back());
                    CHECK(memory().release(held.back()));
                    held.pop_back();
                } else {
                    held.push_back(memory().allocate(0, 1 + (random >> 44), stream(number)));
                }
            }
            for (void *ptr : held) {
                CHECK(memory().release(ptr));
            }
        });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    CHECK(current(allocator().getDeviceStats(0).allocation) == 0);
    CHECK(memory().pool_stats(0).live_bytes == 0);
    CHECK(memory().ledger.size() == 0);
}

std::vector<std::pair<Stream, bool>> watched;
decltype(lib.watch_stream) watch_really = nullptr;
vmm_status_t watch_and_note(vmm_pool_t *pool, vmm_stream_t which, bool watch) {
    watched.emplace_back(static_cast<Stream>(which), watch);
    return watch_really(pool, which, watch);
}

std::vector<Stream> forgotten;
decltype(lib.forget_stream) forget_really = nullptr;
vmm_status_t forget_and_note(vmm_pool_t *pool, vmm_stream_t which) {
    forgotten.push_back(static_cast<Stream>(which));
    return forget_really(pool, which);
}

// As those of other libraries, which may destroy them while the memory lives.
void external_streams_are_not_watched() {
    using Streams = std::vector<Stream>;
    using Watched = std::vector<std::pair<Stream, bool>>;
    forget_really = std::exchange(lib.forget_stream, forget_and_note);
    watch_really = std::exchange(lib.watch_stream, watch_and_note);
    void *first = memory().allocate(0, 3 << 20, stream(11), true);
    void *second = memory().allocate(0, 3 << 20, stream(11), true);
    void *own = memory().allocate(0, 3 << 20, stream(1));
    memory().used_on(own, {stream(12), 0, true});
    memory().used_on(own, {stream(2), 0, false});
    CHECK(forgotten.empty());
    void *used = memory().allocate(0, 3 << 20, stream(1));
    memory().used_on(used, {stream(11), 0, true});
    // The other one lives on.
    CHECK(memory().release(first) && memory().release(used));
    CHECK(memory().release(second));
    CHECK(forgotten.empty() && watched == Watched({{stream(11), false}}));
    // A stream that only used memory is asked when that ends.
    CHECK(memory().release(own));
    CHECK(forgotten == Streams{stream(12)});
    // Not before the last memory that it uses has ended.
    void *users[] = {memory().allocate(0, 3 << 20, stream(1)), memory().allocate(0, 3 << 20, stream(1))};
    for (void *ptr : users) {
        memory().used_on(ptr, {stream(13), 0, true});
        memory().used_on(ptr, {stream(13), 0, true});
    }
    CHECK(memory().release(users[0]) && forgotten == Streams{stream(12)});
    CHECK(memory().release(users[1]) && forgotten == Streams({stream(12), stream(13)}));
    forgotten.pop_back();
    // One of PyTorch's gets the handle.
    CHECK(memory().release(memory().allocate(0, 3 << 20, stream(11))));
    CHECK(watched == Watched({{stream(11), false}, {stream(11), true}}));
    // One that cannot be forgotten, as during a capture, fails no release.
    lib.forget_stream = [](vmm_pool_t *, vmm_stream_t) { return vmm_status_t{VMM_CAPTURING}; };
    own = memory().allocate(0, 3 << 20, stream(1));
    memory().used_on(own, {stream(12), 0, true});
    CHECK(memory().release(own));
    CHECK(watched.back() == std::pair(stream(12), false));
    lib.forget_stream = forget_really;
    // One that captures lives until that ends, and is watched meanwhile.
    static bool captures = true;
    memory().device(0).routes.is_capturing = [](Stream of) { return captures && of == stream(14); };
    allocator().beginAllocateToPool(0, {0, 78}, everywhere);
    own = memory().allocate(0, 3 << 20, stream(14), true);
    allocator().endAllocateToPool(0, {0, 78});
    CHECK(watched.back() == std::pair(stream(12), false));
    allocator().beginAllocateToPool(0, {0, 78}, everywhere);
    captures = false;
    allocator().endAllocateToPool(0, {0, 78});
    CHECK(watched.back() == std::pair(stream(14), false));
    CHECK(memory().release(own) && watched.size() == 4);
    memory().device(0).routes.is_capturing = nullptr;
    allocator().releasePool(0, {0, 78});
    allocator().releasePool(0, {0, 78});
    lib.watch_stream = watch_really;
    CHECK(memory().pool_stats(0).live_bytes == 0);
    CHECK(empties());
}

void uses_on_other_devices_come_before_what_follows() {
    using Streams = Fake::Streams;
    Fake fake;
    memory().returns.orders = &fake;
    void *ptr = memory().allocate(0, 3 << 20, nullptr);
    // The default stream of the other device is not that of the own one.
    memory().used_on(ptr, {nullptr, 1});
    memory().used_on(ptr, {stream(7), 1, true});
    memory().used_on(ptr, {stream(7), 1, true});
    memory().used_on(ptr, {nullptr, 0});
    memory().used_on(ptr, {stream(2), 0});
    CHECK(memory().release(ptr));
    CHECK((fake.recorded == Streams{{1, nullptr}, {1, stream(7)}}));
    CHECK((fake.waiting == Streams{{0, nullptr}, {0, nullptr}}));
    CHECK(fake.open.empty());
    // The next allocation there has no uses.
    ptr = memory().allocate(0, 3 << 20, nullptr);
    CHECK(memory().release(ptr) && fake.recorded.size() == 2);
    // Either stream captures: the memory is nobody's until that has ended.
    for (Stream capturing : {stream(1), stream(7)}) {
        ptr = memory().allocate(0, 3 << 20, stream(1));
        memory().used_on(ptr, {stream(7), 1});
        fake.captures = {capturing};
        CHECK(memory().release(ptr) && memory().ledger.size() == 0);
        CHECK(memory().pool_stats(0).live_bytes == 3 << 20);
        allocator().emptyCache({0, 0});
        CHECK(memory().pool_stats(0).live_bytes == 3 << 20);
        fake.captures = {};
        allocator().emptyCache({0, 0});
        CHECK(memory().pool_stats(0).live_bytes == 0);
    }
    // A stream that is gone: the host waits for its device.
    int waited = 0;
    memory().device(1).routes.wait = [&] { return ++waited > 1; };
    ptr = memory().allocate(0, 3 << 20, stream(1));
    memory().used_on(ptr, {stream(8), 1, true});
    fake.gone = {stream(8)};
    CHECK(memory().release(ptr));
    // That could not be waited for at once, but at the end of the same call.
    CHECK(waited == 2 && memory().pool_stats(0).live_bytes == 0);
    memory().device(1).routes.wait = nullptr;
    CHECK(fake.open.empty());
    memory().returns.orders = nullptr;
    CHECK(empties());
}

// Whoever made one may destroy it after the release, and the memory's own before.
void streams_of_others_are_asked_at_the_release_and_not_later() {
    using Streams = Fake::Streams;
    Fake fake;
    memory().returns.orders = &fake;
    forget_really = std::exchange(lib.forget_stream, forget_and_note);
    forgotten.clear();
    auto live = [] { return memory().pool_stats(0).live_bytes; };
    int waited = 0;
    memory().device(1).routes.wait = [&] { return ++waited > 0; };
    auto release_used_by_seven = [&](Stream own, bool external) {
        void *ptr = memory().allocate(0, 3 << 20, own, external);
        memory().used_on(ptr, {stream(7), 1, true});
        memory().used_on(ptr, {stream(12), 0, true});
        fake.destroyed = {external ? own : stream(99)};
        CHECK(memory().release(ptr));
        fake.destroyed.insert(stream(7));
        // libvmm has forgotten this one, though it has not got the memory yet.
        CHECK(forgotten == std::vector<Stream>{stream(12)} && live() == 3 << 20);
        forgotten.clear();
    };
    // Another release looks after those before.
    auto look = [] {
        void *ptr = memory().allocate(0, 512, stream(2));
        memory().used_on(ptr, {stream(8), 1});
        CHECK(memory().release(ptr));
    };

    // The own stream captures: it is ordered once it does not, or the host sees that the use is over.
    for (bool over : {false, true}) {
        fake.captures = {stream(1)};
        release_used_by_seven(stream(1), false);
        allocator().emptyCache({0, 0});
        CHECK(live() == 3 << 20 && fake.waiting.empty());
        (over ? fake.over = fake.made : fake.captures.erase(stream(1)));
        allocator().emptyCache({0, 0});
        CHECK(live() == 0 && waited == 0 && fake.open.empty());
        CHECK(fake.waiting.size() == (over ? 0 : 1));
        fake.waiting.clear();
    }
    // The use's captures: only the idle device tells, and is waited for where memory is short.
    fake.captures = {stream(7)};
    fake.recorded.clear();
    release_used_by_seven(stream(1), false);
    fake.captures = {};
    look();
    CHECK(live() == 3 << 20 && waited == 0 && (fake.recorded == Streams{{1, stream(8)}}));
    memory().pools.set_limit(16 << 20);
    CHECK(memory().release(memory().allocate(0, 15 << 20, stream(1))));
    CHECK(live() == 0 && waited == 1);
    memory().pools.set_limit(0);
    // The own one is of others: it gets no order.
    for (bool over : {true, false}) {
        waited = 0;
        fake.waiting.clear();
        release_used_by_seven(stream(11), true);
        look();
        CHECK(live() == 3 << 20 && (fake.waiting == Streams{{0, stream(2)}}));
        fake.over = over ? fake.made : 0;
        look();
        CHECK(live() == (over ? 0 : 3 << 20) && waited == 0);
        allocator().emptyCache({0, 0});
        CHECK(live() == 0 && waited == !over && fake.open.empty());
    }
    memory().device(1).routes.wait = nullptr;
    memory().returns.orders = nullptr;
    lib.forget_stream = forget_really;
    // One of PyTorch's gets the handle.
    CHECK(memory().release(memory().allocate(0, 3 << 20, stream(11))));
    CHECK(empties());
}

// At the moment of the fork every lock is held by a thread that the child does not have.
void forks_end_in_any_state() {
    c10::MempoolId_t name{0, 20};
    allocator().createOrIncrefPool(0, name, nullptr);
    allocator().beginAllocateToPool(0, name, everywhere);
    void *ptr = memory().allocate(0, 1000, stream(1));
    auto fails = [](auto body) {
        if (!contains(failure_of(body), "forked")) {
            _exit(1);
        }
    };
    auto child = [&] {
        memory().used_on(ptr, {stream(2)});
        delete_allocation(ptr);
        allocator().raw_delete(ptr);
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
        allocator().emptyCache(name);
        (void)allocator().getPoolUseCount(0, name);
        allocator().recordAnnotation({});
        vmm_torch_end();
        fails([] { memory().allocate(0, 1000, stream(1)); });
        fails([&] { allocator().beginAllocateToPool(0, name, everywhere); });
        fails([&] { allocator().createOrIncrefPool(0, name, nullptr); });
        fails([] { allocator().emptyCache({0, 0}); });
        fails([] { allocator().getDeviceStats(0); });
        fails([] { allocator().resetPeakStats(0); });
        fails([] { allocator().resetAccumulatedStats(0); });
        fails([] { allocator().snapshot({0, 0}, true); });
        fails([] { allocator().setMemoryFraction(0.5, 0); });
        fails([] { allocator().getMemoryFraction(0); });
        fails([] { allocator().recordHistory(true, gather, 9, RecordContext::ALL, true, {}); });
        fails([] { allocator().attachAllocatorTraceTracker([](const TraceEntry &) {}); });
        fails([] { allocator().attachOutOfMemoryObserver({}); });
        fails([&] { allocator().getBaseAllocation(ptr, nullptr); });
        fails([&] { allocator().getCheckpointState(0, name); });
        // What Python asks libvmm for goes by the pool, whose lock may be held.
        CHECK(vmm_torch_pool(0) == nullptr);
        char error[1000] = "";
        _exit(vmm_torch_set_limit(1 << 30, error, sizeof error) != 1);
    };
    static bool forking = true;
    allocator().attachAllocatorTraceTracker([&](const TraceEntry &) {
        if (std::exchange(forking, false)) {
            std::lock_guard<std::mutex> hold(memory().mutex);
            CHECK(ends_in_a_fork(child));
        }
    });
    allocator().recordHistory(true, gather, 9, RecordContext::STATE, true, {});
    CHECK(memory().release(ptr));
    CHECK(!forking);
    allocator().recordHistory(false, nullptr, 1, RecordContext::NEVER, true, {});
    allocator().endAllocateToPool(0, name);
    for (int user = 0; user < 2; ++user) {
        allocator().releasePool(0, name);
    }
    CHECK(empties());
}

void skipped_actions_are_told_all_the_same() {
    static int told = 0;
    allocator().attachAllocatorTraceTracker([](const TraceEntry &) { ++told; });
    allocator().recordHistory(true, gather, 9, RecordContext::STATE, true,
                              {"alloc", "free_requested", "free_completed"});
    told = 0;
    CHECK(memory().release(memory().allocate(0, 1000, stream(1))));
    CHECK(told == 3);
    CHECK(allocator().snapshot({0, 0}, true).device_traces[0].size() == 1);
    allocator().recordHistory(false, nullptr, 1, RecordContext::NEVER, true, {});
}

void what_is_not_there_says_so() {
    CHECK(contains(failure_of([] { allocator().shareIpcHandle(nullptr); }), "by way of the CPU"));
    CHECK(contains(failure_of([] { allocator().getIpcDevPtr("x"); }), "by way of the CPU"));
    CHECK(contains(failure_of([] { allocator().raw_delete(stream(512)); }), "no live allocation"));
    // NCCL asks for a snapshot of a pool whose memory it is to register.
    namespace plug = torch::cuda::CUDAPluggableAllocator;
    CHECK(registers(reinterpret_cast<void *>(&plug::changeCurrentAllocator)));
    CHECK(!registers(reinterpret_cast<void *>(&vmm_torch_install)));
}

} // namespace

int main(int argc, char **argv) {
    if (std::string wrong = install_on_mock(argc, argv); !wrong.empty()) {
        std::printf("not installed: %s\n", wrong.c_str());
        return 1;
    }
    CHECK(ca::get()->name() == "vmm");
    CHECK(!allocator().initialized());
    allocator().init(2);
    CHECK(allocator().initialized());
    CHECK(contains(install_on_mock(argc, argv), "in use already"));
    statistics_follow_allocations();
    out_of_memory_says_why_and_a_retry_works();
    what_other_threads_release_meanwhile_serves();
    a_fraction_is_a_limit();
    later_limits_are_only_not_passed();
    a_limit_that_is_refused_changes_nothing();
    caching_is_off_where_the_variable_says_so();
    snapshots_and_history_show_allocations();
    private_pools_route_and_come_back();
    a_capture_that_failed_keeps_nothing();
    a_capture_that_failed_in_a_thread_that_ended_keeps_nothing();
    waits_and_captures_of_threads_are_kept_apart();
    threads_do_not_disturb_each_other();
    external_streams_are_not_watched();
    uses_on_other_devices_come_before_what_follows();
    streams_of_others_are_asked_at_the_release_and_not_later();
    what_is_not_there_says_so();
    skipped_actions_are_told_all_the_same();
    forks_end_in_any_state();
    std::printf("%d failed\n", failures);
    return failures != 0;
}

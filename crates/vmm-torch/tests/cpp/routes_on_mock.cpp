// Which allocations private pools get, what becomes of captures that fail or pause, checkpoints, and
// what is done without locks, on libvmm's mock device. The CUDA runtime's functions for memory
// outside the cache are the ones below. The program is compiled and run by tests/test_on_mock.py; it
// prints one line for each check that fails.
//
// usage: routes_on_mock LIBVMM

#include "mock.h"

#include <torch/csrc/cuda/memory_snapshot.h>

#include <set>

namespace {

cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;
// In which modes memory was asked for and given back.
std::vector<cudaStreamCaptureMode> modes;

} // namespace

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    std::swap(capture_mode, *mode);
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **ptr, size_t) {
    modes.push_back(capture_mode);
    *ptr = reinterpret_cast<void *>(uintptr_t{1} << 50);
    return cudaSuccess;
}

cudaError_t cudaFree(void *) {
    modes.push_back(capture_mode);
    return cudaSuccess;
}
}

namespace {

constexpr size_t MIB = 1 << 20;

// Waits for each device.
int waits[2] = {};
// The streams that capture.
std::set<Stream> captures;

Routes &routes(int device = 0) { return memory().device(device).routes; }

c10::MempoolId_t pool_of(void *ptr) { return Memory::name_of(memory().ledger.find(ptr)->pool); }

c10::MempoolId_t new_name() {
    static unsigned long long count = 1000;
    return {0, ++count};
}

void open(c10::MempoolId_t name) { allocator().beginAllocateToPool(0, name, everywhere); }

void close(c10::MempoolId_t name) {
    allocator().endAllocateToPool(0, name);
    allocator().releasePool(0, name);
}

void *in_pool(c10::MempoolId_t name, size_t len, int on = 3) {
    open(name);
    void *ptr = memory().allocate(0, len, stream(on));
    close(name);
    return ptr;
}

// As PyTorch begins a capture, on the current stream, which is the default one here.
void begin_capture(c10::MempoolId_t name) {
    auto of_capture = [](cudaStream_t stream) { return captures.count(stream) != 0; };
    allocator().beginAllocateToPool(0, name, of_capture);
}

void from_another_thread(const std::function<void()> &body) { std::thread(body).join(); }

// Leaves memory that goes with the next wait.
c10::MempoolId_t leave_a_pool(int device = 0) {
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(device, name, nullptr);
    routes(device).find(name)->captured = true;
    allocator().releasePool(device, name);
    return name;
}

void what_no_graph_has_used_comes_back_without_a_wait() {
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    void *held = in_pool(name, 4 * MIB);
    CHECK(memory().release(in_pool(name, 40 * MIB)));
    int before = waits[0];
    allocator().releasePool(0, name);
    CHECK(waits[0] == before && routes().find(name) == nullptr);
    // It is everyone's; what lives stays.
    uint64_t reserved = memory().pool_stats(0).reserved_bytes;
    CHECK(memory().release(memory().allocate(0, 40 * MIB, nullptr)));
    CHECK(memory().pool_stats(0).reserved_bytes < reserved + 40 * MIB);
    CHECK(memory().release(held));
    CHECK(empties());
}

void a_route_for_no_capture_stays_whatever_is_captured() {
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    open(name);
    // Another library captures, and its capture ends.
    captures = {stream(5)};
    void *captured = memory().allocate(0, MIB, stream(5));
    captures = {};
    allocator().emptyCache({0, 0});
    void *after = memory().allocate(0, MIB, stream(1));
    CHECK(pool_of(after) == name && routes().find(name)->captured);
    CHECK(failure_of([&] { close(name); }).empty());
    CHECK(allocator().getPoolUseCount(0, name) == 1);
    CHECK(memory().release(captured) && memory().release(after));
    allocator().releasePool(0, name);
    CHECK(empties());
}

void a_stream_that_cannot_say_captures_nothing() {
    auto asks = std::exchange(routes().is_capturing, [](Stream of) -> std::optional<bool> {
        // As the legacy stream while another one captures.
        return of == stream(6) ? std::nullopt : std::optional(false);
    });
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    CHECK(memory().release(in_pool(name, MIB, 6)));
    CHECK(!routes().find(name)->captured);
    routes().is_capturing = [](Stream) -> std::optional<bool> { return std::nullopt; };
    leave_a_pool();
    // But to wait may break that capture.
    int before = waits[0];
    open(name);
    CHECK(!memory().settle(0) && waits[0] == before);
    close(name);
    routes().is_capturing = asks;
    allocator().releasePool(0, name);
    CHECK(empties());
}

void a_capture_that_failed_can_be_tried_again() {
    for (bool with_memory : {false, true}) {
        c10::MempoolId_t name = new_name();
        begin_capture(name);
        if (with_memory) {
            captures = {nullptr};
            void *ptr = memory().allocate(0, MIB, nullptr);
            CHECK(pool_of(ptr) == name && memory().release(ptr));
            captures = {};
        }
        CHECK(failure_of([&] { begin_capture(name); }).empty());
        CHECK(allocator().getPoolUseCount(0, name) == 1);
        // One that runs is no failed one.
        captures = {nullptr};
        CHECK(contains(failure_of([&] { begin_capture(name); }), "already go to this memory pool"));
        captures = {};
        allocator().endAllocateToPool(0, name);
        CHECK(allocator().getPoolUseCount(0, name) == 1 && !routes().any());
        allocator().releasePool(0, name);
        CHECK(empties() && routes().find(name) == nullptr);
    }
}

void a_failed_capture_without_memory_ends() {
    c10::MempoolId_t name = new_name();
    begin_capture(name);
    CHECK(empties());
    CHECK(!routes().any() && routes().find(name) == nullptr);
}

void no_wait_breaks_a_capture_whose_route_is_paused() {
    c10::MempoolId_t name = new_name();
    begin_capture(name);
    captures = {nullptr};
    CHECK(memory().release(memory().allocate(0, MIB, nullptr)));
    leave_a_pool();
    int before = waits[0];
    auto settles = [] { from_another_thread([] { memory().settle(0); }); };
    allocator().endAllocateToPool(0, name);
    settles();
    CHECK(waits[0] == before);
    // The capture goes on, paused in the other way that libraries have, and fails.
    open(name);
    settles();
    CHECK(waits[0] == before);
    // A route for no capture, beside it.
    c10::MempoolId_t other = new_name();
    for (int i = 0; i < 2; ++i) {
        allocator().beginAllocateToPool(0, other, everywhere);
        allocator().endAllocateToPool(0, other);
    }
    allocator().beginAllocateToPool(0, other, everywhere);
    captures = {};
    memory().settle(0);
    CHECK(routes().any() && failure_of([&] { allocator().endAllocateToPool(0, other); }).empty());
    for (int i = 0; i < 3; ++i) {
        allocator().releasePool(0, other);
    }
    CHECK(waits[0] == before + 1 && !routes().any());
    allocator().releasePool(0, name);
    CHECK(empties() && routes().find(name) == nullptr);
}

void a_capture_of_others_in_a_route_is_not_broken() {
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    open(name);
    captures = {stream(5)};
    void *ptr = memory().allocate(0, MIB, stream(5));
    leave_a_pool();
    int before = waits[0];
    memory().settle(0);
    close(name);
    memory().settle(0);
    CHECK(waits[0] == before);
    captures = {};
    memory().settle(0);
    CHECK(waits[0] == before + 1);
    CHECK(memory().release(ptr));
    allocator().releasePool(0, name);
    CHECK(empties());
}

void a_thread_that_does_not_come_back_blocks_nobody_for_long() {
    static auto now = std::chrono::steady_clock::now();
    routes().clock = [] { return now; };
    c10::MempoolId_t name = new_name();
    std::atomic<int> step{0};
    std::thread other([&] {
        begin_capture(name);
        step = 1;
        while (step != 2) {
            std::this_thread::yield();
        }
    });
    while (step != 1) {
        std::this_thread::yield();
    }
    leave_a_pool();
    now += std::chrono::seconds(1);
    CHECK(!memory().settle(0));
    now += std::chrono::seconds(10);
    CHECK(memory().settle(0));
    step = 2;
    other.join();
    routes().clock = &std::chrono::steady_clock::now;
    CHECK(empties() && routes().find(name) == nullptr);
}

// Python's lock, as PyTorch is told of it.
struct Python final : c10::impl::PythonGILHooks {
    bool check_python_gil() const override { return held; }
    bool held = false;
};

void no_device_is_waited_for_with_pythons_lock() {
    static Python python;
    c10::impl::PythonGILHooksRegisterer registered(&python);
    c10::MempoolId_t left = leave_a_pool();
    int before = waits[0];
    python.held = true;
    // MemPool() and ~MemPool, and a route of torch.compile.
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    allocator().releasePool(0, name);
    allocator().emptyCache(name);
    c10::MempoolId_t tree = new_name();
    open(tree);
    routes().find(tree)->captured = true;
    close(tree);
    CHECK(waits[0] == before && routes().find(left) != nullptr);
    python.held = false;
    // A capture, which begins without it.
    open(tree);
    close(tree);
    CHECK(waits[0] == before);
    tree = new_name();
    open(tree);
    CHECK(waits[0] == before + 1 && routes().find(left) == nullptr);
    close(tree);
    CHECK(empties() && routes().find(name) == nullptr);
}

void a_pool_that_goes_waits_for_its_own_device() {
    CHECK(memory().release(memory().allocate(1, MIB, stream(1))));
    c10::MempoolId_t left = leave_a_pool(1);
    int before = waits[1];
    allocator().emptyCache(leave_a_pool(0));
    CHECK(waits[1] == before && routes(1).find(left) != nullptr);
    allocator().emptyCache(left);
    CHECK(waits[1] == before + 1 && routes(1).find(left) == nullptr);
    CHECK(empties());
}

// A checkpoint of a pool with one allocation of 4 MiB, which has ended, and what is in its way since.
struct Blocked {
    Blocked() {
        allocator().createOrIncrefPool(0, name, nullptr);
        ptr = in_pool(name, 4 * MIB);
        state = allocator().getCheckpointState(0, name);
        CHECK(memory().release(ptr));
        uint64_t id = routes().find(name)->id;
        CHECK(lib.private_allocate_at(memory().pools.of(0), id, ptr, 512, stream(3), 0) == VMM_OK);
    }
    ~Blocked() {
        allocator().releasePool(0, name);
        CHECK(empties() && memory().ledger.size() == 0);
    }
    void unblock() {
        check_release(lib.release(memory().pools.of(0), ptr, stream(3)));
    }

    c10::MempoolId_t name = new_name();
    void *ptr = nullptr;
    std::shared_ptr<ca::AllocatorState> state;
};

void a_checkpoint_that_cannot_be_restored_changes_nothing() {
    Blocked in;
    void *tensors[] = {in_pool(in.name, 64 * MIB), in_pool(in.name, 3 * MIB, 4)};
    memory().used_on(tensors[0], {stream(5), 0});
    auto restore = [&] { allocator().setCheckpointPoolState(0, in.state); };
    auto bytes = [] { return current(allocator().getDeviceStats(0).allocated_bytes); };
    int64_t before = bytes();
    int waited = waits[0];
    CHECK(contains(failure_of(restore), "could not be restored"));
    CHECK(waits[0] == waited + 1);
    CHECK(allocator().checkPoolLiveAllocations(0, in.name, {tensors[0], tensors[1]}));
    CHECK(bytes() == before && allocator().getPoolUseCount(0, in.name) == 1);
    // The lease is live as well: nobody gets its address.
    void *next = in_pool(in.name, 64 * MIB);
    CHECK(next != tensors[0]);
    CHECK(memory().release(tensors[0]) && memory().ledger.find(next) != nullptr);
    // A wait that fails loses nothing either.
    auto wait = std::exchange(routes().wait, []() -> bool { throw std::runtime_error("is lost"); });
    CHECK(contains(failure_of(restore), "is lost"));
    routes().wait = wait;
    CHECK(allocator().checkPoolLiveAllocations(0, in.name, {next, tensors[1]}));
    CHECK(memory().release(tensors[1]) && memory().release(next));
    in.unblock();
}

void a_checkpoint_is_tried_once_more_after_a_wait() {
    Blocked in;
    void *other = in_pool(in.name, 5 * MIB, 7);
    auto wait = std::exchange(routes().wait, [&] {
        in.unblock();
        return true;
    });
    {
        auto delta = allocator().setCheckpointPoolState(0, in.state);
        CHECK(delta.ptrs_freed == std::vector<void *>{other});
        CHECK(allocator().checkPoolLiveAllocations(0, in.name, {in.ptr}));
    }
    routes().wait = wait;
    CHECK(allocator().checkPoolLiveAllocations(0, in.name, {}));
}

std::vector<Stream> forgotten;
decltype(lib.forget_stream) forget_really = nullptr;

// Memory that ends by a checkpoint, or comes back by one, counts for streams of others as all memory does.
void checkpoints_count_for_streams_of_others() {
    forget_really = std::exchange(lib.forget_stream, [](vmm_pool_t *pool, vmm_stream_t which) {
        forgotten.push_back(static_cast<Stream>(which));
        return forget_really(pool, which);
    });
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    auto none = allocator().getCheckpointState(0, name);
    auto in_pool_on = [&](Stream own) {
        allocator().beginAllocateToPool(0, name, everywhere);
        void *ptr = memory().allocate(0, 4 * MIB, own, true);
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
        return ptr;
    };
    auto end_one_used_by = [](Stream other) {
        void *ptr = memory().allocate(0, MIB, stream(1));
        memory().used_on(ptr, {other, 0, true});
        CHECK(memory().release(ptr));
    };
    using Streams = std::vector<Stream>;
    void *ptr = in_pool_on(stream(15));
    memory().used_on(ptr, {stream(16), 0, true});
    auto one = allocator().getCheckpointState(0, name);
    // It ends: neither stream has any more.
    allocator().setCheckpointPoolState(0, none);
    CHECK(forgotten == Streams{stream(16)});
    end_one_used_by(stream(15));
    CHECK(forgotten == Streams({stream(16), stream(15)}));
    // It comes back, for its own stream only.
    for (auto &data : allocator().setCheckpointPoolState(0, one).dataptrs_allocd) {
        data.release_context();
    }
    end_one_used_by(stream(15));
    CHECK(forgotten.size() == 2);
    // What cannot be restored leaves the counts as they are, but what loses its memory by that has ended.
    static void *lacking = in_pool_on(stream(17));
    static bool all = false;
    auto both = allocator().getCheckpointState(0, name);
    CHECK(memory().release(lacking));
    void *next = in_pool_on(stream(18));
    static auto put = lib.private_allocate_at;
    lib.private_allocate_at = [](vmm_pool_t *pool, uint64_t id, void *at, uint64_t len, vmm_stream_t on,
                                 uint32_t owner) {
        return all || at == lacking ? vmm_status_t{VMM_OUT_OF_MEMORY} : put(pool, id, at, len, on, owner);
    };
    auto restore = [&] { allocator().setCheckpointPoolState(0, both); };
    CHECK(next != lacking && contains(failure_of(restore), "could not be restored"));
    end_one_used_by(stream(18));
    CHECK(forgotten.size() == 2);
    all = true;
    CHECK(contains(failure_of(restore), "has lost its memory"));
    lib.private_allocate_at = put;
    for (int number : {18, 17}) {
        end_one_used_by(stream(number));
        CHECK(!forgotten.empty() && forgotten.back() == stream(number));
    }
    CHECK(memory().release(ptr));
    end_one_used_by(stream(15));
    CHECK(forgotten.size() == 5);
    // Uses on other devices come before what follows, or nothing is restored.
    Fake fake;
    memory().returns.orders = &fake;
    ptr = in_pool_on(stream(15));
    memory().used_on(ptr, {stream(7), 1, true});
    fake.captures = {stream(7)};
    auto wait = std::exchange(routes(1).wait, [] { return false; });
    CHECK(contains(failure_of([&] { allocator().setCheckpointPoolState(0, none); }), "captures a graph"));
    CHECK(allocator().checkPoolLiveAllocations(0, name, {ptr}));
    fake.captures = {};
    allocator().setCheckpointPoolState(0, none);
    CHECK((fake.waiting == Fake::Streams{{0, stream(15)}}) && fake.open.empty());
    routes(1).wait = wait;
    memory().returns.orders = nullptr;
    lib.forget_stream = forget_really;
    allocator().releasePool(0, name);
    CHECK(memory().ledger.size() == 0 && empties());
}

// Whether another thread could have the lock at this moment.
bool unlocked() {
    bool free = false;
    from_another_thread([&] {
        free = memory().mutex.try_lock();
        if (free) {
            memory().mutex.unlock();
        }
    });
    return free;
}

void pools_and_leases_are_made_without_the_lock() {
    static decltype(lib.private_create) create = lib.private_create;
    static decltype(lib.private_allocate_at) put = lib.private_allocate_at;
    static int calls = 0;
    lib.private_create = [](vmm_pool_t *pool, uint64_t *id) {
        CHECK(unlocked());
        ++calls;
        return create(pool, id);
    };
    lib.private_allocate_at = [](vmm_pool_t *pool, uint64_t id, void *ptr, uint64_t len,
                                 vmm_stream_t on, uint32_t owner) {
        CHECK(unlocked());
        ++calls;
        return put(pool, id, ptr, len, on, owner);
    };
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    void *ptr = in_pool(name, 4 * MIB);
    auto state = allocator().getCheckpointState(0, name);
    CHECK(memory().release(ptr));
    allocator().setCheckpointPoolState(0, state);
    c10::MempoolId_t other = new_name();
    CHECK(memory().release(in_pool(other, MIB)));
    CHECK(calls == 3);
    lib.private_create = create;
    lib.private_allocate_at = put;
    // Two threads at once make one.
    uint64_t before = memory().pool_stats(0).private_pools;
    c10::MempoolId_t shared = new_name();
    auto make = [&] { allocator().createOrIncrefPool(0, shared, nullptr); };
    static std::function<void()> meanwhile;
    meanwhile = make;
    lib.private_create = [](vmm_pool_t *pool, uint64_t *id) {
        if (auto once = std::exchange(meanwhile, nullptr)) {
            once();
        }
        return create(pool, id);
    };
    make();
    lib.private_create = create;
    CHECK(allocator().getPoolUseCount(0, shared) == 2);
    CHECK(memory().pool_stats(0).private_pools == before + 1);
    for (c10::MempoolId_t pool : {name, shared, shared}) {
        allocator().releasePool(0, pool);
    }
    CHECK(empties() && memory().ledger.size() == 0);
}

void a_snapshot_of_one_pool_has_no_other() {
    std::vector<c10::MempoolId_t> names;
    std::vector<void *> held;
    for (size_t i = 0; i < 4; ++i) {
        names.push_back(new_name());
        allocator().createOrIncrefPool(0, names.back(), nullptr);
        held.push_back(in_pool(names.back(), (3 + i) * MIB));
    }
    held.push_back(memory().allocate(0, MIB, stream(1)));
    CHECK(allocator().snapshot({0, 0}, false).segments.size() >= 5);
    // One that is gone is found by its allocation.
    allocator().releasePool(0, names[1]);
    memory().settle(0);
    CHECK(routes().find(names[1]) == nullptr);
    for (size_t i = 0; i < 4; ++i) {
        size_t live = 0;
        for (const auto &segment : allocator().snapshot(names[i], false).segments) {
            CHECK(segment.owner_private_pool_id == names[i]);
            live += segment.allocated_size;
        }
        CHECK(live == (3 + i) * MIB);
    }
    CHECK(allocator().snapshot(new_name(), false).segments.empty());
    for (void *ptr : held) {
        CHECK(memory().release(ptr));
    }
    for (size_t i : {0, 2, 3}) {
        allocator().releasePool(0, names[i]);
    }
    CHECK(empties());
}

void what_nccl_is_to_register_does_not_move() {
    CHECK(!registers(reinterpret_cast<void *>(&torch::cuda::_memory_snapshot_pickled)));
    // What makes communicators.
    const char *maker = "_ZN4c10d16ProcessGroupNCCL15registerMemPoolEPN2at4cuda7MemPoolEb";
    void *code = dlsym(RTLD_DEFAULT, maker);
    CHECK(code != nullptr && registers(code));
    void *ptr = memory().allocate(0, MIB, stream(1));
    auto segments = allocator().snapshot({0, 0}, false).segments;
    CHECK(!segments.empty());
    // As those of an allocator of the user's are.
    segments.emplace_back().address = 512;
    keep_registrable(segments);
    CHECK(segments.size() == 1 && segments.front().address == 512);
    // PyTorch's other snapshots are whole.
    std::string written = torch::cuda::_memory_snapshot_pickled();
    CHECK(memory().release(ptr));
    CHECK(empties());
    CHECK(written.size() > torch::cuda::_memory_snapshot_pickled().size());
}

void what_is_free_in_a_graphs_pool_is_no_room() {
    CHECK(empties());
    memory().pools.set_limit(1024 * MIB);
    c10::MempoolId_t name = new_name();
    allocator().createOrIncrefPool(0, name, nullptr);
    void *kept = in_pool(name, 100 * MIB);
    CHECK(memory().release(in_pool(name, 600 * MIB)));
    size_t largest = 0;
    allocator().cacheInfo(0, &largest);
    CHECK(largest >= 256 * MIB && largest <= 324 * MIB);
    CHECK(failure_of([&] { memory().release(memory().allocate(0, largest, stream(2))); }).empty());
    CHECK(memory().release(kept));
    allocator().releasePool(0, name);
    CHECK(empties() && memory().device(0).in_private == 0);
    allocator().cacheInfo(0, &largest);
    CHECK(largest == 1024 * MIB);
    memory().pools.set_limit(0);
}

// A wait for the device would break the graph.
void a_stream_of_others_that_captures_is_watched() {
    static int unwatched = 0;
    static auto really = lib.watch_stream;
    lib.watch_stream = [](vmm_pool_t *pool, vmm_stream_t which, bool watched) {
        unwatched += !watched;
        return really(pool, which, watched);
    };
    auto allocate = [] { return memory().allocate(0, MIB, stream(20), true); };
    c10::MempoolId_t name = new_name();
    open(name);
    captures = {stream(20)};
    void *ptr = allocate();
    CHECK(unwatched == 0);
    captures = {};
    close(name);
    CHECK(memory().release(allocate()) && unwatched == 1);
    CHECK(memory().release(ptr));
    lib.watch_stream = really;
    CHECK(empties());
}

void memory_outside_the_cache_breaks_no_capture() {
    allocator().enable(false);
    void *ptr = allocator().raw_alloc_with_stream(MIB, stream(1));
    CHECK(ptr != nullptr && allocator().raw_deleter() == &delete_uncached);
    allocator().raw_delete(ptr);
    allocator().enable(true);
    CHECK(modes.size() == 2 && modes[0] == cudaStreamCaptureModeRelaxed && modes[1] == modes[0]);
    CHECK(capture_mode == cudaStreamCaptureModeGlobal);
}

void the_ledger_is_as_long_as_what_lives() {
    Ledger<Allocation> ledger;
    size_t fewest = ledger.slots();
    constexpr uintptr_t COUNT = 100000;
    for (uintptr_t i = 1; i <= COUNT; ++i) {
        Allocation entry;
        entry.ptr = stream(i * 512);
        ledger.insert(entry);
    }
    CHECK(ledger.slots() > COUNT);
    for (uintptr_t i = 1; i <= COUNT; ++i) {
        if (i % 1000 != 0) {
            ledger.take(ledger.find(stream(i * 512)));
        }
    }
    CHECK(ledger.size() == COUNT / 1000 && ledger.slots() == fewest);
    for (uintptr_t i = 1000; i <= COUNT; i += 1000) {
        CHECK(ledger.find(stream(i * 512)) != nullptr);
    }
    CHECK(ledger.find(stream(512)) == nullptr);
}

} // namespace

int main(int argc, char **argv) {
    if (!start_on_mock(argc, argv, 2)) {
        return 1;
    }
    for (int device : {0, 1}) {
        routes(device).wait = [device] {
            ++waits[device];
            return true;
        };
    }
    routes().is_capturing = [](Stream of) { return captures.count(of) != 0; };
    a_route_for_no_capture_stays_whatever_is_captured();
    a_stream_that_cannot_say_captures_nothing();
    a_capture_that_failed_can_be_tried_again();
    a_failed_capture_without_memory_ends();
    no_wait_breaks_a_capture_whose_route_is_paused();
    a_capture_of_others_in_a_route_is_not_broken();
    a_thread_that_does_not_come_back_blocks_nobody_for_long();
    no_device_is_waited_for_with_pythons_lock();
    what_no_graph_has_used_comes_back_without_a_wait();
    a_pool_that_goes_waits_for_its_own_device();
    a_checkpoint_that_cannot_be_restored_changes_nothing();
    a_checkpoint_is_tried_once_more_after_a_wait();
    checkpoints_count_for_streams_of_others();
    pools_and_leases_are_made_without_the_lock();
    a_snapshot_of_one_pool_has_no_other();
    what_nccl_is_to_register_does_not_move();
    what_is_free_in_a_graphs_pool_is_no_room();
    a_stream_of_others_that_captures_is_watched();
    memory_outside_the_cache_breaks_no_capture();
    the_ledger_is_as_long_as_what_lives();
    CHECK(empties());
    CHECK(memory().ledger.size() == 0);
    std::printf("%d failed\n", failures);
    return failures != 0;
}

// The functions of the plain door on libvmm's mock device. The CUDA runtime is the one below, which
// is as strict about captures as the real one. The program is compiled and run by
// tests/test_on_mock.py; it prints one line for each check that fails.
//
// usage: plain_on_mock LIBVMM

#include "plain.cpp"

#include "check.h"

#include <chrono>
#include <thread>

namespace {

using namespace vmm;

constexpr int NOT_CAPTURING = 0;
constexpr int CAPTURING = 1;
constexpr int INVALIDATED = 2;
// cudaErrorStreamCaptureUnsupported
constexpr int UNSUPPORTED = 900;

// What each stream does, by its number.
std::array<std::atomic<int>, 8> captures = {};
// Captures that were broken, and waits for the device.
std::atomic<int> broken{0};
std::atomic<int> waits{0};
// What happens during the next wait for the device.
std::function<void()> meanwhile;

std::atomic<int> &capture(Stream of) { return captures[reinterpret_cast<uintptr_t>(of)]; }

// Events that are, and the streams on which one was recorded, and which wait for one.
uintptr_t events_made = 0;
bool events_over = true;
std::vector<Stream> recorded;
std::vector<Stream> waiting;

// What the calling thread's current stream is.
thread_local Stream current = nullptr;
void *current_stream(int) { return current; }

} // namespace

#pragma GCC visibility push(default)
extern "C" {

int cudaGetDevice(int *device) {
    *device = 0;
    return 0;
}

int cudaSetDevice(int) { return 0; }

int cudaGetLastError() { return 0; }

int cudaThreadExchangeStreamCaptureMode(int *mode) {
    thread_local int own = 0;
    std::swap(own, *mode);
    return 0;
}

int cudaStreamIsCapturing(Stream of, int *status) {
    *status = capture(of);
    return 0;
}

// The mock's devices have these as their peers.
int cudaDeviceCanAccessPeer(int *can, int device, int other) {
    *can = device > 0 && other > 0 && device != other;
    return 0;
}

int cudaEventCreateWithFlags(Event *event, unsigned) {
    *event = reinterpret_cast<Event>(++events_made);
    return 0;
}

int cudaEventRecord(Event, Stream of) {
    recorded.push_back(of);
    return 0;
}

// cudaErrorNotReady
int cudaEventQuery(Event) { return events_over ? 0 : 600; }

int cudaEventDestroy(Event) {
    --events_made;
    return 0;
}

int cudaStreamWaitEvent(Stream of, Event, unsigned) {
    waiting.push_back(of);
    return 0;
}

// The last two streams are those of another device.
int cudaStreamGetDevice(Stream of, int *device) {
    *device = reinterpret_cast<uintptr_t>(of) >= 6;
    return 0;
}

int cudaDeviceSynchronize() {
    bool any = false;
    for (std::atomic<int> &status : captures) {
        any = any || status != NOT_CAPTURING;
        int active = CAPTURING;
        broken += status.compare_exchange_strong(active, INVALIDATED);
    }
    if (any) {
        return UNSUPPORTED;
    }
    ++waits;
    if (auto once = std::exchange(meanwhile, nullptr)) {
        once();
    }
    return 0;
}
}
#pragma GCC visibility pop

namespace {

constexpr size_t LEN = 3 << 20;

// How many private pools there are, those included that nobody refers to any more.
uint64_t private_pools() {
    vmm_stats_t stats = {};
    stats.size = sizeof stats;
    CHECK(lib.stats(vmm_torch_pool(0), &stats) == VMM_OK);
    return stats.private_pools;
}

void begin(PoolName name, Stream on) {
    current = on;
    vmm_plain_begin(0, name, [on](Stream of) { return of == on && capture(of) == CAPTURING; });
}

// Captures a graph that one allocation belongs to, which ends with the capture.
void capture_graph(PoolName name, Stream on) {
    begin(name, on);
    capture(on) = CAPTURING;
    void *ptr = vmm_plain_allocate(LEN, 0, on);
    vmm_plain_release(ptr, LEN, 0, on);
    capture(on) = NOT_CAPTURING;
    vmm_plain_end(0, name);
}

void memory_of_a_graph_comes_back() {
    capture_graph({1, 0}, stream(1));
    vmm_plain_empty();
    CHECK(private_pools() == 1);
    vmm_plain_release_pool(0, {1, 0});
    vmm_plain_empty();
    CHECK(private_pools() == 0);
    CHECK(waits == 1);
}

void a_capture_that_failed_keeps_nothing() {
    begin({2, 0}, stream(1));
    capture(stream(1)) = CAPTURING;
    void *ptr = vmm_plain_allocate(LEN, 0, stream(1));
    // It fails, ends, and PyTorch says no more about it.
    capture(stream(1)) = INVALIDATED;
    vmm_plain_empty();
    CHECK(private_pools() == 1);
    capture(stream(1)) = NOT_CAPTURING;
    vmm_plain_release(ptr, LEN, 0, stream(1));
    // Another thread cannot know that it is not just about to be ended well.
    std::thread(vmm_plain_empty).join();
    CHECK(private_pools() == 1);
    capture_graph({3, 0}, stream(2));
    vmm_plain_release_pool(0, {3, 0});
    vmm_plain_empty();
    CHECK(private_pools() == 0);
    CHECK(!routes_of(0).any());
}

void one_that_failed_in_a_thread_that_ended_keeps_nothing() {
    std::thread([] {
        begin({4, 0}, stream(1));
        capture(stream(1)) = CAPTURING;
        vmm_plain_release(vmm_plain_allocate(LEN, 0, stream(1)), LEN, 0, stream(1));
        capture(stream(1)) = NOT_CAPTURING;
    }).join();
    vmm_plain_empty();
    CHECK(private_pools() == 0);
}

void one_that_failed_without_memory_can_be_tried_again() {
    begin({5, 0}, stream(1));
    begin({5, 0}, stream(1));
    // Nobody knows yet that the second one failed as well.
    std::thread(vmm_plain_empty).join();
    CHECK(private_pools() == 1);
    capture_graph({6, 0}, stream(2));
    vmm_plain_release_pool(0, {6, 0});
    vmm_plain_empty();
    CHECK(private_pools() == 0);
}

void no_wait_breaks_the_capture_of_another_thread() {
    std::atomic<int> step{0};
    auto reached = [&](int which) {
        while (step < which) {
            std::this_thread::yield();
        }
    };
    std::thread other([&] {
        begin({7, 0}, stream(2));
        step = 1;
        reached(2);
        capture(stream(2)) = CAPTURING;
        step = 3;
        reached(4);
        capture(stream(2)) = NOT_CAPTURING;
        vmm_plain_end(0, {7, 0});
        vmm_plain_release_pool(0, {7, 0});
    });
    reached(1);
    capture_graph({8, 0}, stream(1));
    vmm_plain_release_pool(0, {8, 0});
    int before = waits;
    // The other one is about to begin.
    vmm_plain_empty();
    CHECK(waits == before);
    step = 2;
    reached(3);
    // It runs.
    vmm_plain_empty();
    CHECK(waits == before && broken == 0);
    step = 4;
    other.join();
    vmm_plain_empty();
    CHECK(waits > before && private_pools() == 0);
}

void a_capture_waits_for_a_wait_under_way() {
    capture_graph({10, 0}, stream(1));
    vmm_plain_release_pool(0, {10, 0});
    std::atomic<bool> begun{false};
    std::thread other;
    meanwhile = [&] {
        other = std::thread([&] {
            begin({11, 0}, stream(2));
            capture(stream(2)) = CAPTURING;
            begun = true;
        });
        // Long enough for it to begin if it would.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        CHECK(!begun);
    };
    vmm_plain_empty();
    meanwhile = nullptr;
    CHECK(other.joinable());
    if (other.joinable()) {
        other.join();
        capture(stream(2)) = NOT_CAPTURING;
        vmm_plain_end(0, {11, 0});
        vmm_plain_release_pool(0, {11, 0});
    }
    CHECK(begun && broken == 0);
    vmm_plain_empty();
    CHECK(private_pools() == 0);
}

void a_fraction_of_nothing_is_a_limit() {
    vmm_plain_fraction(0.0, 0);
    vmm_stats_t stats = {};
    stats.size = sizeof stats;
    CHECK(lib.stats(vmm_torch_pool(0), &stats) == VMM_OK && stats.limit != 0);
    vmm_plain_fraction(1.0, 0);
    CHECK(lib.stats(vmm_torch_pool(0), &stats) == VMM_OK && stats.limit == 0);
}

void one_release_too_many_ends_nothing() {
    capture_graph({12, 0}, stream(1));
    vmm_plain_release_pool(0, {12, 0});
    vmm_plain_release_pool(0, {12, 0});
    vmm_plain_empty();
    CHECK(private_pools() == 0);
}

std::vector<Stream> forgotten;
decltype(lib.forget_stream) forget_really = nullptr;
vmm_status_t forget_and_note(vmm_pool_t *pool, vmm_stream_t which) {
    forgotten.push_back(static_cast<Stream>(which));
    return forget_really(pool, which);
}

uint64_t live_bytes() {
    vmm_stats_t stats = {};
    stats.size = sizeof stats;
    CHECK(lib.stats(vmm_torch_pool(0), &stats) == VMM_OK);
    return stats.live_bytes;
}

// All but default ones may be somebody's who destroys them.
void streams_that_only_used_memory_are_forgotten() {
    using Streams = std::vector<Stream>;
    forget_really = std::exchange(lib.forget_stream, forget_and_note);
    void *on_default = vmm_plain_allocate(LEN, 0, nullptr);
    void *ptr = vmm_plain_allocate(LEN, 0, stream(3));
    vmm_plain_used_on(ptr, stream(4));
    vmm_plain_used_on(ptr, nullptr);
    vmm_plain_release(on_default, LEN, 0, nullptr);
    CHECK(forgotten.empty());
    void *other = vmm_plain_allocate(LEN, 0, stream(3));
    vmm_plain_release(other, LEN, 0, stream(3));
    CHECK(forgotten.empty());
    vmm_plain_release(ptr, LEN, 0, stream(3));
    // That which only used memory is asked when that ends, as in the full door.
    CHECK(forgotten == Streams{stream(4)});
    CHECK(plain().noted == 0 && live_bytes() == 0 && recorded.empty());
    lib.forget_stream = forget_really;
}

void uses_on_other_devices_come_before_what_follows() {
    using Streams = std::vector<Stream>;
    vmm_plain_release(vmm_plain_allocate(LEN, 1, stream(6)), LEN, 1, stream(6));
    void *ptr = vmm_plain_allocate(LEN, 0, stream(3));
    vmm_plain_used_on(ptr, stream(7));
    // Nobody says of which device this one is.
    vmm_plain_used_on(ptr, nullptr);
    vmm_plain_used_on(static_cast<char *>(ptr) + 512, stream(6));
    vmm_plain_release(ptr, LEN, 0, stream(3));
    CHECK((recorded == Streams{stream(7), nullptr}));
    // Its own stream may be somebody's who has destroyed it, and gets no order.
    CHECK(waiting.empty() && events_made == 0 && live_bytes() == 0);
    events_over = false;
    ptr = vmm_plain_allocate(LEN, 0, stream(3));
    vmm_plain_used_on(ptr, stream(7));
    vmm_plain_release(ptr, LEN, 0, stream(3));
    CHECK(live_bytes() == LEN && events_made == 1);
    events_over = true;
    ptr = vmm_plain_allocate(LEN, 0, stream(3));
    vmm_plain_used_on(ptr, stream(7));
    vmm_plain_release(ptr, LEN, 0, stream(3));
    CHECK(waiting.empty() && events_made == 0 && live_bytes() == 0);
    // A default one is nobody's.
    ptr = vmm_plain_allocate(LEN, 0, nullptr);
    vmm_plain_used_on(ptr, stream(7));
    events_over = false;
    capture(nullptr) = CAPTURING;
    vmm_plain_release(ptr, LEN, 0, nullptr);
    CHECK(live_bytes() == LEN);
    capture(nullptr) = NOT_CAPTURING;
    vmm_plain_empty();
    CHECK((waiting == Streams{nullptr}) && live_bytes() == 0 && broken == 0);
    events_over = true;
    CHECK(plain().noted == 0 && !plain().returns.give_back_late(true));
}

// Ends a fork that is not told that it is one.
template <typename Body> void fails(Body body) {
    try {
        body();
    } catch (const std::exception &error) {
        if (std::string(error.what()) == FORKED) {
            return;
        }
    }
    _exit(1);
}

// A pool that was made is the parent's, also before the first allocation.
void a_limit_is_use() {
    vmm_plain_fraction(0.5, 0);
    CHECK(ends_in_a_fork([] { fails([] { vmm_plain_allocate(LEN, 0, stream(2)); }); }));
    vmm_plain_fraction(1.0, 0);
}

// At the moment of the fork the lock is held by a thread that the child does not have.
void forks_end_in_any_state() {
    begin({13, 0}, stream(1));
    void *ptr = vmm_plain_allocate(LEN, 0, stream(2));
    std::unique_lock<std::mutex> hold(plain().mutex);
    CHECK(ends_in_a_fork([&] {
        vmm_plain_used_on(ptr, stream(3));
        vmm_plain_release(ptr, LEN, 0, stream(2));
        vmm_plain_end(0, {13, 0});
        vmm_plain_release_pool(0, {13, 0});
        fails([] { vmm_plain_allocate(LEN, 0, stream(2)); });
        fails([] { begin({14, 0}, stream(1)); });
        fails([] { vmm_plain_empty(); });
        fails([] { vmm_plain_fraction(0.5, 0); });
        fails([&] { vmm_plain_base(ptr, nullptr); });
        char error[1000] = "";
        _exit(vmm_torch_set_limit(1 << 30, error, sizeof error) != 1);
    }));
    hold.unlock();
    vmm_plain_release(ptr, LEN, 0, stream(2));
    vmm_plain_end(0, {13, 0});
    vmm_plain_release_pool(0, {13, 0});
    vmm_plain_empty();
    CHECK(private_pools() == 0);
}

// A process of one device pays for no peer.
void devices_of_one_process_reach_each_other() {
    static decltype(lib.add_peer) add = lib.add_peer;
    static std::vector<std::pair<vmm_pool_t *, uint32_t>> added;
    lib.add_peer = [](vmm_pool_t *pool, uint32_t peer) {
        added.emplace_back(pool, peer);
        return add(pool, peer);
    };
    void *first = vmm_plain_allocate(LEN, 1, stream(1));
    CHECK(added.empty());
    // What is there already is reached as well, and what comes later.
    std::vector<std::thread> threads;
    std::array<void *, 4> held = {};
    for (void *&ptr : held) {
        threads.emplace_back([&ptr] { ptr = vmm_plain_allocate(LEN, 2, stream(2)); });
    }
    for (std::thread &thread : threads) {
        thread.join();
    }
    std::vector<std::pair<vmm_pool_t *, uint32_t>> both = {{vmm_torch_pool(2), 1},
                                                           {vmm_torch_pool(1), 2}};
    CHECK(added == both);
    // An error is no reason to allocate nothing.
    lib.add_peer = [](vmm_pool_t *, uint32_t) -> vmm_status_t { return VMM_NOT_SUPPORTED; };
    void *third = vmm_plain_allocate(LEN, 3, stream(3));
    CHECK(third != nullptr);
    lib.add_peer = add;
    vmm_plain_release(first, LEN, 1, stream(1));
    vmm_plain_release(third, LEN, 3, stream(3));
    for (void *ptr : held) {
        vmm_plain_release(ptr, LEN, 2, stream(2));
    }
}

} // namespace

int main(int argc, char **argv) {
    char error[1000] = "";
    vmm_torch_settings_t settings = {};
    settings.device_kind = VMM_DEVICE_MOCK;
    // Without a path the runtime is looked for in this program.
    if (argc != 2 || vmm_torch_install(argv[1], nullptr, current_stream, &settings, error,
                                       sizeof error) != 0) {
        std::printf("not installed: %s\n", error);
        return 1;
    }
    a_limit_is_use();
    memory_of_a_graph_comes_back();
    a_capture_that_failed_keeps_nothing();
    one_that_failed_in_a_thread_that_ended_keeps_nothing();
    one_that_failed_without_memory_can_be_tried_again();
    no_wait_breaks_the_capture_of_another_thread();
    a_capture_waits_for_a_wait_under_way();
    a_fraction_of_nothing_is_a_limit();
    one_release_too_many_ends_nothing();
    streams_that_only_used_memory_are_forgotten();
    uses_on_other_devices_come_before_what_follows();
    forks_end_in_any_state();
    devices_of_one_process_reach_each_other();
    std::printf("%d failed\n", failures);
    return failures != 0;
}

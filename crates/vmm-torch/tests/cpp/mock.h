// What the programs on libvmm's mock device share: the allocator itself, and ways to ask it.

#pragma once

#include "allocator.cpp"

#include "check.h"

#include <chrono>
#include <set>
#include <thread>

namespace {

using namespace vmm;

struct Stack : c10::GatheredContext {};

std::shared_ptr<c10::GatheredContext> gather() { return std::make_shared<Stack>(); }

template <typename Body> std::string failure_of(Body body) {
    try {
        body();
    } catch (const c10::OutOfMemoryError &error) {
        return std::string("out of memory: ") + error.what_without_backtrace();
    } catch (const std::exception &error) {
        return error.what();
    }
    return {};
}

bool contains(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

// Frees all idle memory. What the pool's own thread is moving at the moment goes a little later.
bool empties() {
    for (int attempt = 0; attempt < 200; ++attempt) {
        allocator().emptyCache({0, 0});
        if (memory().pool_stats(0).reserved_bytes == 0) {
            return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
}

int64_t current(const c10::CachingAllocator::StatArray &stat) { return stat[0].current; }

bool everywhere(cudaStream_t) { return true; }

// Events of no device, which are over when a test says so.
struct Fake final : Orders {
    Order record(const Use &use, Event &event) override {
        std::lock_guard<std::mutex> hold(mutex);
        CHECK(destroyed.count(use.stream) == 0);
        if (captures.count(use.stream) != 0) {
            return Order::LATER;
        }
        if (gone.count(use.stream) != 0) {
            return Order::NEVER;
        }
        recorded.emplace_back(use.device, use.stream);
        event = reinterpret_cast<Event>(++made);
        open.insert(event);
        return Order::GIVEN;
    }

    Order wait(const Use &use, Event event) override {
        std::lock_guard<std::mutex> hold(mutex);
        CHECK(open.count(event) == 1 && destroyed.count(use.stream) == 0);
        if (captures.count(use.stream) != 0) {
            return Order::LATER;
        }
        waiting.emplace_back(use.device, use.stream);
        return Order::GIVEN;
    }

    bool is_over(Event event) override {
        std::lock_guard<std::mutex> hold(mutex);
        ++asked;
        CHECK(open.count(event) == 1);
        return reinterpret_cast<uintptr_t>(event) <= over;
    }

    void destroy(Event event) override {
        std::lock_guard<std::mutex> hold(mutex);
        CHECK(open.erase(event) == 1);
    }

    using Streams = std::vector<std::pair<int, Stream>>;
    // On which streams events were recorded, and which wait for one.
    Streams recorded;
    Streams waiting;
    // Events are numbered from 1. Those up to `over` are.
    uintptr_t made = 0;
    std::atomic<uintptr_t> over{0};
    int asked = 0;
    std::set<Event> open;
    std::set<Stream> captures;
    std::set<Stream> gone;
    // Those about which the driver crashes.
    std::set<Stream> destroyed;
    std::mutex mutex;
};

// Puts the allocator in. Returns what is wrong, or an empty text.
std::string install_on_mock(int argc, char **argv) {
    char error[1000] = "";
    vmm_torch_settings_t settings = {};
    settings.device_kind = VMM_DEVICE_MOCK;
    if (argc != 2) {
        return "a path of libvmm is wanted";
    }
    (void)vmm_torch_install(argv[1], &settings, error, sizeof error);
    return error;
}

// As that, for so many devices; whether it worked.
bool start_on_mock(int argc, char **argv, int devices) {
    if (std::string wrong = install_on_mock(argc, argv); !wrong.empty()) {
        std::printf("not installed: %s\n", wrong.c_str());
        return false;
    }
    allocator().init(devices);
    return true;
}

} // namespace

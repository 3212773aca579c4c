// What the programs on libvmm's mock device share: the allocator itself, and ways to ask it.

#pragma once

#include "allocator.cpp"

#include "check.h"

#include <chrono>
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

} // namespace

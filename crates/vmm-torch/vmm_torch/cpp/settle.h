// Waiting for a device, so that the memory of private pools can go, without breaking captures.
//
// cudaDeviceSynchronize during a capture on the same device is an error, and breaks the capture,
// in each capture mode and whichever thread makes it: CUDA's programming guide forbids to wait for
// what encompasses a stream that captures. (Seen by others: NVIDIA/TensorRT issue 2888, and with
// two cards, of which only that of the capture matters, ROCm/rocm-systems pull request 4508.)
// Events instead would have to be recorded on each stream that a graph may have been launched on,
// and nobody tells which these are. So waits and captures of one device are kept apart: no wait
// begins while a graph is captured or its route has just begun, and no such route begins during a
// wait. Other devices, and routes that are not for a capture, never wait for that.
#pragma once

#include "routes.h"

namespace vmm {

// Waits until the device is idle. False, at once, if a capture would be broken. `mutex` guards the
// routes.
inline bool idle(std::mutex &mutex, Routes &routes) {
    std::lock_guard<std::mutex> alone(routes.gate);
    {
        std::lock_guard<std::mutex> hold(mutex);
        if (routes.capturing()) {
            return false;
        }
    }
    return !routes.wait || routes.wait();
}

// Gives private pools that nobody refers to back, once the device is idle, and what the source of
// `also` keeps, which lives. Whether there was anything. What is released while the device is waited
// for stays: work on it may have been queued after the wait began.
inline bool settle(std::mutex &mutex, Routes &routes, vmm_pool_t *pool,
                   std::optional<PoolName> also = std::nullopt) {
    bool any = false;
    uint64_t moment = 0;
    Sources spare;
    {
        std::lock_guard<std::mutex> hold(mutex);
        routes.drop_failed();
        spare = routes.spare(also);
        any = routes.unsettled() || !spare.empty();
        moment = routes.now();
    }
    if (!any || !idle(mutex, routes)) {
        return false;
    }
    {
        std::lock_guard<std::mutex> hold(mutex);
        routes.settle(pool, moment);
    }
    for (const std::shared_ptr<Source> &source : spare) {
        source->give_back(moment);
    }
    Sources done;
    {
        std::lock_guard<std::mutex> hold(mutex);
        done = routes.done();
    }
    return true;
}

// Runs `body` with the lock, and with what libvmm has made for a pool that is not there yet.
template <typename Body>
void with_pool(std::mutex &mutex, Routes &routes, vmm_pool_t *pool, PoolName name, Body body) {
    Fresh fresh(pool);
    for (;; fresh.make()) {
        std::lock_guard<std::mutex> hold(mutex);
        if (fresh.made() || routes.find(name) != nullptr) {
            body(fresh);
            return;
        }
    }
}

// Begins a route; `stream` is the current one.
inline void begin(std::mutex &mutex, Routes &routes, vmm_pool_t *pool, PoolName name, Filter filter,
                  Stream stream) {
    // The filter of a capture that has not begun takes no stream; all others take this one.
    bool opening = !filter(stream);
    std::unique_lock<std::mutex> alone(routes.gate, std::defer_lock);
    if (opening) {
        alone.lock();
    }
    with_pool(mutex, routes, pool, name, [&](Fresh &fresh) {
        routes.begin(fresh, name, std::move(filter), stream, opening);
    });
}

} // namespace vmm

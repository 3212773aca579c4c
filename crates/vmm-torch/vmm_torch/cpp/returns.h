// The way back of memory that was released: to libvmm, or to the source of its pool.
#pragma once

#include "settle.h"
#include "uses.h"

namespace vmm {

inline void check_release(vmm_status_t status) {
    // A driver that has shut down took the memory with it; the process is ending.
    if (status != VMM_OK && status != VMM_DEVICE_LOST) {
        std::fprintf(stderr, "vmm_torch: memory could not be released: %s\n",
                     fault(status).c_str());
    }
}

// For any thread.
class Returns {
  public:
    // Memory that was released, and what used it beside its own stream.
    struct Gone {
        void *ptr;
        Use own;
        PrivatePool *pool;
        Uses uses;
    };

    // `mutex` guards the routes. `idle` waits for a device, and says whether it could.
    Returns(std::mutex &mutex, const Pools &pools, std::function<Routes &(int)> routes_of,
            std::function<bool(int)> idle)
        : mutex_(mutex), pools_(pools), routes_of_(std::move(routes_of)), idle_(std::move(idle)) {}

    // NULL where streams are no real ones.
    Orders *orders = nullptr;
    ExternalStreams external;

    // Memory that only its own stream used.
    void give_back(void *ptr, const Use &own, PrivatePool *pool) {
        static const Uses none;
        finish(ptr, own, pool, none);
    }

    // The memory goes back later if an order to its stream has to wait for the end of a capture.
    void give_back(Gone gone) {
        if (!order_behind(orders, gone.own, gone.uses, idle_)) {
            std::lock_guard<std::mutex> hold(mutex_);
            late_.push_back(std::move(gone));
            return;
        }
        finish(gone.ptr, gone.own, gone.pool, gone.uses);
    }

    // Whether there was any.
    bool give_back_late() {
        std::vector<Gone> late;
        {
            std::lock_guard<std::mutex> hold(mutex_);
            late.swap(late_);
        }
        for (Gone &gone : late) {
            give_back(std::move(gone));
        }
        return !late.empty();
    }

  private:
    void finish(void *ptr, const Use &own, PrivatePool *pool, const Uses &uses) {
        if (pool != nullptr && pool->source != nullptr) {
            pool->source->release(ptr, uses);
        } else {
            check_release(lib.release(pools_.find(own.device), ptr, own.stream));
        }
        if (own.external || !uses.empty()) {
            external.ended(pools_.find(own.device), own, uses);
        }
        if (pool != nullptr) {
            std::lock_guard<std::mutex> hold(mutex_);
            routes_of_(own.device).ended(pool);
        }
    }

    std::mutex &mutex_;
    const Pools &pools_;
    std::function<Routes &(int)> routes_of_;
    std::function<bool(int)> idle_;
    // Released, but not given back yet.
    std::vector<Gone> late_;
};

} // namespace vmm

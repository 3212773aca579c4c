// The way back of memory that was released: to libvmm, or to the source of its pool.
#pragma once

#include "external.h"
#include "settle.h"

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
        finish(ptr, own, pool, {});
    }

    // Memory that was just released. It goes back later if a capture forbids an order, or nobody may be
    // asked for one. What external streams there are is asked here and not later.
    void give_back(const Gone &gone) {
        const Use &own = gone.own;
        external.released(pools_.find(own.device), own, gone.uses);
        Late late = {gone.ptr, own, gone.pool, {}};
        for (const Use &use : gone.uses) {
            bool here = use.device == own.device;
            // libvmm knows of streams of its own device.
            if (here ? has_source(gone.pool) : orders != nullptr) {
                End &end = late.ends.emplace_back(End{use});
                end.order = orders != nullptr ? orders->record(use, end.event) : Order::NEVER;
            }
        }
        give_back(std::move(late), false);
    }

    // Lets a stream that lives come behind uses on other devices. False if a capture forbids it.
    bool order(const Use &own, const Uses &uses) {
        return std::all_of(uses.begin(), uses.end(), [&](const Use &use) {
            if (use.device == own.device || orders == nullptr) {
                return true;
            }
            End end = {use};
            end.order = orders->record(use, end.event);
            bool over = is_over(end, {own.stream, own.device}, true);
            if (!over && end.event != nullptr) {
                orders->destroy(end.event);
            }
            return over;
        });
    }

    // Whether there was any. `waits`: memory is short, and what nothing else tells of is waited for.
    bool give_back_late(bool waits) {
        std::vector<Late> all;
        {
            std::lock_guard<std::mutex> hold(mutex_);
            all.swap(late_);
        }
        for (Late &late : all) {
            give_back(std::move(late), waits);
        }
        return !all.empty();
    }

  private:
    // Memory that was released, and uses that its stream is not behind.
    struct Late {
        void *ptr;
        Use own;
        PrivatePool *pool;
        Ends ends;
    };

    static bool has_source(const PrivatePool *pool) {
        return pool != nullptr && pool->source != nullptr;
    }

    void give_back(Late late, bool waits) {
        bool elsewhere = false;
        for (auto end = late.ends.begin(); end != late.ends.end();) {
            bool here = end->use.device == late.own.device;
            bool over = !here && is_over(*end, late.own, waits);
            elsewhere = elsewhere || !(here || over);
            end = over ? late.ends.erase(end) : end + 1;
        }
        if (elsewhere) {
            std::lock_guard<std::mutex> hold(mutex_);
            late_.push_back(std::move(late));
            return;
        }
        finish(late.ptr, late.own, late.pool, late.ends);
    }

    // Whether a use on another device is over, or what its memory's own stream does from now on comes
    // behind it. An external stream may be gone since the release, and an own one before, so neither is
    // asked: of the one its event tells, or the idle device where a capture forbade one; the other gets
    // no order. Where an order is refused, the device has to be idle as well.
    bool is_over(End &end, const Use &own, bool waits) {
        if (end.order == Order::LATER && !end.use.external) {
            end.order = orders->record(end.use, end.event);
        }
        if (end.order == Order::LATER && !(end.use.external && waits)) {
            return false;
        }
        Order order = Order::NEVER;
        if (end.event != nullptr) {
            order = own.external ? Order::LATER : orders->wait(own, end.event);
            order = order != Order::GIVEN && orders->is_over(end.event) ? Order::GIVEN : order;
        }
        bool may_wait = order == Order::NEVER || (own.external && waits);
        bool over = order == Order::GIVEN || (may_wait && idle_(end.use.device));
        if (over && end.event != nullptr) {
            orders->destroy(end.event);
        }
        return over;
    }

    // The events of the ends are the source's from then on.
    void finish(void *ptr, const Use &own, PrivatePool *pool, const Ends &ends) {
        if (has_source(pool)) {
            pool->source->release(ptr, ends);
        } else {
            check_release(lib.release(pools_.find(own.device), ptr, own.stream));
        }
        if (own.external) {
            external.ended(own.stream);
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
    std::vector<Late> late_;
};

} // namespace vmm

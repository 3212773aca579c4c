// What keeps private pools that allocations are just made in.
#pragma once

#include "routes.h"

namespace vmm {

// Keeps a private pool from being dropped while an allocation in it is under way.
class Hold {
  public:
    // `mutex` guards the routes.
    Hold(std::mutex &mutex, Routes &routes) : mutex_(mutex), routes_(routes) {}
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;
    ~Hold() { let_go(); }

    // Holds the pool that an allocation on this stream belongs to, if any.
    void take(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        pool = routes_.route(stream);
        if (pool != nullptr) {
            routes_.began(pool);
        }
    }

    // Lets go of the pool and holds this one. False unless it may serve everyone.
    bool change(PoolName name) {
        let_go();
        std::lock_guard<std::mutex> hold(mutex_);
        PrivatePool *other = routes_.find(name);
        if (other == nullptr || !routes_.is_spare(*other)) {
            return false;
        }
        pool = other;
        routes_.began(pool);
        return true;
    }

    // Whether the pool may serve everyone still, now that the allocation was made.
    bool is_spare() const {
        std::lock_guard<std::mutex> hold(mutex_);
        return routes_.is_spare(*pool);
    }

    // The allocation was made: it holds the pool from now on.
    PrivatePool *keep() { return std::exchange(pool, nullptr); }

    void let_go() {
        if (pool != nullptr) {
            std::lock_guard<std::mutex> hold(mutex_);
            routes_.ended(std::exchange(pool, nullptr));
        }
    }

    PrivatePool *pool = nullptr;

  private:
    std::mutex &mutex_;
    Routes &routes_;
};

} // namespace vmm

// What is known of each device, and what guards it.
#pragma once

#include "allocation.h"
#include "history.h"
#include "ledger.h"
#include "orders.h"
#include "settle.h"
#include "statistics.h"

#include <deque>

namespace vmm {

class Devices {
  public:
    struct Device {
        Statistics statistics;
        Routes routes;
        // Bytes of libvmm's that live in private pools, also in those that are gone.
        size_t in_private = 0;
    };

    Pools pools;
    History history;
    // Guards the ledger, the devices, and what else says so. No call of libvmm that may take long is
    // made under it, and none that takes Python's lock.
    std::mutex mutex;
    Ledger<Allocation> ledger;
    // By allocators of users.
    int32_t pieces_made = 0;

    void init(int count) {
        std::lock_guard<std::mutex> hold(mutex);
        while (devices_.size() < static_cast<size_t>(count)) {
            int index = static_cast<int>(devices_.size());
            Routes &routes = devices_.emplace_back().routes;
            if (pools.settings().device_kind == VMM_DEVICE_CUDA) {
                routes.is_capturing = &is_capturing;
                routes.wait = [index] { return wait_for(index); };
            }
        }
        count_.store(count, std::memory_order_release);
    }

    int device_count() const { return count_.load(std::memory_order_acquire); }

    // Throws if there is none.
    Device &device(int index) {
        refuse_fork();
        if (index < 0 || index >= device_count()) {
            throw std::runtime_error(
                format("vmm_torch: there is no CUDA device %d among %d, or CUDA is not initialised",
                       index, device_count()));
        }
        return own(index);
    }

    // The same, of an allocation that there is.
    Device &own(int index) { return devices_[static_cast<size_t>(index)]; }

    // In a child of a process that used CUDA nothing can be allocated or given back, and no lock be
    // taken: another thread of the parent may have held it.
    bool forked() const { return forked_.load(std::memory_order_relaxed); }
    void refuse_fork() const {
        if (C10_UNLIKELY(forked())) {
            throw std::runtime_error(FORKED);
        }
    }
    void note_fork() { forked_.store(device_count() != 0, std::memory_order_relaxed); }

    // See settle.h.
    bool settle(int index, std::optional<PoolName> also = std::nullopt) {
        return vmm::settle(mutex, device(index).routes, pools.find(index), also);
    }

    // The figures of a device's pool, but for the limit: that of all its memory.
    vmm_stats_t pool_stats(int index) const {
        vmm_pool_t *pool = pools.find(index);
        if (pool == nullptr) {
            return {};
        }
        vmm_stats_t stats = Pools::stats_of(pool);
        stats.limit = pools.limit(index);
        return stats;
    }

    static c10::MempoolId_t name_of(const PrivatePool *pool) {
        return pool != nullptr ? pool->name : c10::MempoolId_t{0, 0};
    }

  private:
    // References to its members stay valid when it grows.
    std::deque<Device> devices_;
    std::atomic<int> count_{0};
    std::atomic<bool> forked_{false};
};

} // namespace vmm

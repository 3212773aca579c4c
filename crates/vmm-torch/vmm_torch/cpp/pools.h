// One pool of libvmm for each device, made when the device is first used.
#pragma once

#include "library.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <vector>

extern "C" {
// What Python chose; the fields are those of `vmm_torch.options.Settings`.
struct vmm_torch_settings_t {
    uint64_t limit;           // bytes a device; 0: none
    uint64_t target;          // bytes a device; 0: the limit, if there is one
    uint64_t time_to_live_ns; // 0: the library's default
    uint32_t cross_stream;    // a vmm_cross_stream_t
    uint32_t frame_kind;      // a vmm_frame_kind_t
    uint32_t log_level;       // 0 nothing, 1 what happens seldom, 2 each failed allocation too
    uint32_t device_kind;     // a vmm_device_kind_t; tests take the mock
    uint32_t frame_kind_is_a_guess; // 1: lesser kinds do as well where the device does not offer it
};
}

namespace vmm {

constexpr const char *FORKED = "vmm_torch: this process was forked from one that had used CUDA, "
                               "and cannot use it: start it with the method \"spawn\"";

// PyTorch's own bound on devices is a signed byte.
constexpr int MOST_DEVICES = 128;

class Pools {
  public:
    void configure(const vmm_torch_settings_t &settings) {
        settings_ = settings;
        limit_ = settings.limit;
    }
    const vmm_torch_settings_t &settings() const { return settings_; }

    // The pool of a device, NULL if it was not used yet.
    vmm_pool_t *find(int device) const {
        if (device < 0 || device >= MOST_DEVICES) {
            return nullptr;
        }
        return pools_[static_cast<size_t>(device)].load(std::memory_order_acquire);
    }

    // The pool of a device; makes it at first. Throws std::runtime_error if it cannot be made.
    vmm_pool_t *of(int device) {
        vmm_pool_t *pool = find(device);
        return pool != nullptr ? pool : make(device);
    }

    // Lowers the limit of a device to a share of its memory, 1 being all of it. The target stays.
    void set_fraction(int device, double fraction) {
        of(device);
        std::lock_guard<std::mutex> hold(mutex_);
        apply_limit(device, limit_, fraction);
        fractions_[static_cast<size_t>(device)] = fraction;
    }

    double fraction(int device) {
        std::lock_guard<std::mutex> hold(mutex_);
        return fractions_[static_cast<size_t>(device)].value_or(1.0);
    }

    // Sets the limit in bytes of every device, 0 being none. Memory above it that is idle goes; the
    // target stays, so that none is made for it. One that a device refuses changes nothing.
    void set_limit(uint64_t limit) {
        std::lock_guard<std::mutex> hold(mutex_);
        try {
            apply_limit(limit);
        } catch (...) {
            apply_limit(limit_);
            throw;
        }
        limit_ = limit;
    }

    static vmm_stats_t stats_of(vmm_pool_t *pool) {
        vmm_stats_t stats = {};
        stats.size = sizeof stats;
        if (vmm_status_t status = lib.stats(pool, &stats); status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
        return stats;
    }

    // The limit of a device that was used, in bytes: the lower one of both, 0 for none.
    uint64_t limit(int device) const {
        return limits_[static_cast<size_t>(device)].load(std::memory_order_relaxed);
    }

    // Bytes that do not come from the pool of a device, and count for its limit.
    uint64_t share(int device) const {
        return shares_[static_cast<size_t>(device)].load(std::memory_order_relaxed);
    }

    // Takes so many bytes of a device's limit for what does not come from its pool. The pool has the
    // rest, and one granule at least. False, and nothing is taken, if it holds more than that.
    bool take_share(int device, uint64_t len) {
        vmm_pool_t *pool = of(device);
        std::lock_guard<std::mutex> hold(mutex_);
        uint64_t most = limit(device);
        if (most != 0 && most < share(device) + len + info_of(pool).granule) {
            return false;
        }
        change_share(device, len);
        if (most == 0 || reserved(pool) <= most - share(device)) {
            return true;
        }
        // While a graph is captured nothing is given back.
        lib.trim(pool, most - share(device), nullptr);
        if (reserved(pool) <= most - share(device)) {
            return true;
        }
        change_share(device, -len);
        return false;
    }

    // Does not throw: of a device that is lost the pool gets no more than it had.
    void give_share(int device, uint64_t len) {
        std::lock_guard<std::mutex> hold(mutex_);
        try {
            change_share(device, -len);
        } catch (const std::exception &) {
        }
    }

    // Lets `peer` use the memory of `device`, now or when its pool is made.
    void add_peer(int device, int peer) {
        std::lock_guard<std::mutex> hold(mutex_);
        auto ordinal = static_cast<uint32_t>(peer);
        vmm_pool_t *pool = find(device);
        if (pool == nullptr) {
            peers_[static_cast<size_t>(device)].push_back(ordinal);
        } else if (vmm_status_t status = lib.add_peer(pool, ordinal); status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
    }

  private:
    vmm_pool_t *make(int device) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (vmm_pool_t *pool = find(device)) {
            return pool;
        }
        if (device < 0 || device >= MOST_DEVICES) {
            throw std::runtime_error(format("there is no device %d", device));
        }
        auto index = static_cast<size_t>(device);
        vmm_pool_options_t options = {};
        options.size = sizeof options;
        options.device_kind = settings_.device_kind;
        options.device_ordinal = static_cast<uint32_t>(device);
        options.limit = limit_;
        options.target = target();
        options.time_to_live_ns = settings_.time_to_live_ns;
        options.cross_stream = settings_.cross_stream;
        options.frame_kind = settings_.frame_kind;
        options.peers = peers_[index].data();
        options.peer_count = peers_[index].size();
        vmm_pool_t *pool = nullptr;
        vmm_status_t status = lib.pool_create(&options, &pool);
        // A kind of frames that nobody named is given up where the device does not offer it.
        while (status == VMM_NOT_SUPPORTED && settings_.frame_kind_is_a_guess != 0 &&
               options.frame_kind != VMM_FRAME_DEVICE) {
            --options.frame_kind;
            status = lib.pool_create(&options, &pool);
        }
        if (status != VMM_OK) {
            throw std::runtime_error(format("vmm_torch: no memory pool on device %d: %s", device,
                                            fault(status).c_str()));
        }
        tell_of_no_target(device, pool, options.target);
        limits_[index].store(limit_, std::memory_order_relaxed);
        if (settings_.log_level > 0) {
            std::fprintf(stderr, "vmm_torch: made the pool of device %d\n", device);
        }
        pools_[index].store(pool, std::memory_order_release);
        return pool;
    }

    // What is made ahead of need: only what was chosen at the start. Limits that come later and shares
    // of the device, as programs set them for PyTorch's own allocator, are only not passed.
    uint64_t target() const {
        uint64_t chosen = settings_.target != 0 ? settings_.target : settings_.limit;
        return chosen != 0 ? chosen : VMM_NO_TARGET;
    }

    // A target of the whole device or more is none: it would leave nothing for CUDA's libraries.
    static void tell_of_no_target(int device, vmm_pool_t *pool, uint64_t target) {
        vmm_device_info_t info = {};
        info.size = sizeof info;
        if (target == VMM_NO_TARGET || lib.device_info(pool, &info) != VMM_OK ||
            target < info.total) {
            return;
        }
        std::fprintf(stderr,
                     "vmm_torch: no memory is made ahead on device %d, since the target or limit of "
                     "%s is more than its %s: choose less\n",
                     device, in_units(target).c_str(), in_units(info.total).c_str());
    }

    static vmm_device_info_t info_of(vmm_pool_t *pool) {
        vmm_device_info_t info = {};
        info.size = sizeof info;
        if (vmm_status_t status = lib.device_info(pool, &info); status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
        return info;
    }

    static uint64_t reserved(vmm_pool_t *pool) { return stats_of(pool).reserved_bytes; }

    // `mutex_` is held in all that follow.

    void apply_limit(uint64_t limit) {
        for (int device = 0; device < MOST_DEVICES; ++device) {
            if (find(device) != nullptr) {
                apply_limit(device, limit, fractions_[static_cast<size_t>(device)].value_or(1.0));
            }
        }
    }

    // The lower one of a limit and a share of the device.
    void apply_limit(int device, uint64_t limit, double fraction) {
        vmm_pool_t *pool = find(device);
        if (fraction < 1) {
            vmm_device_info_t info = info_of(pool);
            auto share = static_cast<uint64_t>(fraction * static_cast<double>(info.total));
            // A pool takes no limit below one granule.
            share = share < info.granule ? info.granule : share;
            limit = limit == 0 || share < limit ? share : limit;
        }
        uint64_t own = set_own_limit(device, limit);
        limits_[static_cast<size_t>(device)].store(limit, std::memory_order_relaxed);
        if (limit != 0) {
            // While a graph is captured nothing is given back; later growth stays below the limit.
            lib.trim(pool, own, nullptr);
        }
    }

    // Gives the pool what is left of a limit. Returns that.
    uint64_t set_own_limit(int device, uint64_t limit) {
        vmm_pool_t *pool = find(device);
        uint64_t own = limit;
        if (uint64_t taken = share(device); limit != 0 && taken != 0) {
            uint64_t least = std::min(limit, info_of(pool).granule);
            own = std::max(limit - std::min(limit, taken), least);
        }
        if (vmm_status_t status = lib.set_limit(pool, own); status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
        return own;
    }

    // Wraps around where it lessens.
    void change_share(int device, uint64_t change) {
        shares_[static_cast<size_t>(device)].fetch_add(change, std::memory_order_relaxed);
        set_own_limit(device, limit(device));
    }

    vmm_torch_settings_t settings_ = {};
    uint64_t limit_ = 0;
    std::mutex mutex_;
    // Pools are never destroyed: they end with the process, in whatever state it leaves.
    std::array<std::atomic<vmm_pool_t *>, MOST_DEVICES> pools_ = {};
    std::array<std::optional<double>, MOST_DEVICES> fractions_;
    std::array<std::atomic<uint64_t>, MOST_DEVICES> limits_ = {};
    std::array<std::atomic<uint64_t>, MOST_DEVICES> shares_ = {};
    std::array<std::vector<uint32_t>, MOST_DEVICES> peers_;
};

} // namespace vmm

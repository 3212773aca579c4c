// The counters of one device in PyTorch's terms.
#pragma once

#include "vmm.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

namespace vmm {

// What PyTorch's native allocator calls small: up to 1 MiB.
constexpr size_t SMALL = 1 << 20;

inline size_t stat_class(size_t len) {
    auto type = len <= SMALL ? c10::CachingAllocator::StatType::SMALL_POOL
                             : c10::CachingAllocator::StatType::LARGE_POOL;
    return static_cast<size_t>(type);
}

class Statistics {
    using Stat = c10::CachingAllocator::Stat;
    using StatArray = c10::CachingAllocator::StatArray;

  public:
    using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

    int64_t retries = 0;
    int64_t failures = 0;

    void allocated(size_t len, size_t requested) {
        size_t type = stat_class(len);
        for (size_t which : {size_t{0}, type}) {
            own_.allocation[which].increase(1);
            own_.allocated_bytes[which].increase(len);
            own_.requested_bytes[which].increase(requested);
        }
    }

    void released(size_t len, size_t requested) {
        size_t type = stat_class(len);
        for (size_t which : {size_t{0}, type}) {
            own_.allocation[which].decrease(1);
            own_.allocated_bytes[which].decrease(len);
            own_.requested_bytes[which].decrease(requested);
        }
    }

    // Memory that allocators of users gave and got back; the pool has `beside` bytes.
    void foreign_made(size_t len, uint64_t beside) {
        for (size_t which : {size_t{0}, LARGE}) {
            own_.segment[which].increase(1);
            own_.reserved_bytes[which].increase(len);
        }
        see_reserved(beside);
    }

    void foreign_gone(size_t len, uint64_t beside) {
        see_reserved(beside);
        for (size_t which : {size_t{0}, LARGE}) {
            own_.segment[which].decrease(1);
            own_.reserved_bytes[which].decrease(len);
        }
    }

    size_t live_bytes() const { return static_cast<size_t>(own_.allocated_bytes[0].current); }
    size_t foreign_bytes() const { return static_cast<size_t>(own_.reserved_bytes[0].current); }

    // All of them, with what the pool knows. `pool` is zero for a device without one.
    DeviceStats report(const vmm_stats_t &pool) {
        DeviceStats stats = own_;
        stats.num_alloc_retries = retries;
        stats.num_ooms = failures;
        stats.active = stats.allocation;
        stats.active_bytes = stats.allocated_bytes;
        // As with PyTorch's own allocator, memory is active, and requested, while streams still use it that
        // it was recorded for; here while these are two or more, as far as the pool has looked.
        int64_t rounding = stats.allocated_bytes[0].peak - stats.requested_bytes[0].peak;
        for (StatArray *array : {&stats.active_bytes, &stats.requested_bytes}) {
            for (size_t which : {size_t{0}, LARGE}) {
                Stat &used = (*array)[which];
                used.current += static_cast<int64_t>(pool.retired_bytes);
                used.peak = std::max(used.peak, used.current);
            }
        }
        auto peak = static_cast<int64_t>(pool.peak_active_bytes);
        stats.active_bytes[0].peak = std::max(stats.active_bytes[0].peak, peak);
        stats.requested_bytes[0].peak = std::max(stats.requested_bytes[0].peak, peak - rounding);
        see_reserved(pool.reserved_bytes);
        for (size_t which : {size_t{0}, LARGE}) {
            // Beside these there is what allocators of users gave.
            Stat &reserved = stats.reserved_bytes[which];
            reserved.current += static_cast<int64_t>(pool.reserved_bytes);
            reserved.peak = std::max({reserved_peak_, static_cast<int64_t>(pool.peak_reserved_bytes),
                                      stats.allocated_bytes[0].peak});
            reserved.freed += static_cast<int64_t>(pool.frames_released_bytes - base_.frames_released_bytes);
            reserved.allocated += static_cast<int64_t>(made(pool) - made(base_));
            Stat &segment = stats.segment[which];
            segment.current += static_cast<int64_t>(pool.frames);
            frames_peak_ = std::max(frames_peak_, segment.current);
            segment.peak = std::max(frames_peak_, static_cast<int64_t>(pool.peak_frames));
            segment.allocated += static_cast<int64_t>(pool.frames_made - base_.frames_made);
            segment.freed += static_cast<int64_t>(pool.frames_released - base_.frames_released);
        }
        stats.num_device_alloc = stats.segment[0].allocated;
        stats.num_device_free = stats.segment[0].freed;
        stats.num_sync_all_streams = static_cast<int64_t>(pool.host_waits - base_.host_waits);
        return stats;
    }

    void reset_accumulated(const vmm_stats_t &pool) {
        each([](Stat &stat) { stat.reset_accumulated(); });
        retries = 0;
        failures = 0;
        base_ = pool;
    }

    // The pool's own peaks are reset as well.
    void reset_peaks(const vmm_stats_t &pool) {
        each([](Stat &stat) { stat.reset_peak(); });
        frames_peak_ = own_.segment[0].current + static_cast<int64_t>(pool.frames);
        reserved_peak_ = 0;
        see_reserved(pool.reserved_bytes);
    }

  private:
    static constexpr auto LARGE = static_cast<size_t>(c10::CachingAllocator::StatType::LARGE_POOL);

    static uint64_t made(const vmm_stats_t &pool) {
        return pool.reserved_bytes + pool.frames_released_bytes;
    }

    void see_reserved(uint64_t beside) {
        auto now = own_.reserved_bytes[0].current + static_cast<int64_t>(beside);
        reserved_peak_ = std::max(reserved_peak_, now);
    }

    template <typename Change> void each(Change change) {
        for (StatArray *array : {&own_.allocation, &own_.allocated_bytes, &own_.requested_bytes,
                                 &own_.segment, &own_.reserved_bytes}) {
            for (Stat &stat : *array) {
                change(stat);
            }
        }
    }

    DeviceStats own_;
    // The pool's figures at the last reset of what accumulates.
    vmm_stats_t base_ = {};
    // The most pieces of memory that were seen, those of users' allocators included.
    int64_t frames_peak_ = 0;
    // The most reserved memory that was seen, that of users' allocators included.
    int64_t reserved_peak_ = 0;
};

} // namespace vmm

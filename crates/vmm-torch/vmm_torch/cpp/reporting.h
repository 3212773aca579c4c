// What PyTorch asks about memory: figures, snapshots, history.
#pragma once

#include "registration.h"
#include "segments.h"

#include <torch/headeronly/version.h>

namespace vmm {

namespace ca = c10::cuda::CUDACachingAllocator;

// The part of PyTorch's interface that changes no memory.
class Reporting : public ca::CUDAAllocator {
  public:
    // The longest request that could succeed. Free memory can be put together from pieces, so that
    // is all that is not in use and belongs to no private pool.
    void cacheInfo(c10::DeviceIndex device, size_t *largest) override {
        Memory::Device &own = memory().device(device);
        vmm_device_info_t info = {};
        info.size = sizeof info;
        if (lib.device_info(memory().pools.of(device), &info) != VMM_OK) {
            throw std::runtime_error(fault(VMM_DEVICE_FAILED));
        }
        vmm_stats_t stats = memory().pool_stats(device);
        uint64_t used = stats.live_bytes + stats.retired_bytes;
        {
            std::lock_guard<std::mutex> hold(memory().mutex);
            used += stats.private_reserved_bytes -
                    std::min<uint64_t>(stats.private_reserved_bytes, own.in_private);
        }
        uint64_t room = info.free + (stats.reserved_bytes > used ? stats.reserved_bytes - used : 0);
        if (stats.limit != 0) {
            used += memory().pools.share(device);
            room = std::min(room, stats.limit > used ? stats.limit - used : 0);
        }
        // Memory is made in whole granules.
        room -= info.granule != 0 ? room % info.granule : 0;
        *largest = room;
    }

    void *getBaseAllocation(void *ptr, size_t *size) override {
        memory().refuse_fork();
        for (int device = 0; device < memory().device_count(); ++device) {
            vmm_lease_t lease = {};
            lease.size = sizeof lease;
            vmm_pool_t *pool = memory().pools.find(device);
            if (pool != nullptr && lib.find(pool, ptr, &lease) == VMM_OK) {
                if (size != nullptr) {
                    *size = lease.len;
                }
                return lease.base;
            }
        }
        std::lock_guard<std::mutex> hold(memory().mutex);
        // What an allocator of the user's gave is known where it begins.
        Allocation *entry = memory().ledger.find(ptr);
        if (entry == nullptr) {
            throw std::runtime_error(format("vmm_torch: %p is in no live allocation", ptr));
        }
        if (size != nullptr) {
            *size = entry->len;
        }
        return ptr;
    }

    c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
        Memory::Device &own = memory().device(device);
        vmm_stats_t pool = memory().pool_stats(device);
        std::lock_guard<std::mutex> hold(memory().mutex);
        return own.statistics.report(pool);
    }

    void resetAccumulatedStats(c10::DeviceIndex device) override {
        Memory::Device &own = memory().device(device);
        vmm_stats_t pool = memory().pool_stats(device);
        std::lock_guard<std::mutex> hold(memory().mutex);
        own.statistics.reset_accumulated(pool);
    }

    void resetPeakStats(c10::DeviceIndex device) override {
        Memory::Device &own = memory().device(device);
        vmm_stats_t stats = memory().pool_stats(device);
        vmm_pool_t *pool = memory().pools.find(device);
        if (pool != nullptr && lib.reset_peaks(pool) != VMM_OK) {
            throw std::runtime_error(fault(VMM_PANICKED));
        }
        std::lock_guard<std::mutex> hold(memory().mutex);
        own.statistics.reset_peaks(stats);
    }

    ca::SnapshotInfo snapshot(c10::MempoolId_t only, bool include_traces) override {
        memory().refuse_fork();
        bool to_register = registers(__builtin_return_address(0));
        if (to_register && only != c10::MempoolId_t{0, 0}) {
            refuse_registration(memory(), only);
        }
        ca::SnapshotInfo info;
        int devices = memory().device_count();
        for (int device = 0; device < devices; ++device) {
            if (memory().history.listening()) {
                memory().history.note(TraceEntry::SNAPSHOT, device, nullptr,
                                      memory().pool_stats(device).live_bytes, nullptr, only,
                                      nullptr);
            }
            for (auto &segment : segments(memory(), device, only)) {
                info.segments.push_back(std::move(segment));
            }
        }
        if (to_register) {
            keep_registrable(info.segments);
        }
        if (include_traces) {
            info.device_traces = memory().history.traces(devices);
            if (only != c10::MempoolId_t{0, 0}) {
                for (auto &trace : info.device_traces) {
                    trace.erase(std::remove_if(trace.begin(), trace.end(),
                                               [&](const TraceEntry &entry) {
                                                   return entry.mempool_ != only;
                                               }),
                                trace.end());
                }
            }
            info.external_annotations = memory().history.annotations();
        }
        info.config_metadata = {};
        info.config_metadata.expandable_segments = true;
        info.config_metadata.last_allocator_settings = "vmm";
        // As many as PyTorch has; none rounds.
        info.config_metadata.roundup_power2_divisions.assign(16, 0);
        return info;
    }

    bool isHistoryEnabled() override { return memory().history.enabled(); }

    void recordHistory(bool enabled, ca::CreateContextFn context_recorder, size_t most,
                       ca::RecordContext when, bool clear,
                       const std::vector<std::string> &skipped) override {
        memory().refuse_fork();
        memory().history.configure(enabled, context_recorder, most, when, clear, skipped);
    }

    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &data) override {
        if (memory().history.enabled() && !memory().forked()) {
            memory().history.annotate(current_device(), data);
        }
    }

    void pushCompileContext(std::string &name) override { History::compiling().push_back(name); }

    void popCompileContext() override {
        if (!History::compiling().empty()) {
            History::compiling().pop_back();
        }
    }

    void setUserMetadata(const std::string &metadata) override {
        History::user_metadata() = metadata;
    }

    std::string getUserMetadata() override { return History::user_metadata(); }

    void attachOutOfMemoryObserver(ca::OutOfMemoryObserver observer) override {
        memory().observe_failures(std::move(observer));
    }

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
    // Requests fail here because there is no memory, and are never rejected before.
    void attachOomRejectionObserver(ca::OomRejectionObserver) override {}

    std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *ptr) override {
        memory().refuse_fork();
        std::lock_guard<std::mutex> hold(memory().mutex);
        Allocation *entry = memory().ledger.find(ptr);
        return entry != nullptr ? entry->context : nullptr;
    }
#endif

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
    bool supportsUserMetadata() override { return true; }
#endif

    void attachAllocatorTraceTracker(ca::AllocatorTraceTracker tracker) override {
        memory().refuse_fork();
        memory().history.track(std::move(tracker));
    }
};

} // namespace vmm

// Allocations of all devices: from PyTorch's request to libvmm's answer and back.
#pragma once

#include "shortage.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/util/DeadlockDetection.h>

namespace vmm {

// Goes on after a step that threw, and throws at the end.
class Steps {
  public:
    template <typename Body> void take(Body body) {
        try {
            body();
        } catch (...) {
            failure_ = std::current_exception();
        }
    }

    void end() {
        if (C10_UNLIKELY(failure_ != nullptr)) {
            std::rethrow_exception(failure_);
        }
    }

  private:
    std::exception_ptr failure_;
};

class Memory : public Devices {
  public:
    Returns returns{mutex, pools, [this](int index) -> Routes & { return own(index).routes; },
                    [this](int index) { return idle(index); }};

    void init(int count) {
        if (pools.settings().device_kind == VMM_DEVICE_CUDA) {
            returns.orders = &cuda_events_;
        }
        Devices::init(count);
    }

    void *allocate(int index, size_t requested, Stream stream, bool external = false) {
        Device &own = device(index);
        Context context = history.gather(RecordContext::STATE);
        vmm_pool_t *pool = pools.of(index);
        Hold target(mutex, own.routes);
        if (C10_UNLIKELY(own.routes.any())) {
            target.take(stream);
        }
        void *ptr = nullptr;
        if (C10_UNLIKELY(target.pool != nullptr && target.pool->source != nullptr)) {
            ptr = shortage_.from_source({index, pool, requested, stream, context}, *target.pool);
        } else {
            vmm_status_t status = attempt(pool, target.pool, requested, stream, &ptr);
            if (C10_UNLIKELY(status != VMM_OK)) {
                ptr = shortage_.struggle({index, pool, requested, stream, context}, target, status);
            }
        }
        // The allocation holds the private pool from now on.
        PrivatePool *private_pool = target.keep();
        size_t len = rounded(requested);
        began({stream, index, external}, private_pool);
        auto made = [&](Context by) {
            return Allocation{ptr,           stream, requested, len, private_pool,
                              std::move(by), index,  external};
        };
        try {
            if (C10_UNLIKELY(history.listening())) {
                note_made(made(context));
            }
            std::lock_guard<std::mutex> hold(mutex);
            enter(made(std::move(context)));
        } catch (...) {
            returns.give_back(ptr, {stream, index, external}, private_pool);
            throw;
        }
        try {
            tell(index, ptr, static_cast<int64_t>(len));
            if (const auto *trace = c10::impl::GPUTrace::get_trace();
                C10_UNLIKELY(trace != nullptr)) {
                (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
            }
        } catch (...) {
            release(ptr);
            throw;
        }
        return ptr;
    }

    // Ends the allocation at an address. False if there is none. Throws, at the end, what those who
    // follow memory throw.
    bool release(void *ptr) {
        if (forked()) {
            return true;
        }
        Steps steps;
        Context context;
        steps.take([&] { context = history.gather(RecordContext::ALL); });
        Allocation gone;
        {
            std::lock_guard<std::mutex> hold(mutex);
            Allocation *entry = ledger.find(ptr);
            if (entry == nullptr) {
                return false;
            }
            gone = take(entry);
        }
        steps.take([&] {
            if (const auto *trace = c10::impl::GPUTrace::get_trace();
                C10_UNLIKELY(trace != nullptr)) {
                (*trace)->trace_gpu_memory_deallocation(c10::kCUDA,
                                                        reinterpret_cast<uintptr_t>(ptr));
            }
            if (C10_UNLIKELY(history.listening())) {
                note_ended(gone, context ? context : gone.context);
            }
            tell(gone.device, ptr, -static_cast<int64_t>(gone.len));
        });
        if (C10_LIKELY(!gone.used)) {
            returns.give_back(ptr, gone.own(), gone.pool);
        } else {
            returns.give_back({ptr, gone.own(), gone.pool, take_uses(ptr)});
            returns.give_back_late(false);
        }
        steps.end();
        return true;
    }

    // libvmm has made an allocation, for which its stream lives.
    void began(const Use &use, const PrivatePool *pool) {
        const auto &is_capturing = own(use.device).routes.is_capturing;
        bool captures = use.external && pool != nullptr && is_capturing &&
                        is_capturing(use.stream).value_or(true);
        returns.external.began(pools.find(use.device), use, captures);
    }

    // Counts an allocation from now on, and no more. `mutex` is held in both.
    void enter(Allocation made) {
        Device &device = own(made.device);
        size_t len = made.len;
        size_t requested = made.requested;
        bool in_private = made.pool != nullptr && made.pool->source == nullptr;
        ledger.insert(std::move(made));
        device.statistics.allocated(len, requested);
        device.in_private += in_private ? len : 0;
    }

    Allocation take(Allocation *entry) {
        Allocation gone = ledger.take(entry);
        Device &device = own(gone.device);
        device.statistics.released(gone.len, gone.requested);
        device.in_private -= gone.pool != nullptr && gone.pool->source == nullptr ? gone.len : 0;
        return gone;
    }

    // For when somebody listens.
    void note_made(const Allocation &made) {
        history.note(TraceEntry::ALLOC, made.device, made.ptr, made.requested, made.stream,
                     name_of(made.pool), made.context);
    }

    void note_ended(const Allocation &gone, const Context &context) {
        for (auto action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}) {
            history.note(action, gone.device, gone.ptr, gone.requested, gone.stream,
                         name_of(gone.pool), context);
        }
    }

    // Notes that work on a further stream uses an allocation. libvmm is told of streams of its own
    // device; what it is not told, or has to forget later, is kept in a table.
    void used_on(void *ptr, const Use &use) {
        if (forked()) {
            return;
        }
        {
            std::lock_guard<std::mutex> hold(mutex);
            Allocation *entry = ledger.find(ptr);
            // Memory that another library lent to a tensor is not ours to watch over.
            if (entry == nullptr ||
                (entry->stream == use.stream && entry->device == use.device)) {
                return;
            }
            bool told = entry->device == use.device &&
                        (entry->pool == nullptr || entry->pool->source == nullptr);
            if (!told || use.external) {
                entry->used = true;
                if (note_use(uses_[ptr], use) && use.external && use.device == entry->device) {
                    returns.external.used(use.stream);
                }
            }
            if (!told) {
                return;
            }
        }
        vmm_status_t status = lib.used_on(pools.find(use.device), ptr, use.stream);
        if (status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
    }

    // What `used_on` noted of an allocation.
    Uses uses_of(void *ptr) {
        std::lock_guard<std::mutex> hold(mutex);
        auto entry = uses_.find(ptr);
        return entry != uses_.end() ? entry->second : Uses();
    }

    // The same, as it ends.
    Uses take_uses(void *ptr) {
        std::lock_guard<std::mutex> hold(mutex);
        auto entry = uses_.extract(ptr);
        return entry ? std::move(entry.mapped()) : Uses();
    }

    // Gives all idle memory of the devices back to them. Does nothing while a graph is captured.
    void empty() {
        returns.give_back_late(true);
        for (int index = 0; index < device_count(); ++index) {
            vmm_pool_t *pool = pools.find(index);
            if (pool == nullptr) {
                continue;
            }
            settle(index);
            vmm_status_t status = lib.trim_and_wait(pool, 0, nullptr);
            if (status != VMM_OK && status != VMM_CAPTURING) {
                throw std::runtime_error(fault(status));
            }
        }
    }

    void observe_failures(Shortage::Observer observer) {
        refuse_fork();
        shortage_.observe(std::move(observer));
    }

  private:
    // Waits for a device that has a stream in use. False if a capture would be broken. One that
    // cannot be waited for has failed, and works no more.
    bool idle(int index) {
        try {
            // A host function may want Python's lock, which this thread has.
            return !c10::impl::check_python_gil() && vmm::idle(mutex, device(index).routes);
        } catch (...) {
            return true;
        }
    }

    // PyTorch's profiler, where it follows memory.
    void tell(int index, void *ptr, int64_t change) {
        if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
            return;
        }
        uint64_t reserved = pool_stats(index).reserved_bytes;
        std::unique_lock<std::mutex> hold(mutex);
        const Statistics &statistics = own(index).statistics;
        size_t live = statistics.live_bytes();
        reserved += statistics.foreign_bytes();
        hold.unlock();
        c10::reportMemoryUsageToProfiler(
            ptr, change, live, reserved,
            c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
    }

    CudaEvents cuda_events_;
    Shortage shortage_{*this, returns};
    // Of allocations that are `used`.
    std::unordered_map<void *, Uses> uses_;
};

// Never destroyed: tensors may outlive everything else while the process ends.
inline Memory &memory() {
    static Memory *only = new Memory;
    return *only;
}

} // namespace vmm

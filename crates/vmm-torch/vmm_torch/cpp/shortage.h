// What is done where memory is short: what others can give up, else an error.
#pragma once

#include "devices.h"
#include "hold.h"
#include "returns.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/DeadlockDetection.h>

#include <chrono>
#include <thread>

namespace vmm {

// One request to libvmm, for the general pool or a private one.
C10_ALWAYS_INLINE vmm_status_t attempt(vmm_pool_t *pool, PrivatePool *target, size_t len,
                                       Stream stream, void **ptr) {
    if (target == nullptr) {
        return lib.allocate(pool, len, 0, stream, 0, ptr);
    }
    if (target->source != nullptr) {
        // As a last resort: no new memory, since that would pass the limit.
        *ptr = target->source->reuse(rounded(len), stream);
        return *ptr != nullptr ? VMM_OK : VMM_OUT_OF_MEMORY;
    }
    return lib.private_allocate(pool, target->id, len, 0, stream, 0, ptr);
}

// What a request is for.
struct Request {
    int device;
    vmm_pool_t *pool;
    size_t len;
    Stream stream;
    const Context &context;
};

class Shortage {
  public:
    using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

    Shortage(Devices &devices, Returns &returns) : devices_(devices), returns_(returns) {}

    void observe(Observer observer) {
        std::lock_guard<std::mutex> hold(devices_.mutex);
        observers_.push_back(std::move(observer));
    }

    // Memory of an allocator of the user's, which says with NULL or an exception that it has none.
    C10_NOINLINE void *from_source(const Request &request, PrivatePool &target) {
        std::exception_ptr said;
        std::string lack;
        for (int attempt = 0;; ++attempt) {
            try {
                said = nullptr;
                if (void *ptr =
                        target.source->allocate(rounded(request.len), request.stream, lack)) {
                    return ptr;
                }
            } catch (...) {
                said = std::current_exception();
            }
            bool freed = false;
            if (attempt == 0) {
                count_retry(request.device);
                freed = run_callbacks();
                freed = returns_.give_back_late(true) || freed;
                freed = devices_.settle(request.device, target.name) || freed;
            }
            if (!(make_room(request, attempt) || freed) || attempt == MOST_ATTEMPTS) {
                break;
            }
        }
        if (said != nullptr) {
            std::rethrow_exception(said);
        }
        fail(request, &target, lack);
    }

    // After a first failure: what others can give up, else an error.
    C10_NOINLINE void *struggle(const Request &request, Hold &target, vmm_status_t status) {
        const Pools &pools = devices_.pools;
        uint64_t limit = pools.limit(request.device);
        auto why = [&] { return lack(status, limit, pools.share(request.device)); };
        std::string facts = why();
        void *ptr = nullptr;
        auto ask = [&] {
            return attempt(request.pool, target.pool, request.len, request.stream, &ptr);
        };
        auto again = [&] {
            status = ask();
            if (status != VMM_OK) {
                facts = why();
            }
            return status == VMM_OK;
        };
        PrivatePool *wanted = target.pool;
        // Or for what allocators of users have of the limit, which they may give back.
        bool is_short = status == VMM_OUT_OF_MEMORY ||
                        (status == VMM_TOO_LARGE && request.len <= limit);
        if (is_short) {
            count_retry(request.device);
            if ((run_callbacks() && again()) || (returns_.give_back_late(true) && again()) ||
                (devices_.settle(request.device) && again())) {
                return ptr;
            }
            // What belongs to a private pool lies in no other: a graph would use memory that others
            // get as well.
            for (PoolName other : wanted == nullptr ? last_resorts(request.device) : Names()) {
                if (target.change(other) && ask() == VMM_OK) {
                    if (target.is_spare()) {
                        return ptr;
                    }
                    // A graph has begun to be captured with it, and may use this memory as well.
                    returns_.give_back(ptr, {request.stream, request.device}, target.keep());
                }
            }
            if (wanted == nullptr) {
                target.let_go();
            }
            if (wait_for_others(request, again)) {
                return ptr;
            }
        }
        if (status == VMM_OUT_OF_MEMORY || status == VMM_TOO_LARGE) {
            fail(request, wanted, facts);
        }
        throw std::runtime_error("vmm_torch: " + facts);
    }

  private:
    // A request that has waited some milliseconds for memory of the general pool fails.
    static constexpr int MOST_ATTEMPTS = 4;

    // Looks at what others have released since the last, after 1, 2 and 4 ms, and how long all may take.
    static constexpr int MOST_LOOKS = 3;
    static constexpr std::chrono::milliseconds LONGEST_WAIT{100};

    using Names = std::vector<PoolName>;

    // Other threads may release memory at any moment. A request waits for that as long as they do, and some
    // milliseconds more. With Python's lock it would keep them from it.
    template <typename Again> bool wait_for_others(const Request &request, Again again) {
        using Clock = std::chrono::steady_clock;
        auto releases = [&] { return devices_.pool_stats(request.device).releases; };
        Clock::time_point end = Clock::now() + LONGEST_WAIT;
        uint64_t seen = releases();
        for (int looks = 0; looks < MOST_LOOKS && Clock::now() < end; ++looks) {
            if (c10::impl::check_python_gil()) {
                return false;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1 << looks));
            if (uint64_t now = releases(); now != seen) {
                seen = now;
                looks = -1;
                if (again()) {
                    return true;
                }
            }
        }
        return false;
    }

    // What the general pool keeps is in the way of the limit, at first as much of it as passes that, or
    // of other allocators. Whether some of it went, or may yet: up to a limit the pool's own thread
    // makes frames ahead, and holds them then.
    bool make_room(const Request &request, int attempt) {
        const Pools &pools = devices_.pools;
        uint64_t limit = pools.limit(request.device);
        uint64_t others = pools.share(request.device) + whole_pieces(request.len);
        uint64_t keep = attempt == 0 && limit > others ? limit - others : 0;
        uint64_t released = 0;
        if (lib.trim_and_wait(request.pool, keep, &released) != VMM_OK) {
            return false;
        }
        vmm_stats_t stats = devices_.pool_stats(request.device);
        bool more =
            stats.limit != 0 && stats.reserved_bytes > stats.live_bytes + stats.retired_bytes;
        if (released == 0 && more) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1 << attempt));
        }
        return released != 0 || more;
    }

    void count_retry(int index) {
        std::lock_guard<std::mutex> hold(devices_.mutex);
        ++devices_.own(index).statistics.retries;
    }

    Names last_resorts(int index) {
        Names found;
        std::lock_guard<std::mutex> hold(devices_.mutex);
        Routes &routes = devices_.own(index).routes;
        routes.each([&](PrivatePool &pool) {
            if (routes.is_spare(pool)) {
                found.push_back(pool.name);
            }
        });
        return found;
    }

    // Whoever keeps memory that he could do without gives it up: PyTorch's own list.
    static bool run_callbacks() {
        bool freed = false;
        for (const std::string &name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
            freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
        }
        return freed;
    }

    [[noreturn]] C10_NOINLINE void fail(const Request &request, PrivatePool *target,
                                        const std::string &facts) {
        int index = request.device;
        vmm_device_info_t info = {};
        info.size = sizeof info;
        lib.device_info(request.pool, &info);
        vmm_stats_t stats = devices_.pool_stats(index);
        std::vector<Observer> observers;
        size_t live = 0;
        size_t reserved = stats.reserved_bytes;
        {
            std::lock_guard<std::mutex> hold(devices_.mutex);
            Statistics &own = devices_.own(index).statistics;
            ++own.failures;
            live = own.live_bytes();
            reserved += own.foreign_bytes();
            observers = observers_;
        }
        if (devices_.history.listening()) {
            // What the process could still have had.
            uint64_t room = stats.limit > reserved ? stats.limit - reserved : 0;
            uint64_t free = stats.limit != 0 ? std::min(room, info.free) : info.free;
            devices_.history.note(TraceEntry::OOM, index, reinterpret_cast<void *>(free),
                                  request.len, request.stream, Devices::name_of(target),
                                  request.context);
        }
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(request.len), live, reserved,
            c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
        for (const Observer &observer : observers) {
            observer(index, request.len, stats.limit != 0 ? stats.limit : info.total, info.free);
        }
        std::string text = format(
            "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which "
            "%s is free. vmm_torch: %s",
            in_units(request.len).c_str(), index, in_units(info.total).c_str(),
            in_units(info.free).c_str(), facts.c_str());
        if (devices_.pools.settings().log_level > 1) {
            std::fprintf(stderr, "%s\n", text.c_str());
        }
        C10_THROW_ERROR(OutOfMemoryError, text);
    }

    Devices &devices_;
    Returns &returns_;
    std::vector<Observer> observers_;
};

} // namespace vmm

// Allocations of all devices: from PyTorch's request to libvmm's answer and back.
#pragma once

#include "allocation.h"
#include "history.h"
#include "ledger.h"
#include "orders.h"
#include "settle.h"
#include "statistics.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/DeadlockDetection.h>
#include <cuda_runtime_api.h>

#include <pthread.h>

#include <chrono>
#include <deque>
#include <thread>

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

// Lets this thread make calls that captures forbid otherwise, whoever captures; those that follow
// concern no stream that does.
class Relaxed {
  public:
    Relaxed() : done_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}
    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;
    ~Relaxed() {
        if (done_) {
            (void)cudaThreadExchangeStreamCaptureMode(&mode_);
        }
    }

  private:
    // The mode that was, after the exchange.
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    bool done_;
};

class Memory {
  public:
    using Observer = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

    struct Device {
        Statistics statistics;
        Routes routes;
        // Bytes of libvmm's that live in private pools, also in those that are gone.
        size_t in_private = 0;
        // Bytes that are being asked of allocators of users.
        size_t coming = 0;
    };

    Pools pools;
    History history;
    // Guards the ledger, the devices and the observers. No call of libvmm that may take long is
    // made under it, and none that takes Python's lock.
    std::mutex mutex;
    Ledger<Allocation> ledger;
    // By allocators of users.
    int32_t pieces_made = 0;
    // NULL where streams are no real ones.
    Events *events = nullptr;

    void init(int count) {
        std::lock_guard<std::mutex> hold(mutex);
        while (devices_.size() < static_cast<size_t>(count)) {
            int index = static_cast<int>(devices_.size());
            Routes &routes = devices_.emplace_back().routes;
            if (pools.settings().device_kind == VMM_DEVICE_CUDA) {
                events = &cuda_events_;
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
        return devices_[static_cast<size_t>(index)];
    }

    // In a child of a process that used CUDA nothing can be allocated or given back, and no lock be
    // taken: another thread of the parent may have held it.
    bool forked() const { return forked_.load(std::memory_order_relaxed); }
    void refuse_fork() const {
        if (C10_UNLIKELY(forked())) {
            throw std::runtime_error(FORKED);
        }
    }
    void note_fork() { forked_.store(device_count() != 0, std::memory_order_relaxed); }

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
            ptr = from_source(index, pool, *target.pool, requested, stream, context);
        } else {
            vmm_status_t status = attempt(pool, target.pool, requested, stream, &ptr);
            if (C10_UNLIKELY(status != VMM_OK)) {
                ptr = struggle(index, pool, target, requested, stream, status, context);
            }
        }
        // The allocation holds the private pool from now on.
        PrivatePool *private_pool = target.keep();
        size_t len = rounded(requested);
        bool captures = external && private_pool != nullptr && own.routes.is_capturing &&
                        own.routes.is_capturing(stream).value_or(true);
        external_.began(pool, {stream, index, external}, captures);
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
            give_back(made(nullptr));
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
            give_back(gone);
        } else {
            give_back(gone, take_uses(ptr));
            give_back_late();
        }
        steps.end();
        return true;
    }

    // Counts an allocation from now on, and no more. `mutex` is held in both.
    void enter(Allocation made) {
        Device &own = devices_[static_cast<size_t>(made.device)];
        size_t len = made.len;
        size_t requested = made.requested;
        bool in_private = made.pool != nullptr && made.pool->source == nullptr;
        ledger.insert(std::move(made));
        own.statistics.allocated(len, requested);
        own.in_private += in_private ? len : 0;
    }

    Allocation take(Allocation *entry) {
        Allocation gone = ledger.take(entry);
        Device &own = devices_[static_cast<size_t>(gone.device)];
        own.statistics.released(gone.len, gone.requested);
        own.in_private -= gone.pool != nullptr && gone.pool->source == nullptr ? gone.len : 0;
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
                Uses &uses = uses_[ptr];
                if (!entry->used) {
                    uses.clear();
                }
                entry->used = true;
                if (note_use(uses, use) && use.external && use.device == entry->device) {
                    external_.used(use.stream);
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

    // See settle.h.
    bool settle(int index, std::optional<PoolName> also = std::nullopt) {
        return vmm::settle(mutex, device(index).routes, pools.find(index), also);
    }

    // Gives all idle memory of the devices back to them. Does nothing while a graph is captured.
    void empty() {
        give_back_late();
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

    vmm_stats_t pool_stats(int index) const {
        vmm_stats_t stats = {};
        stats.size = sizeof stats;
        vmm_pool_t *pool = pools.find(index);
        if (pool != nullptr && lib.stats(pool, &stats) != VMM_OK) {
            throw std::runtime_error(fault(VMM_PANICKED));
        }
        return stats;
    }

    void observe_failures(Observer observer) {
        refuse_fork();
        std::lock_guard<std::mutex> hold(mutex);
        observers_.push_back(std::move(observer));
    }

    static c10::MempoolId_t name_of(const PrivatePool *pool) {
        return pool != nullptr ? pool->name : c10::MempoolId_t{0, 0};
    }

    static void check_release(vmm_status_t status) {
        // A driver that has shut down took the memory with it; the process is ending.
        if (status != VMM_OK && status != VMM_DEVICE_LOST) {
            std::fprintf(stderr, "vmm_torch: memory could not be released: %s\n",
                         fault(status).c_str());
        }
    }

  private:
    // A request that has waited some milliseconds for memory of the general pool fails.
    static constexpr int MOST_ATTEMPTS = 4;

    using Names = std::vector<PoolName>;

    C10_ALWAYS_INLINE static vmm_status_t attempt(vmm_pool_t *pool, PrivatePool *target, size_t len,
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

    // The memory goes to where it came from, later if an order to its stream has to wait for the end
    // of a capture.
    void give_back(const Allocation &gone, const Uses &uses = {}) {
        if (C10_UNLIKELY(!uses.empty()) &&
            !order_behind(events, gone.own(), uses, [this](int other) { return idle(other); })) {
            std::lock_guard<std::mutex> hold(mutex);
            late_.emplace_back(gone, uses);
            return;
        }
        if (gone.pool != nullptr && gone.pool->source != nullptr) {
            gone.pool->source->release(gone.ptr, uses);
        } else {
            check_release(lib.release(pools.find(gone.device), gone.ptr, gone.stream));
        }
        if (C10_UNLIKELY(gone.external || !uses.empty())) {
            external_.ended(pools.find(gone.device), gone.own(), uses);
        }
        if (gone.pool != nullptr) {
            std::lock_guard<std::mutex> hold(mutex);
            devices_[static_cast<size_t>(gone.device)].routes.ended(gone.pool);
        }
    }

    Uses take_uses(void *ptr) {
        std::lock_guard<std::mutex> hold(mutex);
        auto entry = uses_.extract(ptr);
        // An allocation of a checkpoint comes back without them.
        return entry ? std::move(entry.mapped()) : Uses();
    }

    // Whether there was any.
    bool give_back_late() {
        std::vector<std::pair<Allocation, Uses>> late;
        {
            std::lock_guard<std::mutex> hold(mutex);
            late.swap(late_);
        }
        for (const auto &[gone, uses] : late) {
            give_back(gone, uses);
        }
        return !late.empty();
    }

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

    // Memory of an allocator of the user's, which says with NULL or an exception that it has none.
    C10_NOINLINE void *from_source(int index, vmm_pool_t *pool, PrivatePool &target,
                                   size_t requested, Stream stream, const Context &context) {
        std::exception_ptr said;
        std::string lack;
        for (int attempt = 0;; ++attempt) {
            try {
                said = nullptr;
                if (void *ptr = target.source->allocate(rounded(requested), stream, lack)) {
                    return ptr;
                }
            } catch (...) {
                said = std::current_exception();
            }
            bool freed = false;
            if (attempt == 0) {
                count_retry(index);
                freed = run_callbacks();
                freed = give_back_late() || freed;
                freed = settle(index, target.name) || freed;
            }
            if (!(make_room(index, pool, attempt) || freed) || attempt == MOST_ATTEMPTS) {
                break;
            }
        }
        if (said != nullptr) {
            std::rethrow_exception(said);
        }
        fail(index, pool, &target, requested, stream, lack, context);
    }

    // What the general pool keeps is in the way of the limit, or of other allocators. Whether some of
    // it went, or may yet: up to a limit the pool's own thread makes frames ahead, and holds them then.
    bool make_room(int index, vmm_pool_t *pool, int attempt) {
        uint64_t released = 0;
        if (lib.trim_and_wait(pool, 0, &released) != VMM_OK) {
            return false;
        }
        vmm_stats_t stats = pool_stats(index);
        bool more =
            stats.limit != 0 && stats.reserved_bytes > stats.live_bytes + stats.retired_bytes;
        if (released == 0 && more) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1 << attempt));
        }
        return released != 0 || more;
    }

    // After a first failure: what others can give up, else an error.
    C10_NOINLINE void *struggle(int index, vmm_pool_t *pool, Hold &target, size_t requested,
                                Stream stream, vmm_status_t status, const Context &context) {
        std::string facts = lack(status);
        void *ptr = nullptr;
        auto again = [&] {
            status = attempt(pool, target.pool, requested, stream, &ptr);
            if (status != VMM_OK) {
                facts = lack(status);
            }
            return status == VMM_OK;
        };
        PrivatePool *wanted = target.pool;
        if (status == VMM_OUT_OF_MEMORY) {
            count_retry(index);
            if ((run_callbacks() && again()) || (give_back_late() && again()) ||
                (settle(index) && again())) {
                return ptr;
            }
            // What belongs to a private pool lies in no other: a graph would use memory that others
            // get as well.
            for (PoolName other : wanted == nullptr ? last_resorts(index) : Names()) {
                if (target.change(other) &&
                    attempt(pool, target.pool, requested, stream, &ptr) == VMM_OK) {
                    if (target.is_spare()) {
                        return ptr;
                    }
                    // A graph has begun to be captured with it, and may use this memory as well.
                    give_back({ptr, stream, requested, rounded(requested), target.keep(), nullptr,
                               index});
                }
            }
        }
        if (status == VMM_OUT_OF_MEMORY || status == VMM_TOO_LARGE) {
            fail(index, pool, wanted, requested, stream, facts, context);
        }
        throw std::runtime_error("vmm_torch: " + facts);
    }

    void count_retry(int index) {
        std::lock_guard<std::mutex> hold(mutex);
        ++devices_[static_cast<size_t>(index)].statistics.retries;
    }

    Names last_resorts(int index) {
        Names found;
        std::lock_guard<std::mutex> hold(mutex);
        Routes &routes = devices_[static_cast<size_t>(index)].routes;
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

    [[noreturn]] C10_NOINLINE void fail(int index, vmm_pool_t *pool, PrivatePool *target,
                                        size_t requested, Stream stream, const std::string &facts,
                                        const Context &context) {
        vmm_device_info_t info = {};
        info.size = sizeof info;
        lib.device_info(pool, &info);
        vmm_stats_t stats = pool_stats(index);
        std::vector<Observer> observers;
        size_t live = 0;
        size_t reserved = stats.reserved_bytes;
        {
            std::lock_guard<std::mutex> hold(mutex);
            Statistics &own = devices_[static_cast<size_t>(index)].statistics;
            ++own.failures;
            live = own.live_bytes();
            reserved += own.foreign_bytes();
            observers = observers_;
        }
        if (history.listening()) {
            // What the process could still have had.
            uint64_t room = stats.limit > reserved ? stats.limit - reserved : 0;
            uint64_t free = stats.limit != 0 ? std::min(room, info.free) : info.free;
            history.note(TraceEntry::OOM, index, reinterpret_cast<void *>(free), requested, stream,
                         name_of(target), context);
        }
        c10::reportOutOfMemoryToProfiler(
            static_cast<int64_t>(requested), live, reserved,
            c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
        for (const Observer &observer : observers) {
            observer(index, requested, stats.limit != 0 ? stats.limit : info.total, info.free);
        }
        std::string text = format(
            "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which "
            "%s is free. vmm_torch: %s",
            in_units(requested).c_str(), index, in_units(info.total).c_str(),
            in_units(info.free).c_str(), facts.c_str());
        if (pools.settings().log_level > 1) {
            std::fprintf(stderr, "%s\n", text.c_str());
        }
        C10_THROW_ERROR(OutOfMemoryError, text);
    }

    // Waits for all work of a device. False while a graph is captured that PyTorch said nothing of.
    static bool wait_for(int index) {
        c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(index));
        cudaError_t error = cudaSuccess;
        {
            // Captures on other devices are not disturbed, so they need not forbid it.
            Relaxed relaxed;
            error = cudaDeviceSynchronize();
        }
        if (error == cudaErrorStreamCaptureUnsupported ||
            error == cudaErrorStreamCaptureInvalidated) {
            (void)cudaGetLastError();
            return false;
        }
        C10_CUDA_CHECK(error);
        return true;
    }

    static std::optional<bool> is_capturing(Stream stream) {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        cudaError_t error = cudaStreamIsCapturing(stream, &status);
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            // The legacy stream, while another one captures. Others are no streams any more.
            return error == cudaErrorStreamCaptureImplicit ? std::nullopt : std::optional(false);
        }
        return status != cudaStreamCaptureStatusNone;
    }

    // PyTorch's profiler, where it follows memory.
    void tell(int index, void *ptr, int64_t change) {
        if (C10_LIKELY(!c10::memoryProfilingEnabled())) {
            return;
        }
        uint64_t reserved = pool_stats(index).reserved_bytes;
        std::unique_lock<std::mutex> hold(mutex);
        const Statistics &own = devices_[static_cast<size_t>(index)].statistics;
        size_t live = own.live_bytes();
        reserved += own.foreign_bytes();
        hold.unlock();
        c10::reportMemoryUsageToProfiler(
            ptr, change, live, reserved,
            c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)));
    }

    // References to its members stay valid when it grows.
    std::deque<Device> devices_;
    std::atomic<int> count_{0};
    std::atomic<bool> forked_{false};
    std::vector<Observer> observers_;
    CudaEvents cuda_events_;
    ExternalStreams external_;
    // Of allocations that are `used`.
    std::unordered_map<void *, Uses> uses_;
    // Released, but not given back yet.
    std::vector<std::pair<Allocation, Uses>> late_;
};

} // namespace vmm

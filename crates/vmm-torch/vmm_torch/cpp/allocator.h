// PyTorch's interface for allocators of CUDA memory, on libvmm.
#pragma once

#include "checkpoint.h"
#include "reporting.h"
#include "source.h"
#include "uncached.h"

#include <c10/util/DeadlockDetection.h>
#include <c10/util/env.h>

namespace vmm {

// What each tensor's memory is given back with. Called from destructors: nothing may be thrown.
inline void delete_allocation(void *ptr) {
    if (ptr == nullptr) {
        return;
    }
    try {
        if (!memory().release(ptr)) {
            std::fprintf(stderr, "vmm_torch: %p is no live allocation\n", ptr);
        }
    } catch (...) {
        std::fprintf(stderr, "vmm_torch: releasing %p: %s\n", ptr, thrown().c_str());
    }
}

[[noreturn]] inline void not_there(const char *what) {
    C10_THROW_ERROR(NotImplementedError, std::string("vmm_torch: ") + what);
}

class Allocator final : public Reporting {
  public:
    // Longer requests are mistakes; PyTorch's own allocator has the same bound.
    static constexpr size_t LONGEST = size_t{1} << 60;

    Allocator() : uncached_(c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true) {}

    c10::DataPtr allocate(size_t len) override {
        int device = current_device();
        c10::Device place(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
        c10::DeleterFnPtr deleter = raw_deleter();
        void *ptr = raw(len, use_of(current_stream(device)), deleter);
        return {ptr, ptr, deleter, place};
    }

    c10::DeleterFnPtr raw_deleter() const override {
        return caching() ? &delete_allocation : &delete_uncached;
    }

    void copy_data(void *dest, const void *src, std::size_t count) const override {
        C10_CUDA_CHECK(cudaMemcpy(dest, src, count, cudaMemcpyDeviceToDevice));
    }

    void *raw_alloc(size_t len) override {
        return raw(len, use_of(current_stream(current_device())), raw_deleter());
    }

    void *raw_alloc_with_stream(size_t len, cudaStream_t stream) override {
        int device = current_device();
        Use use = {stream, device};
        if (caching() && !is_default(stream)) {
            // Of streams that are not the current one nobody says whose they are.
            auto current = current_stream(device);
            use.external = current.stream() != stream || use_of(current).external;
        }
        return raw(len, use, raw_deleter());
    }

    void raw_delete(void *ptr) override {
        if (ptr == nullptr || memory().release(ptr)) {
            return;
        }
        if (caching()) {
            throw std::runtime_error(
                format("vmm_torch: %p is no live allocation: freed already, or never made", ptr));
        }
        delete_uncached(ptr);
    }

    void init(int device_count) override { memory().init(device_count); }

    bool initialized() override { return memory().device_count() != 0; }

    double getMemoryFraction(c10::DeviceIndex device) override {
        memory().device(device);
        return memory().pools.fraction(device);
    }

    void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
        memory().device(device);
        if (!(fraction >= 0 && fraction <= 1)) {
            throw std::runtime_error(format(
                "invalid fraction:%g. Please set within [0, 1], a part of the device's memory",
                fraction));
        }
        memory().pools.set_fraction(device, fraction);
    }

    std::vector<ca::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override {
        return {};
    }

    void enable(bool value) override { enabled_.store(value, std::memory_order_relaxed); }

    bool isEnabled() const override { return caching(); }

    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override {
        if (data.get() != nullptr) {
            memory().used_on(data.get(), use_of(stream));
        }
    }

    void emptyCache(c10::MempoolId_t pool) override {
        if (pool == c10::MempoolId_t{0, 0}) {
            memory().refuse_fork();
            memory().empty();
            return;
        }
        // What a single pool kept becomes everyone's. A destructor calls this.
        in_destructor([pool] {
            for (int device = 0; device < memory().device_count(); ++device) {
                if (has(device, pool) && may_wait()) {
                    memory().settle(device, pool);
                }
            }
        });
    }

    void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t name,
                             std::function<bool(cudaStream_t)> filter) override {
        // What graphs that are gone have left goes before a new one takes memory, so that a program
        // that captures one again and again does not gather it.
        if (!has(device, name) && may_wait()) {
            memory().settle(device);
        }
        bool real = memory().pools.settings().device_kind == VMM_DEVICE_CUDA;
        cudaStream_t stream = real ? current_stream(device).stream() : nullptr;
        vmm::begin(memory().mutex, memory().device(device).routes, memory().pools.of(device), name,
              std::move(filter), stream);
    }

    void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t name) override {
        // A fork in which allocations still go to the pool leaves that as it is.
        if (memory().forked()) {
            return;
        }
        with_routes(device, [&](Routes &routes, vmm_pool_t *pool) {
            routes.end(name);
            memory().returns.external.route_ended(pool, routes.is_capturing);
        });
    }

    void releasePool(c10::DeviceIndex device, c10::MempoolId_t name) override {
        in_destructor([&] {
            with_routes(device, [&](Routes &routes, vmm_pool_t *pool) {
                routes.release(name);
                routes.drop_uncaptured(pool);
            });
        });
    }

    int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t name) override {
        int users = 0;
        if (memory().forked()) {
            return users;
        }
        with_routes(device, [&](Routes &routes, vmm_pool_t *) {
            PrivatePool *pool = routes.find(name);
            users = pool != nullptr ? pool->users : 0;
        });
        return users;
    }

    void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t name,
                            std::shared_ptr<CUDAAllocator> allocator) override {
        std::shared_ptr<Source> source;
        if (allocator != nullptr && allocator.get() != this) {
            source = std::make_shared<ForeignSource>(std::move(allocator), memory(), device, name);
        }
        Routes &routes = memory().device(device).routes;
        auto use = [&](Fresh &fresh) { routes.use(fresh, name, source); };
        vmm_pool_t *pool = memory().pools.of(device);
        if (source == nullptr) {
            with_pool(memory().mutex, routes, pool, name, use);
            return;
        }
        Fresh none(pool);
        std::lock_guard<std::mutex> hold(memory().mutex);
        use(none);
    }

    void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t name, bool use_on_oom) override {
        with_routes(device, [&](Routes &routes, vmm_pool_t *) {
            if (PrivatePool *pool = routes.find(name)) {
                pool->last_resort = use_on_oom;
            }
        });
    }

    // Each allocation is a lease of its own: there are no segments that could be split.
    void setNoSplit(c10::DeviceIndex, c10::MempoolId_t) override {}

    bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t name,
                                  const std::unordered_set<void *> &expected) override {
        return live_are(memory(), device, name, expected);
    }

    ca::ShareableHandle shareIpcHandle(void *) override {
        not_there("CUDA tensors cannot be shared with other processes yet; send them by way of the "
                  "CPU, or leave vmm_torch out of this program");
    }

    std::shared_ptr<void> getIpcDevPtr(std::string) override {
        not_there("CUDA tensors of other processes cannot be opened yet; send them by way of the "
                  "CPU, or leave vmm_torch out of this program");
    }

    void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex owner) override {
        memory().device(owner);
        c10::cuda::CUDAGuard guard(device);
        cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
        if (error == cudaErrorPeerAccessAlreadyEnabled) {
            (void)cudaGetLastError();
        } else {
            C10_CUDA_CHECK(error);
        }
        memory().pools.add_peer(owner, device);
    }

    cudaError_t memcpyAsync(void *dst, int dst_device, const void *src, int src_device,
                            size_t count, cudaStream_t stream, bool p2p_enabled) override {
        // Without access for the peer only this call reaches mapped memory.
        if (dst_device != src_device && !p2p_enabled) {
            return cudaMemcpyPeerAsync(dst, dst_device, src, src_device, count, stream);
        }
        return cudaMemcpyAsync(dst, src, count, cudaMemcpyDeviceToDevice, stream);
    }

    std::shared_ptr<ca::AllocatorState> getCheckpointState(c10::DeviceIndex device,
                                                           c10::MempoolId_t name) override {
        return checkpoint(memory(), device, name);
    }

    ca::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                               std::shared_ptr<ca::AllocatorState> state) override {
        auto *own = dynamic_cast<Checkpoint *>(state.get());
        if (own == nullptr) {
            throw std::runtime_error("vmm_torch: this checkpoint was made by another allocator");
        }
        return restore(memory(), device, *own, &delete_allocation);
    }

    std::string name() override { return "vmm"; }

  private:
    static c10::cuda::CUDAStream current_stream(int device) {
        return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
    }

    static bool is_default(cudaStream_t stream) {
        return stream == nullptr || stream == cudaStreamLegacy;
    }

    // PyTorch numbers its own streams, and names others by their handles.
    static Use use_of(c10::cuda::CUDAStream stream) {
        cudaStream_t handle = stream.stream();
        bool external =
            !is_default(handle) && stream.id() == reinterpret_cast<c10::StreamId>(handle);
        return {handle, stream.device_index(), external};
    }

    static void check_length(size_t len) {
        if (C10_UNLIKELY(len > LONGEST)) {
            C10_THROW_ERROR(OutOfMemoryError,
                            "CUDA out of memory. Tried to allocate more than 1EB memory.");
        }
    }

    // Memory that is to be given back with `deleter`.
    static void *raw(size_t len, const Use &on, c10::DeleterFnPtr deleter) {
        check_length(len);
        if (len == 0) {
            return nullptr;
        }
        if (C10_LIKELY(deleter == &delete_allocation)) {
            return memory().allocate(on.device, len, on.stream, on.external);
        }
        return allocate_uncached(len);
    }

    bool caching() const { return !uncached_ && enabled_.load(std::memory_order_relaxed); }

    // For what PyTorch calls in destructors, where an exception would end the process. In a fork the
    // memory is the parent's, and another thread of it may have held the lock.
    template <typename Body> static void in_destructor(Body body) {
        if (memory().forked()) {
            return;
        }
        try {
            body();
        } catch (...) {
            std::fprintf(stderr, "vmm_torch: %s\n", thrown().c_str());
        }
    }

    static bool has(int device, c10::MempoolId_t name) {
        Routes &routes = memory().device(device).routes;
        std::lock_guard<std::mutex> hold(memory().mutex);
        return routes.find(name) != nullptr;
    }

    // Whether the device may be waited for here: not with Python's lock, which a host function that
    // it is to run may want. Then memory goes with the next capture, shortage or `empty_cache`, which
    // come without that lock.
    static bool may_wait() { return !c10::impl::check_python_gil(); }

    template <typename Body> static void with_routes(int device, Body body) {
        Memory::Device &own = memory().device(device);
        vmm_pool_t *pool = memory().pools.of(device);
        std::lock_guard<std::mutex> hold(memory().mutex);
        body(own.routes, pool);
    }

    // For the whole process, whatever is enabled.
    const bool uncached_;
    std::atomic<bool> enabled_{true};
};

} // namespace vmm

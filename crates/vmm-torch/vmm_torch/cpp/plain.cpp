// The functions that PyTorch's pluggable allocator calls, for machines without a compiler. Needs no
// header of PyTorch: it is compiled when the package is made.

#include "settle.h"

#include <pthread.h>

#include <cstring>
#include <unordered_map>

namespace vmm {
namespace {

// What is needed of the CUDA runtime that PyTorch has loaded.
struct Runtime {
    int (*get_device)(int *) = nullptr;
    int (*set_device)(int) = nullptr;
    int (*synchronize)() = nullptr;
    int (*last_error)() = nullptr;
    // The second parameters are enumerations of the runtime.
    int (*stream_status)(Stream, int *) = nullptr;
    int (*exchange_mode)(int *) = nullptr;
    int (*can_access)(int *, int, int) = nullptr;

    bool load(const char *path) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        return handle != nullptr && find(handle, "cudaGetDevice", get_device) &&
               find(handle, "cudaSetDevice", set_device) &&
               find(handle, "cudaDeviceSynchronize", synchronize) &&
               find(handle, "cudaGetLastError", last_error) &&
               find(handle, "cudaStreamIsCapturing", stream_status) &&
               find(handle, "cudaThreadExchangeStreamCaptureMode", exchange_mode) &&
               find(handle, "cudaDeviceCanAccessPeer", can_access);
    }

    // Whether a device can reach memory of another one.
    bool reaches(int device, int other) const {
        int can = 0;
        if (can_access(&can, device, other) != 0) {
            (void)last_error();
            return false;
        }
        return can != 0;
    }

    // Waits for all work of a device. False where that cannot be done, as during a capture.
    bool wait_for(int device) const {
        int before = 0;
        if (get_device(&before) != 0 || set_device(device) != 0) {
            return false;
        }
        // cudaStreamCaptureModeRelaxed: captures on other devices are not disturbed, so they need
        // not forbid it.
        int mode = 2;
        bool done = exchange_mode(&mode) == 0;
        if (done) {
            done = synchronize() == 0;
            (void)exchange_mode(&mode);
        }
        if (!done) {
            (void)last_error();
        }
        (void)set_device(before);
        return done;
    }

    std::optional<bool> is_capturing(Stream stream) const {
        int status = 0;
        if (int error = stream_status(stream, &status); error != 0) {
            (void)last_error();
            // The legacy stream, while another one captures: cudaErrorStreamCaptureImplicit. Others
            // are no streams any more.
            return error == 906 ? std::nullopt : std::optional(false);
        }
        // Not cudaStreamCaptureStatusNone.
        return status != 0;
    }

  private:
    template <typename Function>
    static bool find(void *handle, const char *name, Function *&function) {
        function = reinterpret_cast<Function *>(dlsym(handle, name));
        return function != nullptr;
    }
};

// Never destroyed: tensors may outlive everything else while the process ends.
struct Plain {
    Pools pools;
    Runtime runtime;
    // The current stream of the calling thread, which PyTorch's pluggable interface does not tell.
    void *(*current_stream)(int device) = nullptr;
    std::atomic<bool> forked{false};
    std::atomic<bool> used{false};
    // The pools that have their peers. The lock is held while one is made.
    std::array<std::atomic<vmm_pool_t *>, MOST_DEVICES> ready = {};
    std::mutex making;
    // Guards what follows.
    std::mutex mutex;
    std::array<Routes, MOST_DEVICES> routes;
    std::unordered_map<void *, PrivatePool *> in_private;
    std::atomic<size_t> private_count{0};
};

Plain &plain() {
    static Plain *only = new Plain;
    return *only;
}

bool forked() { return plain().forked.load(std::memory_order_relaxed); }

// In a fork no lock may be taken: another thread of the parent may have held it.
void refuse_fork() {
    if (forked()) {
        throw std::runtime_error(FORKED);
    }
}

// Lets each of two devices use the memory of the other, where it can. PyTorch's kernels do so in
// copies, and its pluggable allocators do not learn when: so it is done as soon as a process uses
// both. Processes of one device never pay for it.
void connect(int device, int other) {
    for (auto [owner, peer] : {std::pair{device, other}, std::pair{other, device}}) {
        if (!plain().runtime.reaches(peer, owner)) {
            continue;
        }
        try {
            plain().pools.add_peer(owner, peer);
        } catch (const std::exception &failure) {
            // All but such copies works.
            std::fprintf(stderr, "vmm_torch: device %d cannot use the memory of device %d: %s\n",
                         peer, owner, failure.what());
        }
    }
}

vmm_pool_t *make_pool(int device) {
    std::lock_guard<std::mutex> alone(plain().making);
    vmm_pool_t *pool = plain().pools.of(device);
    std::atomic<vmm_pool_t *> &ready = plain().ready[static_cast<size_t>(device)];
    if (ready.load(std::memory_order_relaxed) == nullptr) {
        for (int other = 0; other < MOST_DEVICES; ++other) {
            if (other != device && plain().pools.find(other) != nullptr) {
                connect(device, other);
            }
        }
        ready.store(pool, std::memory_order_release);
    }
    return pool;
}

// The pool of a device; makes it at first.
vmm_pool_t *pool_of(int device) {
    refuse_fork();
    plain().used.store(true, std::memory_order_relaxed);
    bool known = device >= 0 && device < MOST_DEVICES;
    vmm_pool_t *pool = nullptr;
    if (known) {
        pool = plain().ready[static_cast<size_t>(device)].load(std::memory_order_acquire);
    }
    return pool != nullptr ? pool : make_pool(device);
}

// Runs `body` with the lock, for what PyTorch calls in destructors: nothing is thrown.
template <typename Body> void in_destructor(Body body) {
    if (forked()) {
        return;
    }
    try {
        std::lock_guard<std::mutex> hold(plain().mutex);
        body();
    } catch (...) {
        std::fprintf(stderr, "%s\n", thrown().c_str());
    }
}

Routes &routes_of(int device) {
    if (device < 0 || device >= MOST_DEVICES) {
        throw std::runtime_error(format("vmm_torch: there is no CUDA device %d", device));
    }
    return plain().routes[static_cast<size_t>(device)];
}

// Gives private pools that nobody refers to back, once the device is idle. Whether any was.
bool settle_on(int device) {
    return settle(plain().mutex, routes_of(device), plain().pools.find(device));
}

vmm_status_t attempt(int device, vmm_pool_t *pool, size_t len, Stream stream, void **ptr) {
    Routes &routes = routes_of(device);
    if (!routes.any()) {
        return lib.allocate(pool, len, 0, stream, 0, ptr);
    }
    std::unique_lock<std::mutex> hold(plain().mutex);
    PrivatePool *target = routes.route(stream);
    if (target == nullptr) {
        hold.unlock();
        return lib.allocate(pool, len, 0, stream, 0, ptr);
    }
    routes.began(target);
    hold.unlock();
    vmm_status_t status = lib.private_allocate(pool, target->id, len, 0, stream, 0, ptr);
    hold.lock();
    if (status == VMM_OK) {
        plain().in_private.emplace(*ptr, target);
        plain().private_count.store(plain().in_private.size(), std::memory_order_relaxed);
    } else {
        routes.ended(target);
    }
    return status;
}

int refuse(const char *text, char *error, size_t room) {
    if (room != 0) {
        std::strncpy(error, text, room - 1);
        error[room - 1] = '\0';
    }
    return 1;
}

} // namespace
} // namespace vmm

#pragma GCC visibility push(default)
extern "C" {

using vmm::plain;

int vmm_torch_install(const char *libvmm, const char *cudart, void *(*current_stream)(int device),
                      const vmm_torch_settings_t *settings, char *error, size_t room) {
    std::string wrong = vmm::lib.load(libvmm);
    if (!wrong.empty()) {
        return vmm::refuse(wrong.c_str(), error, room);
    }
    if (!plain().runtime.load(cudart)) {
        return vmm::refuse("the CUDA runtime of PyTorch lacks functions", error, room);
    }
    plain().current_stream = current_stream;
    for (int device = 0; device < vmm::MOST_DEVICES; ++device) {
        vmm::Routes &routes = vmm::routes_of(device);
        routes.is_capturing = [](vmm::Stream stream) {
            return plain().runtime.is_capturing(stream);
        };
        routes.wait = [device] { return plain().runtime.wait_for(device); };
    }
    plain().pools.configure(*settings);
    pthread_atfork(nullptr, nullptr,
                   [] { plain().forked.store(plain().used.load(), std::memory_order_relaxed); });
    return 0;
}

// As in the full door.
vmm_pool_t *vmm_torch_pool(int device) {
    return vmm::forked() ? nullptr : plain().pools.find(device);
}

int vmm_torch_set_limit(uint64_t limit, char *error, size_t room) {
    try {
        vmm::refuse_fork();
        plain().pools.set_limit(limit);
        return 0;
    } catch (const std::exception &failure) {
        return vmm::refuse(failure.what(), error, room);
    }
}

// What follows has the signatures that PyTorch's pluggable allocator wants.

void *vmm_plain_allocate(size_t len, int device, vmm::Stream stream) {
    if (len == 0) {
        return nullptr;
    }
    vmm_pool_t *pool = vmm::pool_of(device);
    void *ptr = nullptr;
    vmm_status_t status = vmm::attempt(device, pool, len, stream, &ptr);
    if (status == VMM_OUT_OF_MEMORY && vmm::settle_on(device)) {
        status = vmm::attempt(device, pool, len, stream, &ptr);
    }
    if (status == VMM_OK) {
        return ptr;
    }
    // PyTorch does not look for NULL. An exception arrives in Python as a RuntimeError; its own
    // type for this could be thrown by code that was compiled against it only.
    std::string facts = vmm::fault(status);
    if (status == VMM_OUT_OF_MEMORY || status == VMM_TOO_LARGE) {
        throw std::runtime_error(vmm::format(
            "CUDA out of memory. Tried to allocate %s on GPU %d. vmm_torch: %s",
            vmm::in_units(len).c_str(), device, facts.c_str()));
    }
    throw std::runtime_error("vmm_torch: " + facts);
}

// Called from destructors: nothing may be thrown.
void vmm_plain_release(void *ptr, size_t, int device, vmm::Stream stream) {
    if (ptr == nullptr || vmm::forked()) {
        return;
    }
    vmm::PrivatePool *target = nullptr;
    if (plain().private_count.load(std::memory_order_relaxed) != 0) {
        std::lock_guard<std::mutex> hold(plain().mutex);
        auto at = plain().in_private.find(ptr);
        if (at != plain().in_private.end()) {
            target = at->second;
            plain().in_private.erase(at);
            plain().private_count.store(plain().in_private.size(), std::memory_order_relaxed);
        }
    }
    vmm_status_t status = vmm::lib.release(plain().pools.find(device), ptr, stream);
    if (status != VMM_OK && status != VMM_DEVICE_LOST) {
        std::fprintf(stderr, "vmm_torch: memory could not be released: %s\n",
                     vmm::fault(status).c_str());
    }
    if (target != nullptr) {
        std::lock_guard<std::mutex> hold(plain().mutex);
        vmm::routes_of(device).ended(target);
    }
}

void vmm_plain_used_on(void *ptr, vmm::Stream stream) {
    if (vmm::forked()) {
        return;
    }
    for (int device = 0; device < vmm::MOST_DEVICES; ++device) {
        vmm_pool_t *pool = plain().pools.find(device);
        if (pool != nullptr && vmm::lib.used_on(pool, ptr, stream) == VMM_OK) {
            return;
        }
    }
}

void *vmm_plain_base(void *ptr, size_t *size) {
    vmm::refuse_fork();
    for (int device = 0; device < vmm::MOST_DEVICES; ++device) {
        vmm_lease_t lease = {};
        lease.size = sizeof lease;
        vmm_pool_t *pool = plain().pools.find(device);
        if (pool != nullptr && vmm::lib.find(pool, ptr, &lease) == VMM_OK) {
            if (size != nullptr) {
                *size = lease.len;
            }
            return lease.base;
        }
    }
    throw std::runtime_error("vmm_torch: this address is in no live allocation");
}

void vmm_plain_empty() {
    vmm::refuse_fork();
    for (int device = 0; device < vmm::MOST_DEVICES; ++device) {
        if (vmm_pool_t *pool = plain().pools.find(device)) {
            vmm::settle_on(device);
            vmm_status_t status = vmm::lib.trim_and_wait(pool, 0, nullptr);
            if (status != VMM_OK && status != VMM_CAPTURING) {
                throw std::runtime_error(vmm::fault(status));
            }
        }
    }
}

void vmm_plain_fraction(double fraction, int device) {
    if (!(fraction >= 0 && fraction <= 1)) {
        throw std::runtime_error("invalid fraction: it lies within [0, 1]");
    }
    vmm::pool_of(device);
    plain().pools.set_fraction(device, fraction);
}

void vmm_plain_begin(int device, vmm::PoolName name, vmm::Filter filter) {
    vmm_pool_t *pool = vmm::pool_of(device);
    // What graphs that are gone have left goes before a new one takes memory.
    vmm::settle_on(device);
    auto stream = static_cast<vmm::Stream>(plain().current_stream(device));
    vmm::begin(plain().mutex, vmm::routes_of(device), pool, name, std::move(filter), stream);
}

void vmm_plain_end(int device, vmm::PoolName name) {
    // A fork in a capture leaves that to its parent.
    if (vmm::forked()) {
        return;
    }
    std::lock_guard<std::mutex> hold(plain().mutex);
    vmm::routes_of(device).end(name);
}

void vmm_plain_release_pool(int device, vmm::PoolName name) {
    vmm::in_destructor([&] { vmm::routes_of(device).release(name); });
}
}
#pragma GCC visibility pop

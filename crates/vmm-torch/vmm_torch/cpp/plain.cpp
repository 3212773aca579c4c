// The functions that PyTorch's pluggable allocator calls, for machines without a compiler. Needs no
// header of PyTorch: it is compiled when the package is made.

#include "returns.h"
#include "runtime.h"

#include <pthread.h>

#include <cstring>

namespace vmm {
namespace {

Routes &routes_of(int device);

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
    // Of live allocations: streams that have to be forgotten, or that libvmm is not told of.
    std::unordered_map<void *, Uses> uses;
    // How many entries both have.
    std::atomic<size_t> noted{0};
    // Has what locks it needs.
    Returns returns{mutex, pools, [](int device) -> Routes & { return routes_of(device); },
                    [this](int device) { return idle(mutex, routes_of(device)); }};

    void count() { noted.store(in_private.size() + uses.size(), std::memory_order_relaxed); }
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
        plain().count();
    } else {
        routes.ended(target);
    }
    return status;
}

// PyTorch does not say whose streams are: all but the default ones may be destroyed.
Use use_of(Stream stream, int device) { return {stream, device, !Runtime::is_default(stream)}; }

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
    plain().returns.orders = &plain().runtime;
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

// The limit of a device that has a pool, in bytes; 0 for none. Not libvmm's own, see `Pools::share`.
uint64_t vmm_torch_limit(int device) {
    return plain().pools.find(device) != nullptr ? plain().pools.limit(device) : 0;
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
    bool more = status == VMM_OUT_OF_MEMORY && plain().returns.give_back_late(true);
    if (status == VMM_OUT_OF_MEMORY && (vmm::settle_on(device) || more)) {
        status = vmm::attempt(device, pool, len, stream, &ptr);
    }
    if (status == VMM_OK) {
        vmm::Use own = vmm::use_of(stream, device);
        bool captures = own.external && vmm::routes_of(device).any() &&
                        plain().runtime.is_capturing(stream).value_or(true);
        plain().returns.external.began(pool, own, captures);
        return ptr;
    }
    // PyTorch does not look for NULL. An exception arrives in Python as a RuntimeError; its own
    // type for this could be thrown by code that was compiled against it only.
    std::string facts = vmm::lack(status);
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
    try {
        vmm::Returns::Gone gone = {ptr, vmm::use_of(stream, device), nullptr, {}};
        if (plain().noted.load(std::memory_order_relaxed) != 0) {
            std::lock_guard<std::mutex> hold(plain().mutex);
            if (auto at = plain().in_private.find(ptr); at != plain().in_private.end()) {
                gone.pool = at->second;
                plain().in_private.erase(at);
            }
            if (auto at = plain().uses.find(ptr); at != plain().uses.end()) {
                gone.uses = std::move(at->second);
                plain().uses.erase(at);
            }
            plain().count();
        }
        plain().returns.give_back(gone);
        if (!gone.uses.empty()) {
            plain().returns.give_back_late(false);
        }
    } catch (...) {
        std::fprintf(stderr, "vmm_torch: releasing %p: %s\n", ptr, vmm::thrown().c_str());
    }
}

void vmm_plain_used_on(void *ptr, vmm::Stream stream) {
    if (vmm::forked()) {
        return;
    }
    std::optional<int> of_stream = plain().runtime.device_of(stream);
    vmm::Uses uses;
    int own = -1;
    for (int device = 0; device < vmm::MOST_DEVICES; ++device) {
        vmm_lease_t lease = {};
        lease.size = sizeof lease;
        vmm_pool_t *pool = plain().pools.find(device);
        if (pool != nullptr && vmm::lib.find(pool, ptr, &lease) == VMM_OK && lease.base == ptr) {
            own = device;
        }
        // Which device's default stream is meant nobody says.
        if (pool != nullptr && !of_stream && vmm::Runtime::is_default(stream)) {
            uses.push_back(vmm::use_of(stream, device));
        }
    }
    // Memory that another library lent to a tensor is not ours to watch over.
    if (own < 0) {
        return;
    }
    if (uses.empty()) {
        uses.push_back(vmm::use_of(stream, of_stream.value_or(own)));
    }
    for (const vmm::Use &use : uses) {
        if (use.device == own) {
            (void)vmm::lib.used_on(plain().pools.find(own), ptr, stream);
        }
        if (use.device != own || use.external) {
            std::lock_guard<std::mutex> hold(plain().mutex);
            bool is_new = vmm::note_use(plain().uses[ptr], use);
            if (is_new && use.external && use.device == own) {
                plain().returns.external.used(use.stream);
            }
            plain().count();
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
    plain().returns.give_back_late(true);
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
    vmm::Routes &routes = vmm::routes_of(device);
    std::lock_guard<std::mutex> hold(plain().mutex);
    routes.end(name);
    plain().returns.external.route_ended(plain().pools.find(device), routes.is_capturing);
}

void vmm_plain_release_pool(int device, vmm::PoolName name) {
    vmm::in_destructor([&] { vmm::routes_of(device).release(name); });
}
}
#pragma GCC visibility pop

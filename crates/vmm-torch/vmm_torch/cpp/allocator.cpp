// The allocator and what Python calls to put it in. Compiled against the PyTorch it is to run with.

#include "allocator.h"

#include <pthread.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstring>

namespace vmm {
namespace {

Allocator &allocator() {
    static Allocator *only = new Allocator;
    return *only;
}

// Puts a text where Python reads it, cut to the space there is.
int refuse(const char *text, char *error, size_t room) {
    if (room != 0) {
        std::strncpy(error, text, room - 1);
        error[room - 1] = '\0';
    }
    return 1;
}

} // namespace
} // namespace vmm

// What Python calls. Functions return 0, or 1 with a text in `error`.
#pragma GCC visibility push(default)
extern "C" {

int vmm_torch_install(const char *libvmm, const vmm_torch_settings_t *settings, char *error,
                      size_t room) {
    try {
        std::string wrong = vmm::lib.load(libvmm);
        if (!wrong.empty()) {
            return vmm::refuse(wrong.c_str(), error, room);
        }
        if (vmm::ca::get()->initialized()) {
            return vmm::refuse("CUDA is in use already: call vmm_torch.install() before anything "
                               "asks CUDA",
                               error, room);
        }
        vmm::memory().pools.configure(*settings);
        pthread_atfork(nullptr, nullptr, [] { vmm::memory().note_fork(); });
        // Owned by nobody, see `allocator`.
        std::shared_ptr<vmm::ca::CUDAAllocator> shared(&vmm::allocator(), [](void *) {});
        torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(shared);
        c10::SetAllocator(c10::DeviceType::CUDA, &vmm::allocator());
        return 0;
    } catch (const std::exception &failure) {
        return vmm::refuse(failure.what(), error, room);
    }
}

// The pool of a device; NULL if it has none yet, and in a fork, where its lock may be held for ever.
vmm_pool_t *vmm_torch_pool(int device) {
    return vmm::memory().forked() ? nullptr : vmm::memory().pools.find(device);
}

// The limit of a device that has a pool, in bytes; 0 for none. Not libvmm's own, see `Pools::share`.
uint64_t vmm_torch_limit(int device) {
    return vmm::memory().pools.find(device) != nullptr ? vmm::memory().pools.limit(device) : 0;
}

int vmm_torch_set_limit(uint64_t limit, char *error, size_t room) {
    try {
        vmm::memory().refuse_fork();
        vmm::memory().pools.set_limit(limit);
        return 0;
    } catch (const std::exception &failure) {
        return vmm::refuse(failure.what(), error, room);
    }
}

// The interpreter ends: no stack of it is gathered any more. What was recorded stays for those who
// still ask.
void vmm_torch_end(void) { vmm::memory().history.stop_gathering(); }
}
#pragma GCC visibility pop

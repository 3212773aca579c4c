// What PyTorch has NCCL register: no memory that may move.
#pragma once

#include "memory.h"

#include <cstring>

namespace vmm {

// Whether a snapshot is for code that has NCCL register what is listed: that in PyTorch's library for
// CUDA, but for the function there that only writes the list down. Python asks by another library.
inline bool registers(const void *code) {
    Dl_info info = {};
    return dladdr(code, &info) != 0 && info.dli_fname != nullptr &&
           std::strstr(info.dli_fname, "libtorch_cuda.so") != nullptr &&
           (info.dli_sname == nullptr ||
            std::strstr(info.dli_sname, "_memory_snapshot_pickled") == nullptr);
}

// NCCL is told of each piece that an allocator of the user's gives, and registers it. The memory of
// other pools grows by pieces that join, which it cannot be told of.
inline void refuse_registration(Memory &memory, PoolName name) {
    std::lock_guard<std::mutex> hold(memory.mutex);
    bool own = false;
    for (int device = 0; device < memory.device_count(); ++device) {
        PrivatePool *pool = memory.device(device).routes.find(name);
        if (pool != nullptr && pool->source != nullptr) {
            return;
        }
        own = own || pool != nullptr;
    }
    if (own) {
        C10_THROW_ERROR(NotImplementedError,
                        "vmm_torch: NCCL cannot register the memory of this pool; make it with "
                        "NCCL's own allocator: torch.cuda.MemPool(backend.mem_allocator)");
    }
}

// Leaves what NCCL may register when nobody names a pool: with the environment variable
// TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK, in whichever spelling, PyTorch registers all segments
// that there are when a communicator is made, and those that it is told of later, which are pieces as
// above only.
inline void keep_registrable(std::vector<c10::CachingDeviceAllocator::SegmentInfo> &segments) {
    auto moves = [](const auto &segment) { return segment.is_expandable; };
    segments.erase(std::remove_if(segments.begin(), segments.end(), moves), segments.end());
    static std::atomic<bool> said{false};
    if (!said.exchange(true)) {
        std::fprintf(stderr, "vmm_torch: NCCL registers no tensors but those of "
                             "torch.cuda.MemPool(backend.mem_allocator): the memory under other "
                             "addresses may move when they are free\n");
    }
}

} // namespace vmm

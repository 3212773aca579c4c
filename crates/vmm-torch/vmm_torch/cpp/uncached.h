// Memory while caching is off: straight from CUDA.
#pragma once

#include "orders.h"

namespace vmm {

inline void *allocate_uncached(size_t len) {
    void *ptr = nullptr;
    {
        Relaxed relaxed;
        C10_CUDA_CHECK(cudaMalloc(&ptr, len));
    }
    if (const auto *trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
        (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
    }
    return ptr;
}

// Called from destructors: nothing may be thrown.
inline void delete_uncached(void *ptr) {
    if (ptr == nullptr) {
        return;
    }
    try {
        if (const auto *trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
            (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(ptr));
        }
    } catch (...) {
        std::fprintf(stderr, "vmm_torch: releasing %p: %s\n", ptr, thrown().c_str());
    }
    Relaxed relaxed;
    cudaError_t error = cudaFree(ptr);
    if (error != cudaSuccess && error != cudaErrorCudartUnloading) {
        std::fprintf(stderr, "vmm_torch: cudaFree: %s\n", cudaGetErrorString(error));
    }
}

} // namespace vmm

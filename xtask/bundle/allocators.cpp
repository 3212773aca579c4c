// Nanoseconds for a pair of allocate and free, for allocators of GPU memory, called below Python.
//
//   allocators vmm-c | cudaMalloc | cudaMallocAsync | torch-native | torch-expandable
//
// Prints lines "allocator,case,median,mean". The cases and their random numbers are those of the Rust
// example `allocator_table`, which measures the pool without the C interface. Nothing but
// the allocator runs: no kernel, no other stream.
#include "vmm.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

[[noreturn]] void fail(const char* what, const char* why) {
    std::fprintf(stderr, "%s: %s\n", what, why);
    std::exit(1);
}

void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) fail(what, cudaGetErrorString(status));
}

struct Allocator {
    virtual ~Allocator() = default;
    virtual void* allocate(std::size_t bytes) = 0;
    virtual void release(void* memory) = 0;
    // Batches of a slow allocator are shorter: the figure is the same, the wait is not.
    virtual int pairs_per_batch() const { return 2000; }
};

struct CudaMalloc : Allocator {
    void* allocate(std::size_t bytes) override {
        void* memory = nullptr;
        check(cudaMalloc(&memory, bytes), "cudaMalloc");
        return memory;
    }
    void release(void* memory) override { check(cudaFree(memory), "cudaFree"); }
    int pairs_per_batch() const override { return 20; }
};

struct CudaMallocAsync : Allocator {
    cudaStream_t stream;
    explicit CudaMallocAsync(cudaStream_t s) : stream(s) {
        cudaMemPool_t pool;
        check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
        std::uint64_t keep = UINT64_MAX;
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), "cudaMemPoolSetAttribute");
    }
    void* allocate(std::size_t bytes) override {
        void* memory = nullptr;
        check(cudaMallocAsync(&memory, bytes, stream), "cudaMallocAsync");
        return memory;
    }
    void release(void* memory) override { check(cudaFreeAsync(memory, stream), "cudaFreeAsync"); }
    int pairs_per_batch() const override { return 500; }
};

// PyTorch's allocator in force, below its tensors. Which one that is, PYTORCH_CUDA_ALLOC_CONF says.
struct Torch : Allocator {
    cudaStream_t stream;
    explicit Torch(cudaStream_t s) : stream(s) { c10::cuda::CUDACachingAllocator::init(1); }
    void* allocate(std::size_t bytes) override {
        return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(bytes, stream);
    }
    void release(void* memory) override { c10::cuda::CUDACachingAllocator::raw_delete(memory); }
};

struct VmmC : Allocator {
    vmm_pool_t* pool = nullptr;
    vmm_stream_t stream;
    explicit VmmC(cudaStream_t s) : stream(s) {
        vmm_pool_options_t options = {};
        options.size = sizeof options;
        check(vmm_pool_create(&options, &pool), "vmm_pool_create");
    }
    ~VmmC() override { check(vmm_pool_destroy(pool), "vmm_pool_destroy"); }
    void* allocate(std::size_t bytes) override {
        void* memory = nullptr;
        check(vmm_allocate(pool, bytes, 0, stream, 0, &memory), "vmm_allocate");
        return memory;
    }
    void release(void* memory) override { check(vmm_release(pool, memory, stream), "vmm_release"); }

    static void check(vmm_status_t status, const char* what) {
        if (status != VMM_OK) fail(what, vmm_last_error());
    }
};

struct Random {
    std::uint64_t state = 1;
    // splitmix64, Steele, Lea and Flood 2014.
    std::uint64_t next() {
        std::uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    double unit() { return double(next() >> 11) * 0x1p-53; }
};

double now() {
    using namespace std::chrono;
    return double(duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count());
}

struct Figures {
    double median, mean;
};

// Twenty batches, after one that warms up.
template <typename Pair>
Figures measure(int pairs, int warm, Pair pair) {
    for (int i = 0; i < warm; ++i) pair();
    std::vector<double> batches;
    for (int batch = 0; batch < 20; ++batch) {
        double start = now();
        for (int i = 0; i < pairs; ++i) pair();
        batches.push_back((now() - start) / pairs);
    }
    double sum = 0;
    for (double ns : batches) sum += ns;
    std::sort(batches.begin(), batches.end());
    return {(batches[9] + batches[10]) / 2, sum / double(batches.size())};
}

void print(const char* allocator, const char* name, Figures figures) {
    std::printf("%s,%s,%.1f,%.1f\n", allocator, name, figures.median, figures.mean);
    std::fflush(stdout);
}

void one_size(const char* allocator, Allocator& a, const char* name, std::size_t bytes) {
    print(allocator, name, measure(a.pairs_per_batch(), a.pairs_per_batch(), [&] { a.release(a.allocate(bytes)); }));
}

// A thousand live, and each pair frees a random one and allocates another in its place.
template <typename Length>
void random_leases(const char* allocator, Allocator& a, const char* name, Length length) {
    Random random;
    std::vector<void*> live;
    for (int i = 0; i < 1000; ++i) live.push_back(a.allocate(length(random)));
    print(allocator, name, measure(a.pairs_per_batch(), 50 * a.pairs_per_batch(), [&] {
        void*& slot = live[random.next() % live.size()];
        a.release(slot);
        slot = a.allocate(length(random));
    }));
    for (void* memory : live) a.release(memory);
}

std::size_t log_uniform(Random& random, double from, double to) {
    return std::size_t(from * std::exp(random.unit() * std::log(to / from)));
}

}  // namespace

int main(int argc, char** argv) {
    const char* which = argc == 2 ? argv[1] : "";
    if (!std::strcmp(which, "torch-expandable")) setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 1);
    check(cudaSetDevice(0), "cudaSetDevice");
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    Allocator* a = nullptr;
    if (!std::strcmp(which, "cudaMalloc")) a = new CudaMalloc;
    if (!std::strcmp(which, "cudaMallocAsync")) a = new CudaMallocAsync(stream);
    if (!std::strncmp(which, "torch-", 6)) a = new Torch(stream);
    if (!std::strcmp(which, "vmm-c")) a = new VmmC(stream);
    if (!a) fail("usage", "allocators vmm-c | cudaMalloc | cudaMallocAsync | torch-native | torch-expandable");

    const std::size_t KiB = 1 << 10, MiB = 1 << 20;
    one_size(which, *a, "512 B", 512);
    one_size(which, *a, "4 KiB", 4 * KiB);
    one_size(which, *a, "64 KiB", 64 * KiB);
    one_size(which, *a, "1 MiB", MiB);
    one_size(which, *a, "2 MiB", 2 * MiB);
    one_size(which, *a, "16 MiB", 16 * MiB);
    one_size(which, *a, "64 MiB", 64 * MiB);
    random_leases(which, *a, "1000 live 512 B to 1 MiB", [&](Random& r) { return log_uniform(r, 512, double(MiB)); });
    random_leases(which, *a, "1000 live 1 to 32 MiB", [&](Random& r) { return MiB + r.next() % (31 * MiB); });
    random_leases(which, *a, "1000 live 512 B to 64 MiB", [&](Random& r) { return log_uniform(r, 512, 64.0 * double(MiB)); });
    delete a;
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
    return 0;
}

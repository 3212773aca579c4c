// The live allocations of a private pool, to be put back later: CUDA graph trees of torch.compile
// record a graph after another one as if that had just run.
#pragma once

#include "memory.h"

namespace vmm {

using c10::cuda::CUDACachingAllocator::AllocatorState;
using c10::cuda::CUDACachingAllocator::CheckpointDelta;

struct Checkpoint final : AllocatorState {
    PoolName name;
    std::vector<Allocation> live;
};

// The live allocations of a pool. `memory.mutex` is held.
inline std::vector<Allocation> live_in(Memory &memory, int device, PoolName name) {
    PrivatePool *pool = memory.device(device).routes.find(name);
    if (pool == nullptr) {
        throw std::runtime_error("vmm_torch: there is no such memory pool");
    }
    if (pool->source != nullptr) {
        throw std::runtime_error("vmm_torch: a memory pool with an allocator of its own has no "
                                 "checkpoints");
    }
    std::vector<Allocation> live;
    memory.ledger.each([&](const Allocation &entry) {
        if (entry.pool == pool) {
            live.push_back(entry);
        }
    });
    return live;
}

inline std::shared_ptr<Checkpoint> checkpoint(Memory &memory, int device, PoolName name) {
    memory.refuse_fork();
    std::lock_guard<std::mutex> hold(memory.mutex);
    auto made = std::make_shared<Checkpoint>();
    made->name = name;
    made->live = live_in(memory, device, name);
    return made;
}

inline bool same(const Allocation &a, const Allocation &b) {
    return a.ptr == b.ptr && a.requested == b.requested && a.stream == b.stream;
}

// Makes the live allocations of a pool those of the checkpoint. An allocation that is in both stays
// as it is; it counts as ended and made, so that the tensor that had it gives it up.
inline CheckpointDelta restore(Memory &memory, int device, const Checkpoint &state,
                               c10::DeleterFnPtr deleter) {
    CheckpointDelta delta;
    std::vector<Allocation> ended;
    std::vector<Allocation> made;
    Memory::Device &own = memory.device(device);
    std::unique_lock<std::mutex> hold(memory.mutex);
    std::map<void *, const Allocation *> wanted;
    for (const Allocation &entry : state.live) {
        wanted.emplace(entry.ptr, &entry);
    }
    vmm_pool_t *pool = memory.pools.of(device);
    PrivatePool *target = nullptr;
    for (const Allocation &entry : live_in(memory, device, state.name)) {
        delta.ptrs_freed.push_back(entry.ptr);
        auto at = wanted.find(entry.ptr);
        if (at != wanted.end() && same(entry, *at->second)) {
            at->second = nullptr;
            continue;
        }
        memory.ledger.take(memory.ledger.find(entry.ptr));
        own.statistics.released(entry.len, entry.requested);
        Memory::check_release(lib.release(pool, entry.ptr, entry.stream));
        own.routes.ended(entry.pool);
        ended.push_back(entry);
    }
    target = own.routes.find(state.name);
    std::string failure;
    auto place = c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    for (const Allocation &entry : state.live) {
        if (wanted[entry.ptr] != nullptr) {
            vmm_status_t status = lib.private_allocate_at(pool, target->id, entry.ptr,
                                                          entry.requested, entry.stream, 0);
            if (status != VMM_OK) {
                failure = fault(status);
                continue;
            }
            own.routes.began(target);
            own.statistics.allocated(entry.len, entry.requested);
            made.push_back(entry);
            made.back().pool = target;
            memory.ledger.insert(made.back());
        }
        delta.dataptrs_allocd.emplace_back(entry.ptr, entry.ptr, deleter, place);
    }
    hold.unlock();
    // No tensor may lose its memory because somebody who listens throws.
    Steps steps;
    if (memory.history.listening()) {
        for (const Allocation &entry : ended) {
            steps.take([&] { memory.note_ended(entry, entry.context); });
        }
        for (const Allocation &entry : made) {
            steps.take([&] { memory.note_made(entry); });
        }
    }
    if (!failure.empty()) {
        // Tensors still own what stayed as it was.
        for (c10::DataPtr &data : delta.dataptrs_allocd) {
            data.release_context();
        }
        throw std::runtime_error("vmm_torch: a checkpoint of a memory pool could not be restored, "
                                 "because its memory is used otherwise: " +
                                 failure);
    }
    return delta;
}

// Whether the live allocations of a pool are exactly these.
inline bool live_are(Memory &memory, int device, PoolName name,
                     const std::unordered_set<void *> &expected) {
    memory.refuse_fork();
    std::lock_guard<std::mutex> hold(memory.mutex);
    std::vector<Allocation> live = live_in(memory, device, name);
    for (const Allocation &entry : live) {
        if (expected.count(entry.ptr) == 0) {
            return false;
        }
    }
    return live.size() == expected.size();
}

} // namespace vmm

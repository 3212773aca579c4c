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
    for (Allocation &entry : made->live) {
        // It comes back without what uses it now.
        entry.used = false;
    }
    return made;
}

inline bool same(const Allocation &a, const Allocation &b) {
    return a.ptr == b.ptr && a.requested == b.requested && a.stream == b.stream;
}

// Ends leases of a private pool and makes others where these say. Returns what is wrong, or an empty
// text; if something is, the leases are those that were, but for those that could not be put back, which
// go from `ended` to `lost`. No lock is held: a call may wait.
inline std::string exchange(vmm_pool_t *pool, uint64_t id, std::vector<Allocation> &ended,
                            const std::vector<Allocation> &made, std::vector<Allocation> &lost) {
    auto end = [&](const Allocation &entry) {
        check_release(lib.release(pool, entry.ptr, entry.stream));
    };
    auto make = [&](const Allocation &entry) {
        return lib.private_allocate_at(pool, id, entry.ptr, entry.requested, entry.stream, 0);
    };
    std::for_each(ended.begin(), ended.end(), end);
    vmm_status_t status = VMM_OK;
    auto failed = std::find_if(made.begin(), made.end(), [&](const Allocation &entry) {
        status = make(entry);
        return status != VMM_OK;
    });
    if (failed == made.end()) {
        return {};
    }
    std::string failure = fault(status);
    std::for_each(made.begin(), failed, end);
    // Their tensors own them still. Each goes back to the stream that has just let go of it.
    auto put_back = [&](const Allocation &entry) { return make(entry) == VMM_OK; };
    auto rest = std::stable_partition(ended.begin(), ended.end(), put_back);
    lost.insert(lost.end(), rest, ended.end());
    ended.erase(rest, ended.end());
    return failure;
}

// As at a release, of allocations that libvmm has back.
inline void tell_streams_of(Memory &memory, vmm_pool_t *pool, const std::vector<Allocation> &gone) {
    ExternalStreams &external = memory.returns.external;
    for (const Allocation &entry : gone) {
        external.released(pool, entry.own(), memory.take_uses(entry.ptr));
        if (entry.external) {
            external.ended(entry.stream);
        }
    }
}

// Makes the live allocations of a pool those of the checkpoint. An allocation that is in both stays
// as it is; it counts as ended and made, so that the tensor that had it gives it up. If it throws all
// is as it was.
inline CheckpointDelta restore(Memory &memory, int device, const Checkpoint &state,
                               c10::DeleterFnPtr deleter) {
    CheckpointDelta delta;
    delta.dataptrs_allocd.reserve(state.live.size());
    std::vector<Allocation> ended;
    std::vector<Allocation> made;
    std::vector<Allocation> gone;
    Routes &routes = memory.device(device).routes;
    vmm_pool_t *pool = memory.pools.of(device);
    PrivatePool *target = nullptr;
    {
        std::lock_guard<std::mutex> hold(memory.mutex);
        std::map<void *, const Allocation *> wanted;
        for (const Allocation &entry : state.live) {
            wanted.emplace(entry.ptr, &entry);
        }
        for (const Allocation &entry : live_in(memory, device, state.name)) {
            delta.ptrs_freed.push_back(entry.ptr);
            auto at = wanted.find(entry.ptr);
            if (at != wanted.end() && same(entry, *at->second)) {
                wanted.erase(at);
            } else {
                ended.push_back(entry);
            }
        }
        target = routes.find(state.name);
        for (const auto &[ptr, entry] : wanted) {
            made.push_back(*entry);
            made.back().pool = target;
        }
        for (const Allocation &entry : ended) {
            memory.take(memory.ledger.find(entry.ptr));
        }
        // So that it stays meanwhile.
        ++target->users;
    }
    size_t held = ended.size();
    bool ordered = std::all_of(ended.begin(), ended.end(), [&](const Allocation &entry) {
        return !entry.used || memory.returns.order(entry.own(), memory.uses_of(entry.ptr));
    });
    std::string failure = ordered ? exchange(pool, target->id, ended, made, gone)
                                  : "a stream of another device that uses it captures a graph";
    try {
        // Perhaps work on other streams was in the way.
        if (ordered && !failure.empty() && idle(memory.mutex, routes)) {
            failure = exchange(pool, target->id, ended, made, gone);
        }
    } catch (...) {
        failure += "; " + thrown();
    }
    for (const Allocation &entry : gone) {
        failure += failure.empty() ? "" : format("; the tensor at %p has lost its memory", entry.ptr);
    }
    if (failure.empty()) {
        gone.insert(gone.end(), ended.begin(), ended.end());
        for (const Allocation &entry : made) {
            memory.began(entry.own(), target);
        }
    }
    tell_streams_of(memory, pool, gone);
    {
        std::lock_guard<std::mutex> hold(memory.mutex);
        for (const Allocation &entry : failure.empty() ? made : ended) {
            memory.enter(entry);
            routes.began(target);
        }
        for (; held != 0; --held) {
            routes.ended(target);
        }
        routes.release(state.name);
    }
    if (!failure.empty()) {
        throw std::runtime_error("vmm_torch: a checkpoint of a memory pool could not be restored, "
                                 "because its memory is used otherwise: " +
                                 failure);
    }
    auto place = c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    for (const Allocation &entry : state.live) {
        delta.dataptrs_allocd.emplace_back(entry.ptr, entry.ptr, deleter, place);
    }
    if (memory.history.listening()) {
        // No tensor may lose its memory because somebody who listens throws.
        Steps steps;
        for (const Allocation &entry : gone) {
            steps.take([&] { memory.note_ended(entry, entry.context); });
        }
        for (const Allocation &entry : made) {
            steps.take([&] { memory.note_made(entry); });
        }
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

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

// Ends leases of a private pool and makes others where these say. Returns what is wrong, or an empty
// text; if something is, the leases are those that were, and `ended` those of them that could be put
// back. No lock is held: a call may wait.
inline std::string exchange(vmm_pool_t *pool, uint64_t id, std::vector<Allocation> &ended,
                            const std::vector<Allocation> &made) {
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
    auto is_lost = [&](const Allocation &entry) {
        vmm_status_t lost = make(entry);
        if (lost != VMM_OK) {
            failure += format("; and the tensor at %p has lost its memory: %s", entry.ptr,
                              fault(lost).c_str());
        }
        return lost != VMM_OK;
    };
    ended.erase(std::remove_if(ended.begin(), ended.end(), is_lost), ended.end());
    return failure;
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
    std::string failure = exchange(pool, target->id, ended, made);
    try {
        // Perhaps work on other streams was in the way.
        if (!failure.empty() && idle(memory.mutex, routes)) {
            failure = exchange(pool, target->id, ended, made);
        }
    } catch (...) {
        failure += "; " + thrown();
    }
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
        for (const Allocation &entry : ended) {
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

// Streams that somebody else made and may destroy, which libvmm has to be told.
#pragma once

#include "uses.h"

#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

namespace vmm {

// The external streams that allocations were made on. Whoever made one may destroy it before the memory
// ends, and the driver crashes when it is asked about a stream that is gone. So libvmm does not watch these:
// it asks only for their own requests. A stream that only uses memory is asked when the last of that ends, as
// PyTorch's own allocator asks for each, and then forgotten. A stream that captures lives, and is watched until
// its capture ends, for a wait for the device would break the graph. For any thread.
class ExternalStreams {
  public:
    // An allocation was made on a stream, which may capture.
    void began(vmm_pool_t *pool, const Use &own, bool captures = false) {
        if (!own.external && count_.load(std::memory_order_relaxed) == 0) {
            return;
        }
        std::lock_guard<std::mutex> hold(mutex_);
        if (own.external) {
            ++live_[own.stream];
        }
        // If it is none of others', one of PyTorch's has the handle now.
        watch(pool, own.stream, !own.external || captures);
        if (captures) {
            capturing_.insert({pool, own.stream});
        } else {
            capturing_.erase({pool, own.stream});
        }
    }

    // To be called at the end of a route, which is where PyTorch has ended a capture and its stream lives.
    template <typename IsCapturing> void route_ended(vmm_pool_t *pool, IsCapturing is_capturing) {
        std::lock_guard<std::mutex> hold(mutex_);
        for (auto at = capturing_.begin(); at != capturing_.end();) {
            auto [own, stream] = *at;
            bool over = own == pool && !is_capturing(stream).value_or(true);
            if (over) {
                watch(pool, stream, false);
            }
            at = over ? capturing_.erase(at) : std::next(at);
        }
    }

    // An external stream uses memory that lives. Once for each allocation.
    void used(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        ++live_[stream];
    }

    // To be called as memory is released, with what used it: libvmm may have it back later, and it asks
    // for nothing of a stream that it has forgotten. While a graph is captured it forgets none, and does
    // not watch the stream then.
    void released(vmm_pool_t *pool, const Use &own, const Uses &uses) {
        std::lock_guard<std::mutex> hold(mutex_);
        for (const Use &use : uses) {
            if (!use.external || use.device != own.device || !drop(use.stream)) {
                continue;
            }
            if (lib.forget_stream(pool, use.stream) == VMM_OK) {
                unwatched_.erase({pool, use.stream});
                count_.store(unwatched_.size(), std::memory_order_relaxed);
            } else {
                watch(pool, use.stream, false);
            }
        }
    }

    // To be called once libvmm has the memory of an external stream back.
    void ended(Stream own) {
        std::lock_guard<std::mutex> hold(mutex_);
        drop(own);
    }

  private:
    void watch(vmm_pool_t *pool, Stream stream, bool watched) {
        bool changes = watched ? unwatched_.erase({pool, stream}) != 0
                               : unwatched_.insert({pool, stream}).second;
        if (changes) {
            (void)lib.watch_stream(pool, stream, watched);
            count_.store(unwatched_.size(), std::memory_order_relaxed);
        }
    }

    // Whether that was the last allocation of a stream, and the last that it uses.
    bool drop(Stream stream) {
        auto at = live_.find(stream);
        if (at != live_.end() && --at->second != 0) {
            return false;
        }
        if (at != live_.end()) {
            live_.erase(at);
        }
        return true;
    }

    std::mutex mutex_;
    // How many allocations each has or uses.
    std::unordered_map<Stream, size_t> live_;
    std::set<std::pair<vmm_pool_t *, Stream>> unwatched_;
    // Watched because they captured when memory was allocated on them.
    std::set<std::pair<vmm_pool_t *, Stream>> capturing_;
    std::atomic<size_t> count_{0};
};

} // namespace vmm

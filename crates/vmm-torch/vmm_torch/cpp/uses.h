// Streams other than its own that use an allocation, where libvmm cannot be told of them: those of
// other devices, and all of memory that an allocator of the user's gave. And streams that somebody
// may destroy, which libvmm has to be told.
#pragma once

#include "routes.h"

#include <atomic>
#include <mutex>
#include <set>
#include <unordered_map>

namespace vmm {

// A stream that uses memory.
struct Use {
    Stream stream = nullptr;
    int device = 0;
    // It is neither PyTorch's nor a default one: whoever made it may destroy it at any moment once
    // the memory is released.
    bool external = false;
};

using Uses = std::vector<Use>;

// Whether it was not known.
inline bool note_use(Uses &uses, const Use &use) {
    bool known = std::any_of(uses.begin(), uses.end(), [&](const Use &other) {
        return other.stream == use.stream && other.device == use.device;
    });
    if (!known) {
        uses.push_back(use);
    }
    return !known;
}

// An event of the CUDA runtime.
using Event = void *;

// What came of an order to a stream. LATER: a capture forbids it. NEVER: it was refused, as for a
// stream that is destroyed.
enum class Order { GIVEN, LATER, NEVER };

// What orders streams on the device. Nothing here throws.
struct Orders {
    virtual ~Orders() = default;
    // Records behind all work of a stream.
    virtual Order record(const Use &use, Event &event) = 0;
    // Lets all later work of a stream wait for an event, which may be another device's.
    virtual Order wait(const Use &stream, Event event) = 0;
    // Whether the work before an event is over.
    virtual bool is_over(Event event) = 0;
    virtual void destroy(Event event) = 0;
};

// Orders the later work of a stream behind all uses on other devices, so that the one stream stands
// for all of them. Where an order is refused, `idle` waits for such a device on the host, and says
// whether it could. False if that has to be tried again when nothing is captured.
template <typename Idle>
bool order_behind(Orders *orders, const Use &own, const Uses &uses, Idle idle) {
    for (const Use &use : uses) {
        if (use.device == own.device || orders == nullptr) {
            continue;
        }
        Event event = nullptr;
        Order order = orders->record(use, event);
        if (order == Order::GIVEN) {
            order = orders->wait(own, event);
            orders->destroy(event);
        }
        if (order == Order::LATER || (order == Order::NEVER && !idle(use.device))) {
            return false;
        }
    }
    return true;
}

// The external streams that allocations were made on. Whoever made one may destroy it before the memory
// ends, and the driver crashes when it is asked about a stream that is gone. So libvmm does not watch these:
// it asks only for their own requests. A stream that only uses memory is asked when the last of that ends, as
// PyTorch's own allocator asks for each, and then forgotten. A stream that captures lives, and is watched, for a
// wait for the device would break the graph. For any thread.
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
    }

    // An external stream uses memory that lives. Once for each allocation.
    void used(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        ++live_[stream];
    }

    // To be called once libvmm has the memory back, with what used it. While a graph is captured the
    // pool forgets nothing; it does not watch the stream then.
    void ended(vmm_pool_t *pool, const Use &own, const Uses &uses) {
        std::lock_guard<std::mutex> hold(mutex_);
        if (own.external) {
            drop(own.stream);
        }
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
    std::atomic<size_t> count_{0};
};

} // namespace vmm

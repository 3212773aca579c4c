// Streams other than its own that use an allocation, where libvmm cannot be told of them: those of
// other devices, and all of memory that an allocator of the user's gave. And streams that somebody
// may destroy, which libvmm has to be told.
#pragma once

#include "routes.h"

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

inline void note_use(Uses &uses, const Use &use) {
    bool known = std::any_of(uses.begin(), uses.end(), [&](const Use &other) {
        return other.stream == use.stream && other.device == use.device;
    });
    if (!known) {
        uses.push_back(use);
    }
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

// The external streams that allocations live on. When the last one has ended the pool is told to forget
// such a stream: it records where the work ends, and does not touch the stream from then on. Not at each
// release, or the stream's next request would find nothing of its own and look through all that was
// forgotten: hundreds of microseconds where the device is hundreds of launches behind. For any thread.
class ExternalStreams {
  public:
    void began(const Use &own) {
        if (own.external) {
            std::lock_guard<std::mutex> hold(mutex_);
            ++live_[own.stream];
        }
    }

    // To be called once libvmm has the memory back, with what used it. While a graph is captured the
    // pool forgets nothing; the stream stays known, until the next time. One that cannot be recorded on
    // is destroyed already.
    void ended(vmm_pool_t *pool, const Use &own, const Uses &uses) {
        if (own.external && is_last(own.stream)) {
            (void)lib.forget_stream(pool, own.stream);
        }
        for (const Use &use : uses) {
            if (use.external && use.device == own.device && !lives(use.stream)) {
                (void)lib.forget_stream(pool, use.stream);
            }
        }
    }

  private:
    bool is_last(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        auto at = live_.find(stream);
        if (at == live_.end()) {
            return true;
        }
        bool last = --at->second == 0;
        if (last) {
            live_.erase(at);
        }
        return last;
    }

    bool lives(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        return live_.count(stream) != 0;
    }

    std::mutex mutex_;
    // How many allocations each has.
    std::unordered_map<Stream, size_t> live_;
};

} // namespace vmm

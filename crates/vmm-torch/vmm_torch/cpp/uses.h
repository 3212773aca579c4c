// Streams other than its own that use an allocation, where libvmm cannot be told of them: those of
// other devices, and all of memory that an allocator of the user's gave. And streams that somebody
// may destroy, which libvmm has to be told.
#pragma once

#include "routes.h"

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

// To be called after memory that a stream used was released: the pool records where the work of an
// external stream ends by now, and does not touch it from then on. What lives on it may do so; its
// release names the stream anew. While a graph is captured the stream stays known, until the next
// release. One that cannot be recorded on is destroyed already, too late to learn anything of it.
inline void forget(vmm_pool_t *pool, const Use &use) {
    if (use.external) {
        (void)lib.forget_stream(pool, use.stream);
    }
}

} // namespace vmm

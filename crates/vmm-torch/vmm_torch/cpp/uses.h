// Streams other than its own that use an allocation.
#pragma once

#include "private.h"

#include <algorithm>

namespace vmm {

// A stream that uses memory.
struct Use {
    Stream stream = nullptr;
    int device = 0;
    // It is neither PyTorch's nor a default one: whoever made it may destroy it at any moment once
    // the memory is released, and before that if it is the memory's own.
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

// A use of memory that was released.
struct End {
    Use use;
    // Behind the work of its stream; NULL: only the idle device tells that it is over.
    Event event = nullptr;
    // What came of recording that.
    Order order = Order::NEVER;
};

using Ends = std::vector<End>;

} // namespace vmm

// What is known of one allocation.
#pragma once

#include "history.h"
#include "uses.h"

namespace vmm {

// One live allocation.
struct Allocation {
    void *ptr = nullptr;
    Stream stream = nullptr;
    size_t requested = 0;
    size_t len = 0;
    PrivatePool *pool = nullptr;
    Context context;
    int device = 0;
    // As in `Use`, of its own stream.
    bool external = false;
    // It has uses in a table, see `Memory::used_on`.
    bool used = false;

    Use own() const { return {stream, device, external}; }
};

// libvmm's lengths are whole units of this many bytes.
inline size_t rounded(size_t len) { return (len + 511) & ~size_t{511}; }

} // namespace vmm

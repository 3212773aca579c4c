// The functions of libvmm, found by name in the library that Python names, so that a library that
// lacks one is an error in words and not a failure of the loader.
#pragma once

#include "vmm.h"

#include <dlfcn.h>

#include <cstdio>
#include <exception>
#include <string>

namespace vmm {

#define VMM_TORCH_FUNCTIONS(FUNCTION)                                                              \
    FUNCTION(add_peer)                                                                             \
    FUNCTION(allocate)                                                                             \
    FUNCTION(device_info)                                                                          \
    FUNCTION(find)                                                                                 \
    FUNCTION(forget_stream)                                                                        \
    FUNCTION(last_error)                                                                           \
    FUNCTION(last_out_of_memory)                                                                   \
    FUNCTION(pool_create)                                                                          \
    FUNCTION(private_allocate)                                                                     \
    FUNCTION(private_allocate_at)                                                                  \
    FUNCTION(private_create)                                                                       \
    FUNCTION(private_release)                                                                      \
    FUNCTION(release)                                                                              \
    FUNCTION(reset_peaks)                                                                          \
    FUNCTION(set_limit)                                                                            \
    FUNCTION(set_target)                                                                           \
    FUNCTION(stats)                                                                                \
    FUNCTION(status_name)                                                                          \
    FUNCTION(trim)                                                                                 \
    FUNCTION(trim_and_wait)                                                                        \
    FUNCTION(used_on)                                                                              \
    FUNCTION(walk)                                                                                 \
    FUNCTION(watch_stream)

struct Library {
#define VMM_TORCH_MEMBER(name) decltype(&::vmm_##name) name = nullptr;
    VMM_TORCH_FUNCTIONS(VMM_TORCH_MEMBER)
#undef VMM_TORCH_MEMBER

    // Loads the library and finds its functions. Returns what is wrong, or an empty text.
    std::string load(const char *path) {
        void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            return std::string("libvmm cannot be loaded: ") + dlerror();
        }
#define VMM_TORCH_FIND(name) name = reinterpret_cast<decltype(name)>(dlsym(handle, "vmm_" #name));
        VMM_TORCH_FUNCTIONS(VMM_TORCH_FIND)
#undef VMM_TORCH_FIND
#define VMM_TORCH_CHECK(name)                                                                      \
    if (name == nullptr) {                                                                         \
        return std::string(path) + " has no vmm_" #name                                            \
                                   ": it is of another version than vmm_torch; install both from " \
                                   "one wheel";                                                    \
    }
        VMM_TORCH_FUNCTIONS(VMM_TORCH_CHECK)
#undef VMM_TORCH_CHECK
        return {};
    }
};

// Set once, before any use, by the call that installs the allocator.
inline Library lib;

// A text made as printf makes it. C++ streams are avoided throughout: where a compiler links
// libstdc++ statically into extensions they crash.
template <typename... Args> std::string format(const char *pattern, Args... args) {
    int length = std::snprintf(nullptr, 0, pattern, args...);
    std::string text(static_cast<size_t>(length > 0 ? length : 0), '\0');
    std::snprintf(text.data(), text.size() + 1, pattern, args...);
    return text;
}

// "1.50 GiB".
inline std::string in_units(uint64_t bytes) {
    const char *units[] = {"KiB", "MiB", "GiB", "TiB"};
    if (bytes < 1024) {
        return format("%llu bytes", static_cast<unsigned long long>(bytes));
    }
    double amount = static_cast<double>(bytes) / 1024;
    int unit = 0;
    for (; amount >= 1024 && unit < 3; ++unit) {
        amount /= 1024;
    }
    return format("%.2f %s", amount, units[unit]);
}

// What the last failed call of this thread came to.
inline std::string fault(vmm_status_t status) {
    const char *text = lib.last_error();
    return text != nullptr && *text != '\0' ? text : lib.status_name(status);
}

inline std::string others_have(uint64_t share) {
    return share == 0 ? "" : ", of which allocators of users have " + in_units(share);
}

// Why the last failed call of this thread got no memory, with a limit for more than the pool, if there is
// one, and what allocators of users have of it.
inline std::string lack(vmm_status_t status, uint64_t limit = 0, uint64_t share = 0) {
    vmm_out_of_memory_t facts = {};
    facts.size = sizeof facts;
    if (status != VMM_OUT_OF_MEMORY || lib.last_out_of_memory(&facts) != VMM_OK) {
        return fault(status) + others_have(limit != 0 ? share : 0);
    }
    std::string text = in_units(facts.live) + " is in use of " + in_units(facts.reserved) +
                       " reserved";
    if (facts.retired != 0) {
        text += ", " + in_units(facts.retired) + " waits for queued work";
    }
    if (facts.limit != 0) {
        text += ", and the limit (VMM_LIMIT, set_limit or the memory fraction) is " +
                in_units(limit != 0 ? limit : facts.limit) + others_have(share);
    }
    if (facts.device_refused != 0) {
        text += ", and the device has no more";
    }
    return text + "; the largest request that fits now is " + in_units(facts.largest_possible);
}

// What the exception says that is being handled.
inline std::string thrown() {
    try {
        throw;
    } catch (const std::exception &error) {
        return error.what();
    } catch (...) {
        return "an exception of an unknown kind";
    }
}

} // namespace vmm

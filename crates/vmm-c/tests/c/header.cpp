// The header in C++17: it compiles without warnings, its functions link as C, and the layout of
// structs is the one that programs were compiled with before. A number that changes here breaks them.
#include <vmm.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <type_traits>

#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

AT(vmm_pool_options_t, size, 0);
AT(vmm_pool_options_t, device_kind, 8);
AT(vmm_pool_options_t, device_ordinal, 12);
AT(vmm_pool_options_t, mock_memory, 16);
AT(vmm_pool_options_t, limit, 24);
AT(vmm_pool_options_t, target, 32);
AT(vmm_pool_options_t, reservation, 40);
AT(vmm_pool_options_t, time_to_live_ns, 48);
AT(vmm_pool_options_t, cross_stream, 56);
AT(vmm_pool_options_t, maintenance, 60);
AT(vmm_pool_options_t, frame_kind, 64);
AT(vmm_pool_options_t, virtual_memory, 68);
AT(vmm_pool_options_t, peers, 72);
AT(vmm_pool_options_t, peer_count, 80);
static_assert(sizeof(vmm_pool_options_t) == 88);

AT(vmm_lease_t, base, 8);
AT(vmm_lease_t, len, 16);
AT(vmm_lease_t, offset, 24);
AT(vmm_lease_t, owner, 32);
AT(vmm_lease_t, count, 36);
static_assert(sizeof(vmm_lease_t) == 40);

AT(vmm_out_of_memory_t, requested, 8);
AT(vmm_out_of_memory_t, largest_possible, 48);
AT(vmm_out_of_memory_t, device_refused, 56);
AT(vmm_out_of_memory_t, device_code, 64);
static_assert(sizeof(vmm_out_of_memory_t) == 72);

AT(vmm_device_info_t, granule, 24);
AT(vmm_device_info_t, remapping, 40);
static_assert(sizeof(vmm_device_info_t) == 56);

AT(vmm_stats_t, live_bytes, 8);
AT(vmm_stats_t, failed_steps, 176);
AT(vmm_stats_t, limit, 184);
AT(vmm_stats_t, address_bytes, 216);
AT(vmm_stats_t, peak_active_bytes, 240);
AT(vmm_stats_t, frame_kind, 256);
static_assert(sizeof(vmm_stats_t) == 272);

AT(vmm_pressure_t, limit, 24);
static_assert(sizeof(vmm_pressure_t) == 32);

static_assert(sizeof(vmm_status_t) == 4 && sizeof(vmm_frame_kind_t) == 4);
static_assert(VMM_NO_TARGET == UINT64_MAX);
static_assert(VMM_PANICKED == 12 && VMM_DEVICE_MOCK == 1 && VMM_FRAME_HOST == 3);
static_assert(std::is_same_v<vmm_stream_t, void *>);

struct destroy {
    void operator()(vmm_pool_t *pool) const {
        if (vmm_pool_destroy(pool) != VMM_OK) {
            std::abort();
        }
    }
};

// Ends after main, with the other statics of the program.
static std::unique_ptr<vmm_pool_t, destroy> kept;

int main() {
    vmm_pool_options_t options{};
    options.size = sizeof options;
    options.device_kind = VMM_DEVICE_MOCK;
    vmm_pool_t *made = nullptr;
    if (vmm_pool_create(&options, &made) != VMM_OK) {
        std::fprintf(stderr, "%s\n", vmm_last_error());
        return 1;
    }
    kept.reset(made);
    void *memory = nullptr;
    if (vmm_allocate(made, 4096, 0, nullptr, 0, &memory) != VMM_OK || memory == nullptr) {
        return 1;
    }
    // Held until the end of the pool, which comes after main: both are allowed.
    return 0;
}

/*
 * Loads the library at run time: neither that nor a pool on the mock device brings a GPU driver into
 * the process, and a pool on a CUDA device that is not there is an error with a text.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <vmm.h>

static int driver_is_loaded(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        found |= strstr(line, "libcuda") != NULL || strstr(line, "libnv") != NULL;
    }
    if (maps != NULL) {
        fclose(maps);
    }
    return found || maps == NULL;
}

#define CHECK(condition)                                              \
    if (!(condition)) {                                               \
        fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
        return 1;                                                     \
    }

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    CHECK(!driver_is_loaded());
    vmm_status_t (*create)(const vmm_pool_options_t *, vmm_pool_t **);
    vmm_status_t (*destroy)(vmm_pool_t *);
    const char *(*last_error)(void);
    *(void **)&create = dlsym(library, "vmm_pool_create");
    *(void **)&destroy = dlsym(library, "vmm_pool_destroy");
    *(void **)&last_error = dlsym(library, "vmm_last_error");
    CHECK(create != NULL && destroy != NULL && last_error != NULL);

    vmm_pool_options_t options = {0};
    options.size = sizeof options;
    options.device_kind = VMM_DEVICE_MOCK;
    vmm_pool_t *pool = NULL;
    CHECK(create(&options, &pool) == VMM_OK && pool != NULL);
    CHECK(destroy(pool) == VMM_OK);
    CHECK(!driver_is_loaded());

    options.device_kind = VMM_DEVICE_CUDA;
    options.device_ordinal = 1000;
    CHECK(create(&options, &pool) == VMM_UNAVAILABLE && pool == NULL);
    CHECK(strlen(last_error()) > 20);
    printf("%s\n", last_error());
    return 0;
}

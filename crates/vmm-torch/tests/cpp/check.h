// What the test programs share: a check that goes on, and the numbers of streams.

#pragma once

#include <cstdint>
#include <cstdio>

namespace {

int failures = 0;

void check(bool holds, const char *what, int line) {
    if (!holds) {
        std::printf("line %d: %s\n", line, what);
        ++failures;
    }
}
#define CHECK(what) check(what, #what, __LINE__)

vmm::Stream stream(uintptr_t number) { return reinterpret_cast<vmm::Stream>(number); }

} // namespace

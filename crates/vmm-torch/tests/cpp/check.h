// What the test programs share: a check that goes on, and the numbers of streams.

#pragma once

#include <sys/wait.h>
#include <unistd.h>

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

// Whether what is run in a fork comes to its end, and soon.
template <typename Body> bool ends_in_a_fork(Body body) {
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        body();
        _exit(0);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0;
}

vmm::Stream stream(uintptr_t number) { return reinterpret_cast<vmm::Stream>(number); }

} // namespace

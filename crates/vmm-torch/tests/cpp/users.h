// An allocator of the user's without a device, and pools that it gives the memory of.

#pragma once

#include "mock.h"

namespace {

constexpr size_t MIB = 1 << 20;

// Waits for the device.
int waits = 0;

// An allocator of the user's that has so many bytes. Its addresses are numbers.
class Users : public torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator {
  public:
    using Base = torch::cuda::CUDAPluggableAllocator::CUDAPluggableAllocator;

    explicit Users(size_t room = size_t{1} << 40)
        : Base([](size_t, int, cudaStream_t) -> void * { return nullptr; },
               [](void *, size_t, int, cudaStream_t) {}),
          room_(room) {}

    void *raw_alloc_with_stream(size_t len, cudaStream_t) override {
        if (auto once = std::exchange(meanwhile, nullptr)) {
            once();
        }
        std::lock_guard<std::mutex> hold(mutex_);
        if (len > room_) {
            if (throws) {
                throw std::runtime_error("the users' allocator has no more");
            }
            return nullptr;
        }
        room_ -= len;
        out += len;
        // As most do, it gives what came back last first.
        auto back = back_.find(len);
        void *ptr = back != back_.end() ? back->second : reinterpret_cast<void *>(next_);
        if (back != back_.end()) {
            back_.erase(back);
        } else {
            next_ += len;
        }
        CHECK(lengths_.emplace(ptr, len).second);
        return ptr;
    }

    void raw_delete(void *ptr) override {
        std::lock_guard<std::mutex> hold(mutex_);
        if (refused > 0) {
            --refused;
            throw std::runtime_error("the users' allocator takes nothing back");
        }
        auto at = lengths_.find(ptr);
        CHECK(at != lengths_.end());
        room_ += at->second;
        out -= at->second;
        back_.emplace(at->second, ptr);
        lengths_.erase(at);
        waits_before = waits;
        ++freed;
    }

    // Bytes that are out.
    std::atomic<size_t> out{0};
    int freed = 0;
    // How many waits there were before the last piece came back.
    int waits_before = -1;
    // Whether a lack is an exception, not NULL.
    bool throws = false;
    // What happens during the next request.
    std::function<void()> meanwhile;
    // So often it takes nothing back.
    int refused = 0;

  private:
    std::mutex mutex_;
    size_t room_;
    std::multimap<size_t, void *> back_;
    uintptr_t next_ = uintptr_t{1} << 50;
    std::map<void *, size_t> lengths_;
};

// A pool whose memory an allocator of the user's gives; it goes with this.
class Pool {
  public:
    explicit Pool(std::shared_ptr<Users> users, bool last_resort = false)
        : users(std::move(users)), name{0, ++count()} {
        allocator().createOrIncrefPool(0, name, this->users);
        allocator().setUseOnOOM(0, name, last_resort);
    }
    ~Pool() {
        allocator().releasePool(0, name);
        allocator().emptyCache(name);
    }

    void *allocate(size_t len, int on = 1) {
        allocator().beginAllocateToPool(0, name, everywhere);
        void *ptr = nullptr;
        failure = failure_of([&] { ptr = memory().allocate(0, len, stream(on)); });
        allocator().endAllocateToPool(0, name);
        allocator().releasePool(0, name);
        return ptr;
    }

    static unsigned long long &count() {
        static unsigned long long count = 100;
        return count;
    }

    std::shared_ptr<Users> users;
    c10::MempoolId_t name;
    // Of the last allocation.
    std::string failure;
};

Routes &routes() { return memory().device(0).routes; }

c10::MempoolId_t pool_of(void *ptr) { return Memory::name_of(memory().ledger.find(ptr)->pool); }

} // namespace

// Memory of a `torch.cuda.MemPool` that was given an allocator of its own.
#pragma once

#include "memory.h"

namespace vmm {

// Passes requests on, and keeps what comes back for requests of the same length and stream: the
// other allocator may unmap memory at once that queued work still uses, so it gets it back only
// when the device is idle. For any thread at any time.
class ForeignSource final : public Source {
  public:
    using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

    ForeignSource(std::shared_ptr<Allocator> allocator, History &history, int device, PoolName name)
        : allocator_(std::move(allocator)), history_(history), device_(device), name_(name) {}

    void *allocate(size_t len, Stream stream) override {
        {
            std::lock_guard<std::mutex> hold(mutex_);
            auto at = kept_.find({len, stream});
            if (at != kept_.end()) {
                void *ptr = at->second;
                kept_.erase(at);
                return ptr;
            }
        }
        void *ptr = allocator_->raw_alloc_with_stream(len, stream);
        note(TraceEntry::SEGMENT_ALLOC, ptr, len, stream);
        return ptr;
    }

    void release(void *ptr, size_t len, Stream stream, bool shared) override {
        std::lock_guard<std::mutex> hold(mutex_);
        (shared ? waiting_ : kept_).emplace(std::pair{len, stream}, ptr);
    }

    void trim() override {
        std::multimap<std::pair<size_t, Stream>, void *> going;
        {
            std::lock_guard<std::mutex> hold(mutex_);
            going.swap(kept_);
            going.merge(waiting_);
        }
        for (auto &[what, ptr] : going) {
            note(TraceEntry::SEGMENT_FREE, ptr, what.first, what.second);
            allocator_->raw_delete(ptr);
        }
    }

  private:
    void note(TraceEntry::Action action, void *ptr, size_t len, Stream stream) {
        if (ptr != nullptr && history_.listening()) {
            history_.note(action, device_, ptr, len, stream, name_, nullptr);
        }
    }

    std::shared_ptr<Allocator> allocator_;
    History &history_;
    int device_;
    PoolName name_;
    std::mutex mutex_;
    std::multimap<std::pair<size_t, Stream>, void *> kept_;
    // Used on several streams: nobody gets these before the device was idle.
    std::multimap<std::pair<size_t, Stream>, void *> waiting_;
};

} // namespace vmm

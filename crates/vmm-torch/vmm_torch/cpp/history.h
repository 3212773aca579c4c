// What happened, for `torch.cuda.memory._record_memory_history` and those who listen.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

namespace vmm {

using c10::CachingDeviceAllocator::AnnotationEntry;
using c10::CachingDeviceAllocator::RecordContext;
using c10::CachingDeviceAllocator::TraceEntry;
using Context = std::shared_ptr<c10::GatheredContext>;

// The last entries of a list that may be bounded.
template <typename Entry> class Ring {
  public:
    void bound(size_t most) {
        most_ = most == 0 ? 1 : most;
        clear();
    }

    void clear() {
        std::vector<Entry>().swap(entries_);
        next_ = 0;
    }

    void add(Entry entry) {
        if (entries_.size() < most_) {
            entries_.push_back(std::move(entry));
        } else {
            entries_[next_] = std::move(entry);
            next_ = (next_ + 1) % most_;
        }
    }

    // Oldest first.
    std::vector<Entry> list() const {
        std::vector<Entry> list;
        list.reserve(entries_.size());
        list.insert(list.end(), entries_.begin() + static_cast<ptrdiff_t>(next_), entries_.end());
        list.insert(list.end(), entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(next_));
        return list;
    }

  private:
    std::vector<Entry> entries_;
    size_t most_ = 1;
    size_t next_ = 0;
};

// For any thread at any time.
class History {
    using CreateContext = c10::CachingDeviceAllocator::CreateContextFn;
    using Tracker = c10::CachingDeviceAllocator::AllocatorTraceTracker;

  public:
    bool enabled() const { return enabled_.load(std::memory_order_relaxed); }

    // The stack of the caller, where stacks are wanted for events of this level. Takes Python's
    // lock maybe, so no lock may be held.
    Context gather(RecordContext level) const {
        if (level_.load(std::memory_order_relaxed) < level) {
            return nullptr;
        }
        CreateContext create = create_.load(std::memory_order_acquire);
        return create != nullptr ? create() : nullptr;
    }

    void configure(bool enabled, CreateContext create, size_t most, RecordContext level, bool clear,
                   const std::vector<std::string> &skipped) {
        TORCH_CHECK(level == RecordContext::NEVER || create != nullptr,
                    "stacks are to be recorded, but nothing is given that gathers them");
        std::lock_guard<std::mutex> hold(mutex_);
        skipped_.clear();
        for (const std::string &action : skipped) {
            skipped_.insert(action_of(action));
        }
        create_.store(enabled ? create : nullptr, std::memory_order_release);
        level_.store(enabled ? level : RecordContext::NEVER, std::memory_order_relaxed);
        enabled_.store(enabled, std::memory_order_relaxed);
        if (most != most_ || clear || !enabled) {
            most_ = most;
            for (Ring<TraceEntry> &ring : traces_) {
                ring.bound(most_);
            }
            annotations_.bound(most_);
        }
        note_listening();
    }

    // No stack is gathered any more. What was recorded stays.
    void stop_gathering() {
        level_.store(RecordContext::NEVER, std::memory_order_relaxed);
        create_.store(nullptr, std::memory_order_release);
    }

    // Whether events have to be noted at all.
    bool listening() const { return listening_.load(std::memory_order_relaxed); }

    // Throws what those who listen throw.
    void note(TraceEntry::Action action, int device, const void *address, size_t len, void *stream,
              c10::MempoolId_t pool, Context context) {
        bool stacks = level_.load(std::memory_order_relaxed) >= RecordContext::ALLOC;
        TraceEntry entry(action, static_cast<c10::DeviceIndex>(device),
                         reinterpret_cast<size_t>(address), len, stream, pool,
                         c10::getApproximateTime(), stacks ? std::move(context) : nullptr,
                         compiling().empty() ? "N/A" : compiling().back(), user_metadata());
        std::lock_guard<std::mutex> hold(mutex_);
        for (const Tracker &tracker : trackers_) {
            tracker(entry);
        }
        if (enabled() && skipped_.count(action) == 0) {
            trace(device).add(std::move(entry));
        }
    }

    void annotate(int device, const std::vector<std::pair<std::string, std::string>> &data) {
        if (!enabled()) {
            return;
        }
        AnnotationEntry entry(static_cast<c10::DeviceIndex>(device), c10::getApproximateTime());
        for (const auto &[name, value] : data) {
            entry.recordUserMetadata(name, value);
        }
        std::lock_guard<std::mutex> hold(mutex_);
        annotations_.add(std::move(entry));
    }

    void track(Tracker tracker) {
        std::lock_guard<std::mutex> hold(mutex_);
        trackers_.push_back(std::move(tracker));
        note_listening();
    }

    // The events of each device, and annotations, with times in microseconds.
    std::vector<std::vector<TraceEntry>> traces(int devices) {
        auto to_ns = clock_.makeConverter();
        std::lock_guard<std::mutex> hold(mutex_);
        std::vector<std::vector<TraceEntry>> lists;
        for (int device = 0; device < devices; ++device) {
            lists.push_back(trace(device).list());
            for (TraceEntry &entry : lists.back()) {
                entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
            }
        }
        return lists;
    }

    std::vector<AnnotationEntry> annotations() {
        auto to_ns = clock_.makeConverter();
        std::lock_guard<std::mutex> hold(mutex_);
        std::vector<AnnotationEntry> list = annotations_.list();
        for (AnnotationEntry &entry : list) {
            entry.time_.t_ = to_ns(entry.time_.approx_t_) / 1000;
        }
        return list;
    }

    // What this thread compiles, innermost last.
    static std::vector<std::string> &compiling() {
        static thread_local std::vector<std::string> names;
        return names;
    }

    static std::string &user_metadata() {
        static thread_local std::string text;
        return text;
    }

  private:
    static TraceEntry::Action action_of(const std::string &name) {
        static const std::pair<const char *, TraceEntry::Action> ACTIONS[] = {
            {"alloc", TraceEntry::ALLOC},
            {"free_requested", TraceEntry::FREE_REQUESTED},
            {"free_completed", TraceEntry::FREE_COMPLETED},
            {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
            {"segment_free", TraceEntry::SEGMENT_FREE},
            {"segment_map", TraceEntry::SEGMENT_MAP},
            {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
            {"snapshot", TraceEntry::SNAPSHOT},
            {"oom", TraceEntry::OOM},
        };
        for (const auto &[known, action] : ACTIONS) {
            if (name == known) {
                return action;
            }
        }
        throw std::runtime_error("there is no action \"" + name + "\" in a memory history");
    }

    // `mutex_` is held in both.
    Ring<TraceEntry> &trace(int device) {
        while (traces_.size() <= static_cast<size_t>(device)) {
            traces_.emplace_back().bound(most_);
        }
        return traces_[static_cast<size_t>(device)];
    }

    void note_listening() {
        listening_.store(enabled() || !trackers_.empty(), std::memory_order_relaxed);
    }

    std::atomic<bool> enabled_{false};
    std::atomic<bool> listening_{false};
    std::atomic<RecordContext> level_{RecordContext::NEVER};
    std::atomic<CreateContext> create_{nullptr};
    std::mutex mutex_;
    size_t most_ = 1;
    std::vector<Ring<TraceEntry>> traces_;
    Ring<AnnotationEntry> annotations_;
    std::unordered_set<TraceEntry::Action> skipped_;
    std::vector<Tracker> trackers_;
    c10::ApproximateClockToUnixTimeConverter clock_;
};

} // namespace vmm

// The private pools of a device, and which allocations they get.
#pragma once

#include "private.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <unordered_map>

namespace vmm {

// The calling thread: each has one of these, which goes when the thread ends.
inline const std::shared_ptr<const char> &this_thread() {
    thread_local const std::shared_ptr<const char> own = std::make_shared<const char>();
    return own;
}

// The private pools of one device. Not for several threads at once, but for `any`.
class Routes {
  public:
    // Whether a stream captures a graph, or has a capture that failed and was not ended; nothing
    // where it cannot say, as the legacy stream while another one captures. Empty: none captures.
    std::function<std::optional<bool>(Stream)> is_capturing;
    // Waits for all work of the device, and is false if that cannot be done. Empty: no need to.
    std::function<bool()> wait;
    // Held while `wait` runs, and while the route of a capture begins; see settle.h. Taken before
    // the lock that guards the rest, and not held while an allocator of users is called.
    std::mutex gate;
    // Time passes; tests say how.
    std::chrono::steady_clock::time_point (*clock)() = &std::chrono::steady_clock::now;

    // Whether an allocation may belong to a private pool at all.
    bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

    // The pool that an allocation on this stream belongs to, NULL for the general one. Of nested
    // ones the innermost.
    PrivatePool *route(Stream stream) {
        note_return();
        for (auto at = underway_.rbegin(); at != underway_.rend(); ++at) {
            if (at->filter(stream)) {
                if (captures(stream)) {
                    at->captured_on = stream;
                    at->pool->captured = true;
                }
                return at->pool;
            }
        }
        return nullptr;
    }

    PrivatePool *find(PoolName name) {
        auto at = pools_.find(name);
        return at == pools_.end() ? nullptr : at->second.get();
    }

    // The names of the pools by libvmm's numbers.
    std::unordered_map<uint64_t, PoolName> names() const {
        std::unordered_map<uint64_t, PoolName> found;
        for (const auto &[name, pool] : pools_) {
            if (pool->id != 0) {
                found.emplace(pool->id, name);
            }
        }
        return found;
    }

    // Whether a pool of this name is gone, and has allocations that live on.
    bool outlived(PoolName name) const {
        return std::any_of(outlived_.begin(), outlived_.end(),
                           [&](const auto &pool) { return pool->name == name; });
    }

    // Adds a user to a pool. For its first one there is a source, or what libvmm has made.
    PrivatePool *use(Fresh &fresh, PoolName name, std::shared_ptr<Source> source = nullptr) {
        auto at = pools_.find(name);
        if (at == pools_.end()) {
            at = pools_.emplace(name, std::make_unique<PrivatePool>()).first;
            PrivatePool &made = *at->second;
            made.name = name;
            made.id = source == nullptr ? fresh.take() : 0;
            made.source = std::move(source);
        }
        ++at->second->users;
        return at->second.get();
    }

    // `stream` is the current one; `opening`: a capture is about to begin on it.
    void begin(Fresh &fresh, PoolName name, Filter filter, Stream stream, bool opening) {
        // One that failed may be tried again.
        drop_failed();
        for (const Route &route : underway_) {
            if (route.pool->name == name) {
                throw std::runtime_error("vmm_torch: allocations already go to this memory pool; "
                                         "end that before beginning anew");
            }
        }
        dropped_.erase(std::remove(dropped_.begin(), dropped_.end(), name), dropped_.end());
        // A capture whose route had ended goes on with this one.
        auto paused = paused_.find({name, stream});
        bool goes_on = paused != paused_.end() && paused->second && may_capture(stream);
        underway_.reserve(underway_.size() + 1);
        underway_.push_back({use(fresh, name), std::move(filter), stream, stream, this_thread(),
                             opening || goes_on, opening, clock()});
        count_.store(underway_.size(), std::memory_order_relaxed);
    }

    void end(PoolName name) {
        for (auto at = underway_.begin(); at != underway_.end(); ++at) {
            if (at->pool->name == name) {
                for (Stream stream : {at->stream, at->captured_on}) {
                    if (may_capture(stream)) {
                        paused_[{name, stream}] |= at->of_capture;
                    }
                }
                underway_.erase(at);
                count_.store(underway_.size(), std::memory_order_relaxed);
                return;
            }
        }
        // Its capture failed, and this is the end of it all the same: its user is one again.
        auto failed = std::find(dropped_.begin(), dropped_.end(), name);
        if (failed == dropped_.end()) {
            throw std::runtime_error("vmm_torch: no allocations go to this memory pool");
        }
        dropped_.erase(failed);
        ++find(name)->users;
    }

    // A user lets go. The memory stays the pool's until `settle`: a graph that was replayed may
    // still run, on streams that nobody knows.
    void release(PoolName name) {
        PrivatePool *pool = find(name);
        if (pool == nullptr || pool->users == 0) {
            throw std::runtime_error("vmm_torch: there is no such memory pool to release");
        }
        leave(*pool);
    }

    // Whether a stream captures a graph on which a route began or that allocated from one, or is
    // about to. Routes may have ended since: libraries end that of a capture and begin it again.
    bool capturing() {
        for (auto at = paused_.begin(); at != paused_.end();) {
            at = may_capture(at->first.second) ? std::next(at) : paused_.erase(at);
        }
        return !paused_.empty() ||
               std::any_of(underway_.begin(), underway_.end(), [&](const Route &route) {
                   bool soon = route.opening && !route.thread.expired() &&
                               clock() - route.begun < LONGEST_OPENING;
                   return (soon && is_capturing) || may_capture(route);
               });
    }

    // Ends the routes of captures that failed. PyTorch forgets them: it neither ends such a route nor
    // releases the pool. A route of this very thread whose capture is over can be none that is just
    // about to be ended, nor can one of a thread that has ended. Routes that are for no capture end
    // when their users say so, whatever was captured meanwhile.
    void drop_failed() {
        note_return();
        for (auto at = underway_.begin(); at != underway_.end();) {
            bool near = at->thread.expired() || at->thread.lock() == this_thread();
            bool over = at->of_capture && near && is_capturing && !may_capture(*at);
            if (over) {
                leave(*at->pool);
                dropped_.push_back(at->pool->name);
            }
            at = over ? underway_.erase(at) : at + 1;
        }
        count_.store(underway_.size(), std::memory_order_relaxed);
    }

    // Whether a pool may serve everyone when there is no other memory: what is free in it belongs
    // to no graph, and nothing is captured with it.
    bool is_spare(const PrivatePool &pool) const {
        return pool.last_resort && pool.users != 0 && !pool.captured &&
               std::none_of(underway_.begin(), underway_.end(),
                            [&](const Route &route) { return route.pool == &pool; });
    }

    // Moments are counted by what was let go, so that what is let go while the device is waited for
    // is told from what was before.
    uint64_t now() const { return now_; }
    uint64_t next_moment() { return ++now_; }

    // Whether there are pools without users, whose memory waits for `settle`.
    bool unsettled() const {
        return std::any_of(pools_.begin(), pools_.end(),
                           [](const auto &entry) { return entry.second->users == 0; });
    }

    // Gives back the memory of the pools that had no users at a moment, and have had none since.
    // The device has been idle since that moment.
    void settle(vmm_pool_t *pool, uint64_t moment) {
        drop(pool, [&](const PrivatePool &own) { return own.left <= moment; });
    }

    // Gives back the memory of pools without users that needs no wait: no graph uses it, and libvmm
    // knows of all other work.
    void drop_uncaptured(vmm_pool_t *pool) {
        drop(pool, [](const PrivatePool &own) { return !own.captured && own.source == nullptr; });
    }

    // The sources with free memory whose pools nobody refers to, and that of one more pool if no graph
    // uses it. Others keep what they have: to give memory back, and to make it anew, may be a matter for
    // all ranks of a job, as with NVSHMEM.
    Sources spare(std::optional<PoolName> also) const {
        Sources found;
        auto add = [&](const std::shared_ptr<Source> &source) {
            bool any = false;
            source->each([&](const Piece &piece) { any = any || !piece.live; });
            if (any) {
                found.push_back(source);
            }
        };
        for (const auto &[name, pool] : pools_) {
            if (pool->source != nullptr && (pool->users == 0 || (name == also && !pool->captured))) {
                add(pool->source);
            }
        }
        each_left(add);
        return found;
    }

    // Takes out the sources that have neither pool nor memory any more: they end without the lock.
    Sources done() {
        auto rest = std::partition(sources_left_.begin(), sources_left_.end(),
                                   [](const auto &source) { return !source->empty(); });
        Sources gone(std::make_move_iterator(rest), std::make_move_iterator(sources_left_.end()));
        sources_left_.erase(rest, sources_left_.end());
        return gone;
    }

    void began(PrivatePool *pool) { ++pool->live; }

    // An allocation of a private pool has ended.
    void ended(PrivatePool *pool) {
        if (--pool->live != 0 || outlived_.empty()) {
            return;
        }
        for (auto at = outlived_.begin(); at != outlived_.end(); ++at) {
            if (at->get() == pool) {
                if (pool->source != nullptr) {
                    sources_left_.push_back(pool->source);
                }
                outlived_.erase(at);
                return;
            }
        }
    }

    template <typename Visit> void each(Visit visit) {
        for (auto &entry : pools_) {
            visit(*entry.second);
        }
    }

    // The pieces of all sources, also of those whose pools are gone.
    template <typename Visit> void each_piece(Visit visit) const {
        for (const auto &[name, pool] : pools_) {
            if (pool->source != nullptr) {
                pool->source->each(visit);
            }
        }
        each_left([&](const std::shared_ptr<Source> &source) { source->each(visit); });
    }

  private:
    // From `begin` to `end`: allocations that the filter takes go to the pool.
    struct Route {
        PrivatePool *pool;
        Filter filter;
        Stream stream;
        // The last one that was seen to capture an allocation.
        Stream captured_on;
        std::weak_ptr<const char> thread;
        // It is that of a capture: it began right before one, or during it.
        bool of_capture;
        // The capture may begin at any moment: nobody says when it does.
        bool opening;
        std::chrono::steady_clock::time_point begun;
    };

    // A capture that has not begun by then never will: its thread got an error, and does other
    // things now, or none.
    static constexpr std::chrono::seconds LONGEST_OPENING{10};

    bool captures(Stream stream) const {
        return is_capturing && is_capturing(stream).value_or(false);
    }
    bool may_capture(Stream stream) const {
        return is_capturing && is_capturing(stream).value_or(true);
    }
    bool may_capture(const Route &route) const {
        return may_capture(route.stream) || may_capture(route.captured_on);
    }

    // PyTorch begins a capture right after its route, on the same thread. So when that thread is
    // here again the capture has begun, and can be asked about, or never will.
    void note_return() {
        for (Route &route : underway_) {
            route.opening = route.opening && route.thread.lock() != this_thread();
        }
    }

    // Visits the sources of pools that are gone.
    template <typename Visit> void each_left(Visit visit) const {
        for (const auto &pool : outlived_) {
            if (pool->source != nullptr) {
                visit(pool->source);
            }
        }
        std::for_each(sources_left_.begin(), sources_left_.end(), visit);
    }

    // Of the pools without users.
    template <typename Goes> void drop(vmm_pool_t *pool, Goes goes) {
        for (auto at = pools_.begin(); at != pools_.end();) {
            PrivatePool &own = *at->second;
            if (own.users != 0 || !goes(own)) {
                ++at;
                continue;
            }
            dropped_.erase(std::remove(dropped_.begin(), dropped_.end(), own.name), dropped_.end());
            if (own.id != 0) {
                lib.private_release(pool, own.id);
            }
            if (own.live != 0) {
                // Its last allocation, at whose end `ended` drops it, still refers to it.
                outlived_.push_back(std::move(at->second));
            } else if (own.source != nullptr) {
                sources_left_.push_back(own.source);
            }
            at = pools_.erase(at);
        }
    }

    void leave(PrivatePool &pool) {
        --pool.users;
        pool.left = next_moment();
    }

    std::map<PoolName, std::unique_ptr<PrivatePool>> pools_;
    // Given back, with allocations that live on.
    std::vector<std::unique_ptr<PrivatePool>> outlived_;
    // Of pools that are gone, and their allocations as well.
    Sources sources_left_;
    std::vector<Route> underway_;
    // Streams on which routes of pools ended during a capture, and whether they were that capture's.
    std::map<std::pair<PoolName, Stream>, bool> paused_;
    // Of failed captures, as long as they have their pool.
    std::vector<PoolName> dropped_;
    uint64_t now_ = 0;
    std::atomic<size_t> count_{0};
};

} // namespace vmm

// Private pools: memory that only some allocations get, those of a captured graph say, and which
// allocations these are.
#pragma once

#include "pools.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

struct CUstream_st;

namespace vmm {

// PyTorch's name of a private pool: c10::MempoolId_t.
using PoolName = std::pair<unsigned long long, unsigned long long>;
// cudaStream_t.
using Stream = CUstream_st *;
using Filter = std::function<bool(Stream)>;

struct Use;
using Uses = std::vector<Use>;

// A piece of memory that an allocator of the user's gave, and what was cut from it.
struct Piece {
    // LEFT: released, but work on other streams than the piece's may still use it. LOST: of a piece
    // that can only be given back.
    enum State { LIVE, FREE, LEFT, LOST };
    struct Block {
        size_t len = 0;
        State state = LIVE;
        // When it was released last, see `Routes::now`.
        uint64_t left = 0;
        // How many streams it waits for.
        size_t uses = 0;
    };
    using Blocks = std::map<void *, Block>;

    void *ptr = nullptr;
    size_t len = 0;
    Stream stream = nullptr;
    PoolName pool;
    // Pieces are numbered as they come.
    int32_t number = 0;
    // It serves requests up to 1 MiB, or longer ones.
    bool is_short = false;
    // By their addresses, without gaps; so many of them are in use.
    Blocks blocks;
    size_t live = 0;
    // When one was released last.
    uint64_t left = 0;
    // Whether those who listen were told of it; half where one of them threw.
    enum { UNKNOWN, HALF_KNOWN, KNOWN } told = HALF_KNOWN;
};

// Where the memory of a private pool comes from if not from libvmm. What says so is called with the
// lock that guards the routes, all else without any: it calls allocators of users.
struct Source {
    virtual ~Source() = default;
    // NULL if there is no more, for which `lack` is the reason then.
    virtual void *allocate(size_t len, Stream stream, std::string &lack) = 0;
    // As `allocate`, from what was given before and is free now.
    virtual void *reuse(size_t len, Stream stream) = 0;
    // `uses`: streams beside its own, those of other devices being before that one.
    virtual void release(void *ptr, const Uses &uses) = 0;
    // Gives those pieces back to where they came from that nobody has held since a moment. Those
    // that it cannot give back it keeps. The device has been idle since that moment.
    virtual void give_back(uint64_t moment) = 0;
    // Visits all pieces, with the lock.
    virtual void each(const std::function<void(const Piece &)> &visit) const = 0;
    // Whether there is none, with the lock.
    virtual bool empty() const = 0;
};

using Sources = std::vector<std::shared_ptr<Source>>;

struct PrivatePool {
    PoolName name;
    // libvmm's name; 0 with a source of its own.
    uint64_t id = 0;
    // Graphs, MemPool objects and contexts that refer to it.
    int users = 0;
    // When the last of them let go, see `Routes::now`.
    uint64_t left = 0;
    // Allocations in it that live.
    size_t live = 0;
    // Its memory may serve others when there is no other.
    bool last_resort = false;
    // A graph was captured with it: while it has users, what was released in it is in use still.
    bool captured = false;
    std::shared_ptr<Source> source;
};

// The calling thread: each has one of these, which goes when the thread ends.
inline const std::shared_ptr<const char> &this_thread() {
    thread_local const std::shared_ptr<const char> own = std::make_shared<const char>();
    return own;
}

// The private pools of one device. Not for several threads at once, but for `any`.
class Routes {
  public:
    // Whether a stream captures a graph, or has a capture that failed and was not ended; NULL where
    // that cannot be asked.
    bool (*is_capturing)(Stream) = nullptr;
    // Waits for all work of the device, and is false if that cannot be done. Empty: no need to.
    std::function<bool()> wait;
    // Held while `wait` runs, and while the route of a capture begins; see settle.h. Taken before
    // the lock that guards the rest, and not held while an allocator of users is called.
    std::mutex gate;

    // Whether an allocation may belong to a private pool at all.
    bool any() const { return count_.load(std::memory_order_relaxed) != 0; }

    // The pool that an allocation on this stream belongs to, NULL for the general one. Of nested
    // ones the innermost.
    PrivatePool *route(Stream stream) {
        note_return();
        for (auto at = underway_.rbegin(); at != underway_.rend(); ++at) {
            if (at->filter(stream)) {
                at->captured = at->captured || (is_capturing != nullptr && is_capturing(stream));
                at->pool->captured = at->pool->captured || at->captured;
                return at->pool;
            }
        }
        return nullptr;
    }

    PrivatePool *find(PoolName name) {
        auto at = pools_.find(name);
        return at == pools_.end() ? nullptr : at->second.get();
    }

    // The name of a pool by libvmm's number; that of the general one if there is none.
    PoolName name_of(uint64_t id) const {
        for (const auto &[name, pool] : pools_) {
            if (id != 0 && pool->id == id) {
                return name;
            }
        }
        return {0, 0};
    }

    // Adds a user to a pool, and makes it for the first one.
    PrivatePool *use(vmm_pool_t *pool, PoolName name, std::shared_ptr<Source> source = nullptr) {
        std::unique_ptr<PrivatePool> &slot = pools_[name];
        if (slot == nullptr) {
            auto made = std::make_unique<PrivatePool>();
            made->name = name;
            if (source == nullptr) {
                vmm_status_t status = lib.private_create(pool, &made->id);
                if (status != VMM_OK) {
                    pools_.erase(name);
                    throw std::runtime_error("vmm_torch: " + fault(status));
                }
            }
            made->source = std::move(source);
            slot = std::move(made);
        }
        ++slot->users;
        return slot.get();
    }

    // `stream` is the current one; `opening`: a capture is about to begin on it.
    void begin(vmm_pool_t *pool, PoolName name, Filter filter, Stream stream, bool opening) {
        for (const Route &route : underway_) {
            if (route.pool->name == name) {
                throw std::runtime_error("vmm_torch: allocations already go to this memory pool; "
                                         "end that before beginning anew");
            }
        }
        note_return();
        PrivatePool *target = use(pool, name);
        underway_.push_back({target, std::move(filter), stream, this_thread(), opening, false});
        count_.store(underway_.size(), std::memory_order_relaxed);
    }

    void end(PoolName name) {
        for (auto at = underway_.begin(); at != underway_.end(); ++at) {
            if (at->pool->name == name) {
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

    // Whether one of the streams on which routes began captures a graph, or is about to.
    bool capturing() const {
        for (const Route &route : underway_) {
            bool soon = route.opening && !route.thread.expired();
            if (is_capturing != nullptr && (soon || is_capturing(route.stream))) {
                return true;
            }
        }
        return false;
    }

    // Ends the routes of captures that failed. PyTorch forgets them: it neither ends such a route nor
    // releases the pool. A route of this very thread whose capture is over can be none that is just
    // about to be ended, nor can one of a thread that has ended.
    void drop_failed() {
        note_return();
        for (auto at = underway_.begin(); at != underway_.end();) {
            bool near = at->thread.expired() || at->thread.lock() == this_thread();
            bool over = at->captured && near && !is_capturing(at->stream);
            if (over) {
                leave(*at->pool);
                dropped_.push_back(at->pool->name);
            }
            at = over ? underway_.erase(at) : at + 1;
        }
        count_.store(underway_.size(), std::memory_order_relaxed);
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
        for (auto at = pools_.begin(); at != pools_.end();) {
            PrivatePool &own = *at->second;
            if (own.users != 0 || own.left > moment) {
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
        std::weak_ptr<const char> thread;
        // A capture may begin at any moment: nobody says when it does.
        bool opening;
        // An allocation of it was captured.
        bool captured;
    };

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
    // Of failed captures, as long as they have their pool.
    std::vector<PoolName> dropped_;
    uint64_t now_ = 0;
    std::atomic<size_t> count_{0};
};

// Keeps a private pool from being dropped while an allocation in it is under way.
class Hold {
  public:
    // `mutex` guards the routes.
    Hold(std::mutex &mutex, Routes &routes) : mutex_(mutex), routes_(routes) {}
    Hold(const Hold &) = delete;
    Hold &operator=(const Hold &) = delete;
    ~Hold() { let_go(); }

    // Holds the pool that an allocation on this stream belongs to, if any.
    void take(Stream stream) {
        std::lock_guard<std::mutex> hold(mutex_);
        pool = routes_.route(stream);
        if (pool != nullptr) {
            routes_.began(pool);
        }
    }

    // Lets go of the pool and holds this one. False if that is gone.
    bool change(PoolName name) {
        let_go();
        std::lock_guard<std::mutex> hold(mutex_);
        PrivatePool *other = routes_.find(name);
        if (other == nullptr || other->users == 0) {
            return false;
        }
        pool = other;
        routes_.began(pool);
        return true;
    }

    // The allocation was made: it holds the pool from now on.
    PrivatePool *keep() { return std::exchange(pool, nullptr); }

    PrivatePool *pool = nullptr;

  private:
    void let_go() {
        if (pool != nullptr) {
            std::lock_guard<std::mutex> hold(mutex_);
            routes_.ended(std::exchange(pool, nullptr));
        }
    }

    std::mutex &mutex_;
    Routes &routes_;
};

} // namespace vmm

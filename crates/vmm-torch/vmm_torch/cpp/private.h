// Private pools: memory that only some allocations get, those of a captured graph say.
#pragma once

#include "pools.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

struct CUstream_st;

namespace vmm {

// PyTorch's name of a private pool: c10::MempoolId_t.
using PoolName = std::pair<unsigned long long, unsigned long long>;
// cudaStream_t.
using Stream = CUstream_st *;
using Filter = std::function<bool(Stream)>;

struct End;
using Ends = std::vector<End>;

// What allocators of users are asked for, for so many bytes: those that map memory give 2 MiB at least.
inline size_t whole_pieces(size_t len) {
    constexpr size_t LEAST = 2 << 20;
    return (len + LEAST - 1) / LEAST * LEAST;
}

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
    // `ends`: of streams beside its own that used it. Their events are the source's.
    virtual void release(void *ptr, const Ends &ends) = 0;
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

// A private pool of libvmm's that is nobody's yet; it goes with this unless it is taken. It is made
// without the lock that guards the routes: that records a fence on every stream, which waits where
// a stream's queue is full.
class Fresh {
  public:
    explicit Fresh(vmm_pool_t *pool) : pool_(pool) {}
    Fresh(const Fresh &) = delete;
    Fresh &operator=(const Fresh &) = delete;
    ~Fresh() {
        if (id_ != 0) {
            lib.private_release(pool_, id_);
        }
    }

    void make() {
        if (vmm_status_t status = lib.private_create(pool_, &id_); status != VMM_OK) {
            throw std::runtime_error("vmm_torch: " + fault(status));
        }
    }
    bool made() const { return id_ != 0; }
    uint64_t take() { return std::exchange(id_, 0); }

  private:
    vmm_pool_t *pool_;
    uint64_t id_ = 0;
};

} // namespace vmm

// Memory of a `torch.cuda.MemPool` that was given an allocator of its own.
#pragma once

#include "memory.h"

#include <set>
#include <tuple>

namespace vmm {

// Asks for pieces, and cuts requests from them: such allocators give whole granules, and take long.
// What comes back serves requests of the same stream, once the work of others that used it is over.
// The other allocator may unmap memory at once that queued work still uses, so it gets a piece back
// only when the device is idle. For any thread at any time.
class ForeignSource final : public Source {
  public:
    using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

    ForeignSource(std::shared_ptr<Allocator> allocator, Memory &memory, int device, PoolName name)
        : allocator_(std::move(allocator)), memory_(memory), own_(memory.device(device)),
          device_(device), name_(name) {}

    void *allocate(size_t len, Stream stream, std::string &lack) override {
        if (void *ptr = reuse(len, stream)) {
            return ptr;
        }
        size_t longer = whole_pieces(len);
        vmm_stats_t beside = memory_.pool_stats(device_);
        Share share(memory_.pools, device_, longer);
        if (!share.taken()) {
            lack = format("the limit of %s has no room for %s more beside %s",
                          in_units(beside.limit).c_str(), in_units(longer).c_str(),
                          in_units(beside.reserved_bytes + memory_.pools.share(device_)).c_str());
            return nullptr;
        }
        void *ptr = allocator_->raw_alloc_with_stream(longer, stream);
        if (ptr == nullptr) {
            lack = "the allocator of this memory pool has no more";
            return nullptr;
        }
        share.keep();
        Piece piece;
        size_t back = 0;
        {
            std::lock_guard<std::mutex> hold(memory_.mutex);
            piece.ptr = ptr;
            piece.len = longer;
            piece.stream = stream;
            piece.pool = name_;
            piece.number = ++memory_.pieces_made;
            piece.is_short = len <= SMALL;
            piece.live = 1;
            piece.blocks[ptr].len = longer;
            auto [at, is_new] = pieces_.emplace(ptr, piece);
            if (!is_new) {
                // It did come back, though the call that gave it back threw.
                back = at->second.len;
                own_.statistics.foreign_gone(back, beside.reserved_bytes);
                at->second = piece;
            }
            own_.statistics.foreign_made(longer, beside.reserved_bytes);
        }
        if (back != 0) {
            memory_.pools.give_share(device_, back);
        }
        try {
            note(TraceEntry::SEGMENT_ALLOC, piece);
        } catch (...) {
            std::lock_guard<std::mutex> hold(memory_.mutex);
            lose(pieces_.at(ptr));
            throw;
        }
        std::lock_guard<std::mutex> hold(memory_.mutex);
        Piece &kept = pieces_.at(ptr);
        kept.told = Piece::KNOWN;
        cut(kept, kept.blocks.begin(), len);
        return ptr;
    }

    void *reuse(size_t len, Stream stream) override {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        free_what_is_over();
        auto at = free_.lower_bound({stream, len <= SMALL, len, nullptr});
        if (at == free_.end() || std::get<0>(*at) != stream || std::get<1>(*at) != (len <= SMALL)) {
            return nullptr;
        }
        void *ptr = std::get<3>(*at);
        free_.erase(at);
        Piece &piece = piece_of(ptr);
        auto block = piece.blocks.find(ptr);
        block->second.state = Piece::LIVE;
        ++piece.live;
        cut(piece, block, len);
        return ptr;
    }

    void release(void *ptr, const Ends &ends) override {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        Piece &piece = piece_of(ptr);
        Piece::Block &block = piece.blocks.at(ptr);
        --piece.live;
        piece.left = block.left = own_.routes.next_moment();
        if (ends.empty()) {
            set_free(piece, ptr);
            return;
        }
        block.state = Piece::LEFT;
        // Also those that never come: only the idle device tells that such a use is over.
        block.uses = ends.size();
        for (const End &end : ends) {
            if (end.event != nullptr) {
                ends_[end.use.stream].emplace_back(end.event, ptr);
            }
        }
    }

    void give_back(uint64_t moment) override {
        std::vector<void *> going;
        {
            std::lock_guard<std::mutex> hold(memory_.mutex);
            for (auto &[ptr, piece] : pieces_) {
                free_what_was_left(piece, moment);
                going.push_back(ptr);
            }
        }
        for (void *ptr : going) {
            if (std::optional<Piece> piece = take_out(ptr, moment)) {
                give_back(*piece);
            }
        }
    }

    void each(const std::function<void(const Piece &)> &visit) const override {
        for (const auto &[ptr, piece] : pieces_) {
            visit(piece);
        }
    }

    bool empty() const override { return pieces_.empty() && going_ == 0; }

  private:
    // A part of the device's limit, taken before memory is asked for, so that requests do not pass the
    // limit together. It is given back with this unless it is kept.
    class Share {
      public:
        Share(Pools &pools, int device, size_t len)
            : pools_(pools), device_(device), len_(pools.take_share(device, len) ? len : 0) {}
        Share(const Share &) = delete;
        Share &operator=(const Share &) = delete;
        ~Share() {
            if (len_ != 0) {
                pools_.give_share(device_, len_);
            }
        }
        bool taken() const { return len_ != 0; }
        void keep() { len_ = 0; }

      private:
        Pools &pools_;
        int device_;
        size_t len_;
    };

    // `memory_.mutex` is held in all that follow up to `take_out`.

    Piece &piece_of(void *ptr) { return std::prev(pieces_.upper_bound(ptr))->second; }

    // Leaves a block that long, and the rest free.
    void cut(Piece &piece, Piece::Blocks::iterator block, size_t len) {
        size_t rest = block->second.len - len;
        if (rest != 0) {
            void *after = static_cast<char *>(block->first) + len;
            block->second.len = len;
            piece.blocks[after].len = rest;
            set_free(piece, after);
        }
    }

    // Joins it with free neighbours.
    void set_free(Piece &piece, void *ptr) {
        auto at = piece.blocks.find(ptr);
        if (auto next = std::next(at);
            next != piece.blocks.end() && next->second.state == Piece::FREE) {
            free_.erase(key(piece, *next));
            at->second.len += next->second.len;
            piece.blocks.erase(next);
        }
        if (at != piece.blocks.begin() && std::prev(at)->second.state == Piece::FREE) {
            auto before = std::prev(at);
            free_.erase(key(piece, *before));
            before->second.len += at->second.len;
            piece.blocks.erase(at);
            at = before;
        }
        at->second.state = Piece::FREE;
        free_.insert(key(piece, *at));
    }

    void free_what_is_over() {
        for (auto queue = ends_.begin(); queue != ends_.end();) {
            auto &ends = queue->second;
            while (!ends.empty() && memory_.returns.orders->is_over(ends.front().first)) {
                auto [event, ptr] = ends.front();
                ends.pop_front();
                memory_.returns.orders->destroy(event);
                Piece &piece = piece_of(ptr);
                if (--piece.blocks.at(ptr).uses == 0) {
                    set_free(piece, ptr);
                }
            }
            queue = ends.empty() ? ends_.erase(queue) : std::next(queue);
        }
    }

    // The device has been idle since that moment.
    void free_what_was_left(Piece &piece, uint64_t moment) {
        std::vector<void *> over;
        for (const auto &[ptr, block] : piece.blocks) {
            if (block.state == Piece::LEFT && block.left <= moment) {
                over.push_back(ptr);
            }
        }
        for (void *ptr : over) {
            for (auto &[stream, ends] : ends_) {
                auto is_of_it = [&](const auto &end) {
                    if (end.second == ptr) {
                        memory_.returns.orders->destroy(end.first);
                    }
                    return end.second == ptr;
                };
                ends.erase(std::remove_if(ends.begin(), ends.end(), is_of_it), ends.end());
            }
            set_free(piece, ptr);
        }
    }

    // It serves nobody, until it goes.
    void lose(Piece &piece) {
        piece.live = 0;
        piece.left = own_.routes.next_moment();
        piece.blocks = {{piece.ptr, {piece.len, Piece::LOST}}};
    }

    // A piece that nobody has held since a moment. It is on its way then, since its address may
    // come anew before the call that gives it back is over.
    std::optional<Piece> take_out(void *ptr, uint64_t moment) {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        auto at = pieces_.find(ptr);
        if (at == pieces_.end() || at->second.live != 0 || at->second.left > moment) {
            return std::nullopt;
        }
        Piece piece = std::move(at->second);
        for (const auto &block : piece.blocks) {
            free_.erase(key(piece, block));
        }
        pieces_.erase(at);
        ++going_;
        return piece;
    }

    void give_back(Piece piece) {
        uint64_t beside = 0;
        try {
            beside = memory_.pool_stats(device_).reserved_bytes;
            note_going(piece);
            allocator_->raw_delete(piece.ptr);
        } catch (...) {
            std::fprintf(stderr,
                         "vmm_torch: the allocator of a memory pool cannot have %p back yet: %s\n",
                         piece.ptr, thrown().c_str());
            // Nobody gets it, since nobody knows what it is by now. The next time it is tried once
            // more.
            std::lock_guard<std::mutex> hold(memory_.mutex);
            lose(piece);
            if (pieces_.emplace(piece.ptr, piece).second) {
                --going_;
                return;
            }
            // By now its address has come anew.
        }
        memory_.pools.give_share(device_, piece.len);
        std::lock_guard<std::mutex> hold(memory_.mutex);
        --going_;
        own_.statistics.foreign_gone(piece.len, beside);
    }

    // Throws if somebody who knows the piece does.
    void note_going(Piece &piece) {
        try {
            if (piece.told != Piece::UNKNOWN) {
                note(TraceEntry::SEGMENT_FREE, piece);
            }
        } catch (...) {
            // Who never knew it may well throw.
            if (piece.told == Piece::KNOWN) {
                throw;
            }
        }
        piece.told = Piece::UNKNOWN;
    }

    void note(TraceEntry::Action action, const Piece &piece) {
        if (memory_.history.listening()) {
            memory_.history.note(action, device_, piece.ptr, piece.len, piece.stream, name_,
                                 nullptr);
        }
    }

    // Streams, and short and long requests, share no piece: a short one would keep a long piece.
    using Key = std::tuple<Stream, bool, size_t, void *>;

    static Key key(const Piece &piece, const Piece::Blocks::value_type &block) {
        return {piece.stream, piece.is_short, block.second.len, block.first};
    }

    std::shared_ptr<Allocator> allocator_;
    Memory &memory_;
    Memory::Device &own_;
    int device_;
    PoolName name_;
    // By their addresses.
    std::map<void *, Piece> pieces_;
    // Pieces that are being given back.
    size_t going_ = 0;
    // Blocks that may serve, the shortest first.
    std::set<Key> free_;
    // What tells that the uses of released blocks are over, in the order of each stream.
    std::map<Stream, std::deque<std::pair<Event, void *>>> ends_;
};

} // namespace vmm

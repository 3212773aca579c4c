// Memory of a `torch.cuda.MemPool` that was given an allocator of its own.
#pragma once

#include "memory.h"

namespace vmm {

// Passes requests on, and keeps what comes back for requests of the same stream, unless others used
// it too: the other allocator may unmap memory at once that queued work still uses, so it gets it
// back only when the device is idle. For any thread at any time.
class ForeignSource final : public Source {
  public:
    using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

    ForeignSource(std::shared_ptr<Allocator> allocator, Memory &memory, int device, PoolName name)
        : allocator_(std::move(allocator)), memory_(memory), own_(memory.device(device)),
          device_(device), name_(name) {}

    void *allocate(size_t len, Stream stream) override {
        if (void *ptr = reuse(len, stream)) {
            return ptr;
        }
        uint64_t beside = memory_.pool_stats(device_).reserved_bytes;
        void *ptr = allocator_->raw_alloc_with_stream(len, stream);
        if (ptr == nullptr) {
            return nullptr;
        }
        Piece piece;
        {
            std::lock_guard<std::mutex> hold(memory_.mutex);
            piece = {ptr, len, stream, name_, ++memory_.pieces_made};
            auto [at, is_new] = pieces_.emplace(ptr, piece);
            if (!is_new) {
                // It did come back, though the call that gave it back threw.
                own_.statistics.foreign_gone(at->second.len, beside);
                at->second = piece;
            }
            own_.statistics.foreign_made(len, beside);
        }
        try {
            note(TraceEntry::SEGMENT_ALLOC, piece);
        } catch (...) {
            release(ptr, true);
            throw;
        }
        std::lock_guard<std::mutex> hold(memory_.mutex);
        pieces_.at(ptr).told = Piece::KNOWN;
        return ptr;
    }

    void *reuse(size_t len, Stream stream) override {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        auto at = free_.lower_bound({stream, len});
        if (at == free_.end() || at->first.first != stream ||
            at->first.second - len > len / MOST_WASTE) {
            return nullptr;
        }
        void *ptr = at->second;
        free_.erase(at);
        pieces_.at(ptr).live = true;
        return ptr;
    }

    void release(void *ptr, bool shared) override {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        Piece &piece = pieces_.at(ptr);
        piece.shared = shared;
        set_free(piece);
    }

    void give_back(uint64_t moment) override {
        std::vector<void *> going;
        {
            std::lock_guard<std::mutex> hold(memory_.mutex);
            each([&](const Piece &piece) { going.push_back(piece.ptr); });
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
    // A piece may be longer than what it is to serve by one part in so many.
    static constexpr size_t MOST_WASTE = 4;

    // `memory_.mutex` is held.
    void set_free(Piece &piece) {
        piece.live = false;
        piece.left = own_.routes.next_moment();
        if (!piece.shared) {
            free_.emplace(std::pair{piece.stream, piece.len}, piece.ptr);
        }
    }

    // A piece that nobody has held since a moment. It is on its way then, since its address may
    // come anew before the call that gives it back is over.
    std::optional<Piece> take_out(void *ptr, uint64_t moment) {
        std::lock_guard<std::mutex> hold(memory_.mutex);
        auto at = pieces_.find(ptr);
        if (at == pieces_.end() || at->second.live || at->second.left > moment) {
            return std::nullopt;
        }
        Piece piece = at->second;
        auto [same, end] = free_.equal_range({piece.stream, piece.len});
        same = std::find_if(same, end, [&](const auto &entry) { return entry.second == ptr; });
        if (same != end) {
            free_.erase(same);
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
            piece.shared = true;
            std::lock_guard<std::mutex> hold(memory_.mutex);
            if (auto [at, kept] = pieces_.emplace(piece.ptr, piece); kept) {
                --going_;
                set_free(at->second);
                return;
            }
            // By now its address has come anew.
        }
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

    std::shared_ptr<Allocator> allocator_;
    Memory &memory_;
    Memory::Device &own_;
    int device_;
    PoolName name_;
    // By their addresses.
    std::map<void *, Piece> pieces_;
    // Pieces that are being given back.
    size_t going_ = 0;
    // Those that may serve again, by stream and length.
    std::multimap<std::pair<Stream, size_t>, void *> free_;
};

} // namespace vmm

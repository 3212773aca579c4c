// What lies where, in PyTorch's form: for memory_snapshot.
#pragma once

#include "memory.h"

namespace vmm {

using c10::CachingDeviceAllocator::BlockInfo;
using c10::CachingDeviceAllocator::SegmentInfo;

// Builds the segments of one device from the pieces that libvmm shows. `memory.mutex` is held.
class SegmentBuilder {
  public:
    // `only`: a pool whose segments are wanted, or {0, 0} for all.
    SegmentBuilder(Memory &memory, int device, PoolName only)
        : memory_(memory), device_(device), names_(memory.device(device).routes.names()) {
        if (only != PoolName{0, 0}) {
            only_ = only;
            gone_ = memory.device(device).routes.outlived(only);
        }
    }

    void add(const vmm_piece_t &piece) {
        if (piece.kind == VMM_PIECE_RANGE) {
            auto named = names_.find(piece.private_id);
            PoolName owner = named != names_.end() ? named->second : PoolName{0, 0};
            // What allocations lie in that outlived their pool, only these tell.
            bool may_tell = gone_ && owner == PoolName{0, 0};
            skipping_ = only_ && owner != *only_ && !may_tell;
            if (!skipping_) {
                begin(piece.address, owner);
            }
            return;
        }
        if (skipping_) {
            return;
        }
        const Allocation *entry =
            piece.kind == VMM_PIECE_LIVE ? memory_.ledger.find(piece.address) : nullptr;
        if (entry != nullptr && segments_.back().stream == nullptr) {
            segments_.back().stream = entry->stream;
        }
        SegmentInfo &segment = segments_.back();
        if (entry != nullptr && entry->pool != nullptr) {
            // Also of a pool that is gone.
            segment.owner_private_pool_id = entry->pool->name;
        }
        BlockInfo block;
        block.size = piece.len;
        block.allocated = piece.kind == VMM_PIECE_LIVE;
        block.active = block.allocated || piece.kind == VMM_PIECE_RETIRED;
        block.requested_size = block.allocated ? piece.requested : 0;
        block.context_when_allocated = entry != nullptr ? entry->context : nullptr;
        segment.total_size += block.size;
        segment.requested_size += block.requested_size;
        segment.allocated_size += block.allocated ? block.size : 0;
        segment.active_size += block.active ? block.size : 0;
        segment.is_large = segment.total_size > SMALL;
        segment.blocks.push_back(std::move(block));
    }

    // Memory that came from elsewhere, a segment by itself.
    void add_foreign(const Piece &piece) {
        begin(piece.ptr, piece.pool);
        SegmentInfo &segment = segments_.back();
        segment.is_expandable = false;
        segment.registration_counter = piece.number;
        segment.stream = piece.stream;
        segment.total_size = piece.len;
        segment.is_large = piece.len > SMALL;
        for (const auto &[ptr, part] : piece.blocks) {
            const Allocation *entry =
                part.state == Piece::LIVE ? memory_.ledger.find(ptr) : nullptr;
            BlockInfo block;
            block.size = part.len;
            block.allocated = entry != nullptr;
            block.active = block.allocated || part.state == Piece::LEFT;
            if (entry != nullptr) {
                block.requested_size = entry->requested;
                block.context_when_allocated = entry->context;
            }
            segment.requested_size += block.requested_size;
            segment.allocated_size += block.allocated ? block.size : 0;
            segment.active_size += block.active ? block.size : 0;
            segment.blocks.push_back(std::move(block));
        }
    }

    std::vector<SegmentInfo> finish() {
        if (only_) {
            auto other = [&](const SegmentInfo &segment) {
                return segment.owner_private_pool_id != *only_;
            };
            segments_.erase(std::remove_if(segments_.begin(), segments_.end(), other),
                            segments_.end());
        }
        return std::move(segments_);
    }

  private:
    void begin(void *address, PoolName owner) {
        SegmentInfo segment;
        segment.device = static_cast<c10::DeviceIndex>(device_);
        segment.address = reinterpret_cast<size_t>(address);
        segment.is_expandable = true;
        segment.owner_private_pool_id = owner;
        segments_.push_back(std::move(segment));
    }

    Memory &memory_;
    int device_;
    std::unordered_map<uint64_t, PoolName> names_;
    std::optional<PoolName> only_;
    // Allocations of it live on, though it is gone itself.
    bool gone_ = false;
    bool skipping_ = false;
    std::vector<SegmentInfo> segments_;
};

// The segments of one device, of all pools or of one.
inline std::vector<SegmentInfo> segments(Memory &memory, int device, PoolName only) {
    std::vector<vmm_piece_t> pieces;
    if (vmm_pool_t *pool = memory.pools.find(device)) {
        auto collect = [](const vmm_piece_t *piece, void *list) {
            static_cast<std::vector<vmm_piece_t> *>(list)->push_back(*piece);
        };
        if (vmm_status_t status = lib.walk(pool, collect, &pieces); status != VMM_OK) {
            throw std::runtime_error(fault(status));
        }
    }
    std::lock_guard<std::mutex> hold(memory.mutex);
    SegmentBuilder builder(memory, device, only);
    for (const vmm_piece_t &piece : pieces) {
        builder.add(piece);
    }
    Routes &routes = memory.device(device).routes;
    routes.each_piece([&](const Piece &piece) { builder.add_foreign(piece); });
    return builder.finish();
}

} // namespace vmm

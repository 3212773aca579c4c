// What is known of each live allocation, by its address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace vmm {

// A table with open addressing: one cache line is read for most look-ups, and nothing is allocated
// but when it grows, or shrinks, so that a visit of all costs no more than there are. `Entry` has a
// member `void *ptr`, NULL where the slot is empty, can be moved, and is empty by default. Not for several threads at once.
template <typename Entry> class Ledger {
  public:
    Ledger() : slots_(FEWEST) {}

    size_t size() const { return size_; }
    // How many slots a visit looks at.
    size_t slots() const { return slots_.size(); }

    // Adds the entry of an address that has none.
    void insert(Entry entry) {
        if ((size_ + 1) * 4 > slots_.size() * 3) {
            resize(slots_.size() * 2);
        }
        size_t at = home(entry.ptr);
        while (slots_[at].ptr != nullptr) {
            at = next(at);
        }
        slots_[at] = std::move(entry);
        ++size_;
    }

    // The entry of an address, NULL if there is none. It stays there until the next change.
    Entry *find(const void *ptr) {
        for (size_t at = home(ptr); slots_[at].ptr != nullptr; at = next(at)) {
            if (slots_[at].ptr == ptr) {
                return &slots_[at];
            }
        }
        return nullptr;
    }

    // Takes an entry out that `find` gave.
    Entry take(Entry *entry) {
        Entry taken = std::move(*entry);
        auto hole = static_cast<size_t>(entry - slots_.data());
        // Entries that were pushed beyond their home by this one move back, so that no look-up
        // stops short.
        for (size_t at = next(hole); slots_[at].ptr != nullptr; at = next(at)) {
            size_t distance = (at - home(slots_[at].ptr)) & (slots_.size() - 1);
            if (distance >= ((at - hole) & (slots_.size() - 1))) {
                slots_[hole] = std::move(slots_[at]);
                hole = at;
            }
        }
        slots_[hole] = Entry();
        --size_;
        if (slots_.size() > FEWEST && size_ * 8 < slots_.size()) {
            shrink();
        }
        return taken;
    }

    template <typename Visit> void each(Visit visit) {
        for (Entry &entry : slots_) {
            if (entry.ptr != nullptr) {
                visit(entry);
            }
        }
    }

  private:
    size_t home(const void *ptr) const {
        // Addresses are multiples of 512; the product spreads the rest over the upper bits.
        uint64_t key = (reinterpret_cast<uint64_t>(ptr) >> 9) * 0x9E3779B97F4A7C15u;
        return static_cast<size_t>(key >> 20) & (slots_.size() - 1);
    }

    size_t next(size_t at) const { return (at + 1) & (slots_.size() - 1); }

    void shrink() {
        try {
            resize(slots_.size() / 2);
        } catch (const std::bad_alloc &) {
            // It stays as it is: to take something out never fails.
        }
    }

    void resize(size_t count) {
        std::vector<Entry> old(count);
        old.swap(slots_);
        size_ = 0;
        for (Entry &entry : old) {
            if (entry.ptr != nullptr) {
                insert(std::move(entry));
            }
        }
    }

    static constexpr size_t FEWEST = 1024;

    // A power of two of them, from an eighth to three quarters in use unless they are the fewest.
    std::vector<Entry> slots_;
    size_t size_ = 0;
};

} // namespace vmm

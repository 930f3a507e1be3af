// Handles are values: type, generation and index of an entry that holds the object. Nothing the caller passes is ever
// dereferenced.
#pragma once

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/metrics.h"

namespace fwdmeta {

// Where the generations of a table begin: elsewhere in each copy of the library, each time it is loaded and in each
// process, so that what one of them has given out is no handle of another.
inline uint64_t FirstGeneration(const void* table) {
  // The finalizer of MurmurHash3, whose every output bit depends on every input bit.
  uint64_t x = reinterpret_cast<uintptr_t>(table) ^ static_cast<uint64_t>(MonotonicNs()) << 24;
  x = (x ^ x >> 33) * 0xff51afd7ed558ccd;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53;
  return x ^ x >> 33;
}

// `Ref` owns its object and is empty when default-constructed.
template <class Ref, uint64_t kType>
class HandleTable {
 public:
  // Makes room for `count` more objects, so that later Insert calls neither allocate nor fail. False: there is none.
  // May throw std::bad_alloc, and has then done nothing.
  bool Reserve(size_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (reserved_ + count > kIndexMask) return false;
    entries_.reserve(reserved_ + count);
    free_.reserve(reserved_ + count);
    reserved_ += count;
    return true;
  }

  void Unreserve(size_t count) {
    std::lock_guard<std::mutex> lock(mutex_);
    reserved_ -= count;
  }

  // Gives the memory back unless room is reserved. Handles given out before may then come again.
  void FreeUnused() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (reserved_ > 0) return;
    std::vector<Entry>().swap(entries_);
    std::vector<uint64_t>().swap(free_);
  }

  // For an object that room has been reserved for.
  uint64_t Insert(Ref object) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t index;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      index = entries_.size();
      entries_.push_back({first_generation_, Ref()});
    }
    Entry& entry = entries_[index];
    entry.object = std::move(object);
    AddLiveHandles(kType, 1);
    return kType << kTypeShift | (entry.generation & kGenerationMask) << kGenerationShift | index;
  }

  // Empty for every value that is not a live handle of this type.
  Ref Find(uint64_t handle) const {
    std::lock_guard<std::mutex> lock(mutex_);
    const Entry* entry = Locate(handle);
    return entry != nullptr ? entry->object : Ref();
  }

  // Ends the handle and hands out what it held; empty when there was none.
  Ref Remove(uint64_t handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    Entry* entry = const_cast<Entry*>(Locate(handle));
    if (entry == nullptr) return Ref();
    Ref object = std::move(entry->object);
    entry->object = Ref();
    ++entry->generation;
    free_.push_back(handle & kIndexMask);
    AddLiveHandles(kType, -1);
    return object;
  }

 private:
  static constexpr int kTypeShift = 60;
  static constexpr int kGenerationShift = 20;
  static constexpr uint64_t kIndexMask = (uint64_t{1} << kGenerationShift) - 1;
  static constexpr uint64_t kGenerationMask = (uint64_t{1} << (kTypeShift - kGenerationShift)) - 1;
  static_assert(kType != 0 && kType < 16, "the type tells handles from the null handle");
  static_assert(kType < kHandleTypes, "the type has a name among the metrics");

  struct Entry {
    uint64_t generation;
    Ref object;
  };

  const Entry* Locate(uint64_t handle) const {
    const uint64_t index = handle & kIndexMask;
    if (handle >> kTypeShift != kType || index >= entries_.size()) return nullptr;
    const Entry& entry = entries_[index];
    const uint64_t generation = handle >> kGenerationShift & kGenerationMask;
    if ((entry.generation & kGenerationMask) != generation || !entry.object) return nullptr;
    return &entry;
  }

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> free_;
  size_t reserved_ = 0;
  const uint64_t first_generation_ = FirstGeneration(this);
};

// The table of one type. It outlives every thread, so it is never destroyed; but at the end of the library, which may
// be unloaded, it gives its memory back unless objects are left.
template <class Ref, uint64_t kType>
HandleTable<Ref, kType>& TheTable() {
  using Table = HandleTable<Ref, kType>;
  alignas(Table) static unsigned char storage[sizeof(Table)];
  static const struct Life {
    Life() { new (storage) Table; }
    ~Life() { Get()->FreeUnused(); }
    static Table* Get() { return std::launder(reinterpret_cast<Table*>(storage)); }
  } life;
  return *Life::Get();
}

}  // namespace fwdmeta

// The host mirror: where a build publishes its counts. On the CUDA backend it is mapped pinned memory that the device
// writes and the host polls. Each 32-bit word travels beside the low half of its step's number in one 64-bit store, so
// the host knows of every word by itself whose it is, and no build ends with a fence of the whole system (which takes
// half a microsecond).
#pragma once

#include <cstdint>

#include "fwdmeta.h"
#include "plan/fields.h"

namespace fwdmeta {

// Positions in the `counts` array, which are those of fwdmeta_counts_t's int32 fields from batch_size on.
enum CountIndex : int32_t {
  kBatchSize,
  kNumLive,
  kNumPrefill,
  kNumDecode,
  kNumTokens,
  kNumPaddedTokens,
  kNumKvTokens,
  kNumAttnKvTokens,
  kDecoderNumBlocks,
  kEncoderNumBlocks,
  kKvNumBlocks,
  kPreCacheNumBlocks,
  kNumOutputTokens,
  kNumInvalidSlots,
  kNumInvalidIds,
  kWarnings,
  kError,
  kErrorSlot
};
static_assert(kErrorSlot + 1 == kNumCounts, "the counts field has one entry per count");

// One warp brings it, a word to a lane.
struct CountsBlock {
  int32_t counts[kNumCounts];
  int32_t max_len[FWDMETA_MAX_LEN_COUNT];
  int32_t decoder_chunk_size;
  int64_t error_value, error_limit;
};
constexpr int32_t kCountsWords = sizeof(CountsBlock) / sizeof(int32_t);
static_assert(kCountsWords == 32, "a word to a lane, and no holes");

FWDMETA_HD uint64_t TagWord(int64_t step, uint32_t word) {
  return static_cast<uint64_t>(static_cast<uint32_t>(step)) << 32 | word;
}

// The invalid counters come last and alone. The top bit of the second is the clamped-rejected warning.
struct InvalidWords {
  uint64_t slots, ids;
};
constexpr uint32_t kClampedBit = 1u << 31;

FWDMETA_HD InvalidWords MakeInvalidWords(int64_t step, uint32_t slots, uint32_t ids, bool clamped) {
  return {TagWord(step, slots), TagWord(step, ids | (clamped ? kClampedBit : 0))};
}
FWDMETA_HD int32_t WarningsOf(uint32_t slots, uint32_t ids, bool clamped) {
  return (slots > 0 ? FWDMETA_WARNING_INVALID_SLOTS : 0) | (ids > 0 ? FWDMETA_WARNING_INVALID_IDS : 0) |
         (clamped ? FWDMETA_WARNING_REJECTED_CLAMPED : 0);
}
FWDMETA_HD uint32_t SaturateCount(uint64_t count) {
  return count > INT32_MAX ? static_cast<uint32_t>(INT32_MAX) : static_cast<uint32_t>(count);
}

struct alignas(128) MirrorEntry {
  CountsBlock view;             // device lengths: what the step's *_cpu fields point to
  CountsBlock host_view;        // host lengths: likewise, and no device writes it
  uint64_t word[kCountsWords];  // the same, tagged
  uint64_t step_high;           // the high half of the step, tagged
  InvalidWords invalid;
  int64_t inputs_read;  // the step of a host-length build whose staged E, D and N every thread block has read
};

struct AdvanceEntry {
  int64_t stamp;  // stored last, with a fence between
  int32_t num_stopped, num_length_limited;
};

struct MirrorTail {
  MirrorEntry replay;                    // all captured builds
  alignas(128) AdvanceEntry advance[2];  // by turns: while one is being overwritten the other has been complete
};

inline int64_t LoadStamp(const int64_t* stamp) { return __atomic_load_n(stamp, __ATOMIC_ACQUIRE); }
inline void StoreStamp(int64_t* stamp, int64_t value) { __atomic_store_n(stamp, value, __ATOMIC_RELEASE); }

// Whether the entry's invalid counters are those of the step.
inline bool LoadInvalid(const MirrorEntry& entry, int64_t step, InvalidWords* out) {
  out->slots = __atomic_load_n(&entry.invalid.slots, __ATOMIC_ACQUIRE);
  out->ids = __atomic_load_n(&entry.invalid.ids, __ATOMIC_ACQUIRE);
  const uint32_t tag = static_cast<uint32_t>(step);
  return out->slots >> 32 == tag && out->ids >> 32 == tag;
}

// Copies the counts, and returns the step they are all of: 0 while there are none, or those of two steps.
inline int64_t LoadCounts(const MirrorEntry& entry, CountsBlock* out) {
  const uint64_t high = __atomic_load_n(&entry.step_high, __ATOMIC_ACQUIRE);
  uint32_t* words = reinterpret_cast<uint32_t*>(out);
  for (int32_t i = 0; i < kCountsWords; ++i) {
    const uint64_t word = __atomic_load_n(&entry.word[i], __ATOMIC_ACQUIRE);
    if (word >> 32 != high >> 32) return 0;
    words[i] = static_cast<uint32_t>(word);
  }
  return static_cast<int64_t>(high << 32 | high >> 32);
}

// What the host itself publishes. Word by word, as other threads may be looking.
inline void StoreView(const CountsBlock& block, CountsBlock* view) {
  const int32_t* words = reinterpret_cast<const int32_t*>(&block);
  int32_t* to = reinterpret_cast<int32_t*>(view);
  for (int32_t i = 0; i < kCountsWords; ++i) __atomic_store_n(to + i, words[i], __ATOMIC_RELEASE);
}
inline void StoreInvalid(const InvalidWords& words, MirrorEntry* entry) {
  __atomic_store_n(&entry->invalid.slots, words.slots, __ATOMIC_RELEASE);
  __atomic_store_n(&entry->invalid.ids, words.ids, __ATOMIC_RELEASE);
}
inline void StoreCounts(const CountsBlock& block, int64_t step, MirrorEntry* entry) {
  StoreView(block, &entry->host_view);
  const uint32_t* words = reinterpret_cast<const uint32_t*>(&block);
  for (int32_t i = 0; i < kCountsWords; ++i) {
    __atomic_store_n(&entry->word[i], TagWord(step, words[i]), __ATOMIC_RELEASE);
  }
  const uint32_t high = static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32);
  __atomic_store_n(&entry->step_high, TagWord(step, high), __ATOMIC_RELEASE);
}

}  // namespace fwdmeta

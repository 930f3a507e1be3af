// The host mirror: where a build publishes its counts. On the CUDA backend it is mapped pinned memory that the device
// writes and the host polls; a stamp is stored after what it vouches for, with a system fence between.
#pragma once

#include <atomic>
#include <cstdint>

#include "fwdmeta.h"
#include "plan/fields.h"

namespace fwdmeta {

// Positions in the `counts` array, which are those of fwdmeta_counts_t's int32 fields from batch_size on.
enum CountIndex : int32_t {
  kBatchSize, kNumLive, kNumPrefill, kNumDecode, kNumTokens, kNumPaddedTokens, kNumKvTokens, kNumAttnKvTokens,
  kDecoderNumBlocks, kEncoderNumBlocks, kKvNumBlocks, kPreCacheNumBlocks, kNumOutputTokens, kNumInvalidSlots,
  kNumInvalidIds, kWarnings, kError, kErrorSlot
};
static_assert(kErrorSlot + 1 == kNumCounts, "the counts field has one entry per count");

// What one thread group stores word by word, in this order, before the stamp.
struct CountsBlock {
  int32_t counts[kNumCounts];
  int32_t max_len[FWDMETA_MAX_LEN_COUNT];
  int32_t decoder_chunk_size;
  int64_t error_value, error_limit;
};
constexpr int32_t kCountsWords = sizeof(CountsBlock) / sizeof(int32_t);
static_assert(sizeof(CountsBlock) == 4 * (kNumCounts + FWDMETA_MAX_LEN_COUNT + 1) + 16, "no holes");

// The invalid counters come last and alone, as two words that each carry the low half of the step beside the number, so
// that no fence stands at the end of a build. The top bit of the second number is the clamped-rejected warning.
struct InvalidWords {
  uint64_t slots, ids;
};
constexpr uint32_t kClampedBit = 1u << 31;

FWDMETA_HD InvalidWords MakeInvalidWords(int64_t step, uint32_t slots, uint32_t ids, bool clamped) {
  const uint64_t tag = static_cast<uint64_t>(static_cast<uint32_t>(step)) << 32;
  return {tag | slots, tag | ids | (clamped ? kClampedBit : 0)};
}
FWDMETA_HD int32_t WarningsOf(uint32_t slots, uint32_t ids, bool clamped) {
  return (slots > 0 ? FWDMETA_WARNING_INVALID_SLOTS : 0) | (ids > 0 ? FWDMETA_WARNING_INVALID_IDS : 0) |
         (clamped ? FWDMETA_WARNING_REJECTED_CLAMPED : 0);
}
FWDMETA_HD uint32_t SaturateCount(uint64_t count) { return count > INT32_MAX ? INT32_MAX : static_cast<uint32_t>(count); }

struct alignas(128) MirrorEntry {
  CountsBlock block;
  int64_t stamp;         // the step whose counts these are; all but the invalid counters are good
  InvalidWords invalid;  // good where both carry the step
  int64_t inputs_read;   // the step of a host-length build whose staged lengths every thread block has read
};

struct AdvanceEntry {
  int64_t stamp;
  int32_t num_stopped, num_length_limited;
};

// Replays come one after the other with no host between them, so their counts alternate between two entries: while
// one is being overwritten the other has been complete. `replay_view` is what a captured step's *_cpu fields point to.
struct MirrorTail {
  MirrorEntry replay[2];
  alignas(128) CountsBlock replay_view;
  alignas(128) AdvanceEntry advance[2];
};

static_assert(sizeof(CountsBlock) == 128, "one warp stores a block, and one cache line holds it");

inline bool IsFinal(const MirrorEntry& entry, int64_t step, InvalidWords* out) {
  out->slots = __atomic_load_n(&entry.invalid.slots, __ATOMIC_ACQUIRE);
  out->ids = __atomic_load_n(&entry.invalid.ids, __ATOMIC_ACQUIRE);
  const uint32_t tag = static_cast<uint32_t>(step);
  return out->slots >> 32 == tag && out->ids >> 32 == tag;
}

inline int64_t LoadStamp(const int64_t* stamp) { return __atomic_load_n(stamp, __ATOMIC_ACQUIRE); }
inline void StoreStamp(int64_t* stamp, int64_t value) { __atomic_store_n(stamp, value, __ATOMIC_RELEASE); }

}  // namespace fwdmeta

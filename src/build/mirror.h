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

struct alignas(128) MirrorEntry {
  CountsBlock block;
  int64_t stamp;        // the step whose counts these are; all but the invalid counters are good
  int64_t final_stamp;  // the step whose three numbers below are good
  int32_t num_invalid_slots, num_invalid_ids, warnings;
  int32_t reserved;
  int64_t inputs_read;  // the step of a host-length build whose staged lengths every thread block has read
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

inline int64_t LoadStamp(const int64_t* stamp) { return __atomic_load_n(stamp, __ATOMIC_ACQUIRE); }
inline void StoreStamp(int64_t* stamp, int64_t value) { __atomic_store_n(stamp, value, __ATOMIC_RELEASE); }

}  // namespace fwdmeta

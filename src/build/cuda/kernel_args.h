// What the kernels are launched with, and the device memory that they keep between steps.
#pragma once

#include <cuda_runtime.h>

#include "build/advance.h"
#include "build/backend.h"

namespace fwdmeta {

// Output groups that different thread blocks write. Each block reads all lengths (or, above the single-launch size,
// its chunk of slots) and scans only what its own outputs need.
enum Role : int32_t { kRoleCounts, kRoleLengths, kRoleTiles, kRoleKvTiles, kRoleRows, kRoleTokens, kNumRoles };

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kOneItemSlots = kMaxThreads;  // one slot to a thread: fewer threads with more slots take longer
constexpr int32_t kSingleLaunchItems = 4;       // slots per thread beyond, in one launch
constexpr int32_t kSingleLaunchSlots = kSingleLaunchItems * kMaxThreads;
constexpr int32_t kChunkSlots = kMaxThreads;  // slots per block in two launches
constexpr int32_t kChunkItems = 1;            // and per thread of the second
constexpr int32_t kMaxChunks = 128;
constexpr int32_t kMaxSlots = kChunkSlots * kMaxChunks;
static_assert(kMaxSlots == kMaxCudaSlots, "the limit that configurations are checked against");

// What the previous build of a set left, so what the next one has to erase past its own counts. Replaced only once
// every block that reads it has done so.
struct SetState {
  int32_t mapping[kNumMappings];
  int32_t rows, tokens;
};

struct BuilderState {
  unsigned long long token_ticket;  // arrived blocks, and in the high half those that met invalid entries
  uint32_t tickets[kNumRoles];
  uint32_t inputs_ticket;
  uint32_t clamped;  // an advance since the last good build has clamped a rejected count
  unsigned long long invalid_slots, invalid_ids;
  int64_t replays;        // published by the counts role
  int64_t token_replays;  // and by the token role
  int64_t advances;
  uint32_t advance_ticket, num_stopped, num_length_limited;
  int32_t advance_counts[2];
};

// What the counts are made of. The numbers up to 23 are those of the words of a CountsBlock that hold the same.
enum Quantity : int32_t {
  kSumTokensHigh = 0,
  kSumLive = kNumLive,
  kSumPrefill = kNumPrefill,
  kSumKvHigh = 3,
  kSumTokensLow = kNumTokens,
  kSumKvLow = kNumKvTokens,
  kSumAttnKv = kNumAttnKvTokens,
  kSumDecoderTiles = kDecoderNumBlocks,  // append mode and MLA chunks that are not searched
  kSumEncoderTiles = kEncoderNumBlocks,
  kSumKvTiles = kKvNumBlocks,
  kSumPreCacheTiles = kPreCacheNumBlocks,
  kSumRows = kNumOutputTokens,
  kErrorBits = kError,
  kMaxThisTime = kNumCounts,
  kMaxEncoder,
  kMaxDecoder,
  kMaxKv,
  kMaxDecodeDecoder,
  kMaxCachedKv,
  kSumCandidates,  // G_1 ... G_11 of the MLA chunk search
  kNumQuantities = kSumCandidates + kMlaSearchSteps
};

// Each chunk's quantities, from the first of two launches.
struct ChunkSums {
  uint32_t value[kNumQuantities][kMaxChunks];
};

struct BuildArgs {
  Plan plan;
  Inputs inputs;
  Outputs out;
  SetState* set;
  BuilderState* builder;
  MirrorEntry* entry;    // eager builds
  MirrorTail* mirror;    // captured builds
  ChunkSums* chunks;     // two launches
  int32_t* staged_copy;  // two launches with host lengths: E, D, N and a slice's offsets, `staged_stride` apart, left
                         // by the first for the second
  int64_t step;
  int32_t captured, staged, staged_stride;
  int32_t token_limit;   // of the sum of N: max_num_tokens, and T where it is stated
  int32_t wide_sums;     // a sum may pass 32 bits, so both halves of each number are added
  int32_t check_kv;      // the sum of D + N may pass its limit
  int32_t short_slots;   // most slots have one token at most, as far as the host can tell
  int32_t vector_loads;  // the lengths are aligned to 16 bytes
  int32_t num_chunks;
  int32_t shares[kNumRoles];  // blocks per chunk
  int32_t first_block[kNumRoles];
};
static_assert(sizeof(BuildArgs) <= 4096, "kernel parameters");

struct FillRange {
  void* data;
  int64_t count;
  int64_t value;
  int32_t element_size;
};
constexpr int32_t kMaxFillRanges = FWDMETA_FIELD_COUNT + FWDMETA_MAX_CACHE_GROUPS;
struct FillArgs {
  FillRange range[kMaxFillRanges];
  int32_t num_ranges;
  SetState* set;
};

struct CutArgs {
  Plan plan;
  const int32_t *encoder, *decoder, *this_time;
  int32_t batch_size, num_padded_tokens;
  int32_t token_limit;  // as BuildArgs's
  int32_t num_slices, split;
  SliceArrays slices[FWDMETA_MAX_SLICES];
};

struct AdvanceArgs {
  Plan plan;
  AdvanceRequest request;
  BuilderState* builder;
  MirrorTail* mirror;
};

// All launches return CUDA's own error. `threads` is a multiple of 32.
cudaError_t LaunchBuild(const BuildArgs& args, int32_t num_blocks, int32_t threads, cudaStream_t stream);
cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream);
cudaError_t LaunchAdvance(const AdvanceArgs& args, cudaStream_t stream);
cudaError_t LaunchCut(const CutArgs& args, cudaStream_t stream);
// Loads every kernel, so that none is loaded during a build or a capture.
cudaError_t LoadBuildKernels();
cudaError_t LoadSmallKernels();
cudaError_t LoadCutKernel();

}  // namespace fwdmeta

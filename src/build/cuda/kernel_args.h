// What the kernels are launched with, and the device memory that they keep between steps.
#pragma once

#include <cuda_runtime.h>

#include "build/advance.h"
#include "build/backend.h"

namespace fwdmeta {

// Output groups that different thread blocks write. Each block reads all lengths (or, above the single-launch size,
// its chunk of slots) and scans only what its own outputs need.
enum Role : int32_t {
  kRoleCounts,
  kRoleLengths,
  kRoleTiles,  // one for each mapping
  kRoleRows = kRoleTiles + kNumMappings,
  kRoleTokens,
  kNumRoles
};

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kOneItemSlots = kMaxThreads;  // one slot to a thread: fewer threads with more slots take longer
constexpr int32_t kSingleLaunchItems = 4;       // slots per thread beyond, in one launch
constexpr int32_t kSingleLaunchSlots = kSingleLaunchItems * kMaxThreads;
constexpr int32_t kChunkSlots = kMaxThreads;  // slots per block in two launches
constexpr int32_t kChunkItems = 1;            // and per thread of the second
constexpr int32_t kMaxChunks = 128;
constexpr int32_t kMaxSlots = kChunkSlots * kMaxChunks;
static_assert(kMaxSlots == kMaxCudaSlots, "the limit that configurations are checked against");

// Up to this many tiles, rows or tokens per slot the slot's own thread writes them; beyond it, all threads share the
// entries and find each one's slot by binary search in the prefix sums.
constexpr uint32_t kOwnerEntries = 4;

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

// Where the counts go beside the mirror.
struct CountsOut {
  int32_t *counts, *max_len, *chunk_size;
  int32_t* num_blocks[kNumMappings];
  int64_t* counts_i64;
};

FWDMETA_HD CountsOut MakeCountsOut(const Outputs& out) {
  return {out.i32(FWDMETA_FIELD_COUNTS),
          out.i32(FWDMETA_FIELD_MAX_LEN_TENSOR),
          out.i32(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE),
          {out.i32(kMappingFields[kDecoder].num_blocks), out.i32(kMappingFields[kEncoder].num_blocks),
           out.i32(kMappingFields[kKv].num_blocks), out.i32(kMappingFields[kPreCache].num_blocks)},
          out.i64(FWDMETA_FIELD_COUNTS_I64)};
}

// A mapping's arrays; null where nobody wants them.
struct MappingOut {
  int32_t *batch_ids, *tile_ids, *cu_tiles;
};

// Of the tokens' arrays those that are built, and how simple it is: a bit is tested by one instruction, a pointer by
// three.
enum PlainWants : uint32_t {
  kWantsBatchIds = 1,
  kWantsPositions = 2,
  kWantsIsPadding = 4,
  kWantsMask = 8,
  kWantsSlots = 16,
  kWantsIds = 32,
  kPlainTable = 64,    // by page alone, rows without lengths, indices of 32 bits
  kPlainIds = 128,     // rows without lengths, indices of 32 bits
  kOtherTable = 256,   // group 0 in the general way
  kOtherIds = 512,     // likewise
  kOtherGroups = 1024  // there are more than group 0
};

// What a plain decode step needs, in the order in which its blocks read it: parameters are fetched by lines of 64
// bytes, one after the other, which is a good part of such a step's time.
struct PlainArgs {
  const int32_t *encoder, *decoder, *this_time;
  int32_t batch_size, max_batch_size, max_model_len, token_limit;
  uint32_t tiles_per_slot;  // of decode, at most kOwnerEntries
  int32_t captured, staged;
  SetState* set;
  BuilderState* builder;
  MirrorEntry* entry;  // of the step, or of all captured ones
  int64_t step;
  // Tokens.
  uint32_t wants;                          // of what follows: PlainWants
  uint32_t token_blocks, warps_per_block;  // of slots that write their own
  int32_t pad_token_id;
  FastDiv page;  // of cache group 0
  int32_t table_width, table_stride, ids_stride;
  const int32_t* table;
  const int64_t* ids;  // drafts where there are any
  int64_t *slot_mapping, *ids_remove_padding, *position_ids;
  int32_t *batch_id_per_token, *mask_encoder_batch;
  uint8_t* is_padding;
  // Lengths.
  int32_t pad_seq_len;
  int32_t *cu_seqlens_q, *cu_seqlens_k, *attn_cu_seqlens_k, *seq_lens_kv, *last_token_index;
  // Rows.
  int32_t *cu_seqlens_q_output, *seq_lens_output, *batch_id_per_token_output, *logits_indices;
  MappingOut mapping[kNumMappings];
  CountsOut counts;
  int32_t num_padded_tokens;
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
  int32_t simple_rows;   // ids, and group 0's table, have no row lengths, its addresses are pages alone; no slice
  // Of the tokens' blocks: warps whose slots write their own tokens, and in one launch tokens, a multiple of 128.
  int32_t warps_per_share, tokens_per_share;
  int32_t num_chunks;
  int32_t shares[kNumRoles];  // blocks per chunk
  int32_t first_block[kNumRoles];
};

// Both, as a step that may be plain is launched with both.
struct BuildLaunch {
  PlainArgs plain;
  BuildArgs build;
};
static_assert(sizeof(BuildLaunch) <= 4096, "kernel parameters");

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
// For a step that is perhaps a plain one: every role but that of the tokens has one block.
cudaError_t LaunchPlainBuild(const BuildLaunch& args, int32_t num_blocks, int32_t threads, cudaStream_t stream);
cudaError_t LaunchFill(const FillArgs& args, cudaStream_t stream);
cudaError_t LaunchAdvance(const AdvanceArgs& args, cudaStream_t stream);
cudaError_t LaunchCut(const CutArgs& args, cudaStream_t stream);
// Loads every kernel, so that none is loaded during a build or a capture.
cudaError_t LoadBuildKernels();
cudaError_t LoadSmallKernels();
cudaError_t LoadCutKernel();

}  // namespace fwdmeta

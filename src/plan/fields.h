// The table of fields: name, dtype, shape rule, tail value. It drives allocation, the C API's names, dump and reset.
#pragma once

#include <cstdint>

#include "plan/plan.h"

namespace fwdmeta {

enum class DType : uint8_t { kI32, kI64, kU8 };  // kU8: 0 or 1

enum class Shape : uint8_t {
  kDecoder,  // [capacity of the mapping]
  kEncoder,
  kKv,
  kPreCache,
  kOne,            // [1]
  kBatch,          // [max_batch_size]
  kBatchPlusOne,   // [max_batch_size + 1]
  kTokens,         // [max_num_tokens], on the token axis
  kTokensByGroup,  // the same for each cache group
  kOutputRows,     // [max_num_tokens], an entry a row that needs logits
  kMaxLen,         // [9]
  kCounts,         // [18]
  kCounts64,       // [3]
};

enum class Tail : uint8_t { kZero, kMinusOne, kOne, kPadTokenId, kPadSeqLen };

struct Field {
  const char* name;
  DType dtype;
  Shape shape;
  Tail tail;
  bool in_mirror;  // *_cpu: lies in the step's entry of the mirror
  bool optional;   // may be left out by fwdmeta_config_t.outputs
};

extern const Field kFields[FWDMETA_FIELD_COUNT];

constexpr int32_t kNumCounts = 18;
constexpr int32_t kNumCounts64 = 3;

inline int64_t ElementSize(DType dtype) { return dtype == DType::kI32 ? 4 : dtype == DType::kI64 ? 8 : 1; }
int64_t ElementCount(const Plan& plan, Shape shape);
// The leading elements that a step with these counts is about; what follows is tail.
int64_t LiveElementCount(const Plan& plan, Shape shape, const fwdmeta_counts_t& counts);
int64_t TailValue(const Plan& plan, Tail tail);

// Whether a builder of this configuration has the field at all.
bool HasField(const Config& config, int32_t field);

// The arrays of one set. Null: not wanted, or in the mirror. Slot mapping's entry is that of cache group 0.
struct Outputs {
  void* array[FWDMETA_FIELD_COUNT];
  int64_t* slot_mapping[FWDMETA_MAX_CACHE_GROUPS];

  FWDMETA_HD int32_t* i32(int32_t field) const { return static_cast<int32_t*>(array[field]); }
  FWDMETA_HD int64_t* i64(int32_t field) const { return static_cast<int64_t*>(array[field]); }
  FWDMETA_HD uint8_t* u8(int32_t field) const { return static_cast<uint8_t*>(array[field]); }
};

// Places every array of a set from `base` on, each at a multiple of 256 bytes, and returns the bytes they take. A null
// `out` only measures.
int64_t PlaceOutputs(const Config& config, const Plan& plan, unsigned char* base, Outputs* out);

// The four mapping's fields, in the order of `Mapping`.
struct MappingFields {
  int32_t batch_ids, tile_ids, num_blocks, num_blocks_cpu, cu_tiles;
};
constexpr MappingFields kMappingFields[kNumMappings] = {
    {FWDMETA_FIELD_DECODER_BATCH_IDS, FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_DECODER_NUM_BLOCKS_DEVICE,
     FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU, FWDMETA_FIELD_DECODER_CU_TILES},
    {FWDMETA_FIELD_ENCODER_BATCH_IDS, FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH, FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X,
     FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU, FWDMETA_FIELD_ENCODER_CU_TILES},
    {FWDMETA_FIELD_KV_BATCH_IDS, FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH, FWDMETA_FIELD_KV_NUM_BLOCKS_X,
     FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU, FWDMETA_FIELD_KV_CU_TILES},
    {FWDMETA_FIELD_PRE_CACHE_BATCH_IDS, FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH, FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS,
     FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU, FWDMETA_FIELD_PRE_CACHE_CU_TILES}};

}  // namespace fwdmeta

#include "plan/fields.h"

namespace fwdmeta {

// In the order of the FWDMETA_FIELD_* numbers.
const Field kFields[FWDMETA_FIELD_COUNT] = {
    {"decoder_batch_ids", DType::kI32, Shape::kDecoder, Tail::kMinusOne, false, true},
    {"decoder_tile_ids_per_batch", DType::kI32, Shape::kDecoder, Tail::kMinusOne, false, true},
    {"decoder_num_blocks_device", DType::kI32, Shape::kOne, Tail::kZero, false, false},
    {"decoder_num_blocks_cpu", DType::kI32, Shape::kOne, Tail::kZero, true, false},
    {"decoder_cu_tiles", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"encoder_batch_ids", DType::kI32, Shape::kEncoder, Tail::kMinusOne, false, true},
    {"encoder_tile_ids_per_batch", DType::kI32, Shape::kEncoder, Tail::kMinusOne, false, true},
    {"encoder_num_blocks_x", DType::kI32, Shape::kOne, Tail::kZero, false, false},
    {"encoder_num_blocks_x_cpu", DType::kI32, Shape::kOne, Tail::kZero, true, false},
    {"encoder_cu_tiles", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"kv_batch_ids", DType::kI32, Shape::kKv, Tail::kMinusOne, false, true},
    {"kv_tile_ids_per_batch", DType::kI32, Shape::kKv, Tail::kMinusOne, false, true},
    {"kv_num_blocks_x", DType::kI32, Shape::kOne, Tail::kZero, false, false},
    {"kv_num_blocks_x_cpu", DType::kI32, Shape::kOne, Tail::kZero, true, false},
    {"kv_cu_tiles", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"pre_cache_batch_ids", DType::kI32, Shape::kPreCache, Tail::kMinusOne, false, true},
    {"pre_cache_tile_ids_per_batch", DType::kI32, Shape::kPreCache, Tail::kMinusOne, false, true},
    {"pre_cache_num_blocks", DType::kI32, Shape::kOne, Tail::kZero, false, false},
    {"pre_cache_num_blocks_cpu", DType::kI32, Shape::kOne, Tail::kZero, true, false},
    {"pre_cache_cu_tiles", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"decoder_chunk_size_device", DType::kI32, Shape::kOne, Tail::kZero, false, false},
    {"cu_seqlens_q", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"cu_seqlens_k", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"attn_cu_seqlens_k", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"seq_lens_kv", DType::kI32, Shape::kBatch, Tail::kPadSeqLen, false, true},
    {"seq_lens_kv_local", DType::kI32, Shape::kBatch, Tail::kZero, false, true},
    {"batch_id_per_token", DType::kI32, Shape::kTokens, Tail::kMinusOne, false, true},
    {"position_ids", DType::kI64, Shape::kTokens, Tail::kZero, false, true},
    {"slot_mapping", DType::kI64, Shape::kTokensByGroup, Tail::kMinusOne, false, true},
    {"is_padding", DType::kU8, Shape::kTokens, Tail::kOne, false, true},
    {"mask_encoder_batch", DType::kI32, Shape::kTokens, Tail::kZero, false, true},
    {"ids_remove_padding", DType::kI64, Shape::kTokens, Tail::kPadTokenId, false, true},
    {"seq_lens_output", DType::kI32, Shape::kBatch, Tail::kZero, false, true},
    {"cu_seqlens_q_output", DType::kI32, Shape::kBatchPlusOne, Tail::kZero, false, true},
    {"batch_id_per_token_output", DType::kI32, Shape::kOutputRows, Tail::kMinusOne, false, true},
    {"logits_indices", DType::kI32, Shape::kOutputRows, Tail::kMinusOne, false, true},
    {"last_token_index", DType::kI32, Shape::kBatch, Tail::kMinusOne, false, true},
    {"max_len_tensor", DType::kI32, Shape::kMaxLen, Tail::kZero, false, false},
    {"max_len_tensor_cpu", DType::kI32, Shape::kMaxLen, Tail::kZero, true, false},
    {"counts", DType::kI32, Shape::kCounts, Tail::kZero, false, false},
    {"counts_i64", DType::kI64, Shape::kCounts64, Tail::kZero, false, false},
};

int64_t ElementCount(const Plan& plan, Shape shape) {
  switch (shape) {
    case Shape::kDecoder:
      return plan.capacity[kDecoder];
    case Shape::kEncoder:
      return plan.capacity[kEncoder];
    case Shape::kKv:
      return plan.capacity[kKv];
    case Shape::kPreCache:
      return plan.capacity[kPreCache];
    case Shape::kOne:
      return 1;
    case Shape::kBatch:
      return plan.max_batch_size;
    case Shape::kBatchPlusOne:
      return int64_t{plan.max_batch_size} + 1;
    case Shape::kTokens:
    case Shape::kTokensByGroup:
    case Shape::kOutputRows:
      return plan.max_num_tokens;
    case Shape::kMaxLen:
      return FWDMETA_MAX_LEN_COUNT;
    case Shape::kCounts:
      return kNumCounts;
    case Shape::kCounts64:
      return kNumCounts64;
  }
  return 0;
}

int64_t LiveElementCount(const Plan& plan, Shape shape, const fwdmeta_counts_t& counts) {
  switch (shape) {
    case Shape::kDecoder:
      return counts.decoder_num_blocks;
    case Shape::kEncoder:
      return counts.encoder_num_blocks;
    case Shape::kKv:
      return counts.kv_num_blocks;
    case Shape::kPreCache:
      return counts.pre_cache_num_blocks;
    case Shape::kBatch:
      return counts.batch_size;
    case Shape::kBatchPlusOne:
      return int64_t{counts.batch_size} + 1;
    case Shape::kTokens:
    case Shape::kTokensByGroup:
      return counts.num_padded_tokens;
    case Shape::kOutputRows:
      return counts.num_output_tokens;
    case Shape::kOne:
    case Shape::kMaxLen:
    case Shape::kCounts:
    case Shape::kCounts64:
      break;
  }
  return ElementCount(plan, shape);
}

int64_t TailValue(const Plan& plan, Tail tail) {
  switch (tail) {
    case Tail::kZero:
      return 0;
    case Tail::kMinusOne:
      return -1;
    case Tail::kOne:
      return 1;
    case Tail::kPadTokenId:
      return plan.pad_token_id;
    case Tail::kPadSeqLen:
      return plan.pad_seq_len;
  }
  return 0;
}

bool HasField(const Config& config, int32_t field) {
  if (field == FWDMETA_FIELD_SEQ_LENS_KV_LOCAL && config.cp_size == 1) return false;
  return !kFields[field].optional || (config.outputs >> field & 1) != 0;
}

int64_t PlaceOutputs(const Config& config, const Plan& plan, unsigned char* base, Outputs* out) {
  constexpr int64_t kAlignment = 256;
  int64_t offset = 0;
  const auto place = [&](const Field& field) {
    const int64_t begin = offset;
    const int64_t bytes = ElementCount(plan, field.shape) * ElementSize(field.dtype);
    offset += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  };
  if (out != nullptr) *out = {};
  for (int32_t i = 0; i < FWDMETA_FIELD_COUNT; ++i) {
    const Field& field = kFields[i];
    if (field.in_mirror || !HasField(config, i)) continue;
    const int32_t copies = field.shape == Shape::kTokensByGroup ? plan.num_groups : 1;
    for (int32_t copy = 0; copy < copies; ++copy) {
      const int64_t begin = place(field);
      if (out == nullptr) continue;
      unsigned char* address = base + begin;
      if (copy == 0) out->array[i] = address;
      if (field.shape == Shape::kTokensByGroup) out->slot_mapping[copy] = reinterpret_cast<int64_t*>(address);
    }
  }
  return offset;
}

}  // namespace fwdmeta

#include "plan/plan.h"

#include <algorithm>

#include "base/math.h"

namespace fwdmeta {
namespace {

// Saturating products: limits may be anything up to 2^63, and a capacity past int32 is refused anyway.
int64_t Multiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}
int64_t Add(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

}  // namespace

Plan MakePlan(const Config& config, int64_t num_sms) {
  Plan plan = {};
  plan.max_batch_size = config.max_batch_size;
  plan.max_num_tokens = config.max_num_tokens;
  plan.max_model_len = config.max_model_len;
  plan.max_num_kv_tokens = config.max_num_kv_tokens;
  plan.heads_per_kv_head = config.heads_per_kv_head;
  plan.encoder_rows = MakeFastDiv(config.encoder_block_shape_q);
  plan.decoder_rows = MakeFastDiv(config.decoder_block_shape_q);
  plan.block = MakeFastDiv(config.groups[0].block_size);
  plan.mla = config.mla;
  plan.mla_chunk_size = config.mla_chunk_size;
  plan.mla_chunk = MakeFastDiv(std::max(config.mla_chunk_size, 1));
  plan.num_sms = static_cast<uint32_t>(num_sms);
  plan.pad_token_id = config.pad_token_id;
  plan.pad_seq_len = config.pad_seq_len;
  plan.num_groups = config.num_groups;
  for (int32_t i = 0; i < config.num_groups; ++i) {
    const GroupConfig& group = config.groups[i];
    const int64_t ranks = group.replicated ? 1 : config.cp_size;
    plan.groups[i].virtual_block = MakeFastDiv(group.block_size * ranks);
    plan.groups[i].interleave = MakeFastDiv(config.cp_interleave);
    plan.groups[i].stripe = MakeFastDiv(config.cp_interleave * ranks);
    plan.groups[i].page = MakeFastDiv(group.kernel_block_size);
    plan.groups[i].pages_per_block = group.block_size / group.kernel_block_size;
    plan.groups[i].ranks = static_cast<uint32_t>(ranks);
    plan.groups[i].rank = group.replicated ? 0 : config.cp_rank;
  }
  plan.cp_stripe = MakeFastDiv(static_cast<int64_t>(config.cp_interleave) * config.cp_size);
  plan.cp_begin = static_cast<int64_t>(config.cp_rank) * config.cp_interleave;
  plan.cp_interleave = config.cp_interleave;
  plan.cp_size = config.cp_size;
  const Capacities capacities = ComputeCapacities(config, config.max_batch_size, config.max_num_tokens);
  for (int i = 0; i < kNumMappings; ++i) plan.capacity[i] = static_cast<int32_t>(capacities.mapping[i]);
  return plan;
}

Capacities ComputeCapacities(const Config& config, int64_t slots, int64_t tokens) {
  const int64_t s = std::min(slots, tokens);
  const int64_t g = config.heads_per_kv_head;
  const int64_t block_size = config.groups[0].block_size;
  const int64_t model_len = config.max_model_len;
  const int64_t kv_tokens = config.max_num_kv_tokens;
  Capacities out;
  if (config.mla) {
    const int64_t chunk = config.mla_chunk_size > 0 ? config.mla_chunk_size : 2 * block_size;
    out.mapping[kDecoder] = std::min(Multiply(s, CeilDiv(model_len, chunk)), Add(CeilDiv(kv_tokens, chunk), s));
    if (config.mla_chunk_size == 0) {
      out.mapping[kDecoder] = std::max(out.mapping[kDecoder], CeilDiv(model_len, kMlaSingleSlotChunk));
    }
  } else {
    out.mapping[kDecoder] = CeilDiv(tokens * g, config.decoder_block_shape_q) + s - 1;
  }
  out.mapping[kEncoder] = CeilDiv(tokens * g, config.encoder_block_shape_q) + s - 1;
  out.mapping[kKv] = Add(tokens, Multiply(s, 2 * block_size - 2)) / block_size;
  out.mapping[kPreCache] =
      std::min(Multiply(s, CeilDiv(model_len - 1, block_size)), Add(CeilDiv(kv_tokens, block_size), s));
  return out;
}

Status CheckCapacities(const Config& config) {
  constexpr const char* kNames[kNumMappings] = {"decoder", "encoder", "kv", "pre_cache"};
  const Capacities capacities = ComputeCapacities(config, config.max_batch_size, config.max_num_tokens);
  for (int i = 0; i < kNumMappings; ++i) {
    if (capacities.mapping[i] > INT32_MAX) {
      return Fail(FWDMETA_CAPACITY_EXCEEDED, "capacity of the %s mapping %lld passes %d", kNames[i],
                  (long long)capacities.mapping[i], INT32_MAX);
    }
  }
  return FWDMETA_OK;
}

int64_t BlockTableWidth(const Config& config, int32_t index, int64_t alignment) {
  const GroupConfig& group = config.groups[index];
  const int64_t ranks = group.replicated ? 1 : config.cp_size;
  const int64_t width =
      CeilDiv(config.max_model_len, group.block_size * ranks) * (group.block_size / group.kernel_block_size);
  return Multiply(CeilDiv(width, alignment), alignment);
}

}  // namespace fwdmeta

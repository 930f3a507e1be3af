// A builder's configuration, validated and with every default resolved but the device's.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace fwdmeta {

struct GroupConfig {
  int32_t block_size;
  int32_t kernel_block_size;
  bool replicated;
};

struct Config {
  fwdmeta_backend_t backend;
  int64_t device;   // FWDMETA_DEFAULT: the current one
  int64_t num_sms;  // FWDMETA_DEFAULT: the device's
  int32_t max_batch_size, max_num_tokens, max_model_len;
  int64_t max_num_kv_tokens;
  int32_t heads_per_kv_head;  // g = num_q_heads / num_kv_heads
  int32_t num_groups;
  GroupConfig groups[FWDMETA_MAX_CACHE_GROUPS];
  int32_t encoder_block_shape_q, decoder_block_shape_q;
  bool mla;
  int32_t mla_chunk_size;
  int32_t cp_size, cp_rank, cp_interleave;
  int32_t pad_token_id, pad_seq_len;
  uint64_t outputs;
  int32_t generations, depth, max_metas;
  fwdmeta_allocator_t device_allocator, pinned_allocator, host_allocator;
  bool of_slice;  // not the caller's to say: the builder is a slicer's
};

// The largest i of the MLA chunk search: chunks are block_size * 2^i.
constexpr int32_t kMlaSearchSteps = 11;
constexpr int32_t kMlaSingleSlotChunk = 64;

Status ParseConfig(const fwdmeta_config_t* in, Config* out);

}  // namespace fwdmeta

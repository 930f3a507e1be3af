#include "batch/config.h"

#include "base/check.h"
#include "base/struct_io.h"

namespace fwdmeta {
namespace {

// Range checks that remember the first failure, so that a list of them reads as the contract's table.
class Checker {
 public:
  template <class T>
  void Range(const char* name, int64_t value, int64_t low, int64_t high, T* out) {
    if (status_ != FWDMETA_OK) return;
    status_ = CheckRange(name, value, low, high);
    if (status_ == FWDMETA_OK) *out = static_cast<T>(value);
  }
  Status status() const { return status_; }

 private:
  Status status_ = FWDMETA_OK;
};

Status CheckAllocator(const fwdmeta_allocator_t& allocator, const char* name) {
  if ((allocator.alloc == nullptr) != (allocator.free == nullptr)) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s has only one of alloc and free", name);
  }
  return FWDMETA_OK;
}

Status ParseGroups(const fwdmeta_config_t& in, Config* out) {
  if (in.num_cache_groups < 0 || in.num_cache_groups > FWDMETA_MAX_CACHE_GROUPS) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_cache_groups is %lld, expected 0..%d", (long long)in.num_cache_groups,
                FWDMETA_MAX_CACHE_GROUPS);
  }
  if (in.num_cache_groups > 0 && in.cache_groups == nullptr) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_cache_groups is %lld and cache_groups is null",
                (long long)in.num_cache_groups);
  }
  const fwdmeta_group_config_t single = {in.block_size, in.kernel_block_size, 0};
  const fwdmeta_group_config_t* groups = in.num_cache_groups > 0 ? in.cache_groups : &single;
  out->num_groups = in.num_cache_groups > 0 ? static_cast<int32_t>(in.num_cache_groups) : 1;
  for (int32_t i = 0; i < out->num_groups; ++i) {
    const fwdmeta_group_config_t& group = groups[i];
    Checker check;
    check.Range("block_size", group.block_size, 1, INT32_MAX, &out->groups[i].block_size);
    const int64_t kernel_block_size =
        group.kernel_block_size == FWDMETA_DEFAULT ? group.block_size : group.kernel_block_size;
    check.Range("kernel_block_size", kernel_block_size, 1, INT32_MAX, &out->groups[i].kernel_block_size);
    check.Range("replicated", group.replicated, 0, 1, &out->groups[i].replicated);
    FWDMETA_TRY(check.status());
    if (group.block_size % kernel_block_size != 0) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "kernel_block_size %lld does not divide block_size %lld (cache group %d)",
                  (long long)kernel_block_size, (long long)group.block_size, i);
    }
    if (group.block_size % out->cp_interleave != 0) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "cp_interleave %d does not divide block_size %lld (cache group %d)",
                  out->cp_interleave, (long long)group.block_size, i);
    }
  }
  return FWDMETA_OK;
}

}  // namespace

Status ParseConfig(const fwdmeta_config_t* config, Config* out) {
  fwdmeta_config_t in;
  static const fwdmeta_config_t defaults = FWDMETA_CONFIG_INITIALIZER;
  FWDMETA_TRY(ReadStruct(config, defaults, "config", &in));
  FWDMETA_TRY(CheckApiVersion(in.api_version));
  *out = {};
  Checker check;
  check.Range("backend", in.backend, FWDMETA_BACKEND_AUTO, FWDMETA_BACKEND_CUDA, &out->backend);
  check.Range("max_batch_size", in.max_batch_size, 1, INT32_MAX, &out->max_batch_size);
  check.Range("max_num_tokens", in.max_num_tokens, 1, INT32_MAX, &out->max_num_tokens);
  check.Range("max_model_len", in.max_model_len, 1, INT32_MAX, &out->max_model_len);
  check.Range("encoder_block_shape_q", in.encoder_block_shape_q, 1, INT32_MAX, &out->encoder_block_shape_q);
  check.Range("decoder_block_shape_q", in.decoder_block_shape_q, 1, INT32_MAX, &out->decoder_block_shape_q);
  check.Range("attention", in.attention, FWDMETA_ATTENTION_APPEND, FWDMETA_ATTENTION_MLA, &out->mla);
  check.Range("reserved", in.reserved, 0, 0, &in.reserved);
  check.Range("mla_chunk_size", in.mla_chunk_size, 0, INT32_MAX, &out->mla_chunk_size);
  check.Range("cp_size", in.cp_size, 1, INT32_MAX, &out->cp_size);
  check.Range("cp_rank", in.cp_rank, 0, int64_t{out->cp_size} - 1, &out->cp_rank);
  check.Range("cp_interleave", in.cp_interleave, 1, INT32_MAX, &out->cp_interleave);
  check.Range("pad_token_id", in.pad_token_id, INT32_MIN, INT32_MAX, &out->pad_token_id);
  check.Range("pad_seq_len", in.pad_seq_len, INT32_MIN, INT32_MAX, &out->pad_seq_len);
  // Bounds of the last three keep every size of the arenas far from overflow.
  check.Range("generations", in.generations, 1, 64, &out->generations);
  check.Range("depth", in.depth, 2, 4096, &out->depth);
  check.Range("max_metas", in.max_metas, 1, 65536, &out->max_metas);
  int32_t num_q_heads = 0, num_kv_heads = 0;
  check.Range("num_q_heads", in.num_q_heads, 1, INT32_MAX, &num_q_heads);
  check.Range("num_kv_heads", in.num_kv_heads, 1, INT32_MAX, &num_kv_heads);
  out->num_sms = in.num_sms;
  if (in.num_sms != FWDMETA_DEFAULT) check.Range("num_sms", in.num_sms, 1, INT32_MAX, &out->num_sms);
  out->device = in.device;
  if (in.device != FWDMETA_DEFAULT) check.Range("device", in.device, 0, INT32_MAX, &out->device);
  out->max_num_kv_tokens = in.max_num_kv_tokens;
  if (in.max_num_kv_tokens != FWDMETA_DEFAULT) {
    check.Range("max_num_kv_tokens", in.max_num_kv_tokens, 1, INT64_MAX, &out->max_num_kv_tokens);
  }
  FWDMETA_TRY(check.status());
  if (in.max_num_kv_tokens == FWDMETA_DEFAULT) out->max_num_kv_tokens = in.max_batch_size * in.max_model_len;
  if (num_q_heads % num_kv_heads != 0) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_q_heads %d is not divisible by num_kv_heads %d", num_q_heads,
                num_kv_heads);
  }
  out->heads_per_kv_head = num_q_heads / num_kv_heads;
  FWDMETA_TRY(ParseGroups(in, out));
  if (out->mla && out->cp_size > 1) {
    return Fail(FWDMETA_UNSUPPORTED, "cp_size is %d: context parallelism is not supported with mla", out->cp_size);
  }
  if (out->mla && out->mla_chunk_size == 0 &&
      static_cast<int64_t>(out->groups[0].block_size) << kMlaSearchSteps > INT32_MAX) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "mla_chunk_size is 0 (search) and block_size %d times 2^%d passes %d",
                out->groups[0].block_size, kMlaSearchSteps, INT32_MAX);
  }
  out->outputs = in.outputs;
  out->device_allocator = in.device_allocator;
  out->pinned_allocator = in.pinned_allocator;
  out->host_allocator = in.host_allocator;
  FWDMETA_TRY(CheckAllocator(in.device_allocator, "device_allocator"));
  FWDMETA_TRY(CheckAllocator(in.pinned_allocator, "pinned_allocator"));
  return CheckAllocator(in.host_allocator, "host_allocator");
}

}  // namespace fwdmeta

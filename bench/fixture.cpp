#include "fixture.h"

namespace fwdmeta_bench {

int64_t SizeOfType(const fwdmeta_tensor_t& tensor) { return tensor.dtype_bits / 8; }

int64_t NumEntries(const fwdmeta_tensor_t& tensor) {
  int64_t entries = 1;
  for (int32_t i = 0; i < tensor.ndim; ++i) entries *= tensor.shape[i];
  return entries;
}

int64_t EntriesWritten(fwdmeta_field_t field, const fwdmeta_tensor_t& tensor, const fwdmeta_counts_t& counts) {
  switch (field) {
    case FWDMETA_FIELD_DECODER_BATCH_IDS:
    case FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH:
      return counts.decoder_num_blocks;
    case FWDMETA_FIELD_ENCODER_BATCH_IDS:
    case FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH:
      return counts.encoder_num_blocks;
    case FWDMETA_FIELD_KV_BATCH_IDS:
    case FWDMETA_FIELD_KV_TILE_IDS_PER_BATCH:
      return counts.kv_num_blocks;
    case FWDMETA_FIELD_PRE_CACHE_BATCH_IDS:
    case FWDMETA_FIELD_PRE_CACHE_TILE_IDS_PER_BATCH:
      return counts.pre_cache_num_blocks;
    case FWDMETA_FIELD_BATCH_ID_PER_TOKEN:
    case FWDMETA_FIELD_POSITION_IDS:
    case FWDMETA_FIELD_SLOT_MAPPING:
    case FWDMETA_FIELD_IS_PADDING:
    case FWDMETA_FIELD_MASK_ENCODER_BATCH:
    case FWDMETA_FIELD_IDS_REMOVE_PADDING:
      return counts.num_tokens;
    case FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT:
    case FWDMETA_FIELD_LOGITS_INDICES:
      return counts.num_output_tokens;
    default:
      return NumEntries(tensor);
  }
}

bool IsMirrorField(fwdmeta_field_t field) {
  return field == FWDMETA_FIELD_DECODER_NUM_BLOCKS_CPU || field == FWDMETA_FIELD_ENCODER_NUM_BLOCKS_X_CPU ||
         field == FWDMETA_FIELD_KV_NUM_BLOCKS_X_CPU || field == FWDMETA_FIELD_PRE_CACHE_NUM_BLOCKS_CPU ||
         field == FWDMETA_FIELD_MAX_LEN_TENSOR_CPU;
}

CaseFixture::CaseFixture(const Case& spec, int64_t num_sms, uint64_t seed)
    : spec_(spec), num_sms_(num_sms), random_(seed), builder_(MakeConfig(spec, FWDMETA_BACKEND_HOST, num_sms)) {
  const fwdmeta_config_t config = MakeConfig(spec, FWDMETA_BACKEND_HOST, num_sms);
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  BENCH_OK(fwdmeta_get_capacities(&config, nullptr, &capacities));
  table_width_ = capacities.block_table_width[0];
  timed_ = MakeTimedInputs(spec, table_width_, &random_);
  Build(timed_);
  // The case is what its name says.
  if (counts_.num_tokens != spec.tokens() || counts_.num_live != spec.slots() ||
      counts_.num_prefill != spec.prefill_slots || counts_.warnings != 0) {
    throw Failure("the host backend's counts are not the case's");
  }
  for (fwdmeta_field_t field = 0; field < FWDMETA_FIELD_COUNT; ++field) {
    fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
    if (IsMirrorField(field) || fwdmeta_meta_get_field(meta_.handle(), field, 0, &tensor) != FWDMETA_OK) continue;
    bytes_written_ += EntriesWritten(field, tensor, counts_) * SizeOfType(tensor);
  }
}

const fwdmeta_counts_t& CaseFixture::Build(const Inputs& inputs) {
  const BatchArgs args(spec_, table_width_, PointersTo(inputs), nullptr);
  int64_t step = 0;
  BENCH_OK(fwdmeta_build(builder_.handle(), &args.batch, meta_.Renew(), &step));
  counts_ = FWDMETA_COUNTS_INITIALIZER;
  BENCH_OK(fwdmeta_counts_wait(builder_.handle(), step, FWDMETA_WAIT_FINAL, 0, &counts_));
  return counts_;
}

LazyPtr<CaseFixture> MakeFixture(const Case& spec, int64_t num_sms, uint64_t seed) {
  return std::make_shared<Lazy<CaseFixture>>([=] { return std::make_unique<CaseFixture>(spec, num_sms, seed); });
}

}  // namespace fwdmeta_bench

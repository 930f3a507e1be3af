// The struct that kernels take by value. Frozen: a change is a fwdmeta_device_view_v2_t.
#include "build/builder.h"
#include "meta/meta.h"

namespace fwdmeta {
namespace {

static_assert(sizeof(fwdmeta_device_view_v1_t) == 304, "the layout is part of kernels that are compiled");

// Mappings are numbered alike inside and outside.
constexpr bool Is(int32_t mapping, fwdmeta_mapping_t number) { return mapping == number; }
static_assert(Is(kDecoder, FWDMETA_MAPPING_DECODER) && Is(kEncoder, FWDMETA_MAPPING_ENCODER) &&
              Is(kKv, FWDMETA_MAPPING_KV) && Is(kPreCache, FWDMETA_MAPPING_PRE_CACHE) &&
              Is(kNumMappings, FWDMETA_MAPPING_COUNT));

}  // namespace

fwdmeta_device_view_v1_t Meta::DeviceView() const {
  const Plan& plan = builder_->plan();
  const Outputs& outputs = builder_->backend().outputs(generation_);
  const int32_t tile_sizes[kNumMappings] = {plan.mla != 0 ? 0 : static_cast<int32_t>(plan.decoder_rows.divisor),
                                            static_cast<int32_t>(plan.encoder_rows.divisor),
                                            static_cast<int32_t>(plan.block.divisor),
                                            static_cast<int32_t>(plan.block.divisor)};
  fwdmeta_device_view_v1_t view;
  for (int i = 0; i < kNumMappings; ++i) {
    const MappingFields& fields = kMappingFields[i];
    view.mappings[i] = {outputs.i32(fields.batch_ids),
                        outputs.i32(fields.tile_ids),
                        outputs.i32(fields.cu_tiles),
                        outputs.i32(fields.num_blocks),
                        plan.capacity[i],
                        tile_sizes[i]};
  }
  view.decoder_chunk_size = outputs.i32(FWDMETA_FIELD_DECODER_CHUNK_SIZE_DEVICE);
  view.cu_seqlens_q = outputs.i32(FWDMETA_FIELD_CU_SEQLENS_Q);
  view.cu_seqlens_k = outputs.i32(FWDMETA_FIELD_CU_SEQLENS_K);
  view.seq_lens_kv = outputs.i32(FWDMETA_FIELD_SEQ_LENS_KV);
  view.seq_lens_kv_local = outputs.i32(FWDMETA_FIELD_SEQ_LENS_KV_LOCAL);
  view.batch_id_per_token = outputs.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN);
  view.position_ids = outputs.i64(FWDMETA_FIELD_POSITION_IDS);
  view.mask_encoder_batch = outputs.i32(FWDMETA_FIELD_MASK_ENCODER_BATCH);
  view.ids_remove_padding = outputs.i64(FWDMETA_FIELD_IDS_REMOVE_PADDING);
  view.slot_mapping = outputs.slot_mapping[0];
  // PlaceOutputs has put the groups' arrays one behind another.
  const bool several = plan.num_groups > 1 && outputs.slot_mapping[0] != nullptr;
  view.slot_mapping_stride = several ? outputs.slot_mapping[1] - outputs.slot_mapping[0] : 0;
  view.cu_seqlens_q_output = outputs.i32(FWDMETA_FIELD_CU_SEQLENS_Q_OUTPUT);
  view.batch_id_per_token_output = outputs.i32(FWDMETA_FIELD_BATCH_ID_PER_TOKEN_OUTPUT);
  view.logits_indices = outputs.i32(FWDMETA_FIELD_LOGITS_INDICES);
  view.last_token_index = outputs.i32(FWDMETA_FIELD_LAST_TOKEN_INDEX);
  view.counts = outputs.i32(FWDMETA_FIELD_COUNTS);
  view.max_batch_size = plan.max_batch_size;
  view.max_num_tokens = plan.max_num_tokens;
  view.heads_per_kv_head = static_cast<int32_t>(plan.heads_per_kv_head);
  view.num_cache_groups = plan.num_groups;
  return view;
}

}  // namespace fwdmeta

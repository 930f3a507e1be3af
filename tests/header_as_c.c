/* The public header alone, in strict C11: compiled with -pedantic -Werror. */
#include "fwdmeta.h"

int fwdmeta_test_header_as_c(void);

int fwdmeta_test_header_as_c(void) {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  fwdmeta_capacity_query_t query = FWDMETA_CAPACITY_QUERY_INITIALIZER;
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
  fwdmeta_rows_t rows = FWDMETA_ROWS_INITIALIZER;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  fwdmeta_advance_args_t args = FWDMETA_ADVANCE_ARGS_INITIALIZER;
  fwdmeta_advance_counts_t advanced = FWDMETA_ADVANCE_COUNTS_INITIALIZER;
  fwdmeta_tensor_t tensor = FWDMETA_TENSOR_INITIALIZER;
  fwdmeta_dlpack_args_t dlpack = FWDMETA_DLPACK_ARGS_INITIALIZER;
  fwdmeta_allocator_t allocator = FWDMETA_ALLOCATOR_INITIALIZER;
  fwdmeta_group_config_t group = {64, FWDMETA_DEFAULT, 0};
  /* The initializers state the size and the documented defaults. */
  return config.struct_size == sizeof(config) && config.api_version == FWDMETA_VERSION &&
         config.backend == FWDMETA_BACKEND_AUTO && config.device == FWDMETA_DEFAULT && config.max_batch_size == 0 &&
         config.max_num_kv_tokens == FWDMETA_DEFAULT && config.block_size == 64 &&
         config.kernel_block_size == FWDMETA_DEFAULT && config.num_cache_groups == 0 &&
         config.encoder_block_shape_q == 64 && config.decoder_block_shape_q == 16 &&
         config.attention == FWDMETA_ATTENTION_APPEND && config.mla_chunk_size == 0 &&
         config.num_sms == FWDMETA_DEFAULT && config.cp_size == 1 && config.cp_rank == 0 && config.cp_interleave == 1 &&
         config.pad_token_id == 0 && config.pad_seq_len == 0 && config.outputs == UINT64_MAX &&
         config.generations == 1 && config.depth == 4 && config.max_metas == 64 &&
         config.host_allocator.alloc == NULL && query.struct_size == sizeof(query) && query.slots == FWDMETA_DEFAULT &&
         query.tokens == FWDMETA_DEFAULT && query.block_table_alignment == 1 &&
         capacities.struct_size == sizeof(capacities) && info.struct_size == sizeof(info) && rows.data == NULL &&
         batch.struct_size == sizeof(batch) && batch.memory_kind == FWDMETA_MEMORY_DEVICE &&
         batch.num_padded_tokens == -1 && batch.generation == FWDMETA_DEFAULT && batch.draft_tokens.data == NULL &&
         counts.struct_size == sizeof(counts) && args.struct_size == sizeof(args) && args.num_draft_tokens == 0 &&
         args.stream == NULL && advanced.struct_size == sizeof(advanced) && tensor.struct_size == sizeof(tensor) &&
         tensor.dtype_bits == 32 && tensor.dtype_lanes == 1 && dlpack.struct_size == sizeof(dlpack) &&
         dlpack.shape == FWDMETA_DLPACK_CAPACITY && dlpack.device_type == 0 && allocator.user == NULL &&
         group.replicated == 0;
}

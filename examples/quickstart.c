/* Builds one step of four slots on the host and prints the tiles of its decoder and encoder mappings. The README shows
 * the part between the two markers; a test keeps them equal. */
/* README begin */
#include <fwdmeta.h>
#include <stdio.h>

static int print_mapping(fwdmeta_meta_t meta, const char *slot_field, const char *tile_field, int32_t count) {
  fwdmeta_tensor_t slots = FWDMETA_TENSOR_INITIALIZER, tiles = FWDMETA_TENSOR_INITIALIZER;
  if (fwdmeta_meta_get(meta, slot_field, &slots) || fwdmeta_meta_get(meta, tile_field, &tiles)) return 1;
  for (int32_t x = 0; x < count; ++x)
    printf("%s[%d]: slot %d, tile %d\n", slot_field, x, ((int32_t *)slots.data)[x], ((int32_t *)tiles.data)[x]);
  return 0;
}

int main(void) {
  /* decode with two drafts; idle; 20 tokens of a prompt behind 118 cached ones; decode */
  const int32_t encoder[] = {0, 7, 20, 0}, decoder[] = {10, 50, 118, 200}, this_time[] = {3, 0, 20, 1};
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST; /* arrays that printf can read; AUTO would put them on a GPU */
  config.max_batch_size = 8, config.max_num_tokens = 64, config.max_model_len = 4096;
  config.num_q_heads = 64, config.num_kv_heads = 8;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST, batch.batch_size = 4;
  batch.seq_lens_encoder = encoder, batch.seq_lens_decoder = decoder, batch.seq_lens_this_time = this_time;
  fwdmeta_builder_t builder = 0;
  fwdmeta_meta_t meta = 0;
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  const int failed =
      fwdmeta_builder_create(&config, &builder) || fwdmeta_build(builder, &batch, &meta, NULL) ||
      fwdmeta_meta_wait(meta, 0, -1, &counts) || /* counts come from the host mirror, on every backend */
      print_mapping(meta, "decoder_batch_ids", "decoder_tile_ids_per_batch", counts.decoder_num_blocks) ||
      print_mapping(meta, "encoder_batch_ids", "encoder_tile_ids_per_batch", counts.encoder_num_blocks);
  if (failed) fprintf(stderr, "fwdmeta: %s\n", fwdmeta_last_error());
  fwdmeta_meta_destroy(meta);
  fwdmeta_builder_destroy(builder);
  return failed;
}
/* README end */

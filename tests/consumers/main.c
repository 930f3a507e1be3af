/* Builds one step on the host backend: a decoding slot, and 20 tokens of a prompt. Returns 0 where it has its tiles. */
#include <fwdmeta.h>
#include <stdio.h>

int main(void) {
  const int32_t encoder[] = {0, 20}, decoder[] = {10, 118}, this_time[] = {1, 20};
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = 2, config.max_num_tokens = 64, config.max_model_len = 4096;
  config.num_q_heads = 64, config.num_kv_heads = 8;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST, batch.batch_size = 2;
  batch.seq_lens_encoder = encoder, batch.seq_lens_decoder = decoder, batch.seq_lens_this_time = this_time;
  fwdmeta_builder_t builder = 0;
  fwdmeta_meta_t meta = 0;
  fwdmeta_counts_t counts = FWDMETA_COUNTS_INITIALIZER;
  if (fwdmeta_builder_create(&config, &builder) || fwdmeta_build(builder, &batch, &meta, NULL) ||
      fwdmeta_meta_wait(meta, 0, -1, &counts)) {
    fprintf(stderr, "fwdmeta: %s\n", fwdmeta_last_error());
    return 1;
  }
  fwdmeta_meta_destroy(meta);
  fwdmeta_builder_destroy(builder);
  printf("%d decoder tiles, %d encoder tiles\n", counts.decoder_num_blocks, counts.encoder_num_blocks);
  return !(fwdmeta_version() == FWDMETA_VERSION && counts.decoder_num_blocks == 1 && counts.encoder_num_blocks == 3);
}

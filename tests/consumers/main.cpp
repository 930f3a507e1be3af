// The same step through the C++ layer and the code for kernels, and an error as an exception.
#include <cstdio>
#include <fwdmeta/device.cuh>
#include <fwdmeta/fwdmeta.hpp>

int main() try {
  const int32_t encoder[] = {0, 20}, decoder[] = {10, 118}, this_time[] = {1, 20};
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;
  config.max_batch_size = 2, config.max_num_tokens = 64, config.max_model_len = 4096;
  config.num_q_heads = 64, config.num_kv_heads = 8;
  fwdmeta::Batch batch;
  batch.memory_kind = FWDMETA_MEMORY_HOST, batch.batch_size = 2;
  batch.seq_lens_encoder = encoder, batch.seq_lens_decoder = decoder, batch.seq_lens_this_time = this_time;
  fwdmeta::Builder builder(config);
  fwdmeta::Meta meta = builder.build(batch);
  const fwdmeta::Counts counts = meta.wait();
  std::printf("%d decoder tiles, %d encoder tiles\n", counts.decoder_num_blocks, counts.encoder_num_blocks);
  if (counts.decoder_num_blocks != 1 || counts.encoder_num_blocks != 3) return 1;
  const fwdmeta::Tile last = fwdmeta::tile_of_search(meta.device_view(), FWDMETA_MAPPING_ENCODER, 2);
  if (!last.valid || last.slot != 1 || last.tile != 2) return 1;
  batch.batch_size = 3;
  try {
    builder.build(batch);
    return 1;
  } catch (const fwdmeta::Error& error) {
    return error.status() == FWDMETA_CAPACITY_EXCEEDED ? 0 : 1;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

// The same step as in quickstart.c through the C++ layer, and what an error looks like there.
#include <cstdio>
#include <fwdmeta/fwdmeta.hpp>
#include <vector>

static void print(const char* name, fwdmeta::Span<const int32_t> slots, fwdmeta::Span<const int32_t> tiles,
                  int32_t count) {
  std::printf("%s:", name);
  for (int32_t x = 0; x < count; ++x) std::printf(" (slot %d, tile %d)", slots[x], tiles[x]);
  std::printf("\n");
}

int main() try {
  fwdmeta::Config config;
  config.backend = FWDMETA_BACKEND_HOST;  // so that this program can read the arrays
  config.max_batch_size = 8;
  config.max_num_tokens = 64;
  config.max_model_len = 4096;
  config.num_q_heads = 64;
  config.num_kv_heads = 8;
  fwdmeta::Builder builder(config);

  std::vector<int32_t> encoder{0, 7, 20, 0}, decoder{10, 50, 118, 200}, this_time{3, 0, 20, 1};
  fwdmeta::Batch batch;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = static_cast<int64_t>(this_time.size());
  batch.seq_lens_encoder = encoder.data();
  batch.seq_lens_decoder = decoder.data();
  batch.seq_lens_this_time = this_time.data();

  fwdmeta::Meta meta = builder.build(batch);
  const fwdmeta::Counts counts = meta.wait();
  print("decoder", meta.field<int32_t>(FWDMETA_FIELD_DECODER_BATCH_IDS),
        meta.field<int32_t>(FWDMETA_FIELD_DECODER_TILE_IDS_PER_BATCH), counts.decoder_num_blocks);
  print("encoder", meta.field<int32_t>(FWDMETA_FIELD_ENCODER_BATCH_IDS),
        meta.field<int32_t>(FWDMETA_FIELD_ENCODER_TILE_IDS_PER_BATCH), counts.encoder_num_blocks);

  const auto positions = meta.field<int64_t>(FWDMETA_FIELD_POSITION_IDS);
  std::printf("positions:");
  for (int32_t i = 0; i < counts.num_tokens; ++i) std::printf(" %lld", static_cast<long long>(positions[i]));
  std::printf("\n");

  // A refused step throws, names the slot and leaves the arrays of the step before.
  encoder[2] = 19;
  try {
    builder.build(batch);
    return 1;
  } catch (const fwdmeta::Error& error) {
    std::printf("refused: %s\n", error.what());
    return error.status() == FWDMETA_INVALID_BATCH ? 0 : 1;
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}

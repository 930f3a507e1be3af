#include "cases.h"

#include <algorithm>
#include <stdexcept>

namespace fwdmeta_bench {
namespace {

constexpr int64_t kModelLen = 16384;
constexpr int64_t kMostContext = 8191;
constexpr int64_t kMillion = int64_t{1} << 20;

Case PrefillCase(const char* name, Kind kind, int64_t slots, int64_t tokens, int64_t max_model_len, bool curve_only) {
  return {name, kind, 0, 0, slots, tokens, max_model_len, false, curve_only};
}

// Prompts lie between the decoding slots, at equal distances.
bool IsPrefill(const Case& c, int64_t slot) {
  if (c.prefill_slots == 0) return false;
  const int64_t stride = c.slots() / c.prefill_slots;
  return slot % stride == stride - 1;
}

void FillPagesAndIds(const Case& c, int64_t table_width, Random* random, Inputs* inputs) {
  inputs->table.resize(c.slots() * table_width);
  for (int32_t& page : inputs->table) page = static_cast<int32_t>(random->Next() >> 44);
  inputs->ids.resize(c.slots() * c.ids_width());
  for (int64_t& id : inputs->ids) id = static_cast<int64_t>(random->Next() >> 47);
  inputs->drafts.resize(c.slots() * c.drafts_width());
  for (int64_t& id : inputs->drafts) id = static_cast<int64_t>(random->Next() >> 47);
}

void ResizeLengths(const Case& c, Inputs* inputs) {
  inputs->encoder.assign(c.slots(), 0);
  inputs->decoder.assign(c.slots(), 0);
  inputs->this_time.assign(c.slots(), 0);
}

}  // namespace

uint64_t Random::Next() {  // splitmix64
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

int64_t Random::Between(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(Next() % static_cast<uint64_t>(most - least + 1));
}

Case DecodeCase(int64_t slots) {
  return {"decode_" + std::to_string(slots), Kind::kDecode, slots, 1, 0, 0, kModelLen, false, false};
}

const std::vector<Case>& AllCases() {
  static const std::vector<Case> cases = [] {
    std::vector<Case> all;
    for (const int64_t slots : {1, 32, 128, 256, 512, 1024, 4096, 16384, 65536}) all.push_back(DecodeCase(slots));
    all.push_back({"mixed_224d_8p1k", Kind::kMixed, 224, 1, 8, 1024, kModelLen, false, false});
    all.push_back(PrefillCase("prefill_4x32k", Kind::kMixed, 4, 32768, 65536, false));
    all.push_back(PrefillCase("prefill_64x2k", Kind::kMixed, 64, 2048, kModelLen, false));
    all.push_back(PrefillCase("prefill_1x1m", Kind::kLongPrompt, 1, kMillion, kMillion + 16, false));
    all.push_back({"spec_256x4", Kind::kDecode, 256, 4, 0, 0, kModelLen, false, false});
    all.push_back({"mla_256", Kind::kDecode, 256, 1, 0, 0, kModelLen, true, false});
    all.push_back(PrefillCase("prefill_1x1k", Kind::kMixed, 1, 1024, kMillion + 16, true));
    all.push_back(PrefillCase("prefill_1x8k", Kind::kMixed, 1, 8192, kMillion + 16, true));
    all.push_back(PrefillCase("prefill_1x64k", Kind::kMixed, 1, 65536, kMillion + 16, true));
    all.push_back(PrefillCase("prefill_1x256k", Kind::kMixed, 1, 262144, kMillion + 16, true));
    return all;
  }();
  return cases;
}

const Case& FindCase(const std::string& name) {
  for (const Case& c : AllCases()) {
    if (c.name == name) return c;
  }
  throw std::logic_error("no case " + name);
}

fwdmeta_config_t MakeConfig(const Case& c, fwdmeta_backend_t backend, int64_t num_sms) {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = backend;
  config.max_batch_size = c.slots();
  config.max_num_tokens = c.tokens();
  config.max_model_len = c.max_model_len;
  config.num_q_heads = kQHeads;
  config.num_kv_heads = kKvHeads;
  config.block_size = kBlockSize;
  config.encoder_block_shape_q = kEncoderRows;
  config.decoder_block_shape_q = kDecoderRows;
  config.attention = c.mla ? FWDMETA_ATTENTION_MLA : FWDMETA_ATTENTION_APPEND;
  config.num_sms = num_sms;
  config.outputs = c.outputs;
  config.depth = kDepth;
  return config;
}

Inputs MakeTimedInputs(const Case& c, int64_t table_width, Random* random) {
  Inputs inputs;
  ResizeLengths(c, &inputs);
  for (int64_t b = 0; b < c.slots(); ++b) {
    if (IsPrefill(c, b)) {
      inputs.encoder[b] = inputs.this_time[b] = static_cast<int32_t>(c.prefill_tokens);
    } else {
      inputs.this_time[b] = static_cast<int32_t>(c.decode_tokens);
      inputs.decoder[b] = static_cast<int32_t>(random->Between(1, kMostContext));
    }
  }
  FillPagesAndIds(c, table_width, random, &inputs);
  return inputs;
}

Inputs MakeScrambledInputs(const Case& c, int64_t table_width, Random* random) {
  Inputs inputs;
  ResizeLengths(c, &inputs);
  for (int64_t b = 0; b < c.slots(); ++b) {
    const bool idle = random->Between(0, 3) == 0 && c.slots() > 1;
    if (IsPrefill(c, b)) {
      const int64_t tokens = random->Between(1, c.prefill_tokens);
      inputs.encoder[b] = static_cast<int32_t>(tokens);
      inputs.decoder[b] = static_cast<int32_t>(random->Between(0, std::min(c.max_model_len - tokens, kMostContext)));
      inputs.this_time[b] = idle ? 0 : static_cast<int32_t>(tokens);
    } else {
      inputs.decoder[b] = static_cast<int32_t>(random->Between(0, kMostContext));
      inputs.this_time[b] = idle ? 0 : static_cast<int32_t>(random->Between(1, c.decode_tokens));
    }
  }
  FillPagesAndIds(c, table_width, random, &inputs);
  for (int i = 0; i < 8; ++i) inputs.table[random->Between(0, c.slots() * table_width - 1)] = -1;
  return inputs;
}

InputPointers PointersTo(const Inputs& inputs) {
  return {inputs.encoder.data(), inputs.decoder.data(), inputs.this_time.data(),
          inputs.table.data(),   inputs.ids.data(),     inputs.drafts.empty() ? nullptr : inputs.drafts.data()};
}

BatchArgs::BatchArgs(const Case& c, int64_t table_width, const InputPointers& pointers, fwdmeta_stream_t stream)
    : table{pointers.table, table_width, table_width, nullptr}, batch FWDMETA_BATCH_INITIALIZER {
  batch.batch_size = c.slots();
  batch.num_padded_tokens = c.tokens();
  batch.seq_lens_encoder = pointers.encoder;
  batch.seq_lens_decoder = pointers.decoder;
  batch.seq_lens_this_time = pointers.this_time;
  batch.num_block_tables = 1;
  batch.block_tables = &table;
  batch.input_ids = {pointers.ids, c.ids_width(), c.ids_width(), nullptr};
  if (pointers.drafts != nullptr) batch.draft_tokens = {pointers.drafts, c.drafts_width(), c.drafts_width(), nullptr};
  batch.stream = stream;
}

}  // namespace fwdmeta_bench

#include "engine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace serve_loop {

Lengths::Lengths(const Options& options)
    : max_model_len_(static_cast<int32_t>(options.max_model_len)),
      encoder_(options.slots, 0),
      decoder_(options.slots, 0),
      this_time_(options.slots, 0) {}

bool Lengths::hold(const Plan& plan) const {
  for (size_t b = 0; b < this_time_.size(); ++b) {
    if (this_time_[b] != plan.this_time[b]) return false;
    if (this_time_[b] > 0 && (encoder_[b] != plan.encoder[b] || decoder_[b] != plan.decoder[b])) return false;
  }
  return true;
}

void Lengths::set(const Plan& plan) {
  encoder_ = plan.encoder;
  decoder_ = plan.decoder;
  this_time_ = plan.this_time;
}

void Lengths::advance(const Plan& plan) {
  for (size_t b = 0; b < this_time_.size(); ++b) {
    if (this_time_[b] == 0) continue;
    decoder_[b] += this_time_[b];
    encoder_[b] = 0;
    this_time_[b] = decoder_[b] == plan.final_lengths[b] ? 0 : std::min(1, max_model_len_ - decoder_[b]);
  }
}

fwdmeta::Config builder_config(const Options& options) {
  fwdmeta::Config config;
  config.max_batch_size = options.slots;
  config.max_num_tokens = options.token_budget;
  config.max_model_len = options.max_model_len;
  config.max_num_kv_tokens = options.num_pages * options.page_size;
  config.num_q_heads = options.num_q_heads;
  config.num_kv_heads = options.num_kv_heads;
  config.block_size = options.page_size;
  config.attention = options.attention;
  config.mla_chunk_size = options.attention == FWDMETA_ATTENTION_MLA ? options.mla_chunk : 0;
  return config;
}

std::string format(const char* pattern, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace serve_loop

// The metadata of each step by the host backend, and the advance; no attention.
#include <chrono>
#include <stdexcept>

#include "engine.h"

namespace serve_loop {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class HostEngine : public Engine {
 public:
  explicit HostEngine(const Options& options)
      : options_(options), config_(builder_config(options)), expected_(options), stop_(options.slots, 0) {
    config_.backend = FWDMETA_BACKEND_HOST;
    columns_ = fwdmeta::capacities(config_).block_table_width[0];
    builder_ = fwdmeta::Builder(config_);
    for (auto* array : {&encoder_, &decoder_, &this_time_}) array->assign(options.slots, 0);
  }

  void step(const Plan& plan) override {
    if (!expected_.hold(plan)) {
      encoder_ = plan.encoder;
      decoder_ = plan.decoder;
      this_time_ = plan.this_time;
      expected_.set(plan);
      ++num_written_;
    }
    const fwdmeta_rows_t rows = {plan.table.data(), columns_, columns_, nullptr};
    fwdmeta::Batch batch;
    fwdmeta::AdvanceArgs next;
    batch.memory_kind = FWDMETA_MEMORY_HOST;
    batch.batch_size = next.batch_size = options_.slots;
    batch.seq_lens_encoder = next.seq_lens_encoder = encoder_.data();
    batch.seq_lens_decoder = next.seq_lens_decoder = decoder_.data();
    batch.seq_lens_this_time = next.seq_lens_this_time = this_time_.data();
    batch.num_block_tables = 1;
    batch.block_tables = &rows;
    for (size_t b = 0; b < stop_.size(); ++b) {
      stop_[b] = plan.this_time[b] > 0 && plan.decoder[b] + plan.this_time[b] == plan.final_lengths[b];
    }
    next.stop = stop_.data();

    const double begin = now();
    const fwdmeta::Meta meta = builder_.build(batch);
    const fwdmeta::Counts counts = meta.wait(-1, FWDMETA_WAIT_FINAL);
    builder_.advance(next);
    seconds_ += now() - begin;
    if (counts.num_invalid_slots > 0) {
      throw std::runtime_error("step " + std::to_string(counts.step) + ": num_invalid_slots is " +
                               std::to_string(counts.num_invalid_slots) + ": a token has no page in the block table");
    }
    expected_.advance(plan);
    if (counts.num_tokens != plan.num_tokens || decoder_ != expected_.decoder() ||
        this_time_ != expected_.this_time()) {
      throw std::runtime_error("step " + std::to_string(counts.step) + ": the lengths are not those of the plan");
    }
    ++num_steps_;
    num_decode_steps_ += !plan.has_prefill;
    num_tokens_ += counts.num_tokens;
    decoder_tiles_ += counts.decoder_num_blocks;
    encoder_tiles_ += counts.encoder_num_blocks;
    kv_tiles_ += counts.kv_num_blocks;
  }

  void finish() override {}

  Rows summary() const override {
    const double steps = static_cast<double>(std::max<int64_t>(num_steps_, 1));
    return {
        {"backend", "host: scheduling and metadata alone, no attention"},
        {"steps", format("%lld, of which %lld decode only", static_cast<long long>(num_steps_),
                         static_cast<long long>(num_decode_steps_))},
        {"tokens", std::to_string(num_tokens_)},
        {"lengths written by the host", format("in %lld steps; else advance's", static_cast<long long>(num_written_))},
        {"build and advance", format("%.2f us a step", seconds_ * 1e6 / steps)},
        {"decoder tiles", std::to_string(decoder_tiles_)},
        {"encoder tiles", std::to_string(encoder_tiles_)},
        {"kv tiles", std::to_string(kv_tiles_)}};
  }

 private:
  const Options options_;
  fwdmeta::Config config_;
  fwdmeta::Builder builder_;
  int64_t columns_ = 0;
  Lengths expected_;
  std::vector<int32_t> encoder_, decoder_, this_time_;
  std::vector<uint8_t> stop_;
  double seconds_ = 0;
  int64_t num_steps_ = 0, num_decode_steps_ = 0, num_tokens_ = 0, num_written_ = 0;
  int64_t decoder_tiles_ = 0, encoder_tiles_ = 0, kv_tiles_ = 0;
};

}  // namespace

std::unique_ptr<Engine> make_host_engine(const Options& options) { return std::make_unique<HostEngine>(options); }

}  // namespace serve_loop

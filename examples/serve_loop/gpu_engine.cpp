// Steps on a GPU. Decode steps are replays of graphs, captured once for each power of two of slots: build, the model's
// stand-in, KV write, attention, the sampler's stand-in and the advance, which leaves the lengths of the next step on
// the device. The host writes lengths only where the scheduler has changed more than that, and the block table where
// pages were handed out; both are copies in the stream. Steps with prefill are enqueued kernel by kernel.
#include <cuda_runtime_api.h>
#include <layer.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>

#include "dense_check.h"
#include "engine.h"
#include "finish_requests.h"
#include "split.h"
#include "staging.h"

namespace serve_loop {

namespace {

using attention::DeviceArray;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

attention::LayerShape layer_shape(const Options& options) {
  if (options.dtype != "bf16" && options.dtype != "fp16") {
    throw std::invalid_argument("--dtype " + options.dtype + " is not supported; bf16 and fp16 are");
  }
  attention::LayerShape shape;
  shape.dtype = options.dtype == "bf16" ? attention::Dtype::kBf16 : attention::Dtype::kFp16;
  shape.head_dim = static_cast<int>(options.head_dim);
  shape.num_q_heads = static_cast<int>(options.num_q_heads);
  shape.num_kv_heads = static_cast<int>(options.num_kv_heads);
  shape.page_size = options.page_size;
  shape.num_pages = options.num_pages;
  shape.num_tokens = options.token_budget;
  shape.num_positions = options.max_model_len;
  return shape;
}

// GPU time of one call of a few in a row.
double seconds_per_call(cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end, cudaGraphExec_t graph) {
  constexpr int kWarm = 3, kCalls = 10;
  for (int i = 0; i < kWarm; ++i) ATTENTION_CUDA(cudaGraphLaunch(graph, stream));
  ATTENTION_CUDA(cudaEventRecord(begin, stream));
  for (int i = 0; i < kCalls; ++i) ATTENTION_CUDA(cudaGraphLaunch(graph, stream));
  ATTENTION_CUDA(cudaEventRecord(end, stream));
  ATTENTION_CUDA(cudaEventSynchronize(end));
  float milliseconds = 0;
  ATTENTION_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
  return milliseconds * 1e-3 / kCalls;
}

// Thread blocks of attention: those that have work, those of the fixed grid, and those of slots times the longest.
struct Blocks {
  int64_t working = 0, launched = 0, naive = 0, naive_captured = 0;
  std::string text() const {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    if (working == 0) return "none";
    return format(
        "%.3g with work, %.3g launched; slots x longest: %.3g (%.1f x the work); slots x the most that a slot may "
        "have: %.3g",
        number(working), number(launched), number(naive), number(naive) / number(working), number(naive_captured));
  }
};

class GpuEngine : public Engine {
 public:
  explicit GpuEngine(const Options& options);
  ~GpuEngine() override;
  void step(const Plan& plan) override;
  void finish() override;
  Rows summary() const override;

 private:
  struct Bucket {
    int64_t slots;
    attention::Grid grid;
    cudaGraphExec_t step = nullptr;
    // To measure with, without the model: a step whose lengths stay, and the same without build and advance.
    cudaGraphExec_t with_metadata = nullptr, without_metadata = nullptr;
  };

  void enqueue(int64_t slots, int64_t num_tokens, const attention::Grid& grid, bool has_prefill);
  void enqueue_measured(const Bucket& bucket, bool with_metadata);
  fwdmeta::Batch batch_of(int64_t slots, int64_t num_tokens, const fwdmeta_rows_t* table) const;
  fwdmeta::AdvanceArgs advance_of(int64_t slots, std::array<int32_t*, 3> lengths) const;
  template <class Enqueue>
  cudaGraphExec_t capture(const Enqueue& enqueue);
  void measure(const Bucket& bucket);
  void write_inputs(const Plan& plan);
  void check(const Plan& plan);
  void count_blocks(const Plan& plan, const attention::Grid& grid);
  int64_t key_blocks(int64_t keys, const attention::Grid& grid) const;
  void refuse_if_pages_miss() const;

  const Options options_;
  attention::Stream stream_;
  attention::Layer layer_;
  fwdmeta::Config config_;
  fwdmeta::Builder builder_;
  int64_t columns_ = 0;
  attention::Grid eager_grid_{};
  std::vector<Bucket> buckets_;
  Lengths expected_;
  std::vector<int32_t> known_table_, known_final_;
  std::vector<uint64_t> known_seeds_;
  DeviceArray<int32_t> encoder_, decoder_, this_time_, final_lengths_, table_;
  DeviceArray<int32_t> scratch_;  // lengths that a measured advance moves
  DeviceArray<uint64_t> seeds_;
  DeviceArray<uint8_t> stop_;
  Staging staging_;
  int32_t* num_refused_ = nullptr;  // mapped pinned memory
  attention::Step captured_step_{};
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DenseCheck dense_;

  int64_t num_steps_ = 0, num_replays_ = 0, num_tokens_ = 0, num_written_ = 0, num_tables_ = 0;
  int64_t timed_tokens_ = 0, timed_steps_ = 0;
  double timed_seconds_ = 0, running_since_ = 0;
  int64_t num_measured_ = 0;
  double seconds_with_ = 0, seconds_without_ = 0;
  Blocks decode_blocks_, prefill_blocks_;
};

size_t staging_bytes(const Options& options, int64_t columns) {
  return static_cast<size_t>(options.slots * (4 * sizeof(int32_t) + sizeof(uint64_t) + columns * sizeof(int32_t)) +
                             256);
}

int64_t table_columns(const Options& options) {
  return fwdmeta::capacities(builder_config(options)).block_table_width[0];
}

GpuEngine::GpuEngine(const Options& options)
    : options_((attention::require_device(), options)),
      layer_(layer_shape(options)),
      config_(builder_config(options)),
      columns_(table_columns(options)),
      expected_(options),
      known_table_(options.slots * columns_, -1),
      known_final_(options.slots, 0),
      known_seeds_(options.slots, 0),
      encoder_(std::vector<int32_t>(options.slots, 0)),
      decoder_(std::vector<int32_t>(options.slots, 0)),
      this_time_(std::vector<int32_t>(options.slots, 0)),
      final_lengths_(known_final_),
      table_(known_table_),
      scratch_(3 * options.slots),
      seeds_(known_seeds_),
      stop_(std::vector<uint8_t>(options.slots, 0)),
      staging_(staging_bytes(options, columns_)),
      dense_(options.seed, stream_.get()) {
  config_.backend = FWDMETA_BACKEND_CUDA;
  config_.generations = 2;  // the first is the graphs'
  builder_ = fwdmeta::Builder(config_);
  layer_.set_on(builder_, table_.data(), options.slots, columns_);
  ATTENTION_CUDA(cudaHostAlloc(reinterpret_cast<void**>(&num_refused_), sizeof(int32_t), cudaHostAllocMapped));
  *num_refused_ = 0;

  eager_grid_ = attention::make_grid(config_, options.slots, options.token_budget, 1);
  layer_.reserve(eager_grid_, config_.attention);
  for (int64_t slots = 1;; slots = std::min(2 * slots, options.slots)) {
    buckets_.push_back({slots, attention::make_grid(config_, slots, std::min(slots, options.token_budget), 1)});
    layer_.reserve(buckets_.back().grid, config_.attention);
    if (slots == options.slots) break;
  }
  ATTENTION_CUDA(cudaEventCreate(&begin_));
  ATTENTION_CUDA(cudaEventCreate(&end_));
  // After all memory is there, as the graphs keep its addresses. All lengths are 0 until the first step.
  for (Bucket& bucket : buckets_) {
    bucket.step = capture([&] { enqueue(bucket.slots, bucket.grid.tokens, bucket.grid, false); });
    if (options.check_every == 0) continue;
    bucket.with_metadata = capture([&] { enqueue_measured(bucket, true); });
    bucket.without_metadata = capture([&] { enqueue_measured(bucket, false); });
  }
}

GpuEngine::~GpuEngine() {
  cudaStreamSynchronize(stream_.get());
  for (const Bucket& bucket : buckets_) {
    for (const cudaGraphExec_t graph : {bucket.step, bucket.with_metadata, bucket.without_metadata}) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
  }
  for (const cudaEvent_t event : {begin_, end_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  cudaFreeHost(num_refused_);
}

fwdmeta::Batch GpuEngine::batch_of(int64_t slots, int64_t num_tokens, const fwdmeta_rows_t* table) const {
  fwdmeta::Batch batch;
  batch.batch_size = slots;
  batch.num_padded_tokens = num_tokens;
  batch.seq_lens_encoder = encoder_.data();
  batch.seq_lens_decoder = decoder_.data();
  batch.seq_lens_this_time = this_time_.data();
  batch.num_block_tables = 1;
  batch.block_tables = table;
  batch.stream = stream_.get();
  return batch;
}

fwdmeta::AdvanceArgs GpuEngine::advance_of(int64_t slots, std::array<int32_t*, 3> lengths) const {
  fwdmeta::AdvanceArgs next;
  next.batch_size = slots;
  next.seq_lens_encoder = lengths[0];
  next.seq_lens_decoder = lengths[1];
  next.seq_lens_this_time = lengths[2];
  next.stop = stop_.data();
  next.stream = stream_.get();
  return next;
}

void GpuEngine::enqueue(int64_t slots, int64_t num_tokens, const attention::Grid& grid, bool has_prefill) {
  const cudaStream_t stream = stream_.get();
  const fwdmeta_rows_t rows = {table_.data(), columns_, columns_, nullptr};
  const fwdmeta::Meta meta = builder_.build(batch_of(slots, num_tokens, &rows));
  const attention::Step step = attention::read_step(meta, layer_.shape().num_q_heads);
  if (!has_prefill) captured_step_ = step;  // the same arrays for every bucket
  layer_.make_tokens(step, seeds_.data(), num_tokens, stream);
  if (has_prefill) {
    layer_.prefill_and_decode(step, grid, config_.attention, stream);
  } else {
    layer_.decode(step, grid, config_.attention, stream);
  }
  finish_requests(step, final_lengths_.data(), slots, stop_.data(), num_refused_, stream);
  builder_.advance(advance_of(slots, {encoder_.data(), decoder_.data(), this_time_.data()}));
}

void GpuEngine::enqueue_measured(const Bucket& bucket, bool with_metadata) {
  const cudaStream_t stream = stream_.get();
  const fwdmeta_rows_t rows = {table_.data(), columns_, columns_, nullptr};
  if (with_metadata) builder_.enqueue(batch_of(bucket.slots, bucket.grid.tokens, &rows));
  layer_.decode(captured_step_, bucket.grid, config_.attention, stream);
  finish_requests(captured_step_, final_lengths_.data(), bucket.slots, stop_.data(), num_refused_, stream);
  if (!with_metadata) return;
  int32_t* const lengths = scratch_.data();
  builder_.advance(advance_of(bucket.slots, {lengths, lengths + options_.slots, lengths + 2 * options_.slots}));
}

template <class Enqueue>
cudaGraphExec_t GpuEngine::capture(const Enqueue& enqueue_nodes) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ATTENTION_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
  try {
    enqueue_nodes();
  } catch (...) {
    cudaStreamEndCapture(stream_.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  ATTENTION_CUDA(cudaStreamEndCapture(stream_.get(), &graph));
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  attention::check_cuda(error, "cudaGraphInstantiate");
  ATTENTION_CUDA(cudaGraphUpload(exec, stream_.get()));
  return exec;
}

// What the metadata costs in the coming step: the step with it and without it, a few times each. Both write to the
// cache where the step itself will write, and leave the lengths as they are.
void GpuEngine::measure(const Bucket& bucket) {
  const size_t bytes = encoder_.bytes();
  int32_t* to = scratch_.data();
  for (const DeviceArray<int32_t>* array : {&encoder_, &decoder_, &this_time_}) {
    ATTENTION_CUDA(cudaMemcpyAsync(to, array->data(), bytes, cudaMemcpyDeviceToDevice, stream_.get()));
    to += options_.slots;
  }
  seconds_with_ += seconds_per_call(stream_.get(), begin_, end_, bucket.with_metadata);
  seconds_without_ += seconds_per_call(stream_.get(), begin_, end_, bucket.without_metadata);
  ++num_measured_;
}

// What the device does not have yet.
void GpuEngine::write_inputs(const Plan& plan) {
  const cudaStream_t stream = stream_.get();
  const auto update = [&](auto& known, const auto& now_wanted, auto& array) {
    if (known == now_wanted) return false;
    known = now_wanted;
    staging_.copy(known, array.data(), stream);
    return true;
  };
  if (!expected_.hold(plan)) {
    staging_.copy(plan.encoder, encoder_.data(), stream);
    staging_.copy(plan.decoder, decoder_.data(), stream);
    staging_.copy(plan.this_time, this_time_.data(), stream);
    expected_.set(plan);
    ++num_written_;
  }
  update(known_final_, plan.final_lengths, final_lengths_);
  update(known_seeds_, plan.seeds, seeds_);
  num_tables_ += update(known_table_, plan.table, table_);
}

void GpuEngine::refuse_if_pages_miss() const {
  const int32_t refused = *static_cast<volatile int32_t*>(num_refused_);
  if (refused == 0) return;
  throw std::runtime_error("by step " + std::to_string(num_steps_) + ": num_invalid_slots is " +
                           std::to_string(refused) +
                           ": a token has no page in the block table; of that step nothing was written");
}

void GpuEngine::step(const Plan& plan) {
  const bool is_checked = options_.check_every > 0 && num_steps_ % options_.check_every == options_.check_every - 1;
  if (is_checked) {
    stream_.synchronize();  // before the step, so that it is timed and checked alone
    if (running_since_ > 0) timed_seconds_ += now() - running_since_;
    running_since_ = 0;
  } else if (running_since_ == 0) {
    running_since_ = now();
  }

  staging_.begin_step();
  write_inputs(plan);
  const auto bucket =
      std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.slots >= plan.num_slots; });
  const attention::Grid& grid = plan.has_prefill ? eager_grid_ : bucket->grid;
  if (plan.has_prefill) {
    enqueue(options_.slots, plan.num_tokens, grid, true);
  } else {
    if (is_checked) measure(*bucket);
    ATTENTION_CUDA(cudaGraphLaunch(bucket->step, stream_.get()));
    ++num_replays_;
  }
  staging_.end_step(stream_.get());

  ++num_steps_;
  num_tokens_ += plan.num_tokens;
  count_blocks(plan, grid);
  expected_.advance(plan);
  if (is_checked) {
    check(plan);
  } else {
    timed_tokens_ += plan.num_tokens;
    ++timed_steps_;
  }
  refuse_if_pages_miss();
}

void GpuEngine::check(const Plan& plan) {
  stream_.synchronize();
  refuse_if_pages_miss();
  dense_.compare(plan, layer_);
  const std::vector<int32_t> encoder = encoder_.download(), decoder = decoder_.download(),
                             this_time = this_time_.download();
  for (size_t b = 0; b < this_time.size(); ++b) {
    const bool same = this_time[b] == expected_.this_time()[b] &&
                      (this_time[b] == 0 || (encoder[b] == 0 && decoder[b] == expected_.decoder()[b]));
    if (!same) {
      throw std::runtime_error(format("after step %lld slot %zu has E %d, D %d, N %d; the scheduler expects D %d, N %d",
                                      static_cast<long long>(num_steps_), b, encoder[b], decoder[b], this_time[b],
                                      expected_.decoder()[b], expected_.this_time()[b]));
    }
  }
}

// Thread blocks that a decoding slot with so many keys needs for one KV head.
int64_t GpuEngine::key_blocks(int64_t keys, const attention::Grid& grid) const {
  if (config_.attention == FWDMETA_ATTENTION_APPEND) {
    return attention::split_keys(static_cast<int>(keys), grid.splits).parts;
  }
  return (keys + config_.mla_chunk_size - 1) / config_.mla_chunk_size;
}

void GpuEngine::count_blocks(const Plan& plan, const attention::Grid& grid) {
  const int group = layer_.shape().num_q_heads / layer_.shape().num_kv_heads;
  const int64_t row_tiles = (group + attention::kDecodeRows - 1) / attention::kDecodeRows;
  int64_t decode = 0, longest = 0, prefill = 0, longest_prefill = 0;
  for (size_t b = 0; b < plan.this_time.size(); ++b) {
    if (plan.this_time[b] == 0) continue;
    if (plan.encoder[b] > 0) {
      const int64_t tiles =
          (int64_t{plan.this_time[b]} * group + attention::kPrefillRows - 1) / attention::kPrefillRows;
      prefill += tiles;
      longest_prefill = std::max(longest_prefill, tiles);
    } else {
      const int64_t blocks = row_tiles * key_blocks(plan.decoder[b] + 1, grid);
      decode += blocks;
      longest = std::max(longest, blocks);
    }
  }
  const int64_t heads = layer_.shape().num_kv_heads;
  decode_blocks_.working += decode * heads;
  decode_blocks_.launched += grid.decoder_tiles * grid.splits * heads;
  decode_blocks_.naive += grid.slots * longest * heads;
  decode_blocks_.naive_captured += grid.slots * row_tiles * key_blocks(options_.max_model_len, grid) * heads;
  if (!plan.has_prefill) return;
  prefill_blocks_.working += prefill * heads;
  prefill_blocks_.launched += grid.encoder_tiles * heads;
  prefill_blocks_.naive += grid.slots * longest_prefill * heads;
  const int64_t most_rows = options_.token_budget * group;
  prefill_blocks_.naive_captured +=
      grid.slots * ((most_rows + attention::kPrefillRows - 1) / attention::kPrefillRows) * heads;
}

void GpuEngine::finish() {
  stream_.synchronize();
  if (running_since_ > 0) timed_seconds_ += now() - running_since_;
  running_since_ = 0;
  refuse_if_pages_miss();
  const int32_t missing = layer_.missing_pages().download()[0];
  if (missing != 0) throw std::runtime_error(std::to_string(missing) + " pages of cached tokens were missing");
}

Rows GpuEngine::summary() const {
  const auto count = [](int64_t value) { return static_cast<long long>(value); };
  Rows rows = {
      {"backend", "cuda, attention included"},
      {"steps", format("%lld: %lld replays of %zu captured buckets, %lld with prefill", count(num_steps_),
                       count(num_replays_), buckets_.size(), count(num_steps_ - num_replays_))},
      {"lengths written by the host", format("in %lld steps; else advance's", count(num_written_))},
      {"block tables written", format("in %lld steps", count(num_tables_))},
      {"tokens", std::to_string(num_tokens_)},
      {"tokens per second",
       format("%.0f (%.1f us a step, steps with checks left out)", static_cast<double>(timed_tokens_) / timed_seconds_,
              timed_seconds_ * 1e6 / static_cast<double>(std::max<int64_t>(timed_steps_, 1)))},
      {"decode attention blocks", decode_blocks_.text()},
      {"prefill attention blocks", prefill_blocks_.text()}};
  if (num_measured_ > 0) {
    const auto steps = static_cast<double>(num_measured_);
    rows.emplace_back("metadata's share of a replay",
                      format("%.1f %%: %.1f us with build and advance, %.1f us without (%lld steps, model left out)",
                             100 * (1 - seconds_without_ / seconds_with_), seconds_with_ * 1e6 / steps,
                             seconds_without_ * 1e6 / steps, count(num_measured_)));
  }
  rows.emplace_back("checked with dense attention",
                    format("%lld steps, %lld slots; largest relative error %.2e", count(dense_.num_steps()),
                           count(dense_.num_slots()), dense_.largest_error()));
  return rows;
}

}  // namespace

std::unique_ptr<Engine> make_gpu_engine(const Options& options) { return std::make_unique<GpuEngine>(options); }

}  // namespace serve_loop

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

// The parts of a step that are timed, by the events around them.
enum Part { kBuild, kModel, kAttention, kSampler, kAdvance, kNumParts };

class PartTimer {
 public:
  PartTimer() {
    for (cudaEvent_t& event : events_) ATTENTION_CUDA(cudaEventCreate(&event));
  }
  ~PartTimer() {
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

  // In a capture these become nodes of the graph.
  void record(int boundary, cudaStream_t stream) const {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    ATTENTION_CUDA(cudaStreamIsCapturing(stream, &capturing));
    const unsigned flags =
        capturing == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
    ATTENTION_CUDA(cudaEventRecordWithFlags(events_[boundary], stream, flags));
  }
  // Adds the parts of a step that is done.
  void add() {
    for (int part = 0; part < kNumParts; ++part) {
      float milliseconds = 0;
      ATTENTION_CUDA(cudaEventElapsedTime(&milliseconds, events_[part], events_[part + 1]));
      seconds_[part] += milliseconds * 1e-3;
    }
    ++steps_;
  }
  double mean(int part) const { return steps_ == 0 ? 0 : seconds_[part] / steps_; }
  bool has_steps() const { return steps_ > 0; }

 private:
  std::array<cudaEvent_t, kNumParts + 1> events_{};
  std::array<double, kNumParts> seconds_{};
  int steps_ = 0;
};

// Thread blocks of attention: those that have work, those of the fixed grid, and those of slots times the longest.
struct Blocks {
  int64_t working = 0, launched = 0, naive = 0;
  std::string text() const {
    const double w = static_cast<double>(working), l = static_cast<double>(launched), n = static_cast<double>(naive);
    return working == 0 ? "none"
                        : format("%.4g with work, %.4g in the fixed grids, %.4g if slots x longest (%.2f x the work)",
                                 w, l, n, n / w);
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
    cudaGraphExec_t exec = nullptr, timed = nullptr;
  };

  void enqueue(int64_t slots, int64_t num_tokens, const attention::Grid& grid, bool has_prefill, PartTimer* timer);
  cudaGraphExec_t capture(const Bucket& bucket, PartTimer* timer);
  void write_inputs(const Plan& plan);
  void check(const Plan& plan, bool has_prefill);
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
  DeviceArray<uint64_t> seeds_;
  DeviceArray<uint8_t> stop_;
  Staging staging_;
  int32_t* num_refused_ = nullptr;  // mapped pinned memory
  PartTimer decode_timer_, prefill_timer_;
  DenseCheck dense_;

  int64_t num_steps_ = 0, num_replays_ = 0, num_tokens_ = 0, num_written_ = 0, num_tables_ = 0;
  int64_t timed_tokens_ = 0, timed_steps_ = 0;
  double timed_seconds_ = 0, running_since_ = 0;
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
  // After all memory is there, as the graphs keep its addresses. All lengths are 0 until the first step.
  for (Bucket& bucket : buckets_) {
    bucket.exec = capture(bucket, nullptr);
    if (options.check_every > 0) bucket.timed = capture(bucket, &decode_timer_);
  }
}

GpuEngine::~GpuEngine() {
  cudaStreamSynchronize(stream_.get());
  for (const Bucket& bucket : buckets_) {
    if (bucket.exec != nullptr) cudaGraphExecDestroy(bucket.exec);
    if (bucket.timed != nullptr) cudaGraphExecDestroy(bucket.timed);
  }
  cudaFreeHost(num_refused_);
}

void GpuEngine::enqueue(int64_t slots, int64_t num_tokens, const attention::Grid& grid, bool has_prefill,
                        PartTimer* timer) {
  const cudaStream_t stream = stream_.get();
  const auto boundary = [&](int part) {
    if (timer != nullptr) timer->record(part, stream);
  };
  const fwdmeta_rows_t rows = {table_.data(), columns_, columns_, nullptr};
  fwdmeta::Batch batch;
  fwdmeta::AdvanceArgs next;
  batch.batch_size = next.batch_size = slots;
  batch.num_padded_tokens = num_tokens;
  batch.seq_lens_encoder = next.seq_lens_encoder = encoder_.data();
  batch.seq_lens_decoder = next.seq_lens_decoder = decoder_.data();
  batch.seq_lens_this_time = next.seq_lens_this_time = this_time_.data();
  batch.num_block_tables = 1;
  batch.block_tables = &rows;
  batch.stream = next.stream = stream;
  next.stop = stop_.data();

  boundary(kBuild);
  const fwdmeta::Meta meta = builder_.build(batch);
  boundary(kModel);
  const attention::Step step = attention::read_step(meta, layer_.shape().num_q_heads);
  layer_.make_tokens(step, seeds_.data(), num_tokens, stream);
  boundary(kAttention);
  if (has_prefill) {
    layer_.prefill_and_decode(step, grid, config_.attention, stream);
  } else {
    layer_.decode(step, grid, config_.attention, stream);
  }
  boundary(kSampler);
  finish_requests(step, final_lengths_.data(), slots, stop_.data(), num_refused_, stream);
  boundary(kAdvance);
  builder_.advance(next);
  boundary(kNumParts);
}

cudaGraphExec_t GpuEngine::capture(const Bucket& bucket, PartTimer* timer) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ATTENTION_CUDA(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
  try {
    enqueue(bucket.slots, bucket.grid.tokens, bucket.grid, false, timer);
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
    enqueue(options_.slots, plan.num_tokens, grid, true, is_checked ? &prefill_timer_ : nullptr);
  } else {
    ATTENTION_CUDA(cudaGraphLaunch(is_checked ? bucket->timed : bucket->exec, stream_.get()));
    ++num_replays_;
  }
  staging_.end_step(stream_.get());

  ++num_steps_;
  num_tokens_ += plan.num_tokens;
  count_blocks(plan, grid);
  expected_.advance(plan);
  if (is_checked) {
    check(plan, plan.has_prefill);
  } else {
    timed_tokens_ += plan.num_tokens;
    ++timed_steps_;
  }
  refuse_if_pages_miss();
}

void GpuEngine::check(const Plan& plan, bool has_prefill) {
  stream_.synchronize();
  refuse_if_pages_miss();
  (has_prefill ? prefill_timer_ : decode_timer_).add();
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
  int64_t decode = 0, longest = 0, prefill = 0, longest_prefill = 0;
  for (size_t b = 0; b < plan.this_time.size(); ++b) {
    if (plan.this_time[b] == 0) continue;
    if (plan.encoder[b] > 0) {
      const int64_t tiles =
          (int64_t{plan.this_time[b]} * group + attention::kPrefillRows - 1) / attention::kPrefillRows;
      prefill += tiles;
      longest_prefill = std::max(longest_prefill, tiles);
    } else {
      const int64_t row_tiles = (group + attention::kDecodeRows - 1) / attention::kDecodeRows;
      const int64_t blocks = row_tiles * key_blocks(plan.decoder[b] + 1, grid);
      decode += blocks;
      longest = std::max(longest, blocks);
    }
  }
  const int64_t heads = layer_.shape().num_kv_heads;
  decode_blocks_.working += decode * heads;
  decode_blocks_.launched += grid.decoder_tiles * grid.splits * heads;
  decode_blocks_.naive += grid.slots * longest * heads;
  if (!plan.has_prefill) return;
  prefill_blocks_.working += prefill * heads;
  prefill_blocks_.launched += grid.encoder_tiles * heads;
  prefill_blocks_.naive += grid.slots * longest_prefill * heads;
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
  const auto parts = [&](const char* name, const PartTimer& timer) {
    if (!timer.has_steps()) return;
    double all = 0;
    for (int part = 0; part < kNumParts; ++part) all += timer.mean(part);
    const double metadata = timer.mean(kBuild) + timer.mean(kAdvance);
    const double without_model = all - timer.mean(kModel);
    rows.emplace_back(name,
                      format("%.1f us: build %.1f, model %.1f, attention %.1f, sampler %.1f, advance %.1f", all * 1e6,
                             timer.mean(kBuild) * 1e6, timer.mean(kModel) * 1e6, timer.mean(kAttention) * 1e6,
                             timer.mean(kSampler) * 1e6, timer.mean(kAdvance) * 1e6));
    rows.emplace_back(std::string("  metadata's share"), format("%.1f %%, of all but the model %.1f %%",
                                                                100 * metadata / all, 100 * metadata / without_model));
  };
  parts("decode step", decode_timer_);
  parts("step with prefill", prefill_timer_);
  rows.emplace_back("checked with dense attention",
                    format("%lld steps, %lld slots; largest relative error %.2e", count(dense_.num_steps()),
                           count(dense_.num_slots()), dense_.largest_error()));
  return rows;
}

}  // namespace

std::unique_ptr<Engine> make_gpu_engine(const Options& options) { return std::make_unique<GpuEngine>(options); }

}  // namespace serve_loop

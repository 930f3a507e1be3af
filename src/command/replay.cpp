#include "replay.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <random>

#include "device_memory.h"
#include "handles.h"
#include "progress.h"
#include "replay_check.h"
#include "scheduler.h"

namespace fwdmeta::command {

namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxPages = std::numeric_limits<int32_t>::max();
constexpr uint64_t kVocabulary = 100000;

int64_t saturating_sum(int64_t a, int64_t b) { return a > kMaxInt64 - b ? kMaxInt64 : a + b; }

int64_t pages(int64_t tokens, int64_t block_size) { return tokens / block_size + (tokens % block_size != 0); }

int64_t longest_request(const std::vector<Request>& requests, int64_t draft_tokens) {
  int64_t longest = 1;
  for (const Request& request : requests) {
    const int64_t tokens = saturating_sum(std::max<int64_t>(request.prompt_tokens, 1), request.output_tokens);
    longest = std::max(longest, saturating_sum(tokens, draft_tokens));
  }
  return longest;
}

// Requests have at least one prompt and one output token, and end where the model length does. The last output token
// is never stored, so a request takes up one position less than it has tokens.
void fit(std::vector<Request>& requests, int64_t max_model_len) {
  for (Request& request : requests) {
    request.prompt_tokens = std::clamp<int64_t>(request.prompt_tokens, 1, max_model_len);
    request.output_tokens = std::clamp<int64_t>(request.output_tokens, 1, max_model_len - request.prompt_tokens + 1);
  }
}

int64_t pool_size(const ReplayOptions& options, const std::vector<Request>& requests, int64_t max_model_len) {
  const int64_t row = pages(max_model_len, options.block_size);
  if (!options.pool_blocks) return std::min(options.max_batch * row, kMaxPages);
  int64_t needed = 1;
  for (const Request& request : requests) {
    needed = std::max(needed, pages(request.prompt_tokens + request.output_tokens - 1, options.block_size));
  }
  if (*options.pool_blocks < needed) {
    throw InputError("--pool-blocks " + std::to_string(*options.pool_blocks) + " is less than the " +
                     std::to_string(needed) + " pages of the longest request");
  }
  return *options.pool_blocks;
}

// Random token ids of a step for the slots of one role, in rows as wide as the role's longest slot.
class TokenRows {
 public:
  TokenRows(Device* device, uint64_t seed) : input_(device), random_(seed) {}

  void fill(const Scheduler& scheduler, bool prefill) {
    const std::vector<int32_t>&encoder = scheduler.seq_lens_encoder(), &this_time = scheduler.seq_lens_this_time();
    const auto length = [&](size_t slot) { return (encoder[slot] > 0) == prefill ? this_time[slot] : 0; };
    rows_.width = 1;
    for (size_t slot = 0; slot < this_time.size(); ++slot) rows_.width = std::max<int64_t>(rows_.width, length(slot));
    const size_t size = this_time.size() * rows_.width;
    if (tokens_.size() < size) tokens_.resize(size);
    for (size_t slot = 0; slot < this_time.size(); ++slot) {
      for (int32_t i = 0; i < length(slot); ++i) {
        tokens_[slot * rows_.width + i] = static_cast<int64_t>(random_() % kVocabulary);
      }
    }
    rows_.data = tokens_.data();
    rows_.row_stride = rows_.width;
  }

  const fwdmeta_rows_t& on_host() const { return rows_; }

  fwdmeta_rows_t on_backend(int64_t slots) {
    fwdmeta_rows_t rows = rows_;
    rows.data = input_.place(rows_.data, slots * rows_.width * sizeof(int64_t));
    return rows;
  }

 private:
  Input input_;
  std::mt19937_64 random_;
  std::vector<int64_t> tokens_;
  fwdmeta_rows_t rows_ = FWDMETA_ROWS_INITIALIZER;
};

int64_t prefill_tokens(const Scheduler& scheduler) {
  int64_t tokens = 0;
  for (size_t slot = 0; slot < scheduler.seq_lens_this_time().size(); ++slot) {
    if (scheduler.seq_lens_this_time()[slot] > 0) tokens += scheduler.seq_lens_encoder()[slot];
  }
  return tokens;
}

double rounded(double microseconds) { return std::round(microseconds * 100) / 100; }

// Nearest rank in an ascending list, 0 of an empty one.
double percentile(const std::vector<double>& ascending, double fraction) {
  if (ascending.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(fraction * static_cast<double>(ascending.size())));
  return rounded(ascending[std::max<size_t>(rank, 1) - 1]);
}

}  // namespace

ReplayReport replay(std::vector<Request> requests, const ReplayOptions& options) {
  fwdmeta_config_t config = FWDMETA_CONFIG_INITIALIZER;
  config.backend = options.backend;
  config.max_batch_size = options.max_batch;
  config.max_num_tokens = options.token_budget;
  config.max_model_len = options.max_model_len.value_or(longest_request(requests, options.spec));
  config.num_q_heads = options.num_q_heads;
  config.num_kv_heads = options.num_kv_heads;
  config.block_size = options.block_size;
  fwdmeta_capacities_t capacities = FWDMETA_CAPACITIES_INITIALIZER;
  check(fwdmeta_get_capacities(&config, nullptr, &capacities));
  fit(requests, config.max_model_len);
  const int64_t pool_blocks = pool_size(options, requests, config.max_model_len);

  const Builder builder(config);
  const fwdmeta_builder_info_t info = builder.info();
  const std::unique_ptr<Device> device = Device::of(info);
  std::optional<ReplayCheck> reference;
  if (options.check) reference.emplace(config, info, device.get());

  const size_t num_requests = requests.size();
  const SchedulerLimits limits{options.max_batch,  options.token_budget, options.chunk,
                               options.block_size, pool_blocks,          capacities.block_table_width[0],
                               options.spec};
  const auto seed = static_cast<uint64_t>(options.seed);
  Scheduler scheduler(std::move(requests), limits, seed);
  TokenRows input_ids(device.get(), seed + 1), draft_tokens(device.get(), seed + 2);
  Input table_input(device.get());
  fwdmeta_rows_t table = FWDMETA_ROWS_INITIALIZER;
  table.width = table.row_stride = limits.table_width;
  fwdmeta_batch_t batch = FWDMETA_BATCH_INITIALIZER;
  batch.memory_kind = FWDMETA_MEMORY_HOST;
  batch.batch_size = options.max_batch;
  batch.seq_lens_encoder = scheduler.seq_lens_encoder().data();
  batch.seq_lens_decoder = scheduler.seq_lens_decoder().data();
  batch.seq_lens_this_time = scheduler.seq_lens_this_time().data();
  batch.num_block_tables = 1;
  batch.block_tables = &table;

  ReplayReport report;
  report.backend = info.backend;
  Progress progress;
  while ((options.steps == 0 || report.steps < options.steps) && scheduler.plan()) {
    input_ids.fill(scheduler, true);
    draft_tokens.fill(scheduler, false);
    table.data = table_input.place(scheduler.block_table().data(), scheduler.block_table().size() * sizeof(int32_t));
    batch.input_ids = input_ids.on_backend(options.max_batch);
    batch.draft_tokens = draft_tokens.on_backend(options.max_batch);

    const auto begin = std::chrono::steady_clock::now();
    const Step step(builder, batch);
    const fwdmeta_counts_t counts = step.wait(0);
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    if (reference) {
      table.data = scheduler.block_table().data();
      batch.input_ids = input_ids.on_host();
      batch.draft_tokens = draft_tokens.on_host();
      reference->compare(step, batch);
    }
    report.samples.push_back({counts.num_tokens, prefill_tokens(scheduler), counts.decoder_num_blocks,
                              counts.encoder_num_blocks, counts.kv_num_blocks, counts.pre_cache_num_blocks,
                              time.count()});
    ++report.steps;
    report.tokens += counts.num_tokens;
    report.decoder_tiles += counts.decoder_num_blocks;
    report.encoder_tiles += counts.encoder_num_blocks;
    report.kv_tiles += counts.kv_num_blocks;
    scheduler.advance();

    const double finished = static_cast<double>(scheduler.num_finished()) / static_cast<double>(num_requests);
    const double stepped =
        options.steps == 0 ? 0 : static_cast<double>(report.steps) / static_cast<double>(options.steps);
    progress.show(std::max(finished, stepped), std::to_string(report.steps) + " steps, " +
                                                   std::to_string(scheduler.num_finished()) + " of " +
                                                   std::to_string(num_requests) + " requests");
  }
  if (reference) {
    report.checked_arrays = reference->num_arrays();
    report.mismatches = reference->num_mismatches();
    report.first_mismatch = reference->first_mismatch();
  }
  return report;
}

BuildTime build_time(const ReplayReport& report) {
  std::vector<double> times;
  for (const StepSample& sample : report.samples) times.push_back(sample.build_us);
  std::sort(times.begin(), times.end());
  return {percentile(times, 0.5), percentile(times, 0.99), percentile(times, 1)};
}

Json to_json(const ReplayReport& report) {
  Json json = report.mismatches == 0
                  ? answer(kReplaySchema, "ok")
                  : error_answer(kReplaySchema, FWDMETA_INTERNAL, "first difference: " + report.first_mismatch);
  json["steps"] = report.steps;
  json["tokens"] = report.tokens;
  json["decoder_tiles"] = report.decoder_tiles;
  json["encoder_tiles"] = report.encoder_tiles;
  json["kv_tiles"] = report.kv_tiles;
  json["mismatches"] = report.mismatches;
  const BuildTime time = build_time(report);
  json["build_us"] = {{"median", time.median}, {"p99", time.p99}, {"max", time.max}};
  json["backend"] = backend_name(report.backend);
  json["checked_arrays"] = report.checked_arrays;
  return json;
}

std::string to_table(const ReplayReport& report, bool checked) {
  const BuildTime time = build_time(report);
  const auto count = [](const char* name, int64_t value) {
    return printed("  %-14s  %13lld\n", name, static_cast<long long>(value));
  };
  const auto duration = [](const char* name, double value) { return printed("  %-14s  %13.2f us\n", name, value); };
  std::string text = printed("backend: %s\n\n", backend_name(report.backend));
  text += count("steps", report.steps) + count("tokens", report.tokens) + count("decoder tiles", report.decoder_tiles) +
          count("encoder tiles", report.encoder_tiles) + count("kv tiles", report.kv_tiles) +
          duration("build, median", time.median) + duration("build, p99", time.p99) + duration("build, max", time.max);
  if (checked) {
    text +=
        "\n" + wrapped("check: ", std::to_string(report.checked_arrays) + " arrays compared with the host backend, " +
                                      std::to_string(report.mismatches) + " differ");
  }
  return text;
}

}  // namespace fwdmeta::command

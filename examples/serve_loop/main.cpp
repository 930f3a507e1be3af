// A serving loop over the requests of a trace: they arrive in its order, are prefilled in chunks, decode, finish and
// make room. On a GPU each step runs KV write and paged attention, decode steps from captured graphs, and sampled steps
// are checked with dense attention; with --backend host it is the scheduling and the metadata alone.
#include <progress.h>
#include <scheduler.h>
#include <trace.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <random>

#include "engine.h"
#include "errors.h"

namespace serve_loop {

namespace {

using fwdmeta::command::InputError;
using fwdmeta::command::Request;
using fwdmeta::command::Scheduler;

constexpr int kRefused = 1, kBadInput = 2;

struct Arguments {
  Options options;
  std::string trace, backend = "auto", attention = "append";
  int64_t chunk = 1024, pool_pages = 0, steps = 0, lose_page_at = 0;
};

int64_t pages(int64_t tokens, int64_t page_size) { return (tokens + page_size - 1) / page_size; }

// Requests have at least one prompt and one output token, and end where the model length does.
void fit(std::vector<Request>& requests, Options& options) {
  int64_t longest = 1;
  for (Request& request : requests) {
    request.prompt_tokens = std::max<int64_t>(request.prompt_tokens, 1);
    request.output_tokens = std::max<int64_t>(request.output_tokens, 1);
    longest = std::max(longest, request.prompt_tokens + request.output_tokens);
  }
  if (options.max_model_len == 0) options.max_model_len = longest;
  for (Request& request : requests) {
    request.prompt_tokens = std::min(request.prompt_tokens, options.max_model_len);
    request.output_tokens = std::min(request.output_tokens, options.max_model_len - request.prompt_tokens + 1);
  }
}

std::unique_ptr<Engine> make_engine(const Arguments& arguments) {
  if (arguments.backend == "host") return make_host_engine(arguments.options);
#if SERVE_LOOP_CUDA
  if (arguments.backend == "cuda") return make_gpu_engine(arguments.options);
  fwdmeta::Config config = builder_config(arguments.options);
  config.backend = FWDMETA_BACKEND_CUDA;
  fwdmeta_builder_t builder = 0;
  const fwdmeta_status_t status = fwdmeta_builder_create(&config, &builder);
  fwdmeta_builder_destroy(builder);
  if (status != FWDMETA_NO_DEVICE) return make_gpu_engine(arguments.options);
  std::cerr << "serve_loop: no GPU, so scheduling and metadata alone\n";
#else
  if (arguments.backend == "cuda") throw std::runtime_error("built without CUDA, or without cuBLAS");
#endif
  return make_host_engine(arguments.options);
}

// The next plan of the scheduler in the engine's form.
class Planner {
 public:
  Planner(Scheduler& scheduler, const Arguments& arguments, int64_t columns)
      : scheduler_(scheduler),
        arguments_(arguments),
        columns_(columns),
        random_(arguments.options.seed),
        final_lengths_(arguments.options.slots, 0),
        seeds_(arguments.options.slots, 0) {}

  Plan next(int64_t step) {
    const auto &encoder = scheduler_.seq_lens_encoder(), &decoder = scheduler_.seq_lens_decoder(),
               &this_time = scheduler_.seq_lens_this_time();
    const bool loses_page = step == arguments_.lose_page_at;
    Plan plan{encoder,        decoder, this_time, loses_page ? broken_table_ : scheduler_.block_table(),
              final_lengths_, seeds_};
    if (loses_page) broken_table_ = scheduler_.block_table();
    for (size_t b = 0; b < this_time.size(); ++b) {
      if (this_time[b] == 0) continue;
      if (encoder[b] > 0 && decoder[b] == 0) seeds_[b] = random_();
      final_lengths_[b] = static_cast<int32_t>(scheduler_.final_length(static_cast<int32_t>(b)));
      plan.num_tokens += this_time[b];
      plan.num_slots = static_cast<int64_t>(b) + 1;
      plan.has_prefill = plan.has_prefill || encoder[b] > 0;
      if (loses_page) {
        broken_table_[b * columns_ + (decoder[b] + this_time[b] - 1) / arguments_.options.page_size] = -1;
      }
    }
    return plan;
  }

 private:
  Scheduler& scheduler_;
  const Arguments& arguments_;
  const int64_t columns_;
  std::mt19937_64 random_;
  std::vector<int32_t> final_lengths_, broken_table_;
  std::vector<uint64_t> seeds_;
};

void serve(Arguments& arguments) {
  Options& options = arguments.options;
  std::vector<Request> requests = fwdmeta::command::read_trace(arguments.trace);
  fit(requests, options);
  const int64_t row = pages(options.max_model_len, options.page_size);
  options.num_pages = arguments.pool_pages > 0 ? arguments.pool_pages : options.slots * row;
  if (options.num_pages < row) {
    throw InputError("--pool-pages " + std::to_string(options.num_pages) + " is less than the " + std::to_string(row) +
                     " pages of the longest request");
  }
  const int64_t columns = fwdmeta::capacities(builder_config(options)).block_table_width[0];
  const std::unique_ptr<Engine> engine = make_engine(arguments);

  const size_t num_requests = requests.size();
  Scheduler scheduler(
      std::move(requests),
      {options.slots, options.token_budget, arguments.chunk, options.page_size, options.num_pages, columns, 0},
      options.seed);
  Planner planner(scheduler, arguments, columns);
  {
    fwdmeta::command::Progress progress;
    for (int64_t step = 1; (arguments.steps == 0 || step <= arguments.steps) && scheduler.plan(); ++step) {
      engine->step(planner.next(step));
      scheduler.advance();
      const double finished = static_cast<double>(scheduler.num_finished()) / static_cast<double>(num_requests);
      const double stepped =
          arguments.steps == 0 ? 0 : static_cast<double>(step) / static_cast<double>(arguments.steps);
      progress.show(std::max(finished, stepped), std::to_string(step) + " steps, " +
                                                     std::to_string(scheduler.num_finished()) + " of " +
                                                     std::to_string(num_requests) + " requests");
    }
    engine->finish();
  }
  Rows rows = {
      {"requests", format("%lld of %zu finished", static_cast<long long>(scheduler.num_finished()), num_requests)}};
  for (auto& line : engine->summary()) rows.push_back(std::move(line));
  for (const auto& [name, value] : rows) std::printf("%-28s %s\n", name.c_str(), value.c_str());
}

int run(int argc, char** argv) {
  Arguments arguments;
  Options& options = arguments.options;
  CLI::App app("Serves the requests of a trace with paged attention driven by libfwdmeta", "serve_loop");
  app.add_option("TRACE", arguments.trace, "CSV with TIMESTAMP,ContextTokens,GeneratedTokens, or JSON lines")
      ->required();
  app.add_option("--backend", arguments.backend, "auto, cuda, or host: scheduling and metadata without attention")
      ->check(CLI::IsMember({"auto", "cuda", "host"}));
  app.add_option("--attention", arguments.attention, "tiles of query rows (append) or chunks of keys (mla)")
      ->check(CLI::IsMember({"append", "mla"}));
  const auto add = [&](const char* name, int64_t& value, int64_t least, const char* text) {
    app.add_option(name, value, text)->check(CLI::Range(least, int64_t{1} << 31))->capture_default_str();
  };
  add("--mla-chunk", options.mla_chunk, 1, "keys of a chunk");
  add("--slots", options.slots, 1, "sequences at a time");
  add("--token-budget", options.token_budget, 1, "tokens of a step");
  add("--chunk", arguments.chunk, 1, "prompt tokens of one request and step");
  add("--page-size", options.page_size, 1, "positions of a page");
  add("--pool-pages", arguments.pool_pages, 0, "pages of the cache; 0: enough for every slot");
  add("--max-model-len", options.max_model_len, 0, "0: the longest request");
  add("--head-dim", options.head_dim, 1, "64 or 128");
  add("--q-heads", options.num_q_heads, 1, "query heads");
  add("--kv-heads", options.num_kv_heads, 1, "KV heads");
  add("--steps", arguments.steps, 0, "0: until the last request is done");
  add("--check-every", options.check_every, 0, "steps from one check with dense attention to the next; 0: none");
  add("--lose-page-at", arguments.lose_page_at, 0, "a step that gets a block table without its new tokens' pages");
  app.add_option("--dtype", options.dtype, "bf16 or fp16")->capture_default_str();
  app.add_option("--seed", options.seed, "of sequences and checks")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  options.attention = arguments.attention == "mla" ? FWDMETA_ATTENTION_MLA : FWDMETA_ATTENTION_APPEND;
  try {
    serve(arguments);
    return 0;
  } catch (const InputError& error) {
    std::cerr << "serve_loop: " << error.what() << "\n";
    return kBadInput;
  } catch (const std::invalid_argument& error) {
    std::cerr << "serve_loop: " << error.what() << "\n";
    return kBadInput;
  } catch (const std::exception& error) {
    std::cerr << "serve_loop: " << error.what() << "\n";
    return kRefused;
  }
}

}  // namespace
}  // namespace serve_loop

int main(int argc, char** argv) { return serve_loop::run(argc, argv); }

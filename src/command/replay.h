#ifndef FWDMETA_COMMAND_REPLAY_H
#define FWDMETA_COMMAND_REPLAY_H

#include <fwdmeta.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "output.h"
#include "trace.h"

namespace fwdmeta::command {

inline constexpr const char* kReplaySchema = "fwdmeta.replay/1";

struct ReplayOptions {
  int64_t max_batch = 256;
  int64_t token_budget = 8192;
  int64_t chunk = 2048;
  int64_t block_size = 64;
  std::optional<int64_t> max_model_len;  // what the longest request needs
  std::optional<int64_t> pool_blocks;    // what max_batch requests of max_model_len need
  int64_t spec = 0;
  int64_t steps = 0;  // 0: all
  int64_t seed = 0;
  int64_t num_q_heads = 64;
  int64_t num_kv_heads = 8;
  bool check = false;
  fwdmeta_backend_t backend = FWDMETA_BACKEND_AUTO;
};

struct StepSample {
  int64_t tokens, prefill_tokens;
  int64_t decoder_tiles, encoder_tiles, kv_tiles, pre_cache_tiles;
  double build_us;
};

// Nearest ranks of the steps' build times, in hundredths of a microsecond; 0 without a step.
struct BuildTime {
  double median, p99, max;
};

struct ReplayReport {
  fwdmeta_backend_t backend = FWDMETA_BACKEND_HOST;  // HOST or CUDA
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t decoder_tiles = 0;
  int64_t encoder_tiles = 0;
  int64_t kv_tiles = 0;
  int64_t checked_arrays = 0;
  int64_t mismatches = 0;
  std::string first_mismatch;
  std::vector<StepSample> samples;  // one a step, in their order
};

BuildTime build_time(const ReplayReport& report);

// Serves the trace as fast as it goes and builds every step.
ReplayReport replay(std::vector<Request> requests, const ReplayOptions& options);

Json to_json(const ReplayReport& report);
std::string to_table(const ReplayReport& report, bool checked);

}  // namespace fwdmeta::command

#endif

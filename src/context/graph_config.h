// A dispatcher's configuration, and the sizes that graphs are captured at.
#pragma once

#include <vector>

#include "context/graph_mode.h"

namespace fwdmeta {

struct GraphConfig {
  fwdmeta_graph_mode_t mode;  // resolved
  fwdmeta_resolve_reason_t reason;
  int32_t max_num_seqs;
  int32_t max_num_tokens;
  int32_t max_loras;
  int32_t max_full_reqs;  // INT32_MAX: no bound
  bool round_piecewise;
  bool default_sizes;
  std::vector<int32_t> query_lens;  // ascending, not empty
  std::vector<int32_t> cases;       // numbers of active LoRAs that graphs are captured for, ascending from 0
  std::vector<int32_t> sizes;       // ascending; empty where the mode is NONE
};

Status ParseGraphConfig(const fwdmeta_dispatcher_config_t* in, GraphConfig* out);

// The sizes of each kind of key, ascending; of uniform ones for the batches of one query length.
std::vector<int32_t> PiecewiseSizes(const GraphConfig& config);
std::vector<int32_t> UniformSizes(const GraphConfig& config, int32_t query_len);
std::vector<int32_t> MixedFullSizes(const GraphConfig& config);

}  // namespace fwdmeta

#include "context/graph_config.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/struct_io.h"

namespace fwdmeta {
namespace {

void SortUnique(std::vector<int32_t>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

// A list of numbers >= 1. `count` is not the default.
Status ReadList(const char* name, const char* count_name, const int64_t* values, int64_t count,
                std::vector<int32_t>* out) {
  FWDMETA_TRY(CheckRange(count_name, count, 0));
  if (count > 0 && values == nullptr) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "%s is null and %s is %lld", name, count_name, (long long)count);
  }
  out->reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < 1 || values[i] > INT32_MAX) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "%s[%lld] is %lld, expected 1..%d", name, (long long)i,
                  (long long)values[i], INT32_MAX);
    }
    out->push_back(static_cast<int32_t>(values[i]));
  }
  SortUnique(out);
  return FWDMETA_OK;
}

// 0 for none, powers of two, and one more than max_loras: requests without an adapter count as one.
std::vector<int32_t> LoraCases(int32_t max_loras, bool specialize) {
  std::vector<int32_t> cases = {0};
  if (max_loras == 0) return cases;
  const int64_t most = int64_t{max_loras} + 1;
  for (int64_t i = 1; specialize && i < most; i *= 2) cases.push_back(static_cast<int32_t>(i));
  cases.push_back(static_cast<int32_t>(most));
  return cases;
}

// The default list's largest size, without a stated one: two tokens for every token of the largest uniform batch, as
// long as that is not far beyond what graphs gain anything for.
int64_t DefaultTop(const GraphConfig& config) {
  const int64_t query_len = config.query_lens.back(), seqs = config.max_num_seqs;
  return std::min(2 * query_len * seqs, std::max<int64_t>(512, query_len * std::min<int64_t>(seqs, 512)));
}

constexpr int64_t kMostSizes = 1 << 20;

Status DefaultSizes(int64_t top, std::vector<int32_t>* out) {
  if (top / 16 > kMostSizes) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "the default list up to %lld tokens has more than %lld sizes", (long long)top,
                (long long)kMostSizes);
  }
  for (int64_t size = 1; size <= top; size += size < 4 ? size : size < 8 ? 4 : size < 256 ? 8 : 16) {
    out->push_back(static_cast<int32_t>(size));
  }
  if (out->back() < top) out->push_back(static_cast<int32_t>(top));
  return FWDMETA_OK;
}

void DropSizesPast(int32_t max_num_tokens, std::vector<int32_t>* sizes) {
  const auto first = std::upper_bound(sizes->begin(), sizes->end(), max_num_tokens);
  if (first == sizes->end()) return;
  Log(FWDMETA_LOG_WARN, "dropped %lld capture sizes from %d to %d, which are past max_num_tokens %d",
      (long long)(sizes->end() - first), *first, sizes->back(), max_num_tokens);
  sizes->erase(first, sizes->end());
}

Status ReadSizes(const fwdmeta_dispatcher_config_t& in, GraphConfig* out) {
  out->default_sizes = in.num_capture_sizes == FWDMETA_DEFAULT;
  std::vector<int32_t> given;
  if (!out->default_sizes) {
    FWDMETA_TRY(ReadList("capture_sizes", "num_capture_sizes", in.capture_sizes, in.num_capture_sizes, &given));
  }
  const bool stated = in.max_capture_size != FWDMETA_DEFAULT;
  const bool no_graphs = out->mode == FWDMETA_GRAPH_NONE;
  if (stated) FWDMETA_TRY(CheckRange("max_capture_size", in.max_capture_size, no_graphs ? 0 : 1));
  if (no_graphs) return FWDMETA_OK;
  const int64_t most = std::min<int64_t>(stated ? in.max_capture_size : DefaultTop(*out), out->max_num_tokens);
  if (out->default_sizes) return DefaultSizes(most, &out->sizes);
  DropSizesPast(out->max_num_tokens, &given);
  if (stated) {
    if (!given.empty() && given.back() > most) {
      return Fail(FWDMETA_INVALID_ARGUMENT, "capture size %d is above max_capture_size %lld", given.back(),
                  (long long)in.max_capture_size);
    }
    if (given.empty() || given.back() < most) given.push_back(static_cast<int32_t>(most));
  }
  out->sizes = std::move(given);
  return FWDMETA_OK;
}

// The sizes rounded up to multiples of `factor`, without those past `most`.
std::vector<int32_t> Rounded(const std::vector<int32_t>& sizes, int64_t factor, int64_t most) {
  std::vector<int32_t> rounded;
  for (const int32_t size : sizes) {
    const int64_t multiple = (size + factor - 1) / factor * factor;
    if (multiple > most) break;
    if (rounded.empty() || rounded.back() < multiple) rounded.push_back(static_cast<int32_t>(multiple));
  }
  return rounded;
}

}  // namespace

Status ParseGraphConfig(const fwdmeta_dispatcher_config_t* config, GraphConfig* out) {
  static const fwdmeta_dispatcher_config_t defaults = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
  fwdmeta_dispatcher_config_t in;
  FWDMETA_TRY(ReadStruct(config, defaults, "config", &in));
  FWDMETA_TRY(CheckApiVersion(in.api_version));
  FWDMETA_TRY(CheckRange("max_num_seqs", in.max_num_seqs, 1));
  FWDMETA_TRY(CheckRange("max_num_tokens", in.max_num_tokens, 1));
  FWDMETA_TRY(CheckRange("max_loras", in.max_loras, 0, INT32_MAX - 1));
  FWDMETA_TRY(CheckRange("round_piecewise", in.round_piecewise, 0, 1));
  FWDMETA_TRY(CheckRange("specialize_active_loras", in.specialize_active_loras, 0, 1));
  out->max_num_seqs = static_cast<int32_t>(in.max_num_seqs);
  out->max_num_tokens = static_cast<int32_t>(in.max_num_tokens);
  out->max_loras = static_cast<int32_t>(in.max_loras);
  out->max_full_reqs = INT32_MAX;
  if (in.max_full_reqs != FWDMETA_DEFAULT) {
    FWDMETA_TRY(CheckRange("max_full_reqs", in.max_full_reqs, 0));
    out->max_full_reqs = static_cast<int32_t>(in.max_full_reqs);
  }
  out->round_piecewise = in.round_piecewise == 1;
  out->cases = LoraCases(out->max_loras, in.specialize_active_loras == 1);
  out->query_lens = {1};
  if (in.num_query_lens != FWDMETA_DEFAULT) {
    out->query_lens.clear();
    FWDMETA_TRY(ReadList("query_lens", "num_query_lens", in.query_lens, in.num_query_lens, &out->query_lens));
    if (out->query_lens.empty()) return Fail(FWDMETA_INVALID_ARGUMENT, "num_query_lens is 0, expected at least 1");
  }
  FWDMETA_TRY(
      ResolveGraphMode(in.mode, in.support, out->query_lens.back(), in.piecewise_available, &out->mode, &out->reason));
  if (Contains(out->mode, FWDMETA_GRAPH_PIECEWISE) && in.piecewise_available == 0) {
    return Fail(FWDMETA_UNSUPPORTED, "mode %s has PIECEWISE graphs, and piecewise_available is 0",
                GraphModeName(out->mode));
  }
  return ReadSizes(in, out);
}

std::vector<int32_t> PiecewiseSizes(const GraphConfig& config) {
  if (!config.round_piecewise || config.sizes.empty()) return config.sizes;
  return Rounded(config.sizes, config.query_lens.back(), config.sizes.back());
}

std::vector<int32_t> UniformSizes(const GraphConfig& config, int32_t query_len) {
  if (config.sizes.empty()) return {};
  const int64_t top = config.sizes.back(), largest_batch = int64_t{query_len} * config.max_num_seqs;
  std::vector<int32_t> sizes = Rounded(config.sizes, query_len, std::min(largest_batch, top));
  // By default the largest batch of decodes has a graph, whatever the steps between sizes.
  if (config.default_sizes && largest_batch <= top && (sizes.empty() || sizes.back() < largest_batch)) {
    sizes.push_back(static_cast<int32_t>(largest_batch));
  }
  while (!sizes.empty() && sizes.back() / query_len > config.max_full_reqs) sizes.pop_back();
  return sizes;
}

std::vector<int32_t> MixedFullSizes(const GraphConfig& config) {
  std::vector<int32_t> sizes = config.sizes;
  while (!sizes.empty() && std::min(sizes.back(), config.max_num_seqs) > config.max_full_reqs) sizes.pop_back();
  return sizes;
}

}  // namespace fwdmeta

// Configurations of a dispatcher, and the contract's dispatch in another way: slowly, over sets of keys.
#ifndef FWDMETA_TESTS_GRAPH_MODEL_H_
#define FWDMETA_TESTS_GRAPH_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fwdmeta.h"

namespace fwdmeta_test {

using Sizes = std::vector<int64_t>;
constexpr int64_t kDefault = FWDMETA_DEFAULT;

// A configuration whose lists live as long as it does.
struct GraphConfig {
  fwdmeta_graph_mode_t mode = FWDMETA_GRAPH_FULL_AND_PIECEWISE;
  int64_t max_num_seqs = 8;
  int64_t max_num_tokens = 8192;
  bool default_sizes = true;
  Sizes sizes = {};
  int64_t max_capture_size = kDefault;
  Sizes query_lens = {1};
  int64_t max_loras = 0;
  bool specialize = false;
  int64_t max_full_reqs = kDefault;
  bool round_piecewise = false;

  GraphConfig With(const Sizes& list) const {
    GraphConfig setup = *this;
    setup.sizes = list;
    setup.default_sizes = false;
    return setup;
  }
  GraphConfig With(fwdmeta_graph_mode_t wanted) const {
    GraphConfig setup = *this;
    setup.mode = wanted;
    return setup;
  }
  fwdmeta_dispatcher_config_t ToC() && = delete;
  fwdmeta_dispatcher_config_t ToC() const& {
    fwdmeta_dispatcher_config_t config = FWDMETA_DISPATCHER_CONFIG_INITIALIZER;
    config.mode = mode;
    config.max_num_seqs = max_num_seqs;
    config.max_num_tokens = max_num_tokens;
    if (!default_sizes) {
      config.capture_sizes = sizes.data();
      config.num_capture_sizes = static_cast<int64_t>(sizes.size());
    }
    config.max_capture_size = max_capture_size;
    config.query_lens = query_lens.data();
    config.num_query_lens = static_cast<int64_t>(query_lens.size());
    config.max_loras = max_loras;
    config.specialize_active_loras = specialize;
    config.max_full_reqs = max_full_reqs;
    config.round_piecewise = round_piecewise;
    return config;
  }
};

// FAP, its sizes given, one query length.
inline GraphConfig Given(const Sizes& sizes, int64_t max_num_seqs, int64_t query_len = 1) {
  GraphConfig setup = GraphConfig().With(sizes);
  setup.max_num_seqs = max_num_seqs;
  setup.query_lens = {query_len};
  return setup;
}

struct Batch {
  int64_t tokens, reqs, query_len = 0, loras = 0;
  int32_t allowed = FWDMETA_ALLOW_ALL;
};

inline fwdmeta_dispatch_args_t ToC(const Batch& batch) {
  fwdmeta_dispatch_args_t args = FWDMETA_DISPATCH_ARGS_INITIALIZER;
  args.num_tokens = batch.tokens;
  args.num_reqs = batch.reqs;
  args.query_len = batch.query_len;
  args.num_active_loras = batch.loras;
  args.allowed_modes = batch.allowed;
  return args;
}

inline std::string Text(fwdmeta_graph_mode_t mode, const fwdmeta_batch_descriptor_t& d) {
  std::string text = fwdmeta_graph_mode_name(mode);
  text += "(" + std::to_string(d.num_tokens) + "," + std::to_string(d.num_reqs) + "," + (d.uniform ? "T" : "F");
  if (d.has_lora || d.num_active_loras) text += ",lora" + std::to_string(d.num_active_loras);
  if (d.has_lora != (d.num_active_loras > 0)) text += ",has_lora?";
  return text + ")";
}

// The contract's §2 and §3, read as sets: a number is asked whether it is a size or a key's.
class Model {
 public:
  explicit Model(const GraphConfig& setup) : s_(setup) {
    q_ = *std::max_element(s_.query_lens.begin(), s_.query_lens.end());
    top_ = 0;
    for (int64_t n = 1; n <= s_.max_num_tokens; ++n) {
      if (IsSize(n)) top_ = n;
    }
    full_mode_ = s_.mode == FWDMETA_GRAPH_FULL;
    const bool uniform = s_.mode >= FWDMETA_GRAPH_FULL_DECODE_ONLY;
    const bool piecewise = s_.mode == FWDMETA_GRAPH_PIECEWISE || s_.mode == FWDMETA_GRAPH_FULL_AND_PIECEWISE;
    for (int64_t n = 1; n <= top_ && s_.mode != FWDMETA_GRAPH_NONE; ++n) {
      if (piecewise && (s_.round_piecewise ? IsMultipleOfASize(n, q_) : IsSize(n)))
        Add(FWDMETA_GRAPH_PIECEWISE, n, -1, 0);
      if (full_mode_ && IsSize(n)) AddFull(n, std::min(n, s_.max_num_seqs), 0);
      for (const int64_t q : std::set<int64_t>(s_.query_lens.begin(), s_.query_lens.end())) {
        if (!uniform || n % q != 0 || n > q * s_.max_num_seqs) continue;
        if (IsMultipleOfASize(n, q) || (s_.default_sizes && n == q * s_.max_num_seqs)) AddFull(n, n / q, 1);
      }
    }
  }

  std::multiset<std::string> KeyTexts() const {
    std::multiset<std::string> texts;
    for (const auto& key : keys_) texts.insert(Text(key.mode, key.descriptor));
    return texts;
  }

  std::string Answer(const Batch& b, const std::function<bool(const fwdmeta_graph_key_t&)>& captured) const {
    if (b.reqs > s_.max_num_seqs) return "INVALID_ARGUMENT";
    if (b.query_len > 0 && (b.tokens % b.query_len != 0 || b.tokens < b.reqs * b.query_len)) return "INVALID_ARGUMENT";
    if ((s_.max_loras == 0 && b.loras > 0) || b.allowed == 0) return "INVALID_ARGUMENT";
    const auto none = [&](const char* reason) {
      if ((b.allowed & FWDMETA_ALLOW_NONE) == 0) return std::string("NO_GRAPH");
      return "NONE(" + std::to_string(b.tokens) + ",-1,F) " + reason;
    };
    if (b.tokens == 0) return none("ZERO_TOKENS");
    if (s_.mode == FWDMETA_GRAPH_NONE) return none("MODE_NONE");
    if (b.loras > s_.max_loras + 1) return none("LORA_NOT_CAPTURED");
    int64_t lora_case = b.loras;
    while (!IsCase(lora_case)) ++lora_case;

    std::string reason;
    if (s_.mode != FWDMETA_GRAPH_PIECEWISE) {
      const fwdmeta_graph_key_t* best = nullptr;
      for (const auto& key : keys_) {
        const fwdmeta_batch_descriptor_t& d = key.descriptor;
        if (key.mode != FWDMETA_GRAPH_FULL || d.num_active_loras != lora_case) continue;
        if (d.num_tokens < b.tokens || d.num_reqs < b.reqs) continue;
        if (d.uniform && (b.query_len == 0 || d.num_tokens != d.num_reqs * b.query_len)) continue;
        if (best == nullptr || d.num_tokens < best->descriptor.num_tokens) best = &key;
      }
      if ((b.allowed & FWDMETA_ALLOW_FULL) == 0) {
        reason = "NOT_ALLOWED";
      } else if (!full_mode_ && b.query_len == 0) {
        reason = "NOT_UNIFORM";
      } else if (best == nullptr) {
        reason = "NO_FULL_SIZE";
      } else if (!captured(*best)) {
        reason = "NOT_CAPTURED";
      } else {
        return Text(best->mode, best->descriptor);
      }
    }
    if (s_.mode != FWDMETA_GRAPH_PIECEWISE && s_.mode != FWDMETA_GRAPH_FULL_AND_PIECEWISE) return none(reason.c_str());
    if ((b.allowed & FWDMETA_ALLOW_PIECEWISE) == 0) return none(reason.empty() ? "NOT_ALLOWED" : reason.c_str());
    const fwdmeta_graph_key_t* best = nullptr;
    for (const auto& key : keys_) {
      const fwdmeta_batch_descriptor_t& d = key.descriptor;
      if (key.mode != FWDMETA_GRAPH_PIECEWISE || d.num_active_loras != lora_case || d.num_tokens < b.tokens) continue;
      if (best == nullptr || d.num_tokens < best->descriptor.num_tokens) best = &key;
    }
    if (best == nullptr) return none("ABOVE_LARGEST");
    if (!captured(*best)) return none(reason.empty() ? "NOT_CAPTURED" : reason.c_str());
    return Text(best->mode, best->descriptor) + (reason.empty() ? "" : " " + reason);
  }

 private:
  bool IsSize(int64_t n) const {
    if (n > s_.max_num_tokens) return false;
    const bool stated = s_.max_capture_size != kDefault;
    if (stated && n == std::min(s_.max_capture_size, s_.max_num_tokens)) return true;
    if (!s_.default_sizes) return std::find(s_.sizes.begin(), s_.sizes.end(), n) != s_.sizes.end();
    int64_t top = stated ? s_.max_capture_size
                         : std::min(2 * q_ * s_.max_num_seqs,
                                    std::max<int64_t>(512, q_ * std::min<int64_t>(s_.max_num_seqs, 512)));
    top = std::min(top, s_.max_num_tokens);
    return n == top ||
           (n < top && (n == 1 || n == 2 || n == 4 || (n % 8 == 0 && n < 256) || (n % 16 == 0 && n >= 256)));
  }
  bool IsMultipleOfASize(int64_t n, int64_t q) const {  // a size rounded up
    for (int64_t i = std::max<int64_t>(1, n - q + 1); i <= n && n % q == 0; ++i) {
      if (IsSize(i)) return true;
    }
    return false;
  }
  bool IsCase(int64_t n) const {
    if (n == 0 || n == s_.max_loras + 1) return true;
    return s_.specialize && (n & (n - 1)) == 0;
  }
  void Add(fwdmeta_graph_mode_t mode, int64_t tokens, int64_t reqs, int32_t uniform) {
    for (int64_t n = 0; n <= (s_.max_loras == 0 ? 0 : s_.max_loras + 1); ++n) {
      if (!IsCase(n)) continue;
      keys_.push_back(
          {mode, {static_cast<int32_t>(tokens), static_cast<int32_t>(reqs), uniform, n > 0, static_cast<int32_t>(n)}});
    }
  }
  void AddFull(int64_t tokens, int64_t reqs, int32_t uniform) {
    if (s_.max_full_reqs == kDefault || reqs <= s_.max_full_reqs) Add(FWDMETA_GRAPH_FULL, tokens, reqs, uniform);
  }

  const GraphConfig s_;
  int64_t q_, top_;
  bool full_mode_;
  std::vector<fwdmeta_graph_key_t> keys_;
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_GRAPH_MODEL_H_

// Everything that dispatch needs, as plain arrays, and dispatch itself: pure, without an allocation, for host and
// device. A device caller copies the arrays and sets the pointers.
#pragma once

#include "context/graph_mode.h"

namespace fwdmeta {

// Graphs of one kind, ascending by tokens.
struct Ladder {
  int32_t query_len;  // tokens of each request; 0: no uniform batches
  int32_t num_sizes;
  const int32_t* sizes;     // [num_sizes]
  const uint8_t* captured;  // [num_sizes][num_cases]
};

struct DispatchTable {
  fwdmeta_graph_mode_t mode;  // resolved
  int32_t max_num_seqs;
  int32_t max_loras;
  int32_t num_cases;
  const int32_t* cases;  // [num_cases] active LoRAs, ascending from 0
  Ladder piecewise;      // without sizes where the mode has no PIECEWISE
  int32_t num_full;
  const Ladder* full;  // [num_full] ascending by query_len; in mode FULL itself one, of query_len 0
};

struct DispatchArgs {
  int64_t num_tokens;
  int64_t num_reqs;
  int64_t query_len;
  int64_t num_active_loras;
  int32_t allowed_modes;
};

struct DispatchResult {
  fwdmeta_graph_mode_t mode;
  fwdmeta_dispatch_reason_t reason;
  fwdmeta_batch_descriptor_t descriptor;
};

// The argument that breaks a rule; kArgsFit where none does.
enum class ArgsFault { kArgsFit, kNumTokens, kNumReqs, kQueryLen, kLoras, kAllowedModes, kNotUniform };

// Whether so many tokens can be so many requests of query_len tokens, padding included.
FWDMETA_HD bool IsUniform(int64_t num_tokens, int64_t num_reqs, int64_t query_len) {
  return num_tokens % query_len == 0 && num_tokens >= num_reqs * query_len;
}

FWDMETA_HD ArgsFault CheckDispatchArgs(const DispatchTable& table, const DispatchArgs& args) {
  if (args.num_tokens < 0 || args.num_tokens > INT32_MAX) return ArgsFault::kNumTokens;
  if (args.num_reqs < 0 || args.num_reqs > table.max_num_seqs) return ArgsFault::kNumReqs;
  if (args.query_len < 0 || args.query_len > INT32_MAX) return ArgsFault::kQueryLen;
  if (args.num_active_loras < 0 || args.num_active_loras > (table.max_loras > 0 ? INT32_MAX : 0)) {
    return ArgsFault::kLoras;
  }
  if (args.allowed_modes < 1 || args.allowed_modes > FWDMETA_ALLOW_ALL) return ArgsFault::kAllowedModes;
  if (args.query_len > 0 && !IsUniform(args.num_tokens, args.num_reqs, args.query_len)) return ArgsFault::kNotUniform;
  return ArgsFault::kArgsFit;
}

// The index of the first entry >= value in an ascending array; `count` where there is none.
FWDMETA_HD int32_t LowerBound(const int32_t* values, int32_t count, int64_t value) {
  int32_t low = 0;
  while (count > 0) {
    const int32_t half = count / 2;
    if (values[low + half] < value) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// Marked by any thread of the host while others dispatch.
FWDMETA_HD bool IsCaptured(const DispatchTable& table, const Ladder& ladder, int32_t size, int32_t lora_case) {
  const uint8_t* flag = ladder.captured + int64_t{size} * table.num_cases + lora_case;
#if defined(__CUDA_ARCH__)
  return *flag != 0;
#else
  return __atomic_load_n(flag, __ATOMIC_RELAXED) != 0;
#endif
}

FWDMETA_HD fwdmeta_batch_descriptor_t MakeDescriptor(const DispatchTable& table, fwdmeta_graph_mode_t mode,
                                                     const Ladder& ladder, int32_t size, int32_t lora_case) {
  const int32_t num_tokens = ladder.sizes[size];
  int32_t num_reqs = -1;
  if (mode == FWDMETA_GRAPH_FULL) {
    const int32_t most = num_tokens < table.max_num_seqs ? num_tokens : table.max_num_seqs;
    num_reqs = ladder.query_len > 0 ? num_tokens / ladder.query_len : most;
  }
  const int32_t loras = table.cases[lora_case];
  return {num_tokens, num_reqs, ladder.query_len > 0 ? 1 : 0, loras > 0 ? 1 : 0, loras};
}

// The ladder for batches of this query length; null where there is none.
FWDMETA_HD const Ladder* FindFullLadder(const DispatchTable& table, int64_t query_len) {
  if (!HasSeparateRoutine(table.mode)) return table.full;
  int32_t low = 0, high = table.num_full;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (table.full[middle].query_len < query_len) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < table.num_full && table.full[low].query_len == query_len ? &table.full[low] : nullptr;
}

// Answers with the smallest graph of at least `tokens` tokens, or says why there is none. A graph that is not captured
// is not passed over for a larger one: which shape a batch runs in must not depend on how far capturing has come.
FWDMETA_HD fwdmeta_dispatch_reason_t TryLadder(const DispatchTable& table, fwdmeta_graph_mode_t mode,
                                               const Ladder* ladder, int64_t tokens, int32_t lora_case,
                                               fwdmeta_dispatch_reason_t none_large_enough, DispatchResult* out) {
  const int32_t size = ladder == nullptr ? 0 : LowerBound(ladder->sizes, ladder->num_sizes, tokens);
  if (ladder == nullptr || size == ladder->num_sizes) return none_large_enough;
  if (!IsCaptured(table, *ladder, size, lora_case)) return FWDMETA_DISPATCH_NOT_CAPTURED;
  out->mode = mode;
  out->descriptor = MakeDescriptor(table, mode, *ladder, size, lora_case);
  return FWDMETA_DISPATCH_OK;
}

// The FULL side: OK with the answer in `out`, or the first reason met.
FWDMETA_HD fwdmeta_dispatch_reason_t TryFull(const DispatchTable& table, const DispatchArgs& args, int32_t lora_case,
                                             DispatchResult* out) {
  if ((args.allowed_modes & FWDMETA_ALLOW_FULL) == 0) return FWDMETA_DISPATCH_NOT_ALLOWED;
  const bool separate = HasSeparateRoutine(table.mode);
  if (separate && args.query_len == 0) return FWDMETA_DISPATCH_NOT_UNIFORM;
  // Room for num_reqs requests: a uniform batch that passed the checks has it in any graph of as many tokens, and a
  // graph of mode FULL has it from num_reqs tokens on.
  const int64_t tokens = separate || args.num_tokens > args.num_reqs ? args.num_tokens : args.num_reqs;
  return TryLadder(table, FWDMETA_GRAPH_FULL, FindFullLadder(table, args.query_len), tokens, lora_case,
                   FWDMETA_DISPATCH_NO_FULL_SIZE, out);
}

// For arguments that fit. The answer NONE is given whether it is allowed or not.
FWDMETA_HD DispatchResult Dispatch(const DispatchTable& table, const DispatchArgs& args) {
  DispatchResult result = {
      FWDMETA_GRAPH_NONE, FWDMETA_DISPATCH_OK, {static_cast<int32_t>(args.num_tokens), -1, 0, 0, 0}};
  if (args.num_tokens == 0) {
    result.reason = FWDMETA_DISPATCH_ZERO_TOKENS;
    return result;
  }
  if (table.mode == FWDMETA_GRAPH_NONE) {
    result.reason = FWDMETA_DISPATCH_MODE_NONE;
    return result;
  }
  const int32_t lora_case = LowerBound(table.cases, table.num_cases, args.num_active_loras);
  if (lora_case == table.num_cases) {
    result.reason = FWDMETA_DISPATCH_LORA_NOT_CAPTURED;
    return result;
  }
  const bool has_full = Contains(table.mode, FWDMETA_GRAPH_FULL);
  if (has_full) {
    result.reason = TryFull(table, args, lora_case, &result);
    if (result.reason == FWDMETA_DISPATCH_OK) return result;
  }
  if (!Contains(table.mode, FWDMETA_GRAPH_PIECEWISE)) return result;
  fwdmeta_dispatch_reason_t reason = FWDMETA_DISPATCH_NOT_ALLOWED;
  if ((args.allowed_modes & FWDMETA_ALLOW_PIECEWISE) != 0) {
    reason = TryLadder(table, FWDMETA_GRAPH_PIECEWISE, &table.piecewise, args.num_tokens, lora_case,
                       FWDMETA_DISPATCH_ABOVE_LARGEST, &result);
  }
  // What kept FULL from answering comes first, but a step past all sizes is told so.
  if (!has_full || reason == FWDMETA_DISPATCH_ABOVE_LARGEST) result.reason = reason;
  return result;
}

}  // namespace fwdmeta

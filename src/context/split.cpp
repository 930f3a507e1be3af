// Decodes before prefills: how many there are, and the order that puts them so.
#include <algorithm>

#include "base/struct_io.h"
#include "context/arrays.h"
#include "context/helpers.h"

namespace fwdmeta {
namespace {

// Fills `order` so that regions ascend. A request stays where its region is; the places that are left get the others,
// region by region and in their order. `region(i)` is in [0, kRegions).
template <int32_t kRegions, class Region>
void OrderByRegion(int32_t count, Region region, int32_t* order, int32_t* changed) {
  int32_t ends[kRegions] = {};  // of the places of each region
  for (int32_t i = 0; i < count; ++i) ++ends[region(i)];
  for (int32_t r = 1; r < kRegions; ++r) ends[r] += ends[r - 1];
  const auto region_of_place = [&](int32_t i) {
    int32_t r = 0;
    while (i >= ends[r]) ++r;
    return r;
  };
  int32_t next[kRegions] = {};  // where the search for a region's next displaced request begins
  int32_t moved = 0;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t wanted = region_of_place(i);
    order[i] = i;
    if (region(i) == wanted) continue;
    int32_t& source = next[wanted];
    while (region(source) != wanted || region_of_place(source) == wanted) ++source;
    order[i] = source++;
    moved = 1;
  }
  if (changed != nullptr) *changed = moved;
}

Status CheckOrder(const int32_t* order, int64_t count, const int32_t* changed) {
  FWDMETA_TRY(CheckArray(order, count, "order"));
  return CheckAligned(changed, "changed");
}

// The first prefill by vLLM's rule (split_decodes_and_prefills); num_reqs where all are decodes.
int32_t FirstPrefill(const fwdmeta_length_split_args_t& args) {
  const int32_t* lens = args.query_lens;
  const int32_t count = static_cast<int32_t>(args.num_reqs);
  if (count == 0) return 0;
  const bool short_decodes = args.treat_short_extends_as_decodes != 0;
  const bool uniform = args.require_uniform != 0;
  const int32_t longest = *std::max_element(lens, lens + count);
  if (longest <= args.threshold && (!uniform || args.threshold == 1) && short_decodes) return count;
  if (lens[0] > args.threshold) return 0;
  const auto as_first = [&](int32_t length) { return length == lens[0] || length == 0; };
  if (uniform && short_decodes && std::all_of(lens, lens + count, as_first)) return count;
  for (int32_t i = 0; i < count; ++i) {
    if (uniform ? lens[i] != lens[0] : lens[i] > args.threshold) return i;
    if (!short_decodes && args.is_prefilling[i] != 0) return i;
  }
  return count;
}

}  // namespace

Status SplitByRole(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                   fwdmeta_batch_split_t* out) {
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  int32_t num_tokens;
  FWDMETA_TRY(CheckRoles(seq_lens_encoder, seq_lens_this_time, batch_size, &num_tokens));
  fwdmeta_batch_split_t split = FWDMETA_BATCH_SPLIT_INITIALIZER;
  for (int64_t i = 0; i < batch_size; ++i) {
    if (seq_lens_this_time[i] == 0) continue;
    const bool prefill = seq_lens_encoder[i] > 0;
    ++(prefill ? split.num_prefills : split.num_decodes);
    (prefill ? split.num_prefill_tokens : split.num_decode_tokens) += seq_lens_this_time[i];
  }
  WriteStruct(split, out);
  return FWDMETA_OK;
}

Status SplitByLength(const fwdmeta_length_split_args_t* in, fwdmeta_batch_split_t* out) {
  const fwdmeta_length_split_args_t defaults = FWDMETA_LENGTH_SPLIT_ARGS_INITIALIZER;
  fwdmeta_length_split_args_t args;
  FWDMETA_TRY(ReadStruct(in, defaults, "args", &args));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  FWDMETA_TRY(CheckRange("num_reqs", args.num_reqs, 0));
  FWDMETA_TRY(CheckRange("threshold", args.threshold, 1));
  FWDMETA_TRY(CheckRange("require_uniform", args.require_uniform, 0, 1));
  FWDMETA_TRY(CheckRange("treat_short_extends_as_decodes", args.treat_short_extends_as_decodes, 0, 1));
  FWDMETA_TRY(CheckArray(args.query_lens, args.num_reqs, "query_lens"));
  if (args.treat_short_extends_as_decodes == 0) {
    FWDMETA_TRY(CheckArray(args.is_prefilling, args.num_reqs, "is_prefilling"));
  }
  if (args.num_tokens != FWDMETA_DEFAULT) FWDMETA_TRY(CheckRange("num_tokens", args.num_tokens, 0));
  int32_t sum;
  FWDMETA_TRY(SumLengths(args.query_lens, static_cast<int32_t>(args.num_reqs), "query_lens", &sum));
  if (args.num_tokens == FWDMETA_DEFAULT) args.num_tokens = sum;
  if (args.num_tokens < sum) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "num_tokens %lld is below the sum %d of query_lens",
                (long long)args.num_tokens, sum);
  }
  fwdmeta_batch_split_t split = FWDMETA_BATCH_SPLIT_INITIALIZER;
  split.num_decodes = FirstPrefill(args);
  split.num_prefills = args.num_reqs - split.num_decodes;
  // Padding counts with the last group.
  split.num_decode_tokens = split.num_prefills == 0 ? args.num_tokens : 0;
  for (int64_t i = 0; split.num_prefills > 0 && i < split.num_decodes; ++i) {
    split.num_decode_tokens += args.query_lens[i];
  }
  split.num_prefill_tokens = args.num_tokens - split.num_decode_tokens;
  WriteStruct(split, out);
  return FWDMETA_OK;
}

Status ReorderByRole(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                     int32_t* order, int32_t* changed) {
  int32_t num_tokens;
  FWDMETA_TRY(CheckRoles(seq_lens_encoder, seq_lens_this_time, batch_size, &num_tokens));
  FWDMETA_TRY(CheckOrder(order, batch_size, changed));
  enum : int32_t { kDecodes, kPrefills, kIdle, kRegions };
  const auto region = [&](int32_t i) -> int32_t {
    if (seq_lens_this_time[i] == 0) return kIdle;
    return seq_lens_encoder[i] > 0 ? kPrefills : kDecodes;
  };
  OrderByRegion<kRegions>(static_cast<int32_t>(batch_size), region, order, changed);
  return FWDMETA_OK;
}

Status ReorderByLength(const int32_t* query_lens, const int32_t* computed, const int32_t* prompt_lens, int64_t num_reqs,
                       int64_t threshold, int32_t* order, int32_t* changed) {
  FWDMETA_TRY(CheckRange("num_reqs", num_reqs, 0));
  FWDMETA_TRY(CheckRange("threshold", threshold, 1));
  FWDMETA_TRY(CheckArray(query_lens, num_reqs, "query_lens"));
  FWDMETA_TRY(CheckArray(computed, num_reqs, "computed"));
  FWDMETA_TRY(CheckArray(prompt_lens, num_reqs, "prompt_lens"));
  FWDMETA_TRY(CheckOrder(order, num_reqs, changed));
  const int32_t count = static_cast<int32_t>(num_reqs);
  int32_t sum;
  FWDMETA_TRY(SumLengths(query_lens, count, "query_lens", &sum));
  FWDMETA_TRY(CheckLengths(computed, count, "computed"));
  FWDMETA_TRY(CheckLengths(prompt_lens, count, "prompt_lens"));
  enum : int32_t { kDecodes, kShortExtends, kLongExtends, kPrefills, kRegions };
  const auto region = [&](int32_t i) -> int32_t {
    if (computed[i] == 0) return kPrefills;
    if (query_lens[i] > threshold) return kLongExtends;
    return computed[i] >= prompt_lens[i] ? kDecodes : kShortExtends;
  };
  OrderByRegion<kRegions>(count, region, order, changed);
  return FWDMETA_OK;
}

}  // namespace fwdmeta

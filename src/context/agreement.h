// What data-parallel ranks conclude from the table of their rows: the same on each, so pure, for host and device.
#pragma once

#include "context/dispatch_table.h"

namespace fwdmeta {

// The field of a row that breaks a rule; kRowFits where none does.
enum class RowFault { kRowFits, kNumTokens, kNumReqs, kMaxMode, kQueryLen, kWantsSlices, kReserved };

FWDMETA_HD RowFault CheckRow(const fwdmeta_rank_row_t& row) {
  if (row.num_tokens < 0 || row.num_tokens > INT32_MAX) return RowFault::kNumTokens;
  if (row.num_reqs < 0 || row.num_reqs > INT32_MAX) return RowFault::kNumReqs;
  if (!IsRuntimeMode(row.max_mode)) return RowFault::kMaxMode;
  if (row.query_len < 0) return RowFault::kQueryLen;
  if (row.wants_slices != 0 && row.wants_slices != 1) return RowFault::kWantsSlices;
  for (int i = 0; i < 5; ++i) {
    if (row.reserved[i] != 0) return RowFault::kReserved;
  }
  return RowFault::kRowFits;
}

// The rows as one. Idle ranks count in min_tokens, all_want_slices and `differs` alone.
struct RowSummary {
  int64_t max_tokens = 0, min_tokens = INT32_MAX;
  int64_t max_reqs = 0;
  int32_t query_len = -1;  // the common one, else 0; -1: every rank is idle
  fwdmeta_graph_mode_t max_mode = FWDMETA_GRAPH_FULL;
  bool all_want_slices = true;
  int64_t bad = -1;      // the lowest rank whose row breaks a rule
  int64_t differs = -1;  // the lowest rank whose config or step is not rank 0's
};

FWDMETA_HD RowSummary Summarize(const fwdmeta_rank_row_t* rows, int64_t num_ranks) {
  RowSummary sum;
  for (int64_t i = 0; i < num_ranks; ++i) {
    const fwdmeta_rank_row_t& row = rows[i];
    if (sum.bad < 0 && CheckRow(row) != RowFault::kRowFits) sum.bad = i;
    if (sum.differs < 0 && (row.config != rows[0].config || row.step != rows[0].step)) sum.differs = i;
    if (row.num_tokens < sum.min_tokens) sum.min_tokens = row.num_tokens;
    if (row.wants_slices == 0) sum.all_want_slices = false;
    if (row.num_tokens == 0) continue;
    if (row.num_tokens > sum.max_tokens) sum.max_tokens = row.num_tokens;
    if (row.num_reqs > sum.max_reqs) sum.max_reqs = row.num_reqs;
    if (row.max_mode < sum.max_mode) sum.max_mode = row.max_mode;
    sum.query_len = sum.query_len < 0 || sum.query_len == row.query_len ? row.query_len : 0;
  }
  return sum;
}

FWDMETA_HD DispatchArgs AgreedArgs(const RowSummary& sum) {
  DispatchArgs args = {sum.max_tokens, sum.max_reqs, sum.query_len, 0, (2 << sum.max_mode) - 1};
  if (args.query_len > 0 && !IsUniform(args.num_tokens, args.num_reqs, args.query_len)) args.query_len = 0;
  return args;
}

// OK, INVALID_ARGUMENT (out is as it was) or RANK_MISMATCH (out has the rank). `num_tokens`, [num_ranks] or null: what
// each rank runs. num_ranks and num_slices are at least 1; out->struct_size stays.
FWDMETA_HD Status Agree(const DispatchTable& table, const fwdmeta_rank_row_t* rows, int64_t num_ranks,
                        int64_t num_slices, int64_t* num_tokens, fwdmeta_agreement_t* out) {
  const RowSummary sum = Summarize(rows, num_ranks);
  if (sum.bad >= 0) return FWDMETA_INVALID_ARGUMENT;
  if (sum.differs >= 0) {
    *out = {out->struct_size, FWDMETA_GRAPH_NONE, FWDMETA_DISPATCH_OK, 0, -1, 0, 0, static_cast<int32_t>(sum.differs),
            {0, -1, 0, 0, 0}};
    return FWDMETA_RANK_MISMATCH;
  }
  DispatchArgs args = {0, 0, 0, 0, FWDMETA_ALLOW_ALL};
  if (sum.max_tokens > 0) args = AgreedArgs(sum);
  if (CheckDispatchArgs(table, args) != ArgsFault::kArgsFit) return FWDMETA_INVALID_ARGUMENT;
  const DispatchResult result = Dispatch(table, args);
  const bool padded = result.mode != FWDMETA_GRAPH_NONE;
  const int64_t largest = padded ? result.descriptor.num_tokens : sum.max_tokens;
  const int64_t slice = largest / num_slices;
  // Every rank must have real tokens in its last slice.
  const bool sliced = num_slices > 1 && sum.all_want_slices && slice > 0 && slice * (num_slices - 1) < sum.min_tokens;
  for (int64_t i = 0; num_tokens != nullptr && i < num_ranks; ++i) {
    num_tokens[i] = padded || sliced ? largest : rows[i].num_tokens;
  }
  *out = {out->struct_size,
          result.mode,
          result.reason,
          static_cast<int32_t>(args.query_len),
          result.descriptor.num_reqs,
          sliced ? 1 : 0,
          sum.max_tokens == 0 ? 1 : 0,
          -1,
          result.descriptor};
  return FWDMETA_OK;
}

// The whole of fwdmeta_agree, for whoever has gathered the rows.
class Dispatcher;
Status AgreeOnRows(const Dispatcher& dispatcher, const fwdmeta_rank_row_t* rows, int64_t num_ranks, int64_t num_slices,
                   int64_t* num_tokens, fwdmeta_agreement_t* out);

}  // namespace fwdmeta

#include "context/agreement.h"

#include "base/check.h"
#include "base/struct_io.h"
#include "context/dispatcher.h"

namespace fwdmeta {
namespace {

Status FailRow(int64_t rank, const fwdmeta_rank_row_t& row) {
  const auto fail = [&](const char* name, int64_t value, int64_t most) {
    return Fail(FWDMETA_INVALID_ARGUMENT, "rank %lld: %s is %lld, expected 0..%lld", (long long)rank, name,
                (long long)value, (long long)most);
  };
  switch (CheckRow(row)) {
    case RowFault::kNumTokens:
      return fail("num_tokens", row.num_tokens, INT32_MAX);
    case RowFault::kNumReqs:
      return fail("num_reqs", row.num_reqs, INT32_MAX);
    case RowFault::kMaxMode:
      return fail("max_mode", row.max_mode, FWDMETA_GRAPH_FULL);
    case RowFault::kQueryLen:
      return fail("query_len", row.query_len, INT32_MAX);
    case RowFault::kWantsSlices:
      return fail("wants_slices", row.wants_slices, 1);
    default:
      return Fail(FWDMETA_INVALID_ARGUMENT, "rank %lld: reserved is not all 0", (long long)rank);
  }
}

}  // namespace

Status AgreeOnRows(const Dispatcher& dispatcher, const fwdmeta_rank_row_t* rows, int64_t num_ranks, int64_t num_slices,
                   int64_t* num_tokens, fwdmeta_agreement_t* out) {
  if (rows == nullptr) return Fail(FWDMETA_INVALID_ARGUMENT, "rows is null");
  FWDMETA_TRY(CheckRange("num_ranks", num_ranks, 1));
  FWDMETA_TRY(CheckRange("num_slices", num_slices, 1, FWDMETA_MAX_SLICES));
  FWDMETA_TRY(CheckOutStruct(out, "out"));
  fwdmeta_agreement_t agreement = FWDMETA_AGREEMENT_INITIALIZER;
  const Status status = Agree(dispatcher.table(), rows, num_ranks, num_slices, num_tokens, &agreement);
  if (status == FWDMETA_OK) {
    WriteStruct(agreement, out);
    return FWDMETA_OK;
  }
  if (status == FWDMETA_RANK_MISMATCH) {
    WriteStruct(agreement, out);
    const fwdmeta_rank_row_t &first = rows[0], &other = rows[agreement.mismatch_rank];
    return Fail(status, "rank %d has config 0x%llx and step %lld, rank 0 has config 0x%llx and step %lld",
                agreement.mismatch_rank, (unsigned long long)other.config, (long long)other.step,
                (unsigned long long)first.config, (long long)first.step);
  }
  const RowSummary sum = Summarize(rows, num_ranks);
  if (sum.bad >= 0) return FailRow(sum.bad, rows[sum.bad]);
  const DispatchArgs args = AgreedArgs(sum);
  return FailDispatchArgs(dispatcher.table(), args, CheckDispatchArgs(dispatcher.table(), args));
}

}  // namespace fwdmeta

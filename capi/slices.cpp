// The C ABI of microbatch slices.
#include "context/slices.h"

#include "guard.h"

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_plan_slices(const fwdmeta_slice_args_t* args, fwdmeta_slice_t* out) {
  return Guard([&] { return PlanSlices(args, out); });
}

fwdmeta_status_t fwdmeta_slice_lengths(const fwdmeta_slice_args_t* args, const fwdmeta_slice_t* slice,
                                       int32_t* query_start_loc, int32_t* seq_lens, int32_t* computed) {
  return Guard([&] { return SliceLengths(args, slice, query_start_loc, seq_lens, computed); });
}

fwdmeta_status_t fwdmeta_slices_conflict(const fwdmeta_slice_args_t* args, const fwdmeta_slice_t* slices,
                                         const fwdmeta_rows_t* block_table, int64_t block_size,
                                         fwdmeta_slice_conflict_t* out) {
  return Guard([&] { return SlicesConflict(args, slices, block_table, block_size, out); });
}

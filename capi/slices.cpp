// The C ABI of microbatch slices.
#include "context/slices.h"

#include "base/trace_range.h"
#include "context/slicer.h"
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

fwdmeta_status_t fwdmeta_slicer_create(const fwdmeta_config_t* config, int64_t max_slices, fwdmeta_slicer_t* out) {
  return Guard([&] { return Slicer::Create(config, max_slices, out); });
}

fwdmeta_status_t fwdmeta_slicer_destroy(fwdmeta_slicer_t slicer) {
  return Guard([&] { return Slicer::Destroy(slicer); });
}

fwdmeta_status_t fwdmeta_slicer_get_builder(fwdmeta_slicer_t handle, int64_t slice, fwdmeta_builder_t* out) {
  return Guard([&] {
    std::shared_ptr<Slicer> slicer;
    FWDMETA_TRY(Slicer::Find(handle, &slicer));
    return slicer->GetBuilder(slice, out);
  });
}

fwdmeta_status_t fwdmeta_build_slices(fwdmeta_slicer_t handle, const fwdmeta_batch_t* batch, int64_t num_slices,
                                      int64_t split, fwdmeta_meta_t* metas) {
  const TraceRange range("fwdmeta_build_slices");
  return Guard([&] {
    std::shared_ptr<Slicer> slicer;
    FWDMETA_TRY(Slicer::Find(handle, &slicer));
    return slicer->Build(batch, num_slices, split, metas);
  });
}

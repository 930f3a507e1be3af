// The metadata of every microbatch slice of a batch: one builder per slice, and the cut of the lengths before them.
#pragma once

#include <memory>
#include <vector>

#include "build/builder.h"

namespace fwdmeta {

class Slicer {
 public:
  static Status Create(const fwdmeta_config_t* config, int64_t max_slices, fwdmeta_slicer_t* out);
  static Status Destroy(fwdmeta_slicer_t handle);
  static Status Find(fwdmeta_slicer_t handle, std::shared_ptr<Slicer>* out);

  ~Slicer();
  Slicer(const Slicer&) = delete;
  Slicer& operator=(const Slicer&) = delete;

  Status GetBuilder(int64_t slice, fwdmeta_builder_t* out) const;
  // All slices or none, but where CUDA refuses a launch behind others.
  Status Build(const fwdmeta_batch_t* batch, int64_t num_slices, int64_t split, fwdmeta_meta_t* metas);

 private:
  Slicer() = default;
  Status ReadSplit(const PendingBuild& whole, int32_t num_slices, int64_t split, int32_t* out) const;
  Status ChooseGeneration(int32_t num_slices, PendingBuild* whole) const;
  void PutSlice(const CutRequest& cut, const PendingBuild& whole, int32_t slice);

  std::vector<fwdmeta_builder_t> handles_;
  std::vector<std::shared_ptr<Builder>> builders_;
  std::vector<PendingBuild> pending_;
  int32_t next_generation_ = 0;  // all slices of a step write the same set
  bool reserved_handle_ = false;
};

}  // namespace fwdmeta

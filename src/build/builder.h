// A builder: issues builds to its backend, numbers the steps and reads the mirror.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "base/handle_table.h"
#include "build/backend.h"
#include "meta/meta.h"

namespace fwdmeta {

// A build between its checks and its issue.
struct PendingBuild {
  BuildRequest request = {};
  fwdmeta_build_flags_t flags = 0;
  int64_t generation = FWDMETA_DEFAULT;  // as asked for
  bool host_lengths = false;
  Summary summary = {};
  std::shared_ptr<Meta> meta;
};

class Builder {
 public:
  static Status Create(const fwdmeta_config_t* config, fwdmeta_builder_t* out);
  static Status Destroy(fwdmeta_builder_t handle);
  static Status Find(fwdmeta_builder_t handle, std::shared_ptr<Builder>* out);
  // The builder of a slice, whose handle only its slicer ends.
  static Status CreateOfSlice(const fwdmeta_config_t* config, fwdmeta_builder_t* out);
  static void DestroyOfSlice(fwdmeta_builder_t handle);

  ~Builder();

  Status Build(const std::shared_ptr<Builder>& self, const fwdmeta_batch_t* batch, fwdmeta_meta_t* out_meta,
               int64_t* out_step);
  Status Advance(const std::shared_ptr<Builder>& self, const fwdmeta_advance_args_t* args);
  Status Reset(fwdmeta_stream_t stream);

  // The parts of Build. Read fills what follows from the batch alone; a slicer then puts a slice's lengths in the place
  // of the batch's. Nothing is enqueued, or seen by readers, before Issue, which fails only where CUDA refuses the
  // launch, and from which on nothing throws. Publish hands the view out, of a build that wants one.
  Status Read(const fwdmeta_batch_t& batch, PendingBuild* out) const;
  Status Prepare(const std::shared_ptr<Builder>& self, bool wants_meta, PendingBuild* pending);
  Status Issue(const PendingBuild& pending);
  fwdmeta_meta_t Publish(const std::shared_ptr<Builder>& self, PendingBuild* pending);
  bool captured(int32_t generation) const { return captured_sets_[generation]; }

  // `out` may be null. Timeouts are those of the C API.
  Status WaitStep(int64_t step, fwdmeta_wait_flags_t flags, int64_t timeout_us, fwdmeta_counts_t* out) const;
  Status WaitReplay(int64_t replay, fwdmeta_wait_flags_t flags, int64_t timeout_us, fwdmeta_counts_t* out) const;
  Status WaitAdvance(int64_t advance, int64_t timeout_us, fwdmeta_advance_counts_t* out) const;

  void GetInfo(fwdmeta_builder_info_t* out) const;
  Status SetTensor(const char* name, const fwdmeta_tensor_t* tensor);
  Status FindTensor(const char* name, fwdmeta_tensor_t* out) const;

  const Config& config() const { return config_; }
  const Plan& plan() const { return plan_; }
  Backend& backend() const { return *backend_; }
  bool Expired(int64_t step) const { return step + config_.depth <= last_step_.load(std::memory_order_acquire); }
  std::mutex& tensors_mutex() const { return tensors_mutex_; }
  const TensorTable& tensors() const { return tensors_; }

 private:
  Builder() : backend_(nullptr, [](Backend*) {}) {}

  static Status Make(const fwdmeta_config_t* config, bool of_slice, fwdmeta_builder_t* out);
  Status ReadBatch(const fwdmeta_batch_t& batch, Inputs* out) const;
  Status CheckOwn() const;
  Status ChooseGeneration(int64_t asked, bool captured, int32_t* out) const;
  Status CheckReaders(int32_t generation, bool captured) const;
  Status ReleaseEntry(int64_t step, fwdmeta_build_flags_t flags);
  std::shared_ptr<Meta> FreeMeta();

  Config config_;
  Plan plan_;
  BackendPtr backend_;
  std::atomic<int64_t> last_step_{0}, last_advance_{0}, host_waits_{0};
  std::vector<bool> captured_sets_;
  std::vector<std::atomic<bool>> staged_entries_;  // whether the step in a ring entry has host lengths
  int32_t next_generation_ = 0;
  bool reserved_builder_ = false, reserved_metas_ = false;
  std::vector<std::shared_ptr<Meta>> metas_;  // the pool; one that nobody else holds is free
  size_t next_meta_ = 0;
  mutable std::mutex tensors_mutex_;
  TensorTable tensors_;
};

}  // namespace fwdmeta

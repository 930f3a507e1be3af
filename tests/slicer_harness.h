// A slicer for tests, over the builders of its slices.
#ifndef FWDMETA_TESTS_SLICER_HARNESS_H_
#define FWDMETA_TESTS_SLICER_HARNESS_H_

#include "harness.h"

namespace fwdmeta_test {

// A slicer whose every step is compared with the model, slice by slice.
class Slicer {
 public:
  Slicer(fwdmeta_backend_t backend, const reference::Config& config, int64_t max_slices)
      : config_(config), inputs_(backend) {
    std::vector<fwdmeta_group_config_t> groups;
    const fwdmeta_config_t c = allocators_->Config(config, backend, &groups);
    EXPECT_OK(fwdmeta_slicer_create(&c, max_slices, &handle_));
    for (int64_t i = 0; i < max_slices && handle_ != 0; ++i) {
      fwdmeta_builder_t builder = 0;
      EXPECT_OK(fwdmeta_slicer_get_builder(handle_, i, &builder));
      slices_.push_back(std::make_unique<Builder>(backend, config, builder, allocators_));
    }
  }
  ~Slicer() {
    slices_.clear();
    EXPECT_OK(fwdmeta_slicer_destroy(handle_));
  }

  fwdmeta_slicer_t handle() const { return handle_; }
  Builder& slice(int64_t i) { return *slices_[i]; }
  int64_t size() const { return static_cast<int64_t>(slices_.size()); }
  Inputs& inputs() { return inputs_; }

  fwdmeta_status_t Build(const reference::Batch& batch, fwdmeta_memory_kind_t kind, int64_t num_slices, int64_t split,
                         int64_t generation = FWDMETA_DEFAULT) {
    skew_ = (skew_ + 1) % 4;
    fwdmeta_batch_t c = inputs_.Put(batch, kind, static_cast<size_t>(skew_) * 4);
    c.generation = generation;
    return Build(c, num_slices, split);
  }
  fwdmeta_status_t Build(const fwdmeta_batch_t& batch, int64_t num_slices, int64_t split) {
    std::vector<fwdmeta_meta_t> metas(FWDMETA_MAX_SLICES, 0);
    const fwdmeta_status_t status = fwdmeta_build_slices(handle_, &batch, num_slices, split, metas.data());
    for (int64_t i = 0; i < FWDMETA_MAX_SLICES; ++i) {
      EXPECT_EQ(status == FWDMETA_OK && i < num_slices, metas[i] != 0) << "slice " << i;
      if (metas[i] != 0) slice(i).Adopt(metas[i]);
    }
    return status;
  }

  // One build whose every slice is what the model says in every array and count.
  bool Run(const reference::Batch& batch, fwdmeta_memory_kind_t kind, int64_t num_slices, int64_t split,
           int64_t generation = FWDMETA_DEFAULT) {
    const reference::Result whole = reference::Build(config_, batch);
    const bool refused = kind == FWDMETA_MEMORY_HOST && whole.status() != FWDMETA_OK;
    int64_t total = 0;
    for (int32_t n : batch.this_time) total += n;
    const int64_t padded = batch.num_padded_tokens < 0 ? total : batch.num_padded_tokens;
    std::vector<reference::Batch> ones;
    std::vector<reference::Result> wants;
    std::vector<int64_t> steps;
    for (int64_t i = 0; i < num_slices; ++i) {
      ones.push_back(
          reference::SliceOf(config_, batch, i, num_slices, split == FWDMETA_DEFAULT ? padded / num_slices : split));
      wants.push_back(reference::Build(config_, ones[i]));
      steps.push_back(slice(i).step());
      // What the build has to write; the set is known where there is one.
      if (!refused && config_.generations == 1) slice(i).Poison(0, wants[i].counts);
    }
    const fwdmeta_status_t status = Build(batch, kind, num_slices, split, generation);
    const auto describe = [&] {
      return std::string(kind == FWDMETA_MEMORY_HOST ? "host" : "device") + " lengths, " + std::to_string(num_slices) +
             " slices, split " + std::to_string(split) + "\n" + Describe(config_, batch);
    };
    if (refused) {
      bool right = status == whole.status() && HoldsNumbersOf(fwdmeta_last_error(), whole.counts);
      EXPECT_TRUE(right) << Name(status) << ": " << fwdmeta_last_error() << describe();
      for (int64_t i = 0; i < num_slices; ++i) {  // nothing is enqueued: every slice's latest step is as it was
        fwdmeta_builder_info_t info = FWDMETA_BUILDER_INFO_INITIALIZER;
        EXPECT_OK(fwdmeta_builder_get_info(slice(i).handle(), &info));
        EXPECT_EQ(steps[i], info.last_step) << "slice " << i;
        right = right && info.last_step == steps[i];
        if (slice(i).meta() != 0) right = slice(i).ExpectArrays(slice(i).meta(), last_[i], steps[i]) && right;
      }
      return right;
    }
    if (status != FWDMETA_OK) {
      ADD_FAILURE() << Name(status) << ": " << fwdmeta_last_error() << describe();
      return false;
    }
    for (int64_t i = 0; i < num_slices; ++i) {
      if (!slice(i).Expect(wants[i])) {
        ADD_FAILURE() << "in slice " << i << " of " << describe() << "\nslice: " << Describe(config_, ones[i]);
        return false;
      }
      if (config_.generations == 1 && !slice(i).Remember(0, slice(i).meta(), wants[i])) return false;
      last_[i] = std::move(wants[i]);
    }
    return true;
  }

 private:
  const reference::Config config_;
  const std::shared_ptr<Allocators> allocators_ = std::make_shared<Allocators>();
  fwdmeta_slicer_t handle_ = 0;
  std::vector<std::unique_ptr<Builder>> slices_;
  reference::Result last_[FWDMETA_MAX_SLICES];
  Inputs inputs_;
  int64_t skew_ = 0;
};

}  // namespace fwdmeta_test

#endif  // FWDMETA_TESTS_SLICER_HARNESS_H_

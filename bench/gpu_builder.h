// CUDA builders of a case that have been compared with the host backend before anything is timed.
#ifndef FWDMETA_BENCH_GPU_BUILDER_H_
#define FWDMETA_BENCH_GPU_BUILDER_H_

#include "fixture.h"
#include "gpu.h"

namespace fwdmeta_bench {

class DeviceInputs {
 public:
  DeviceInputs(const Case& c, int64_t table_width);
  void Upload(const Inputs& inputs);  // there when it returns; no work may be reading
  InputPointers pointers() const;

 private:
  DeviceBuffer encoder_, decoder_, this_time_, table_, ids_, drafts_;
};

// What eager and captured builders share: inputs on the device, and the comparison of a step. The constructors of both
// run the case's own inputs, scrambled ones, and the case's own again.
class CheckedBuilder {
 public:
  explicit CheckedBuilder(CaseFixture* fixture);
  CheckedBuilder(const CheckedBuilder&) = delete;
  CheckedBuilder& operator=(const CheckedBuilder&) = delete;
  virtual ~CheckedBuilder();

  fwdmeta_builder_t handle() const { return builder_.handle(); }
  fwdmeta_meta_t meta() const { return meta_.handle(); }
  const BatchArgs& args() const { return args_; }
  const DeviceInputs& inputs() const { return inputs_; }
  CaseFixture& fixture() const { return *fixture_; }

  // What must be written is poisoned; then `run` has to build once on the main stream, leaving a view in meta_, and
  // every array up to its capacity and every count must be the host backend's.
  void Check(const Inputs& inputs, const std::function<void()>& run);

 protected:
  void Poison(const fwdmeta_counts_t& next);
  void CompareArrays();
  virtual fwdmeta_counts_t WaitForCounts() = 0;

  CaseFixture* const fixture_;
  Builder builder_;
  DeviceInputs inputs_;
  BatchArgs args_;
  Meta arrays_;  // of the first build: the addresses of every later one
  Meta meta_;    // of the latest
  fwdmeta_counts_t previous_ = FWDMETA_COUNTS_INITIALIZER;
};

class EagerBuilder : public CheckedBuilder {
 public:
  explicit EagerBuilder(CaseFixture* fixture);
  // Host lengths, the same other inputs.
  const BatchArgs& host_args() const { return host_args_; }

 private:
  fwdmeta_counts_t WaitForCounts() override;
  BatchArgs host_args_;
  int64_t step_ = 0;
};

class CapturedBuilder : public CheckedBuilder {
 public:
  explicit CapturedBuilder(CaseFixture* fixture);
  const GraphTimer& timer() const { return *timer_; }
  // Enqueues one build to a stream under capture.
  void Enqueue(cudaStream_t stream);

 private:
  fwdmeta_counts_t WaitForCounts() override;
  std::unique_ptr<GraphTimer> timer_;
};

}  // namespace fwdmeta_bench

#endif  // FWDMETA_BENCH_GPU_BUILDER_H_

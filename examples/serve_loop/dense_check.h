// A few slots of a step against dense attention.
#ifndef FWDMETA_EXAMPLES_SERVE_LOOP_DENSE_CHECK_H_
#define FWDMETA_EXAMPLES_SERVE_LOOP_DENSE_CHECK_H_

#include <dense_truth.h>
#include <layer.h>
#include <synthetic.h>

#include <random>

#include "engine.h"

namespace serve_loop {

class DenseCheck {
 public:
  DenseCheck(uint64_t seed, cudaStream_t stream) : random_(seed), stream_(stream), truth_(stream) {}

  // Compares some live slots of a step that is done, of long prompts the last tokens. std::runtime_error where the
  // relative error (Frobenius) is past 1e-2 for bf16, 2e-3 for fp16.
  void compare(const Plan& plan, attention::Layer& layer);

  int64_t num_steps() const { return num_steps_; }
  int64_t num_slots() const { return num_slots_; }
  double largest_error() const { return largest_error_; }

 private:
  double error(const Plan& plan, size_t slot, int64_t first_token, attention::Layer& layer);
  const void* sequence(attention::Kind kind, const attention::LayerShape& shape, uint64_t seed, int64_t first,
                       int64_t count, int heads, attention::DeviceArray<uint16_t>& to);

  std::mt19937_64 random_;
  cudaStream_t stream_;
  attention::DenseTruth truth_;
  attention::DeviceArray<uint16_t> q_, k_, v_;
  int64_t num_steps_ = 0, num_slots_ = 0;
  double largest_error_ = 0;
};

}  // namespace serve_loop

#endif  // FWDMETA_EXAMPLES_SERVE_LOOP_DENSE_CHECK_H_

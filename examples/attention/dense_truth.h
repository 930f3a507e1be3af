// The truth that paged attention is checked with: one sequence at a time, its K and V dense, float32 throughout, the
// two products by cuBLAS. It knows neither pages nor mappings.
#ifndef FWDMETA_EXAMPLES_ATTENTION_DENSE_TRUTH_H_
#define FWDMETA_EXAMPLES_ATTENTION_DENSE_TRUTH_H_

#include <cublas_v2.h>

#include "attention.h"
#include "cuda_objects.h"

namespace attention {

// The last num_queries positions of a sequence of num_keys, as the model gave them: bf16 or fp16, rotated or not.
struct DenseSequence {
  Dtype dtype;
  int head_dim, num_kv_heads, group;
  int64_t num_keys, num_queries;
  const void *q, *k, *v;  // [num_queries, kv heads * group, head_dim], [num_keys, kv heads, head_dim] twice
  bool rotate;            // with base 10000
};

class DenseTruth {
 public:
  explicit DenseTruth(cudaStream_t stream);
  ~DenseTruth();
  DenseTruth(const DenseTruth&) = delete;
  DenseTruth& operator=(const DenseTruth&) = delete;

  // Causal attention, [num_queries, kv heads * group, head_dim]; lives until the next call.
  const float* attend(const DenseSequence& sequence);

  // Sums of the squares of got - want and of want, where `got` has the dtype. NaN where `got` has one.
  struct Norms {
    double difference, want;
  };
  Norms compare(Dtype dtype, const void* got, const float* want, int64_t size);

 private:
  cudaStream_t stream_;
  cublasHandle_t cublas_ = nullptr;
  DeviceArray<float> q_, k_, v_, scores_, rows_, out_;
  DeviceArray<double> norms_{2};
};

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_DENSE_TRUTH_H_

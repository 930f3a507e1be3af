// From the dtype and head_dim of a step to the kernel made for them.
#ifndef FWDMETA_EXAMPLES_ATTENTION_DISPATCH_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_DISPATCH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "attention.h"

namespace attention {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

template <class T>
struct Type {
  using type = T;
};

// Calls launch(Type<T>, integral_constant<int, head_dim>) and checks the launch.
template <class Launch>
void dispatch(const Step& step, const char* what, const Launch& launch) {
  const auto with_head_dim = [&](auto type) {
    if (step.head_dim == 64) {
      launch(type, std::integral_constant<int, 64>());
    } else {
      launch(type, std::integral_constant<int, 128>());
    }
  };
  if (step.dtype == Dtype::kBf16) {
    with_head_dim(Type<__nv_bfloat16>());
  } else {
    with_head_dim(Type<__half>());
  }
  check(cudaGetLastError(), what);
}

// More than 48 KB of shared memory for a kernel has to be asked for.
template <class Kernel>
void allow_shared_memory(Kernel* kernel, int bytes) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
}

// 1 / sqrt(head_dim), and log2(e) for exponentials that are powers of two.
inline float softmax_scale(int head_dim) {
  constexpr double kLog2E = 1.4426950408889634;
  return static_cast<float>(kLog2E / std::sqrt(static_cast<double>(head_dim)));
}

inline dim3 grid_of(int64_t x, int y, int z = 1) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)};
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_DISPATCH_CUH_

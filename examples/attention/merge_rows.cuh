// The parts of a row, each of some of its keys, added up by one warp.
#ifndef FWDMETA_EXAMPLES_ATTENTION_MERGE_ROWS_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_MERGE_ROWS_CUH_

#include "decode_rows.cuh"

namespace attention {

constexpr int kMergeWarps = 4;

// Row `row` of part first + i * stride for i < count; `out` is its place in the output.
template <class T, int kHeadDim>
__device__ void merge_row(const Workspace& workspace, int64_t first, int64_t stride, int count, int row, T* out) {
  const int lane = threadIdx.x % 32;
  float maximum = minus_infinity();
  for (int i = lane; i < count; i += 32) {
    maximum = fmaxf(maximum, workspace.max_and_sum[(first + i * stride) * kDecodeRows + row].x);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffff, maximum, step));

  const int column = lane * 4 % kHeadDim;  // with head_dim 64 two lanes do the same column
  float4 value = {0, 0, 0, 0};
  float sum = 0;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    const int64_t at = (first + i * stride) * kDecodeRows + row;
    const float2 part = workspace.max_and_sum[at];
    const float factor = weight(part.x, maximum);
    sum += part.y * factor;
    value = add_scaled(value, *reinterpret_cast<const float4*>(workspace.out + at * kHeadDim + column), factor);
  }
  if (lane * 4 < kHeadDim) store_four<T>(out + column, value, 1 / sum);
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_MERGE_ROWS_CUH_

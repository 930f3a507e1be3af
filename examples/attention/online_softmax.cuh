// Attention of 16 query rows held by one warp: scores against some keys in shared memory, softmax on the way (maximum
// and sum so far, in float), and the weighted sum of the values.
#ifndef FWDMETA_EXAMPLES_ATTENTION_ONLINE_SOFTMAX_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_ONLINE_SOFTMAX_CUH_

#include "tensor_core.cuh"

namespace attention {

__device__ inline float minus_infinity() { return __int_as_float(0xff800000); }

// A weight 2^(score - maximum) where a row that has seen no key has the maximum -inf: 0 for -inf, never NaN.
__device__ inline float weight(float score, float maximum) {
  return exp2f(score - (maximum == minus_infinity() ? 0.f : maximum));
}

// A lane holds parts of rows lane / 4 ([0]) and lane / 4 + 8 ([1]), laid out as multiply() leaves them.
template <int kHeadDim>
struct RowsSoFar {
  float maximum[2];
  float sum[2];  // of this lane's columns; the four lanes of a row add up to the row's
  float out[kHeadDim / 8][4];

  __device__ void clear() {
    maximum[0] = maximum[1] = minus_infinity();
    sum[0] = sum[1] = 0;
#pragma unroll
    for (auto& piece : out) piece[0] = piece[1] = piece[2] = piece[3] = 0;
  }

  // Adds the sums of the four lanes of each row.
  __device__ void finish_sums() {
#pragma unroll
    for (float& part : sum) {
      part += __shfl_xor_sync(0xffffffff, part, 1);
      part += __shfl_xor_sync(0xffffffff, part, 2);
    }
  }
};

// Adds kKeys keys. `keys` and `values` are shared addresses of [kKeys][kHeadDim] tiles; `first_key` is the position of
// the first and last_key[i] that of the last key which this lane's row i may see. `scale` includes log2(e).
template <class T, int kHeadDim, int kKeys>
__device__ void add_keys(RowsSoFar<kHeadDim>& rows, const uint32_t (&queries)[kHeadDim / 16][4], uint32_t keys,
                         uint32_t values, int first_key, const int (&last_key)[2], float scale) {
  const int lane = threadIdx.x % 32;
  float scores[kKeys / 8][4] = {};
#pragma unroll
  for (int k = 0; k < kHeadDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];  // keys 16n..+7 at columns 16k..+7 and ..+15, then keys 16n+8..
      load_matrices(b, keys + piece_offset<kHeadDim>(16 * n + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
      multiply<T>(scores[2 * n], queries[k], b[0], b[1]);
      multiply<T>(scores[2 * n + 1], queries[k], b[2], b[3]);
    }
  }

  float maximum[2] = {rows.maximum[0], rows.maximum[1]};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + 2 * (lane % 4) + i % 2;
      scores[n][i] = key <= last_key[i / 2] ? scores[n][i] * scale : minus_infinity();
      maximum[i / 2] = fmaxf(maximum[i / 2], scores[n][i]);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(0xffffffff, maximum[half], 1));
    maximum[half] = fmaxf(maximum[half], __shfl_xor_sync(0xffffffff, maximum[half], 2));
    const float kept = weight(rows.maximum[half], maximum[half]);
    rows.maximum[half] = maximum[half];
    rows.sum[half] *= kept;
#pragma unroll
    for (int d = 0; d < kHeadDim / 8; ++d) {
      rows.out[d][2 * half] *= kept;
      rows.out[d][2 * half + 1] *= kept;
    }
  }

#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[n][i] = weight(scores[n][i], maximum[i / 2]);
      rows.sum[i / 2] += scores[n][i];
    }
  }
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    const uint32_t weights[4] = {
        pack<T>(scores[2 * k][0], scores[2 * k][1]), pack<T>(scores[2 * k][2], scores[2 * k][3]),
        pack<T>(scores[2 * k + 1][0], scores[2 * k + 1][1]), pack<T>(scores[2 * k + 1][2], scores[2 * k + 1][3])};
#pragma unroll
    for (int d = 0; d < kHeadDim / 16; ++d) {
      uint32_t b[4];  // keys 16k..+7 and ..+15 at columns 16d..+7, then at columns 16d+8..
      load_matrices_transposed(b, values + piece_offset<kHeadDim>(16 * k + lane % 16, 2 * d + lane / 16));
      multiply<T>(rows.out[2 * d], weights, b[0], b[1]);
      multiply<T>(rows.out[2 * d + 1], weights, b[2], b[3]);
    }
  }
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_ONLINE_SOFTMAX_CUH_

// 16 query rows of a KV head, rotated, as the tensor cores want them.
#ifndef FWDMETA_EXAMPLES_ATTENTION_QUERIES_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_QUERIES_CUH_

#include "rotary.cuh"
#include "slot.cuh"
#include "tensor_core.cuh"

namespace attention {

// A warp loads rows first_row .. first_row + 15, straight into fragments: a lane's two elements of column c and those
// of c + head_dim / 2 are its own, so that it can rotate them. Rows past the last are zero.
template <class T, int kHeadDim>
__device__ void load_queries(const Step& step, const Tokens& tokens, const Slot& slot, int kv_head, int first_row,
                             uint32_t (&out)[kHeadDim / 16][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + lane / 4 + 8 * half;
    const bool exists = row < slot.num_rows;
    const T* from = static_cast<const T*>(tokens.q) + (exists ? row_index(step, slot, kv_head, row) * kHeadDim : 0);
    const int position = row_position(step, slot, row);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {  // i: 8 columns of the lower half of a head
      const int column = 8 * i + 2 * (lane % 4);
      uint32_t low = 0, high = 0;
      if (exists) {
        low = *reinterpret_cast<const uint32_t*>(from + column);
        high = *reinterpret_cast<const uint32_t*>(from + column + kHeadDim / 2);
        if (step.rotary != nullptr) {
          float2 turned_low = unpack<T>(low), turned_high = unpack<T>(high);
          rotate<kHeadDim>(step, position, column, turned_low, turned_high);
          low = pack<T>(turned_low.x, turned_low.y);
          high = pack<T>(turned_high.x, turned_high.y);
        }
      }
      out[i / 2][half + 2 * (i % 2)] = low;
      out[i / 2 + kHeadDim / 32][half + 2 * (i % 2)] = high;
    }
  }
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_QUERIES_CUH_

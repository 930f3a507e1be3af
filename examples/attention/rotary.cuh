// Rotary embedding: elements c and c + head_dim / 2 of a head are turned by the angle of their position.
#ifndef FWDMETA_EXAMPLES_ATTENTION_ROTARY_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_ROTARY_CUH_

#include "attention.h"

namespace attention {

// Turns the pairs (low.x, high.x) and (low.y, high.y) of columns c and c + 1 < head_dim / 2.
template <int kHeadDim>
__device__ void rotate(const Step& step, int64_t position, int column, float2& low, float2& high) {
  const float* cosines = step.rotary + position * (kHeadDim / 2) + column;
  const float2 c = *reinterpret_cast<const float2*>(cosines);
  const float2 s = *reinterpret_cast<const float2*>(cosines + step.rotary_positions * (kHeadDim / 2));
  const float2 from_low = low, from_high = high;
  low = {from_low.x * c.x - from_high.x * s.x, from_low.y * c.y - from_high.y * s.y};
  high = {from_high.x * c.x + from_low.x * s.x, from_high.y * c.y + from_low.y * s.y};
}

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_ROTARY_CUH_

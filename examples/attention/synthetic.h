// What stands for the model: queries, keys and values that look random and follow from a sequence's seed and a position
// alone. So a check can make any token of any sequence again, without a cache and without the metadata.
#ifndef FWDMETA_EXAMPLES_ATTENTION_SYNTHETIC_H_
#define FWDMETA_EXAMPLES_ATTENTION_SYNTHETIC_H_

#include "attention.h"

namespace attention {

// The tokens of a step: [T, heads, head_dim], normally distributed. `seeds` [slots] is the device's; padding is left.
void make_tokens(const Step& step, const uint64_t* seeds, int64_t num_tokens, void* q, void* k, void* v,
                 cudaStream_t stream);

enum class Kind { kQuery, kKey, kValue };
// Positions [first, first + count) of one sequence: [count, heads, head_dim].
void make_sequence(Dtype dtype, Kind kind, uint64_t seed, int64_t first, int64_t count, int heads, int head_dim,
                   void* out, cudaStream_t stream);

// Cosines and sines of rotary embedding with base 10000: [2, positions, head_dim / 2].
void make_rotary(int64_t positions, int head_dim, float* out, cudaStream_t stream);

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_SYNTHETIC_H_

// Microbatch slices: the tokens of a slice, and the lengths that a slot has in it as a batch of its own. The host and
// the device cut by these.
#pragma once

#include <cstdint>

#include "base/hd.h"

namespace fwdmeta {

// A range of the batch's tokens; half-open.
struct TokenRange {
  int32_t begin, end;
};

// Slice `slice` of `num_slices` over `num_tokens` tokens, `split` to each; the last takes the rest.
FWDMETA_HD TokenRange RangeOfSlice(int32_t slice, int32_t num_slices, int32_t split, int32_t num_tokens) {
  const int64_t begin = static_cast<int64_t>(slice) * split, end = begin + split;
  return {static_cast<int32_t>(begin < num_tokens ? begin : num_tokens),
          static_cast<int32_t>(slice < num_slices - 1 && end < num_tokens ? end : num_tokens)};
}

// Padding goes to the last slice. `num_padded_tokens` may be -1 for none.
FWDMETA_HD int32_t PaddingOfSlice(int32_t slice, int32_t num_slices, int32_t num_padded_tokens, int32_t num_tokens) {
  return slice == num_slices - 1 && num_padded_tokens > num_tokens ? num_padded_tokens - num_tokens : 0;
}

// A slot's lengths in a slice.
struct SlotCut {
  int32_t encoder, decoder, this_time;
  int32_t offset;  // its tokens in earlier slices; the top bit where a later slice has more of it
};
constexpr int32_t kMoreFollows = INT32_MIN;

// Where the lengths of a slice lie between the cut and its build. Device memory where the device cuts.
struct SliceArrays {
  int32_t *encoder, *decoder, *this_time, *offsets;  // [max_batch_size]
  int32_t* num_padding;                              // [1]
};
FWDMETA_HD void StoreSlot(const SliceArrays& out, int32_t b, const SlotCut& cut) {
  out.encoder[b] = cut.encoder;
  out.decoder[b] = cut.decoder;
  out.this_time[b] = cut.this_time;
  out.offsets[b] = cut.offset;
}

// `begin` is the number of tokens in the slots before.
FWDMETA_HD SlotCut CutSlot(int32_t encoder, int32_t decoder, int32_t this_time, int32_t begin,
                           const TokenRange& slice) {
  const int32_t end = begin + this_time;
  const int32_t first = begin > slice.begin ? begin : slice.begin < end ? slice.begin : end;
  const int32_t last = end < slice.end ? end : slice.end;
  const int32_t tokens = last > first ? last - first : 0;
  const int32_t earlier = first - begin;
  return {encoder > 0 ? tokens : 0, decoder + earlier, tokens, earlier | (slice.end < end ? kMoreFollows : 0)};
}

}  // namespace fwdmeta

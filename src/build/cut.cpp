#include "build/cut.h"

#include <algorithm>

namespace fwdmeta {

void CutOnHost(const CutRequest& request, int32_t num_tokens) {
  const Inputs& batch = *request.batch;
  for (int32_t slice = 0; slice < request.num_slices; ++slice) {
    const SliceArrays& out = request.slices[slice];
    if (num_tokens < 0) {
      std::copy_n(batch.encoder, batch.batch_size, out.encoder);
      std::copy_n(batch.decoder, batch.batch_size, out.decoder);
      std::copy_n(batch.this_time, batch.batch_size, out.this_time);
      std::fill_n(out.offsets, batch.batch_size, 0);
      *out.num_padding = 0;
      continue;
    }
    const TokenRange range = RangeOfSlice(slice, request.num_slices, request.split, num_tokens);
    int32_t begin = 0;
    for (int32_t b = 0; b < batch.batch_size; ++b) {
      const SlotCut cut = CutSlot(batch.encoder[b], batch.decoder[b], batch.this_time[b], begin, range);
      out.encoder[b] = cut.encoder;
      out.decoder[b] = cut.decoder;
      out.this_time[b] = cut.this_time;
      out.offsets[b] = cut.offset;
      begin += batch.this_time[b];
    }
    *out.num_padding = PaddingOfSlice(slice, request.num_slices, batch.num_padded_tokens, num_tokens);
  }
}

}  // namespace fwdmeta

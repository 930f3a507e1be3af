#include "build/cut.h"

namespace fwdmeta {

void CutOnHost(const CutRequest& request, int32_t num_tokens) {
  const Inputs& batch = *request.batch;
  for (int32_t slice = 0; slice < request.num_slices; ++slice) {
    const SliceArrays& out = request.slices[slice];
    if (num_tokens < 0) {
      for (int32_t b = 0; b < batch.batch_size; ++b) {
        StoreSlot(out, b, {batch.encoder[b], batch.decoder[b], batch.this_time[b], 0});
      }
      *out.num_padding = 0;
      continue;
    }
    const TokenRange range = RangeOfSlice(slice, request.num_slices, request.split, num_tokens);
    int32_t begin = 0;
    for (int32_t b = 0; b < batch.batch_size; ++b) {
      StoreSlot(out, b, CutSlot(batch.encoder[b], batch.decoder[b], batch.this_time[b], begin, range));
      begin += batch.this_time[b];
    }
    *out.num_padding = PaddingOfSlice(slice, request.num_slices, batch.num_padded_tokens, num_tokens);
  }
}

}  // namespace fwdmeta

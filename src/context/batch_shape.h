// From the lengths of a batch to what dispatch asks for, and from what is asked for to the lengths of a dummy batch.
#pragma once

#include "base/status.h"

namespace fwdmeta {

Status DispatchArgsFromLengths(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                               int64_t query_len, fwdmeta_dispatch_args_t* out);

Status MakeDummy(const fwdmeta_dummy_batch_t* dummy);

}  // namespace fwdmeta

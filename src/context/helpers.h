// What engines compute around the forward metadata: splits and orders of a batch, local attention, page lists. Host
// code over host arrays; what each function computes stands in fwdmeta_context.h.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace fwdmeta {

Status SplitByRole(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                   fwdmeta_batch_split_t* out);
Status SplitByLength(const fwdmeta_length_split_args_t* in, fwdmeta_batch_split_t* out);

Status ReorderByRole(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time, int64_t batch_size,
                     int32_t* order, int32_t* changed);
Status ReorderByLength(const int32_t* query_lens, const int32_t* computed, const int32_t* prompt_lens, int64_t num_reqs,
                       int64_t threshold, int32_t* order, int32_t* changed);

Status LocalAttention(const fwdmeta_local_attention_args_t* in, int64_t capacity, int32_t* query_lens,
                      int32_t* seq_lens, int32_t* block_table, int32_t* request, int64_t* count);

Status PagedIndptr(const int32_t* seq_lens, int64_t num_reqs, int64_t page_size, int32_t* indptr,
                   int32_t* last_page_len);
Status ExpandBlockTable(const int32_t* blocks, int64_t count, int64_t block_size, int64_t kernel_block_size,
                        int32_t* out);

}  // namespace fwdmeta

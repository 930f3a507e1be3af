// The C ABI of the helpers.
#include "context/helpers.h"

#include "guard.h"

using namespace fwdmeta;

fwdmeta_status_t fwdmeta_split_by_role(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time,
                                       int64_t batch_size, fwdmeta_batch_split_t* out) {
  return Guard([&] { return SplitByRole(seq_lens_encoder, seq_lens_this_time, batch_size, out); });
}

fwdmeta_status_t fwdmeta_reorder_by_role(const int32_t* seq_lens_encoder, const int32_t* seq_lens_this_time,
                                         int64_t batch_size, int32_t* order, int32_t* changed) {
  return Guard([&] { return ReorderByRole(seq_lens_encoder, seq_lens_this_time, batch_size, order, changed); });
}

fwdmeta_status_t fwdmeta_split_by_length(const fwdmeta_length_split_args_t* args, fwdmeta_batch_split_t* out) {
  return Guard([&] { return SplitByLength(args, out); });
}

fwdmeta_status_t fwdmeta_reorder_by_length(const int32_t* query_lens, const int32_t* computed,
                                           const int32_t* prompt_lens, int64_t num_reqs, int64_t threshold,
                                           int32_t* order, int32_t* changed) {
  return Guard([&] { return ReorderByLength(query_lens, computed, prompt_lens, num_reqs, threshold, order, changed); });
}

fwdmeta_status_t fwdmeta_local_attention(const fwdmeta_local_attention_args_t* args, int64_t capacity,
                                         int32_t* query_lens, int32_t* seq_lens, int32_t* block_table, int32_t* request,
                                         int64_t* count) {
  return Guard([&] { return LocalAttention(args, capacity, query_lens, seq_lens, block_table, request, count); });
}

fwdmeta_status_t fwdmeta_paged_indptr(const int32_t* seq_lens, int64_t num_reqs, int64_t page_size, int32_t* indptr,
                                      int32_t* last_page_len) {
  return Guard([&] { return PagedIndptr(seq_lens, num_reqs, page_size, indptr, last_page_len); });
}

fwdmeta_status_t fwdmeta_expand_block_table(const int32_t* blocks, int64_t count, int64_t block_size,
                                            int64_t kernel_block_size, int32_t* out) {
  return Guard([&] { return ExpandBlockTable(blocks, count, block_size, kernel_block_size, out); });
}

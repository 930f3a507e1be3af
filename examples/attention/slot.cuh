// A slot as a kernel sees it, read from the metadata alone.
#ifndef FWDMETA_EXAMPLES_ATTENTION_SLOT_CUH_
#define FWDMETA_EXAMPLES_ATTENTION_SLOT_CUH_

#include "attention.h"

namespace attention {

// True where no kernel of the step may write: a token of it has no page.
__device__ inline bool is_refused(const Step& step) { return *step.num_invalid_slots != 0; }

struct Slot {
  int id;
  int first_token;  // on the token axis
  int num_tokens;   // N
  int num_cached;   // D
  int num_rows;     // query rows of one KV head: N times the heads of a group
  const int32_t* pages;
};

__device__ inline Slot read_slot(const Step& step, int id) {
  const int first = step.cu_seqlens_q[id], count = step.cu_seqlens_q[id + 1] - first;
  return {
      id, first, count, step.seq_lens_kv[id] - count, count * step.group, step.block_table + id * step.table_stride};
}

// Where a query row is found: row r of KV head h is query head h * group + r % group of token r / group.
__device__ inline int64_t row_index(const Step& step, const Slot& slot, int kv_head, int row) {
  const int64_t token = slot.first_token + row / step.group;
  return token * (step.num_kv_heads * step.group) + kv_head * step.group + row % step.group;
}

// The position of a query row, which is the last key that it sees. Rows past the last are taken for the last.
__device__ inline int row_position(const Step& step, const Slot& slot, int row) {
  return slot.num_cached + min(row, slot.num_rows - 1) / step.group;
}

// The first element of a page's head in a cache.
template <class T, int kHeadDim>
__device__ const T* page_of_head(const Step& step, const void* cache, int32_t page, int kv_head) {
  return static_cast<const T*>(cache) + (int64_t{page} * step.num_kv_heads + kv_head) * step.page_size * kHeadDim;
}

__device__ inline bool is_page(const Step& step, int32_t page) { return page >= 0 && page < step.num_pages; }

}  // namespace attention

#endif  // FWDMETA_EXAMPLES_ATTENTION_SLOT_CUH_

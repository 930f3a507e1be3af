// The inputs of one build in the form that both backends read.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "plan/plan.h"

namespace fwdmeta {

template <class T>
struct Rows {
  const T* data;  // null: not given
  int64_t row_stride;
  int32_t width;
  const int32_t* row_lengths;

  FWDMETA_HD bool Contains(int32_t row, uint32_t column) const {
    if (column >= static_cast<uint32_t>(width)) return false;
    return row_lengths == nullptr || static_cast<int64_t>(column) < row_lengths[row];
  }
  FWDMETA_HD T At(int32_t row, uint32_t column) const { return data[row * row_stride + column]; }
};

struct Inputs {
  const int32_t *encoder, *decoder, *this_time;
  int32_t batch_size;
  int32_t num_padded_tokens;  // -1: the sum of N
  Rows<int64_t> input_ids, draft_tokens;
  Rows<int32_t> tables[FWDMETA_MAX_CACHE_GROUPS];
};

// The cache slot of a position; sets `invalid` where the table has no page for it (contract 4).
FWDMETA_HD int64_t SlotOfPosition(const PlanGroup& group, const Rows<int32_t>& table, int32_t row, uint32_t position,
                                  bool* invalid) {
  const PageAddress address = LocatePosition(group, position);
  *invalid = false;
  if (!address.local) return -1;
  const int32_t page = table.Contains(row, address.column) ? table.At(row, address.column) : -1;
  if (page < 0) {
    *invalid = true;
    return -1;
  }
  return static_cast<int64_t>(page) * group.page.divisor + address.offset;
}

// The id of token i of a slot; called where at least one of ids and drafts is given.
FWDMETA_HD int64_t IdOfToken(const Inputs& inputs, int32_t pad_token_id, int32_t row, bool prefill, uint32_t i,
                             bool* invalid) {
  const bool draft = !prefill && inputs.draft_tokens.data != nullptr;
  const Rows<int64_t>& rows = draft ? inputs.draft_tokens : inputs.input_ids;
  *invalid = rows.data == nullptr || !rows.Contains(row, i);
  return *invalid ? pad_token_id : rows.At(row, i);
}

}  // namespace fwdmeta

// The inputs of one build in the form that both backends read.
#pragma once

#include <cstdint>

#include "base/hd.h"
#include "batch/cut.h"
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
  // Of a slice, null in a batch that is none: per slot SlotCut::offset.
  const int32_t* offsets;
  // Of a slice of a batch with device lengths, else null: one number, the padding to report, which the host need not
  // know. num_padded_tokens is then the whole batch's, as a limit.
  const int32_t* num_padding;
  int32_t batch_size;
  int32_t num_padded_tokens;  // -1: the sum of N
  Rows<int64_t> input_ids, draft_tokens;
  Rows<int32_t> tables[FWDMETA_MAX_CACHE_GROUPS];
};

// A slot whose last token is in a later slice gives no output row.
FWDMETA_HD Slot SlotOfSlice(const Inputs& inputs, int32_t row, Slot slot) {
  if (inputs.offsets != nullptr && slot.prefill() && inputs.offsets[row] < 0) slot.encoder |= kUnfinished;
  return slot;
}
FWDMETA_HD int32_t NumPaddedTokens(const Inputs& inputs, int32_t num_tokens) {
  if (inputs.num_padding != nullptr) return num_tokens + *inputs.num_padding;
  return inputs.num_padded_tokens >= 0 ? inputs.num_padded_tokens : num_tokens;
}

// Where a position's cache slot comes from. The page has been asked for and not yet looked at, so that a kernel may do
// other work while it is on its way.
struct PageOfPosition {
  int32_t page;  // -1: outside the row, or none there
  uint32_t offset;
  bool local;  // false: on another context-parallel rank, and no page was asked for
};
FWDMETA_HD PageOfPosition LoadPage(const PlanGroup& group, const Rows<int32_t>& table, int32_t row, uint32_t position) {
  const PageAddress address = LocatePosition(group, position);
  const bool inside = address.local && table.Contains(row, address.column);
  return {inside ? table.At(row, address.column) : -1, address.offset, address.local};
}
// The cache slot; sets `invalid` where the table has no page for the position (contract 4).
FWDMETA_HD int64_t SlotOfPage(const PlanGroup& group, const PageOfPosition& at, bool* invalid) {
  *invalid = at.local && at.page < 0;
  return at.page < 0 ? -1 : static_cast<int64_t>(at.page) * group.page.divisor + at.offset;
}
FWDMETA_HD int64_t SlotOfPosition(const PlanGroup& group, const Rows<int32_t>& table, int32_t row, uint32_t position,
                                  bool* invalid) {
  return SlotOfPage(group, LoadPage(group, table, row, position), invalid);
}

// The id of token i of a slot; called where at least one of ids and drafts is given.
FWDMETA_HD int64_t IdOfToken(const Inputs& inputs, int32_t pad_token_id, int32_t row, bool prefill, uint32_t i,
                             bool* invalid) {
  if (inputs.offsets != nullptr) i += inputs.offsets[row] & INT32_MAX;
  const bool draft = !prefill && inputs.draft_tokens.data != nullptr;
  // Member by member: a choice between the two as wholes would be one of addresses, which a kernel has to wait for.
  const Rows<int64_t>&drafts = inputs.draft_tokens, &ids = inputs.input_ids;
  const Rows<int64_t> rows = {draft ? drafts.data : ids.data, draft ? drafts.row_stride : ids.row_stride,
                              draft ? drafts.width : ids.width, draft ? drafts.row_lengths : ids.row_lengths};
  *invalid = rows.data == nullptr || !rows.Contains(row, i);
  return *invalid ? pad_token_id : rows.At(row, i);
}

}  // namespace fwdmeta

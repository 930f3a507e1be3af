#include "context/arrays.h"

#include "batch/slot.h"

namespace fwdmeta {

Status CheckLengths(const int32_t* lengths, int32_t count, const char* name) {
  for (int32_t i = 0; i < count; ++i) {
    if (lengths[i] < 0) return Fail(FWDMETA_INVALID_BATCH, "%s[%d] is %d, below 0", name, i, lengths[i]);
  }
  return FWDMETA_OK;
}

Status SumLengths(const int32_t* lengths, int32_t count, const char* name, int32_t* sum) {
  int64_t total = 0;
  FWDMETA_TRY(CheckLengths(lengths, count, name));
  for (int32_t i = 0; i < count; ++i) {
    total += lengths[i];
    if (total > INT32_MAX) {
      return Fail(FWDMETA_INVALID_BATCH, "the sum of %s is %lld at entry %d, past %d", name, (long long)total, i,
                  INT32_MAX);
    }
  }
  *sum = static_cast<int32_t>(total);
  return FWDMETA_OK;
}

Status CheckRoles(const int32_t* encoder, const int32_t* this_time, int64_t batch_size, int32_t* num_tokens) {
  FWDMETA_TRY(CheckRange("batch_size", batch_size, 0));
  FWDMETA_TRY(CheckArray(encoder, batch_size, "seq_lens_encoder"));
  FWDMETA_TRY(CheckArray(this_time, batch_size, "seq_lens_this_time"));
  const int32_t count = static_cast<int32_t>(batch_size);
  for (int32_t i = 0; i < count; ++i) {
    if (SlotErrors(encoder[i], 0, this_time[i], INT32_MAX) == 0) continue;
    return Fail(FWDMETA_INVALID_BATCH, "slot %d: seq_lens_encoder is %d and seq_lens_this_time %d", i, encoder[i],
                this_time[i]);
  }
  return SumLengths(this_time, count, "seq_lens_this_time", num_tokens);
}

Status CheckRequests(const int32_t* query_lens, const int32_t* seq_lens, int32_t num_reqs, int32_t* num_tokens) {
  FWDMETA_TRY(SumLengths(query_lens, num_reqs, "query_lens", num_tokens));
  for (int32_t i = 0; i < num_reqs; ++i) {
    if (seq_lens[i] < query_lens[i]) {
      return Fail(FWDMETA_INVALID_BATCH, "request %d: seq_len %d is below its query_len %d", i, seq_lens[i],
                  query_lens[i]);
    }
  }
  return FWDMETA_OK;
}

}  // namespace fwdmeta

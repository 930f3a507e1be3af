#include "context/arrays.h"

namespace fwdmeta {

Status CheckRange(int64_t value, int64_t least, const char* name) {
  if (value >= least && value <= INT32_MAX) return FWDMETA_OK;
  return Fail(FWDMETA_INVALID_ARGUMENT, "%s is %lld, expected %lld..%d", name, (long long)value, (long long)least,
              INT32_MAX);
}

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
